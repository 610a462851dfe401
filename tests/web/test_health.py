"""Alive, ready, and figures that count what happened."""

import math
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from logdoctor.rules.scanner import Scanner
from logdoctor.service.parts import Parts
from tests.web.conftest import FAILED, Guarded, local_client, new_service, wait_for


def figures(client: TestClient) -> dict[str, float]:
    """The service's own samples by name."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(answer.text))
    assert all(family.documentation and family.type != "unknown" for family in families)
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    assert all(math.isfinite(value) for value in samples.values())
    assert "process_resident_memory_bytes" in samples
    return {name.removeprefix("logdoctor_"): v for name, v in samples.items() if name.startswith("logdoctor_")}


def test_the_figures_count_what_happened(client: TestClient) -> None:
    standing = ("archive_bytes", "workers", "shard_owners", "owned_shards", "takeovers_total", "worker_info", "leads")
    used = figures(client)
    assert not any(
        value
        for name, value in used.items()
        if name not in (*standing, "worker_cpu_seconds_total", "free_bytes", "log_limit_bytes")
    )
    assert [used[name] for name in standing[1:]] == [1, 1, 64, 64, 1, 1]
    for job in ("a", "b"):
        for stream in ("x", "y"):
            log = f"/v1/jobs/{job}/attempts/1/streams/{stream}/log"
            assert client.post(log, params={"offset": 0}, content=FAILED).status_code == 200
    assert client.post(log, params={"offset": 0}, content=FAILED).status_code == 409
    wait_for(lambda: figures(client)["streams"] == 4)
    now = figures(client)
    assert (now["bytes_in_total"], now["lines_in_total"]) == (4 * len(FAILED), 8)
    assert now["refused_total"] == 1
    assert 1 <= now["log_groups_total"] <= 4
    now = wait_for(lambda: read if (read := figures(client))["unarchived_bytes"] == 4 * len(FAILED) else None)
    assert (now["streams"], now["attempts"]) == (4, 2)
    client.post("/v1/jobs/a/attempts/1/end", json={"exit_code": 1})
    wait_for(lambda: figures(client)["verdicts_total"] == 1)
    wait_for(lambda: figures(client)["unscanned_bytes"] == 0)
    assert figures(client)["scan_lag_seconds"] < 5


def test_what_waits_is_told_by_a_process_that_judges_nothing(tmp_path: Path, scanner: Scanner) -> None:
    service = new_service(tmp_path, scanner, parts=Parts(scans=False))
    with local_client(service) as client:
        client.post("/v1/jobs/a/attempts/1/streams/x/log", params={"offset": 0}, content=FAILED)
        client.post("/v1/jobs/a/attempts/1/end", json={"exit_code": 1})
        now = figures(client)
        assert now["unjudged_attempts"] == 1 and 0 <= now["verdict_lag_seconds"] < 60
        assert now["log_limit_bytes"] == 64 << 20 and now["free_bytes"] > 1 << 20
        service.records.settle("a", 1)
        now = figures(client)
        assert (now["unjudged_attempts"], now["verdict_lag_seconds"]) == (0, 0)


def test_an_attempt_that_ends_without_bytes_does_not_wait_for_ever(client: TestClient) -> None:
    client.post("/v1/jobs/a/attempts/1/end", json={"exit_code": 1})
    wait_for(lambda: figures(client)["unjudged_attempts"] == 0)


def test_figures_over_all_jobs_are_not_for_tokens_of_some(guarded: Guarded) -> None:
    names = [
        {line.split("{")[0].split()[0] for line in guarded.client.get("/metrics", headers=token).text.splitlines()}
        for token in (guarded.token("read"), guarded.token("read", prefixes=("a",)))
    ]
    assert "logdoctor_unjudged_attempts" in names[0] - names[1]


def test_figures_need_a_token(guarded: Guarded) -> None:
    assert guarded.client.get("/metrics").status_code == 401
    assert guarded.client.get("/metrics", headers=guarded.token("ingest")).status_code == 403
    assert guarded.client.get("/metrics", headers=guarded.token("read")).status_code == 200
    assert guarded.client.get("/healthz").json() == {"status": "ok"}
    assert guarded.client.get("/readyz").status_code == 200


def test_it_is_ready_between_start_and_stop(tmp_path: Path, scanner: Scanner) -> None:
    client = local_client(new_service(tmp_path, scanner))
    assert client.get("/readyz").status_code == 503
    assert client.get("/readyz").headers["retry-after"]
    with client:
        assert client.get("/readyz").json() == {"status": "ready", "catching_up": False}
        client.app.state.stopping()  # type: ignore[attr-defined]
        assert client.get("/readyz").json()["error"]["code"] == "not_ready"
        assert client.get("/healthz").status_code == 200
