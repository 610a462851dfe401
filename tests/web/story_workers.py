"""Several processes compress and judge what one takes: whatever happens to them, nothing is lost, and each verdict is
the one on the same bytes in a file."""

import os
import random
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from logdoctor import pipeline
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.store.database import Database
from logdoctor.store.log.table import LogTable
from logdoctor.store.names import Key
from tests import waiting
from tests.databases import databases, url_in
from tests.service.services import CORPUS
from tests.store.logs import LIMITS
from tests.web.conftest import Running, running_in
from tests.web.story_service_process import final

LOGS = sorted(CORPUS.glob("*/*.log"))[::9]
_LEASE = "2"


@pytest.fixture
def unstarted(tmp_path: Path) -> Iterator[Running]:
    """A service that does not run yet."""
    with running_in(tmp_path / "data") as running:
        yield running


def children(running: Running) -> list[int]:
    """The worker processes of a service."""
    assert running.process is not None
    found = subprocess.run(["pgrep", "-P", str(running.process.pid)], capture_output=True, check=False)
    return [int(word) for word in found.stdout.split()]


def still(running: Running, processes: list[int]) -> bool:
    """Whether processes stand still, none of them in the middle of a change, which would hold up all others."""
    tell(processes, signal.SIGSTOP)
    if databases.of_postgresql:  # which locks no more than rows
        return True
    with closing(sqlite3.connect(running.folder / "logdoctor.db", timeout=0.2, isolation_level=None)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
            return True
        except sqlite3.OperationalError:
            tell(processes, signal.SIGCONT)
            return False


def tell(processes: list[int], what: signal.Signals) -> None:
    for pid in processes:
        os.kill(pid, what)


def trouble(running: Running, chance: random.Random) -> None:
    """Kill a worker, or let it pause for longer than its lease."""
    pid = chance.choice(waiting.until(lambda: children(running)))
    if chance.random() < 0.5:
        os.kill(pid, signal.SIGKILL)
        waiting.until(lambda: pid not in children(running), "the service has seen its death")
        return
    waiting.until(lambda: still(running, [pid]))
    waiting.until(lambda: f'pid="{pid}"' not in running.client.get("/metrics").text, "its lease has ended")
    os.kill(pid, signal.SIGCONT)


def send(running: Running, path: Path, at: int, size: int) -> int:
    """Send the next part of a log, and its end behind the last; where it stands then."""
    log, job = path.read_bytes(), path.stem
    answer = running.client.post(
        f"/v1/jobs/{job}/attempts/1/streams/main/log", params={"offset": at}, content=log[at : at + size]
    )
    assert answer.status_code == 200, answer.text
    reached: int = answer.json()["next_offset"]
    if reached == len(log):
        assert running.client.post(f"/v1/jobs/{job}/attempts/1/end", json={}).status_code == 202
    return reached


@pytest.mark.parametrize("seed", [1])
def test_verdicts_are_the_same_whatever_dies(
    unstarted: Running, scanner: Scanner, limits: ReadLimits, seed: int
) -> None:
    chance, running = random.Random(seed), unstarted
    running.start("--port", "0", "--workers", "2", LOGDOCTOR_LEASE_SECONDS=_LEASE)
    places = dict.fromkeys(LOGS, 0)
    parts = 0
    while open_ := [path for path, at in places.items() if at < path.stat().st_size]:
        path = chance.choice(open_)
        places[path] = send(running, path, places[path], chance.randrange(1, 40_000))
        parts += 1
        if parts % 8 == 0:
            trouble(running, chance)
    for path in LOGS:
        wanted = pipeline.diagnose([pipeline.LogFile("main", path)], scanner, limits)
        found = waiting.until(lambda job=path.stem: final(running, job))["verdict"]  # type: ignore[misc]
        assert (found["reason"], found["fingerprint"]) == (wanted.reason, wanted.fingerprint), path
        assert found["compression"]["bytes_in"] == wanted.compression.bytes_in, path
        assert found["problems"] == list(wanted.problems), path
        whole = running.client.get(f"/v1/jobs/{path.stem}/attempts/1/streams/main/download")
        assert whole.status_code == 200 and whole.content == path.read_bytes(), path


def test_a_service_that_is_stopped_as_soon_as_it_serves_archives_what_it_took(running: Running) -> None:
    """Its worker takes seconds to begin."""
    log = LOGS[0].read_bytes()
    send(running, LOGS[0], 0, len(log) - 1)
    assert running.process is not None
    running.process.terminate()
    assert running.process.wait() == 0
    with closing(Database(url_in(running.folder / "logdoctor.db"))) as database:
        standing = LogTable(database, LIMITS).standing(Key(LOGS[0].stem, 1, "main"))
    assert standing.archived == standing.next == len(log) - 1


def test_workers_end_with_the_service_however_it_ends(unstarted: Running) -> None:
    running = unstarted.start("--port", "0", "--workers", "2")
    assert running.process is not None
    workers = waiting.until(lambda: found if len(found := children(running)) == 2 else None)
    running.process.kill()
    running.process.wait()
    waiting.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
