"""The metrics of any process that answers requests tell what all workers hold and did, and how the log stands."""

import os
import signal
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from starlette.testclient import TestClient

from logdoctor.rules.scanner import Scanner
from logdoctor.service.figures import ProcessFigures
from logdoctor.store.schema import workers
from logdoctor.store.shards import shard_of
from tests.databases import databases
from tests.web.conftest import FAILED, Guarded, Running, local_client, new_service, options, wait_for
from tests.web.test_service_process import final
from tests.web.test_workers import children

Runs = Callable[..., AbstractContextManager[Running]]


class Metrics:
    """What /metrics says at a moment."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        assert all(family.documentation and family.type != "unknown" for family in families)
        self.samples: list[Sample] = [sample for family in families for sample in family.samples]

    def by(self, name: str, label: str = "worker") -> dict[str, float]:
        """The values of a metric by one of its labels."""
        found = [one for one in self.samples if one.name == f"logdoctor_{name}"]
        assert len({tuple(one.labels.items()) for one in found}) == len(found)
        return {one.labels.get(label, ""): one.value for one in found}

    def one(self, name: str) -> float:
        """The value of a metric without labels."""
        return self.by(name)[""]

    def pids(self) -> dict[int, str]:
        """The worker of each process."""
        return {
            int(one.labels["pid"]): one.labels["worker"] for one in self.samples if one.name == "logdoctor_worker_info"
        }


def metrics(running: Running) -> Metrics:
    return Metrics(running.client.get("/metrics").text)


def shared(running: Running, count: int) -> Metrics | None:
    """The metrics, once so many workers share the shards."""
    now = metrics(running)
    owned = [value for value in now.by("owned_shards").values() if value]
    return now if owned == [64 / count] * count and now.one("unowned_shards") == 0 else None


def test_any_process_tells_what_its_workers_hold_and_did(running: Running) -> None:
    assert running.process is not None
    running.stop()
    running.start("--port", "0", "--workers", "2", LOGDOCTOR_LEASE_SECONDS="2")
    now = wait_for(lambda: shared(running, 2))
    both = {now.pids()[pid] for pid in children(running)}
    me = now.pids()[running.process.pid]
    assert len(both) == 2 and now.pids().keys() == {running.process.pid, *children(running)}
    assert now.by("owned_shards") == {me: 0.0} | dict.fromkeys(both, 32.0)
    assert now.by("leads") == {me: 1.0} | dict.fromkeys(both, 0.0)
    assert now.one("workers") == now.one("shard_owners") == 2
    wait_for(lambda: running.client.get("/readyz").json() == {"status": "ready", "catching_up": False})

    jobs = [f"job-{number}" for number in range(8)]
    for job in jobs:
        log = f"/v1/jobs/{job}/attempts/1/streams/main/log"
        assert running.client.post(log, params={"offset": 0}, content=FAILED).status_code == 200
    seen = wait_for(lambda: at if sum((at := metrics(running)).by("scanned_bytes_total").values()) else None)
    waiting = seen.by("log_bytes", "shard")
    wanted: dict[str, float] = defaultdict(float)
    for job in jobs:
        wanted[str(shard_of(job, 1))] += len(FAILED)
    assert waiting.keys() == {str(shard) for shard in range(64)}
    assert {shard: size for shard, size in waiting.items() if size} == wanted
    wait_for(lambda: sum(metrics(running).by("unarchived_bytes").values()) == 8 * len(FAILED))
    for job in jobs:
        running.client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1})
    for job in jobs:
        wait_for(lambda job=job: final(running, job))  # type: ignore[misc]
    after = wait_for(lambda: at if sum((at := metrics(running)).by("verdicts_total").values()) == 8 else None)
    assert sum(after.by("scanned_bytes_total").values()) == 8 * len(FAILED)
    assert after.by("verdicts_total")[me] == 0 and max(after.by("scan_lag_seconds").values()) < 5

    victim = children(running)[0]
    dead, before = after.pids()[victim], metrics(running)
    other = (both - {dead}).pop()
    os.kill(victim, signal.SIGKILL)
    while dead in (now := metrics(running)).by("verdicts_total"):  # until its lease ends, as it was; never less
        assert now.by("verdicts_total")[dead] == before.by("verdicts_total")[dead]
        assert now.by("verdicts_total")[other] >= before.by("verdicts_total")[other]
        time.sleep(0.1)
    assert not any(dead in one.labels.values() for one in now.samples)
    again = wait_for(lambda: shared(running, 2))
    assert again.one("takeovers_total") >= before.one("takeovers_total") + 32
    new = set(again.pids().values()) - {me, other}
    assert len(new) == 1 and dead not in new
    assert again.by("verdicts_total")[other] >= before.by("verdicts_total")[other]


def tell(processes: list[int], what: signal.Signals) -> None:
    for pid in processes:
        os.kill(pid, what)


def still(running: Running, processes: list[int]) -> bool:
    """Whether processes stand still, none of them in the middle of a change, which would hold up all others."""
    tell(processes, signal.SIGSTOP)
    with closing(sqlite3.connect(running.folder / "logdoctor.db", timeout=0.2, isolation_level=None)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
            return True
        except sqlite3.OperationalError:
            tell(processes, signal.SIGCONT)
            return False


def test_a_worker_that_stands_still_is_seen(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits has nobody who would read it, and that can be told for how long."""
    monkeypatch.setattr(databases, "kind", "sqlite")
    with runs(LOGDOCTOR_LEASE_SECONDS="1") as running:
        _stand_still(running.start("--port", "0", "--workers", "2"))


