"""Processes append to one log at once, and go on after their database was killed."""

import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from logdoctor.errors import StoreError
from logdoctor.store.database import Database
from logdoctor.store.log.table import LogTable, NewBytes
from tests import waiting
from tests.crash.appending import PUSHED, STREAMS, acknowledged, pushed_line
from tests.postgres import own_server
from tests.store.conftest import on_both
from tests.store.logs import KEY, LIMITS, appended, data_of, held, of_all, opened, sent
from tests.store.test_log import shard, whole

ROOT = Path(__file__).parents[2]


def appending(url: str, folder: Path) -> list["subprocess.Popen[bytes]"]:
    """Two processes that append to the same streams."""
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.crash.appending", url, str(folder / name), name],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=(folder / "messages").open("ab"),
        )
        for name in ("a", "b")
    ]


@on_both
def test_processes_and_threads_append_at_once(tmp_path: Path, url: str) -> None:
    """While they do, somebody says how far streams were scanned, which touches the same rows."""
    database = Database(url)
    log = LogTable(database, LIMITS)
    running, owned = appending(url, tmp_path), of_all(database)
    try:

        def said() -> bool:
            log.say({owned[shard(key)]: {key: (random.randrange(100), 1)} for key in random.sample(STREAMS, 9)})
            return is_enough(tmp_path)

        waiting.until(said, "both have appended")
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(300) for process in running] == [0, 0]
    assert (tmp_path / "messages").read_text() == "", "nobody was refused, and nobody died in a deadlock"
    check_appended(log, tmp_path)
    database.close()


def is_enough(folder: Path, lines: int = 30) -> bool:
    """Whether both processes have done something."""
    try:
        return all(acknowledged(folder / name)[1] >= lines for name in "ab")
    except (OSError, ValueError, struct.error):
        return False  # not written yet


def check_appended(log: LogTable, folder: Path) -> None:
    """What two processes were told is there once, and in order; nothing else is."""
    told = {name: acknowledged(folder / name) for name in "ab"}
    for place, key in enumerate(STREAMS):
        found = whole(log, key)
        assert found == data_of(key, 0, len(found)) and len(found) == log.standing(key).next
        assert len(found) >= max(offsets[place] for offsets, _ in told.values())
    lines = whole(log, PUSHED).splitlines(keepends=True)
    for name, (_, count) in told.items():
        mine = [line for line in lines if line.startswith(name.encode())]
        assert mine == [pushed_line(name, n) for n in range(len(mine))] and count <= len(mine) <= count + 1
    assert all(said == rows for said, rows in held(log._database).values())


def test_what_was_acknowledged_outlives_a_database_that_is_killed(tmp_path: Path) -> None:
    with own_server() as server:
        server.create("log")
        running = appending(server.url("log"), tmp_path)
        try:
            for turn in range(1, 4):
                waiting.until(lambda turn=turn: is_enough(tmp_path, 8 * turn), "both have appended")
                server.stop("immediate")
                server.start()
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            assert [process.wait(300) for process in running] == [0, 0]
        with opened(server.url("log"), tmp_path) as parts:
            check_appended(parts.log, tmp_path)


def test_what_a_killed_database_did_not_take_can_be_sent_again(tmp_path: Path) -> None:
    with own_server() as server:
        server.create("log")
        with opened(server.url("log"), tmp_path) as parts:
            sent(parts.log, KEY, b"one\n")
            server.stop("immediate")
            for call in (
                lambda: appended(parts.log, [NewBytes(KEY, 4, b"two\n")], 1.0),
                lambda: parts.log.standing(KEY),
                parts.log.heads,
                lambda: parts.log.read(shard(KEY), 0),
            ):
                with pytest.raises(StoreError):
                    call()
            server.start()
            assert appended(parts.log, [NewBytes(KEY, 4, b"two\n")], 1.0) == [8]
            assert whole(parts.log, KEY) == b"one\ntwo\n"
