"""One attempt is one trace, whichever processes take, compress, judge and act; and no collector holds them up."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from logdoctor.tracing import trace_id
from tests import waiting
from tests.collectors import Collector, SeenSpan, answering, collector
from tests.databases import databases
from tests.web.conftest import FAILED, Running, running_in
from tests.web.story_service_process import final
from tests.web.story_workers import children

Runs = Callable[..., AbstractContextManager[Running]]
STEPS = {"post", "append", "scan", "judge", "publish", "act", "notify"}


def fail(running: Running, job: str) -> None:
    """Send a log that has a cause, and its end."""
    log = f"/v1/jobs/{job}/attempts/1/streams/rank-0/log"
    assert running.client.post(log, params={"offset": 0}, content=FAILED).status_code == 200
    assert running.client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1}).status_code == 202


def whole(seen: Collector, job: str, steps: set[str]) -> dict[str, list[SeenSpan]]:
    """The trace of an attempt, once it has spans of all these names."""
    trace = f"{trace_id(job, 1):032x}"
    waiting.until(lambda: seen.of(trace).keys() >= steps)
    return seen.of(trace)


def pids(spans: list[SeenSpan]) -> set[int]:
    return {one.pid for one in spans}


def check(seen: Collector, found: dict[str, list[SeenSpan]], job: str, web: int) -> set[int]:
    """What is true of every trace; who judged."""
    spans = [one for of_name in found.values() for one in of_name]
    assert all(one.attributes["job"] == job and one.attributes["attempt"] == 1 for one in spans)
    assert {one.trace for one in seen.spans() if one.attributes["job"] == job} == {f"{trace_id(job, 1):032x}"}
    assert all(one.begin <= one.end for one in spans)
    assert pids(found["post"]) == pids(found["append"]) == pids(found["act"]) == {web}
    assert found["post"][0].attributes["stream"] == found["scan"][0].attributes["stream"] == "rank-0"
    assert sum(one.attributes["bytes"] for one in found["scan"]) == len(FAILED)
    last = [one for one in found["publish"] if one.attributes["final"]][-1]
    assert last.attributes["reason"] == "Out of Memory Error"
    (judge,) = (one for one in found["judge"] if one.span == last.parent)
    assert judge.begin <= last.begin and last.end <= judge.end and judge.pid == last.pid
    assert pids(found["scan"]) == {judge.pid}
    told = b"".join(seen.bodies)
    assert b"CUDA" not in told and b"iteration" not in told and b"GiB" not in told  # no text of a log
    return {judge.pid}


def test_the_trace_of_an_attempt_goes_through_all_processes(runs: Runs) -> None:
    with collector() as seen, collector() as chat:
        settings = {"LOGDOCTOR_OTLP_URL": seen.url, "LOGDOCTOR_NOTIFY_SLACK": f"ops={chat.url}/services/x"}
        with runs(**settings, LOGDOCTOR_NOTIFY_SETTLE_SECONDS="0.1") as running:
            running.start("--port", "0", "--workers", "2")
            assert running.process is not None
            workers = set(waiting.until(lambda: found if len(found := children(running)) == 2 else None))
            jobs = [f"job-{number}" for number in range(6)]
            for job in jobs:
                fail(running, job)
            judged = set()
            for job in jobs:  # one incident is told of once, by the attempt that began it
                found = whole(seen, job, STEPS - {"notify"})
                judged |= check(seen, found, job, running.process.pid)
            assert judged <= workers
            (told,) = waiting.until(lambda: [one for one in seen.spans() if one.name == "notify"])
            assert told.attributes["job"] in jobs and told.attributes["outcome"] == "taken"
            assert told.attributes["target"] == "ops" and told.pid == running.process.pid
            assert running.stop() == 0


@contextmanager
def another_worker(running: Running, folder: Path) -> Iterator[int]:
    """The id of a worker process with a data folder of its own, and the settings of the service."""
    command = [sys.executable, "-m", "logdoctor.cli", "worker", "--data-dir", str(folder)]
    with subprocess.Popen(command, env=dict(running.environment), stderr=subprocess.DEVNULL) as worker:
        try:
            yield worker.pid
        finally:
            worker.terminate()
            assert worker.wait() == 0


def test_the_trace_of_an_attempt_goes_through_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "kind", "postgresql")
    settings = {"LOGDOCTOR_ARCHIVE_URL": str(tmp_path / "archive"), "LOGDOCTOR_LEASE_SECONDS": "30"}
    with collector() as seen, running_in(tmp_path / "data", **settings, LOGDOCTOR_OTLP_URL=seen.url) as running:
        running.start("--port", "0", "--role", "web")
        assert running.process is not None
        with another_worker(running, tmp_path / "other") as worker:
            waiting.until((tmp_path / "other" / "alive").exists)
            for job in ("job-1", "job-2"):
                fail(running, job)
                found = whole(seen, job, STEPS - {"notify"})
                assert check(seen, found, job, running.process.pid) == {worker}
            waiting.until(lambda: f'pid="{worker}"' in running.client.get("/metrics").text)
            waiting.until(lambda: "logdoctor_unowned_shards 0.0" in running.client.get("/metrics").text)
        assert running.stop() == 0


def hang(connection: socket.socket) -> None:
    while connection.recv(65536):
        continue


def garbage(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"\x00\xff no HTTP\r\n\r\n" * 1000)


@pytest.mark.parametrize("what", [None, hang, garbage])
def test_a_collector_that_is_down_or_hangs_holds_up_nothing(runs: Runs, what: Callable[..., None] | None) -> None:
    with answering(what or hang) as url:
        url = url if what else "http://127.0.0.1:9"
        with runs(LOGDOCTOR_OTLP_URL=url) as running:
            running.start("--port", "0", "--workers", "2")
            jobs = [f"job-{number}" for number in range(20)]
            for job in jobs:
                fail(running, job)
            for job in jobs:
                assert waiting.until(lambda job=job: final(running, job))["verdict"]["reason"] == "Out of Memory Error"  # type: ignore[misc]
                log = f"/v1/jobs/{job}/attempts/1/streams/rank-0/log"
                assert running.client.get(log, params={"line": "1-10"}).content == FAILED
            assert not [one for one in running.said() if one["level"] == "error"]
            assert running.stop() == 0


def test_what_fastapi_would_send_by_itself_is_not_sent(runs: Runs) -> None:
    with collector() as seen:
        others = {"OTEL_EXPORTER_OTLP_ENDPOINT": seen.url, "FASTAPI_OTEL_AUTO_CONFIGURE": "true"}
        with runs(**others, OTEL_BSP_SCHEDULE_DELAY="10", OTEL_METRIC_EXPORT_INTERVAL="10") as running:
            running.start()
            fail(running, "job")
            assert running.client.post("/v1/jobs/job/attempts/1/end", json={"exit_code": "secret"}).status_code == 422
            waiting.until(lambda: final(running, "job"))
            assert running.stop() == 0
        assert seen.bodies == []
