"""Workers and appenders that die or stand still for longer than their leases (more in tests/soak/test_chaos.py); and
one that dies between its object and the commit that lists it."""

import os
import time
from pathlib import Path

from logdoctor.store.log.archive import Archive, StreamPiece
from logdoctor.store.log.table import DoneRows
from logdoctor.store.names import IDENTITY
from tests.crash.chaos import check
from tests.store.logs import KEY, data_of, opened, owner_of, sent


def test_workers_that_die_and_pause_lose_and_double_nothing(tmp_path: Path, seed: int, soaking: bool) -> None:
    check(f"sqlite:///{tmp_path}/log.sqlite", tmp_path, seed, 200 if soaking else 4)


def test_a_worker_that_dies_between_object_and_commit_leaves_an_orphan_and_no_damage(
    tmp_path: Path, database_url: str
) -> None:
    data = data_of(KEY, 0, 5000)
    gone = KEY.job, KEY.attempt, [StreamPiece(KEY.stream, 0, 1, data)]
    with opened(database_url, tmp_path / "archive") as here:
        sent(here.log, KEY, data)
        dead = owner_of(here.database, KEY, "dead")
    if (child := os.fork()) == 0:
        with opened(database_url, tmp_path / "archive") as here:
            put = here.objects.put

            def put_and_die(name: str, data: bytes) -> None:
                put(name, data)
                if name != IDENTITY:
                    os._exit(9)

            here.objects.put = put_and_die  # type: ignore[method-assign]
            Archive(here.database, here.objects).store(DoneRows(dead, 1), *gone)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with opened(database_url, tmp_path / "archive") as here:
        heir = owner_of(here.database, KEY, "heir")
        assert here.log.standing(KEY).archived == 0 and here.archive.streams("job", 1) == []
        here.archive.store(DoneRows(heir, 1), *gone)
        assert len([facts for facts in here.objects.walk() if facts.name != IDENTITY]) == 2
        assert here.archive.sweep(time.time() + 7200.0) == 1
        assert here.archive.open(KEY).read(0, 9999) == data and here.log.read(heir.shard, 0) == []
