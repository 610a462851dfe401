"""The metrics of any process that answers requests tell what all workers hold and did, and how the log stands."""

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from logdoctor.store.log.shards import shard_of
from tests import waiting
from tests.databases import databases
from tests.web.conftest import FAILED, Running
from tests.web.story_service_process import final
from tests.web.story_workers import children, still, tell
from tests.web.test_worker_metrics import Metrics

Runs = Callable[..., AbstractContextManager[Running]]


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
    running.start("--port", "0", "--workers", "2", LOGDOCTOR_LEASE_SECONDS="10")
    now = waiting.until(lambda: shared(running, 2))
    both = {now.pids()[pid] for pid in children(running)}
    me = now.pids()[running.process.pid]
    assert len(both) == 2 and now.pids().keys() == {running.process.pid, *children(running)}
    assert now.by("owned_shards") == {me: 0.0} | dict.fromkeys(both, 32.0)
    assert now.by("leads") == {me: 1.0} | dict.fromkeys(both, 0.0)
    assert now.one("workers") == now.one("shard_owners") == 2
    waiting.until(lambda: running.client.get("/readyz").json() == {"status": "ready", "catching_up": False})

    jobs = [f"job-{number}" for number in range(8)]
    for job in jobs:
        log = f"/v1/jobs/{job}/attempts/1/streams/main/log"
        assert running.client.post(log, params={"offset": 0}, content=FAILED).status_code == 200
    wanted = dict.fromkeys(map(str, range(64)), 0.0)
    for job in jobs:
        wanted[str(shard_of(job, 1))] += len(FAILED)
    waiting.until(lambda: metrics(running).by("log_bytes", "shard") == wanted)
    waiting.until(lambda: sum(metrics(running).by("unarchived_bytes").values()) == 8 * len(FAILED))
    for job in jobs:
        running.client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1})
    for job in jobs:
        waiting.until(lambda job=job: final(running, job))  # type: ignore[misc]
    after = waiting.until(lambda: at if sum((at := metrics(running)).by("verdicts_total").values()) == 8 else None)
    assert sum(after.by("scanned_bytes_total").values()) == 8 * len(FAILED)
    assert after.by("verdicts_total")[me] == 0
    waiting.until(lambda: max(metrics(running).by("scan_lag_seconds").values()) == 0)

    victim = children(running)[0]
    dead, before = after.pids()[victim], metrics(running)
    then = before.by("verdicts_total")
    other = (both - {dead}).pop()
    os.kill(victim, signal.SIGKILL)

    def is_forgotten() -> bool:  # once its lease ends; until then as it was, and never less
        told = metrics(running).by("verdicts_total")
        assert told.get(dead, then[dead]) == then[dead] and told[other] >= then[other]
        return dead not in told

    waiting.until(is_forgotten)
    now = metrics(running)
    assert not any(dead in one.labels.values() for one in now.samples)
    again = waiting.until(lambda: shared(running, 2))
    assert again.one("takeovers_total") >= before.one("takeovers_total") + 32
    new = set(again.pids().values()) - {me, other}
    assert len(new) == 1 and dead not in new
    assert again.by("verdicts_total")[other] >= then[other]


def test_a_worker_that_stands_still_is_seen(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits has nobody who would read it, and that can be told for how long."""
    monkeypatch.setattr(databases, "kind", "sqlite")
    with runs(LOGDOCTOR_LEASE_SECONDS="1") as running:
        _stand_still(running.start("--port", "0", "--workers", "2"))


def _stand_still(running: Running) -> None:
    waiting.until(lambda: shared(running, 2))
    stopped = children(running)
    waiting.until(lambda: still(running, stopped))
    log = "/v1/jobs/job/attempts/1/streams/main/log"
    assert running.client.post(log, params={"offset": 0}, content=FAILED).status_code == 200
    waiting.until(lambda: metrics(running).one("unowned_seconds") > 2.0)
    now = metrics(running)
    assert (now.one("workers"), now.one("shard_owners"), now.one("unowned_shards")) == (0, 0, 64)
    assert running.client.get("/readyz").json()["catching_up"]
    tell(stopped, signal.SIGCONT)
    waiting.until(lambda: not running.client.get("/readyz").json()["catching_up"])
    waiting.until(lambda: sum(metrics(running).by("scanned_bytes_total").values()) >= len(FAILED))
    waiting.until(lambda: metrics(running).one("unowned_seconds") == 0)
