"""Alive, ready, and figures that count what happened."""

import math
from pathlib import Path
from typing import Any, NoReturn

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from logdoctor.errors import StoreError
from logdoctor.rules.scanner import Scanner
from logdoctor.service import figures as said_by_workers
from logdoctor.service.parts import Parts
from logdoctor.service.service import Service
from logdoctor.web.serve import once_a_minute
from tests import waiting
from tests.web.conftest import FAILED, Guarded, local_client, new_service


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
    waiting.until(lambda: figures(client)["streams"] == 4)
    now = figures(client)
    assert (now["bytes_in_total"], now["lines_in_total"]) == (4 * len(FAILED), 8)
    assert now["refused_total"] == 1
    assert 1 <= now["log_groups_total"] <= 4
    now = waiting.until(lambda: read if (read := figures(client))["unarchived_bytes"] == 4 * len(FAILED) else None)
    assert (now["streams"], now["attempts"]) == (4, 2)
    client.post("/v1/jobs/a/attempts/1/end", json={"exit_code": 1})
    waiting.until(lambda: figures(client)["verdicts_total"] == 1)
    waiting.until(lambda: figures(client)["unscanned_bytes"] == 0)
    waiting.until(lambda: figures(client)["scan_lag_seconds"] == 0)


def test_what_waits_is_told_by_a_process_that_judges_nothing(tmp_path: Path, scanner: Scanner) -> None:
    service = new_service(tmp_path, scanner, parts=Parts(scans=False))
    with local_client(service) as client:
        client.post("/v1/jobs/a/attempts/1/streams/x/log", params={"offset": 0}, content=FAILED)
        client.post("/v1/jobs/a/attempts/1/end", json={"exit_code": 1})
        now = figures(client)
        assert now["unjudged_attempts"] == 1 and now["verdict_lag_seconds"] >= 0
        assert now["log_limit_bytes"] == 64 << 20 and now["free_bytes"] > 1 << 20
        service.records.settle("a", 1)
        now = figures(client)
        assert (now["unjudged_attempts"], now["verdict_lag_seconds"]) == (0, 0)


def test_an_attempt_that_ends_without_bytes_does_not_wait_for_ever(client: TestClient) -> None:
    client.post("/v1/jobs/a/attempts/1/end", json={"exit_code": 1})
    waiting.until(lambda: figures(client)["unjudged_attempts"] == 0)


def test_figures_over_all_jobs_are_not_for_tokens_of_some(guarded: Guarded) -> None:
    assert "logdoctor_unjudged_attempts" in guarded.client.get("/metrics", headers=guarded.token("read")).text
    bound = guarded.client.get("/metrics", headers=guarded.token("admin", prefixes=("a",)))
    assert bound.status_code == 403 and "logdoctor_" not in bound.text


def test_it_is_ready_between_start_and_stop(tmp_path: Path, scanner: Scanner) -> None:
    client = local_client(new_service(tmp_path, scanner))
    assert client.get("/readyz").status_code == 503
    assert client.get("/readyz").headers["retry-after"]
    with client:
        assert client.get("/readyz").json() == {"status": "ready", "catching_up": False}
        client.app.state.stopping()  # type: ignore[attr-defined]
        assert client.get("/readyz").json()["error"]["code"] == "not_ready"
        assert client.get("/healthz").status_code == 200


def test_it_is_not_ready_while_the_database_is_away(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_database: object) -> NoReturn:
        raise StoreError("the database", "fails (connection refused)", "Check the server.")

    service.looking.stop()  # a look of its own thread that began before would find the database there
    with monkeypatch.context() as away:
        away.setattr(said_by_workers, "state_of", refused)
        service.looking._look_safely()
        answer = client.get("/readyz")
        assert answer.status_code == 503 and "its database cannot be reached" in answer.json()["error"]["cause"]
    service.looking._look_safely()
    assert client.get("/readyz").status_code == 200