def _stand_still(running: Running) -> None:
    wait_for(lambda: shared(running, 2))
    stopped = children(running)
    wait_for(lambda: still(running, stopped))
    log = "/v1/jobs/job/attempts/1/streams/main/log"
    assert running.client.post(log, params={"offset": 0}, content=FAILED).status_code == 200
    wait_for(lambda: metrics(running).one("unowned_seconds") > 2.0)
    now = metrics(running)
    assert (now.one("workers"), now.one("shard_owners"), now.one("unowned_shards")) == (0, 0, 64)
    assert running.client.get("/readyz").json()["catching_up"]
    tell(stopped, signal.SIGCONT)
    wait_for(lambda: not running.client.get("/readyz").json()["catching_up"])
    wait_for(lambda: sum(metrics(running).by("scanned_bytes_total").values()) >= len(FAILED))
    assert metrics(running).one("unowned_seconds") == 0


def test_labels_are_bounded_whatever_comes(tmp_path: Path, scanner: Scanner) -> None:
    service = new_service(tmp_path / "data", scanner)
    with local_client(service) as client:

        def samples_after(names: list[str]) -> int:
            for name in names:
                path = f"/v1/jobs/{quote(name, safe='')}/attempts/1/streams/{quote(name[::-1], safe='')}/log"
                client.post(path, params={"offset": 0}, content=FAILED)
            client.get("/metrics")
            return len(Metrics(client.get("/metrics").text).samples)

        odd = ['a"b\\', "new\nline", "{}", "größe", "x" * 200, "*"]
        begin = samples_after(odd)  # each route and kind of answer once
        assert samples_after([f"job-{number}" for number in range(200)]) == begin

        invented = ProcessFigures(model_calls={f"result-{n}": 1 for n in range(500)}, spans={"evil\n": 7})
        texts = ["", "nonsense", '{"streams":"many"}', "[1]", msgspec.json.encode(invented).decode(), '{"later":1}']
        with service.records.database.appending() as connection:
            told = {"rulebook": "", "until": 9e9}
            rows = [{**told, "worker": f"{n:016x}"[::-1], "figures": texts[n % len(texts)]} for n in range(1000)]
            connection.execute(sa.insert(workers), rows)
        service.looking._look()
        many = Metrics(client.get("/metrics").text)
        assert 100 < len(many.by("verdicts_total")) <= 129
        labels = defaultdict(set)
        for one in many.samples:
            for label, value in one.labels.items():
                if one.name.startswith("logdoctor_"):
                    labels[label].add(value)
        ours = {"worker", "shard", "result", "direction", "rule", "guard", "status", "host", "pid"}
        assert labels.keys() <= ours | {"method", "route", "reason", "category", "state", "le"}
        assert not any("job-" in value or "größe" in value for values in labels.values() for value in values)
        assert len(labels["route"]) < 10 and len(labels["reason"]) <= 129
        assert len(labels["shard"]) == 64 and not any("evil" in one or "result-" in one for one in labels["result"])
        assert all(len(one) <= 8 for one in labels["worker"])


def test_who_may_see_some_jobs_sees_nothing_of_the_others(guarded: Guarded) -> None:
    bound = Metrics(guarded.client.get("/metrics", headers=guarded.token("read", prefixes=("a-",))).text)
    names = {one.name for one in bound.samples}
    assert "logdoctor_streams" in names and not names & {"logdoctor_log_bytes", "logdoctor_workers"}


def test_nothing_is_told_of_others_while_the_database_is_away(tmp_path: Path, scanner: Scanner) -> None:
    service = new_service(tmp_path / "data", scanner)
    with TestClient(local_client(service, options()).app, base_url="http://127.0.0.1") as client:
        assert Metrics(client.get("/metrics").text).one("workers") == 1
        service.looking._looked -= 11.0  # as if no look had succeeded since
        service.looking._turns.stop()
        now = Metrics(client.get("/metrics").text)
        assert not now.by("workers") and not now.by("log_bytes") and now.by("streams") == {service.worker: 0.0}
