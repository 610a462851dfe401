"""Logs go by age and size, the oldest first; verdicts stay."""

import os
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from logdoctor.errors import LimitReached, StoreError
from logdoctor.rules.scanner import Scanner
from logdoctor.service.retention import DEAD_LONGER, Rules
from logdoctor.service.service import Service
from logdoctor.store.incidents.notices import NewNotice, Notices
from logdoctor.store.jobs.records import End
from logdoctor.store.log.archive import AttemptSize
from logdoctor.store.log.shards import shard_of
from logdoctor.store.log.table import NewBytes
from logdoctor.store.names import Key
from logdoctor.store.schema import marks, parts, shards
from tests import waiting
from tests.diagnose.logs import ECC
from tests.service.disks import Away
from tests.service.services import PATIENT, end, final, killed, looked, plan, send

NOW = time.time()
DAY = 86_400.0


def filled(folder: Path, scanner: Scanner, rules: Rules) -> Service:
    """Four attempts of 20 kB, 4 days old to 1 day old, settled and out of memory; a fifth one is running."""
    service = Service(folder, scanner, plan(folder, PATIENT._replace(linger=0.0), retention=rules))
    service.start()
    for number in range(1, 6):
        key = Key("job", number, "s")
        send(service, key, os.urandom(10_000).hex().encode() + b"\n" + ECC.encode())
        if number < 5:
            end(service, key)
            final(service, key)
            waiting.until(lambda key=key: looked(service) and service.holding.idle(key.job, key.attempt))
        else:
            service.holding.archive(service.holding.attempts["job", 5])
        age(service, number, 5 - number)
    return service


def age(service: Service, number: int, days: float) -> None:
    with service.records.database.writing() as connection:
        connection.execute(sa.update(parts).where(parts.c.attempt == number).values(at=NOW - days * DAY))


def left(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "archive" / "job").iterdir())


def test_what_is_too_old_goes_and_the_verdict_stays(folder: Path, scanner: Scanner) -> None:
    service = filled(folder, scanner, Rules(2.5 * DAY, 0, 3600))
    verdicts = [service.records.current("job", number) for number in range(1, 5)]
    assert [size.attempt for size in service.retention.sweep(NOW)] == [1, 2]
    assert left(folder) == [3, 4, 5]
    assert [service.records.current("job", number) for number in range(1, 5)] == verdicts
    assert service.retention.sweep(NOW) == []
    assert [size.attempt for size in service.retention.sweep(NOW + 100 * DAY)] == [3, 4], "the running one stays"
    assert service.logs.lines(Key("job", 1, "s"), 1, 9, 1000).lines == []
    service.stop()


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 4])
def test_the_oldest_go_until_the_rest_fits(folder: Path, scanner: Scanner, kept: int) -> None:
    service = filled(folder, scanner, Rules(0, 0, 3600))
    sizes = {size.attempt: size.bytes for size in service.archive.sizes()}
    room = sizes[5] + sum(sizes[number] for number in range(5 - kept, 5))
    service.retention._rules = Rules(0, room, 3600)
    deleted = [size.attempt for size in service.retention.sweep(NOW)]
    assert deleted == list(range(1, 5 - kept))
    assert service.retention.bytes == room
    service.stop()


def test_old_notifications_go_and_those_that_were_given_up_stay_longer(folder: Path, scanner: Scanner) -> None:
    service = Service(folder, scanner, plan(folder, retention=Rules(0, 0, 3600, notices=DAY)))
    notices = Notices(service.records.database)
    for state in ("delivered", "dead", "waiting"):
        id = notices.enter_trial(NewNotice("ops", "{}", NOW, NOW + DAY), "u1", NOW).id
        if state != "waiting":
            notices.settle_notice(id, state, "", NOW)  # type: ignore[arg-type]
    left = [service.retention.forget(NOW + days * DAY) for days in (0, 1, 1.1, 3.9, DEAD_LONGER + 0.1, 999)]
    assert left == [0, 0, 1, 0, 1, 0]
    service.retention._rules = Rules(0, 0, 3600)
    assert service.retention.forget(NOW + 999 * DAY) == 0, "all are kept"
    service.stop()