def test_while_the_database_is_away_each_cause_is_logged_once_a_minute() -> None:
    now = [0.0]
    keep = once_a_minute(lambda: now[0])
    away = {"event": "log not written", "cause": "the database x fails (connection refused). Check it."}

    def logged(event: dict[str, Any]) -> Any:
        try:
            return keep(None, "error", event)
        except structlog.DropEvent:
            return None

    assert logged(away) == away
    assert [logged(away | {"event": name}) for name in ("request failed", "turn failed")] == [None, None]
    other = {"event": "attempt not judged", "cause": "the archive: it is full. Free some space."}
    assert [logged(other), logged(other)] == [other, other], "what is not of the database stays"
    now[0] = 61.0
    assert logged(away) == away | {"left_out": 2}


def labelled(client: TestClient, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one name that are not 0, by the values of their labels but the worker's."""
    found = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name == f"logdoctor_{name}" and sample.value:
                found[tuple(v for k, v in sorted(sample.labels.items()) if k != "worker")] = sample.value
    return found


def test_failures_open_incidents_and_how_late_verdicts_were(client: TestClient) -> None:
    for job in ("a", "b"):
        client.post(f"/v1/jobs/{job}/attempts/1/streams/x/log", params={"offset": 0}, content=FAILED)
        client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1})
    client.post("/v1/jobs/c/attempts/1/streams/x/log", params={"offset": 0}, content=b"done\n")
    client.post("/v1/jobs/c/attempts/1/end", json={"exit_code": 0})
    waiting.until(lambda: labelled(client, "verdict_seconds_count") == {(): 3})
    assert labelled(client, "failures_total") == {("Out of Memory Error",): 2}
    category = "Framework"  # of what FAILED says
    waiting.until(lambda: labelled(client, "open_incidents") == {(category, "new"): 1})
    buckets = labelled(client, "verdict_seconds_bucket")
    assert buckets["+Inf",] == 3 and labelled(client, "verdict_seconds_sum")[()] > 0
    # late bytes bring another final verdict on the same attempt, which is no other failure
    client.post("/v1/jobs/a/attempts/1/streams/x/log", params={"offset": len(FAILED)}, content=b"more\n")
    waiting.until(lambda: figures(client)["verdicts_total"] >= 4)
    waiting.until(lambda: client.get("/v1/jobs/a/attempts/1/verdict").json()["final"])
    assert labelled(client, "failures_total") == {("Out of Memory Error",): 2}
    client.post("/v1/incidents/1/acknowledge", json={})
    assert labelled(client, "open_incidents") == {(category, "acknowledged"): 1}
    client.post("/v1/incidents/1/resolve", json={})
    assert labelled(client, "open_incidents") == {}


def test_requests_are_counted_by_what_they_ask_for_and_never_by_names_of_others(client: TestClient) -> None:
    log = "/v1/jobs/{job}/attempts/{attempt}/streams/{stream}/log"
    for job in ("a", "b"):
        client.post(f"/v1/jobs/{job}/attempts/1/streams/x/log", content=b"line\n")
        client.post(f"/v1/jobs/{job}/attempts/1/streams/x/log", params={"offset": 99}, content=b"line\n")
        client.post(f"/v1/jobs/{job}/attempts/x/streams/x/log", content=b"line\n")
    for number in range(5):
        client.get(f"/no/such/{number}")
        client.request(f"VERB{number}", "/healthz")
    client.post("/v1/logs", content=b"{", headers={"Content-Type": "application/json"})
    client.put("/v1/jobs/a", content=b"{" * (2 << 20))
    client.get("/static/style.css")
    client.get("/incidents/77", headers={"Accept": "text/html"})
    counted = labelled(client, "http_requests_total")
    assert counted["POST", log, "2xx"] == 2 and counted["POST", log, "4xx"] == 4
    assert counted["GET", "none", "4xx"] == 5 and counted["GET", "/incidents/{id}", "4xx"] == 1
    assert counted["POST", "/v1/logs", "4xx"] == 1 and counted["GET", "/static", "2xx"] == 1
    assert not [labels for labels in counted if "VERB" in labels[0] or "such" in labels[1]]
    assert labelled(client, "sender_refusals_total") == {("409",): 2, ("422",): 2, ("400",): 1, ("413",): 1}