def test_a_database_that_fails_holds_up_no_other_task(
    folder: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(folder, scanner, plan(folder, retention=Rules(0, 0, 0.01, notices=DAY)))
    counted: list[float] = []

    def failing(now: float) -> list[AttemptSize]:
        raise StoreError("the disk", "fails", "Wait.")

    def counting(now: float) -> int:
        counted.append(now)
        return 0

    monkeypatch.setattr(service.retention, "sweep", failing)
    monkeypatch.setattr(service.retention, "forget", counting)
    service.retention.start()
    waiting.until(lambda: len(counted) > 1)
    service.retention.stop()


def test_an_attempt_in_memory_stays_though_it_is_settled(folder: Path, scanner: Scanner) -> None:
    service = filled(folder, scanner, Rules(DAY / 2, 0, 3600))
    service.watch._timing = PATIENT
    service.holding.load("job", 1)
    assert [size.attempt for size in service.retention.sweep(NOW)] == [2, 3, 4]
    service.stop()


def test_only_the_owner_of_an_attempt_deletes_its_log(folder: Path, scanner: Scanner) -> None:
    """One who only thinks so is stopped in the database."""
    service = filled(folder, scanner, Rules(DAY / 2, 0, 3600))
    for owned in [service.holding.idle("job", number) for number in (1, 2)]:
        assert owned is not None
        with service.records.database.appending() as connection:
            taken = {"epoch": owned.epoch + 1, "until": 2e10}
            connection.execute(sa.update(shards).where(shards.c.shard == owned.shard).values(taken))
        if owned.shard == shard_of("job", 2):
            service.holding.lose(owned)
    verdict = service.records.current("job", 1)
    assert [size.attempt for size in service.retention.sweep(NOW)] == [3, 4]
    assert left(folder) == [1, 2, 5] and service.records.current("job", 1) == verdict
    for number in (1, 2):
        assert service.records.attempt("job", number).deleted is None
        assert len(service.logs.lines(Key("job", number, "s"), 1, 9, 1 << 20).lines) == 2
    service.stop()


def test_what_was_deleted_does_not_come_back(folder: Path, scanner: Scanner, tmp_path: Path) -> None:
    service = filled(folder, scanner, Rules(DAY / 2, 0, 3600))
    assert len(service.retention.sweep(NOW)) == 4
    with pytest.raises(LimitReached, match="its log was deleted, and its verdict is final"):
        service.intake.open(Key("job", 1, "s"))
    copy = killed(folder, tmp_path / "copy")
    service.stop()
    for place in (copy, folder):
        again = Service(place, scanner, plan(place))
        again.start()
        assert left(place) == [5]
        with pytest.raises(LimitReached, match="its log was deleted, and its verdict is final"):
            again.intake.open(Key("job", 1, "s"))
        assert again.streams("job", 1) == []
        before = again.records.current("job", 1)
        again.end("job", 1, End("", 9, None, None, 1.0))
        assert before is not None and again.records.current("job", 1) == before
        again.stop()


def test_objects_that_cannot_be_deleted_are_swept_later(folder: Path, scanner: Scanner) -> None:
    service = filled(folder, scanner, Rules(DAY / 2, 0, 3600))
    away = Away(folder / "archive")
    service.archive.objects, away.fails = away, True
    assert len(service.retention.sweep(NOW)) == 4
    with pytest.raises(LimitReached):
        service.intake.open(Key("job", 1, "s"))
    assert left(folder) == [1, 2, 3, 4, 5] and service.streams("job", 1) == []
    away.fails = False
    assert service.archive.sweep(time.time() + DAY) >= 4
    assert left(folder) == [5]
    service.stop()


def test_what_dead_workers_left_goes_and_old_marks(folder: Path, scanner: Scanner) -> None:
    service = filled(folder, scanner, Rules(0, 0, 3600))
    objects = {path for path in (folder / "archive").rglob("*") if path.is_file()}
    orphans = [folder / "archive" / "job" / "1" / name for name in ("000001-1-0a1b2c3d.zst", ".torn")]
    for path in orphans:
        path.write_bytes(b"of a worker that died")
        os.utime(path, (NOW - 7200, NOW - 7200))
    service.log.append([NewBytes(Key("job", 5, "s"), None, b"x", "old")], NOW - 2 * DAY)
    service.log.append([NewBytes(Key("job", 5, "s"), None, b"x", "new")], NOW)
    service.retention._next_tidying = 0.0
    service.retention.tidy(NOW)
    assert {path for path in (folder / "archive").rglob("*") if path.is_file()} >= objects
    assert not any(path.exists() for path in orphans)
    with service.records.database.reading() as connection:
        assert "old" not in set(connection.scalars(sa.select(marks.c.mark)))
        assert "new" in set(connection.scalars(sa.select(marks.c.mark)))
    service.stop()
