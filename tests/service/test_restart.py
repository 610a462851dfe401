"""A service that was stopped, killed or lost its last writes goes on where it was; damage costs what is damaged."""

import os
import random
import shutil
import sqlite3
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from logdoctor import pipeline
from logdoctor.errors import StoreError
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.service import holding
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import End, Records
from logdoctor.store.keeping.repair import Repair
from logdoctor.store.log import archive
from logdoctor.store.log.archive import FRAME
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.log.shards import Leases, shard_of
from logdoctor.store.names import Key
from tests import waiting
from tests.diagnose.logs import ECC, steps
from tests.service.disks import Away
from tests.service.services import (
    CORPUS,
    DAY,
    PATIENT,
    end,
    final,
    killed,
    looked,
    plain,
    plan,
    scanned,
    send,
    serving,
)

KEY = Key("job", 1, "rank 0")
OTHER = Key("other", 1, "rank 0")
STEPS, FATAL = steps(1, 30).encode(), ECC.encode()


def objects(folder: Path, key: Key = KEY) -> list[Path]:
    """The objects of an attempt's archive, in order."""
    return sorted((folder / "archive" / key.job / str(key.attempt)).glob("*.zst"))


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def damage_row(folder: Path, key: Key, place: int) -> None:
    """Overwrite the middle of a row of the log, the first being 0."""
    with sqlite3.connect(folder / "logdoctor.db", isolation_level=None) as database:
        query = "SELECT seq, frame FROM log WHERE shard = ? ORDER BY seq"
        seq, frame = database.execute(query, (shard_of(key.job, key.attempt),)).fetchall()[place]
        half = len(frame) // 2
        damaged = frame[:half] + bytes(8) + frame[half + 8 :]
        assert damaged != frame
        database.execute("UPDATE log SET frame = ? WHERE shard = ? AND seq = ?", (damaged, shard_of(*key[:2]), seq))


def rows(folder: Path, key: Key = KEY) -> int:
    with sqlite3.connect(folder / "logdoctor.db") as database:
        query = "SELECT count(*) FROM log WHERE shard = ?"
        return int(database.execute(query, (shard_of(key.job, key.attempt),)).fetchone()[0])


def bytes_of(service: Service, key: Key) -> bytes:
    return b"".join(line + b"\n" for line in service.logs.lines(key, 1, 1 << 40, 1 << 30).lines)


@pytest.fixture(scope="module")
def large() -> bytes:
    """Some MiB of steps that end badly."""
    text = steps(1, 40_000).encode()
    assert len(text) > 8 << 20
    return text + FATAL


def test_a_death_between_the_object_and_its_listing_doubles_nothing(tmp_path: Path, scanner: Scanner) -> None:
    """The object is there and nobody knows it; the log still has its bytes."""
    unheard = Away(tmp_path / "data" / "archive", answers=False)
    with serving(tmp_path / "data", scanner) as service:
        service.archive.objects, unheard.fails = unheard, True
        for part in (STEPS, FATAL):
            send(service, KEY, part)
            service.holding.archive(service.holding.attempts["job", 1])
        copy = killed(tmp_path / "data", tmp_path / "copy")
        unheard.fails = False
    assert len(objects(copy)) == 2
    with serving(copy, scanner) as service:
        assert bytes_of(service, KEY) == STEPS + FATAL
        end(service, KEY)
        verdict = final(service, KEY).verdict
        assert verdict.reason == "ECC Error" and not verdict.problems
        assert verdict.compression.bytes_in == len(STEPS + FATAL)
        service.holding.archive_all()
        assert len(objects(copy)) == 3
        assert service.archive.sweep(time.time()) == 0, "it may be about to be listed"
        assert service.archive.sweep(time.time() + 7200) == 2
        assert bytes_of(service, KEY) == STEPS + FATAL


def test_an_empty_append_and_a_kill(tmp_path: Path, scanner: Scanner) -> None:
    with serving(tmp_path / "data", scanner) as service:
        send(service, KEY, b"")
        send(service, OTHER, FATAL)
        copy = killed(tmp_path / "data", tmp_path / "copy")
    with serving(copy, scanner) as service:
        assert bytes_of(service, OTHER) == FATAL
        send(service, KEY, FATAL)


def test_many_small_appends_are_read_again_in_time(tmp_path: Path, scanner: Scanner) -> None:
    lines = [b"%049d\n" % n for n in range(20_000)]
    with serving(tmp_path / "data", scanner) as service:
        service.intake.open(KEY)
        for n, line in enumerate(lines):
            future = service.intake.take(KEY, 50 * n, line)
        future.result()
        copy = killed(tmp_path / "data", tmp_path / "copy")
    begun = time.process_time()
    with serving(copy, scanner) as service:
        assert bytes_of(service, KEY) == b"".join(lines)
    assert time.process_time() - begun < 30.0


@pytest.mark.in_sqlite
def test_stopping_leaves_nothing_in_the_log(tmp_path: Path, scanner: Scanner) -> None:
    with serving(tmp_path / "data", scanner) as service:
        send(service, KEY, STEPS)
        end(service, OTHER)
    with serving(tmp_path / "data", scanner) as service:
        assert service.log.heads()[shard_of(*KEY[:2])] == (1, 0, 0)
        assert rows(tmp_path / "data") == rows(tmp_path / "data", OTHER) == 0


@pytest.mark.parametrize("graceful", [True, False])
def test_a_restart_reads_only_what_is_behind_the_snapshot(
    tmp_path: Path, scanner: Scanner, large: bytes, graceful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies before it may be unreadable, and nobody notices."""
    monkeypatch.setattr(holding, "_DUE", FRAME)  # so that there are many objects
    folder = tmp_path / "data"
    with serving(folder, scanner) as service:
        for begin in range(0, len(large), 1 << 20):
            send(service, KEY, large[begin : begin + (1 << 20)])
        scanned(service)
        if not graceful:
            service.holding.archive_all()  # so that the kill leaves the whole archive
            copy = killed(folder, tmp_path / "copy")
    folder = folder if graceful else copy
    for path in objects(folder)[:3]:
        zero(path)
    with serving(folder, scanner) as service:
        end(service, KEY)
        verdict = final(service, KEY).verdict
    assert verdict.reason == "ECC Error" and verdict.evidence[0].line == 40_000
    assert verdict.compression.bytes_in == len(large) and not verdict.problems


def test_a_snapshot_may_be_ahead_of_the_archive(
    tmp_path: Path, scanner: Scanner, large: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the log has what lies behind it, and nothing before it is read again."""
    monkeypatch.setattr(holding, "_DUE", FRAME)
    folder = tmp_path / "data"
    with serving(folder, scanner) as service:
        send(service, KEY, large[: 2 << 20])
        waiting.until(lambda: service.logs.standing(KEY).archived)
        monkeypatch.setattr(service.archive, "store", refused)
        for begin in range(2 << 20, len(large), 1 << 20):
            send(service, KEY, large[begin : begin + (1 << 20)])
        scanned(service)
        waiting.until(lambda: service.logs.standing(KEY).state)
        copy = killed(folder, tmp_path / "copy")
        assert 0 < service.logs.standing(KEY).archived < 4 << 20
        monkeypatch.undo()
    for path in objects(copy):
        zero(path)
    with serving(copy, scanner) as service:
        end(service, KEY)
        verdict = final(service, KEY).verdict
    assert verdict.reason == "ECC Error" and verdict.evidence[0].line == 40_000
    assert verdict.compression.bytes_in == len(large) and not verdict.problems


def refused(*_: object) -> None:
    raise StoreError("the archive", "it cannot be written", "Wait.")


def test_only_a_snapshot_that_fits_is_used(tmp_path: Path, scanner: Scanner, large: bytes, limits: ReadLimits) -> None:
    folder, log = tmp_path / "data", large[-(1 << 20) :]
    with serving(folder, scanner) as service:
        send(service, KEY, log)
        scanned(service)
    (state,) = (folder / "archive").rglob("*.state")
    whole = state.read_bytes()
    (tmp_path / "log").write_bytes(log)
    wanted = plain(pipeline.diagnose([pipeline.LogFile("rank 0", tmp_path / "log")], scanner, limits))
    chance = random.Random(5)
    places = [chance.randrange(len(whole)), whole.index(b"uncorrectable ECC"), len(whole) - 2]
    flipped = [bytearray(whole) for _ in places]
    for damaged, place in zip(flipped, places, strict=True):
        damaged[place] ^= 1 << chance.randrange(5)
    number = 0
    for other in (whole, b"", whole[: len(whole) // 2], *map(bytes, flipped), *strange(whole)):
        number += 1
        state.write_bytes(other)
        copy = killed(folder, tmp_path / str(number))
        with serving(copy, scanner) as service:
            end(service, KEY)
            assert plain(final(service, KEY).verdict) == wanted


def strange(snapshot: bytes) -> list[bytes]:
    """Whole snapshots of another version or rule book, that would be wrong here."""
    made = []
    for place, value in ((0, 99), (1, "other rules")):
        fields = msgspec.msgpack.decode(snapshot[4:])
        fields[place] = value
        fields[2:4] = 0, 1  # everything would be counted twice
        packed = msgspec.msgpack.encode(fields)
        made.append(zlib.crc32(packed).to_bytes(4, "little") + packed)
    return made


@pytest.mark.in_sqlite
def test_a_snapshot_of_more_than_there_is_is_not_used(tmp_path: Path, scanner: Scanner, large: bytes) -> None:
    """After somebody put an older copy of the database back."""
    folder = tmp_path / "data"
    with serving(folder, scanner) as service:
        send(service, KEY, large[: 2 << 20])
        scanned(service)
        service.holding.archive_all()
        copy = killed(folder, tmp_path / "copy")
        send(service, KEY, large[2 << 20 :])
        scanned(service)
    (state,) = (folder / "archive").rglob("*.state")
    shutil.copy(state, copy / "archive" / "job" / "1")
    with sqlite3.connect(copy / "logdoctor.db") as database:
        database.execute("UPDATE streams SET state = ?", (f"job/1/{state.name}",))
    with serving(copy, scanner) as service:
        assert service.logs.standing(KEY).next == 2 << 20
        end(service, KEY)
        assert final(service, KEY).verdict.compression.bytes_in == 2 << 20
        send(service, KEY, large[2 << 20 :])
        end(service, KEY)
        waiting.until(lambda: final(service, KEY).verdict.compression.bytes_in == len(large))
        assert final(service, KEY).verdict.reason == "ECC Error"


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 20)


@pytest.mark.parametrize(("harm", "told"), [(Path.unlink, "is missing"), (zero, "damaged"), (_cut, "ends at byte")])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_stream_costs_nobody_else_anything(
    tmp_path: Path, scanner: Scanner, harm: Callable[[Path], None], told: str, place: int
) -> None:
    """An object that is missing or damaged is named, in the verdict and to whoever reads the log."""
    folder = tmp_path / "data"
    healthy = Key("job", 1, "rank 1")
    with serving(folder, scanner) as service:
        for part in (STEPS, b"more\n", b"last\n"):
            send(service, KEY, part)
            service.holding.archive(service.holding.attempts["job", 1])
        send(service, healthy, STEPS + FATAL)
        send(service, OTHER, STEPS)
    for state in (folder / "archive").rglob("*.state"):
        state.unlink()
    harm(objects(folder)[place])
    name = objects(folder)[place].name if objects(folder)[3:] else f"{place + 1:06}-"
    with serving(folder, scanner) as service:
        send(service, OTHER, FATAL)
        end(service, OTHER)
        assert final(service, OTHER).verdict.reason == "ECC Error"
        assert service.logs.standing(healthy).next == len(STEPS + FATAL)
        end(service, KEY, 1)
        verdict = final(service, KEY).verdict
        assert verdict.reason == "ECC Error" and verdict.evidence[0].stream == "rank 1"
        assert any(told in problem and name in problem for problem in verdict.problems)
        with pytest.raises(StoreError, match=name) as refused:
            bytes_of(service, KEY)
        assert told in refused.value.cause
        assert bytes_of(service, healthy) == STEPS + FATAL
        before = service.logs.standing(KEY).next
        send(service, KEY, b"it goes on\n")
        assert service.logs.standing(KEY).next == before + 11


@pytest.mark.in_sqlite
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_row_of_the_log_is_told_and_kept(tmp_path: Path, scanner: Scanner, place: int) -> None:
    """What is left of the stream is not joined to a line that nobody wrote; others lose nothing."""
    other = Key("job", 1, "rank 1")
    parts = [STEPS + b"half a li", b"ne and another ha", b"lf a line\n" + FATAL]
    with serving(tmp_path / "data", scanner) as service:
        for part in parts:
            send(service, KEY, part)
        send(service, other, STEPS)
        copy = killed(tmp_path / "data", tmp_path / "copy")
    damage_row(copy, KEY, place)
    assert any("leave row" in step for step in repaired(copy))
    size = len(b"".join(parts))
    begin, gap = len(b"".join(parts[:place])), len(parts[place])
    problem = f"{gap} bytes of stream rank 0 from byte {begin} on are lost"
    before, behind = b"".join(parts[:place]), b"".join(parts[place + 1 :])
    for turn in range(3):
        with serving(copy, scanner) as service:
            assert rows(copy) == (4 if not turn else 1)
            end(service, KEY, 1)
            verdict = final(service, KEY).verdict
            assert (verdict.reason == "ECC Error") == (place < 2)
            told = [one for one in verdict.problems if problem in one]
            assert len(told) == 1 and "damaged" in told[0]
            assert verdict.compression.bytes_in == size + len(STEPS)
            service.holding.archive_all()
            content = b"".join(service.logs.view(KEY).chunks())
            assert len(content) == size == service.logs.standing(KEY).next
            assert content.startswith(before) and content.endswith(behind)
            lost = content[len(before) : len(content) - len(behind)]
            assert lost.startswith(b"\n") and lost.endswith(b"\n") and b"[logdoctor: " in lost
            lines = content.split(b"\n")
            assert service.logs.view(KEY).count() == len(lines) - (not lines[-1])
            for cited in verdict.evidence:
                assert lines[cited.line - 1].decode() == cited.quote
            assert bytes_of(service, other) == STEPS
            assert service.logs.standing(other).problem == ""
            if not turn:
                service.intake.take(KEY, size, b"late\n").result()
                assert final_again(service, verdict.compression.bytes_in + 5)
                size, behind = size + 5, behind + b"late\n"
    assert rows(copy) == 1, "it stays for whoever may repair it"
    assert any("delete row" in step for step in repaired(copy)) and rows(copy) == 0
    with serving(copy, scanner) as service:
        assert bytes_of(service, KEY) == content


def repaired(folder: Path) -> list[str]:
    """The steps of a repair of a data folder whose service was killed long ago."""
    steps = list[str]()
    records = Records(f"sqlite:///{folder}/logdoctor.db")
    Leases(records.database, "", 1).clear()
    Repair(records, FolderObjects(folder / "archive"), steps.append).run()
    records.close()
    return steps


def final_again(service: Service, size: int) -> bool:
    return waiting.until(lambda: final(service, KEY).verdict.compression.bytes_in == size)


@pytest.mark.in_sqlite
def test_others_of_a_shard_with_a_damaged_row_are_read_while_they_come(tmp_path: Path, scanner: Scanner) -> None:
    with serving(tmp_path / "data", scanner) as service:
        send(service, KEY, STEPS)
        copy = killed(tmp_path / "data", tmp_path / "copy")
    damage_row(copy, KEY, 0)
    other = Key("job", 1, "rank 1")
    with serving(copy, scanner) as service:
        send(service, other, FATAL)
        assert bytes_of(service, other) == FATAL
        with pytest.raises(StoreError, match="lost"):
            service.logs.view(KEY)
        waiting.until(lambda: service.holding.live("job", 1))
        scanned(service)
        service.holding.archive_all()
        assert b"[logdoctor: " in bytes_of(service, KEY)


@pytest.mark.parametrize("ended", ["while it is away", "before"])
def test_a_store_that_is_away_costs_nothing_but_time(tmp_path: Path, scanner: Scanner, ended: str) -> None:
    """Also for streams that must be read from it again, of which a verdict is wanted."""
    folder = tmp_path / "data"
    with serving(folder, scanner) as service:
        send(service, KEY, STEPS)
        service.holding.archive_all()
        if ended == "before":
            service.watch.stop()
            end_unheard(service)
        copy = killed(folder, tmp_path / "copy")
    away = Away(copy / "archive")
    away.fails = True
    service = Service(copy, scanner, plan(copy))
    service.archive.objects = away
    service.start()
    try:
        for key in (KEY, OTHER):
            send(service, key, FATAL)
            end(service, key, 1)
        assert final(service, OTHER).verdict.reason == "ECC Error", "what is at hand is judged"
        waiting.until(lambda: away.calls > 3)
        current = service.records.current("job", 1)
        assert current is None or not current.final
        with pytest.raises(StoreError, match="does not answer"):
            bytes_of(service, KEY)
        away.fails = False
        verdict = final(service, KEY).verdict
        assert verdict.reason == "ECC Error" and not verdict.problems
        assert verdict.compression.bytes_in == len(STEPS + FATAL)
        assert bytes_of(service, KEY) == STEPS + FATAL
    finally:
        service.stop()


def test_verdicts_do_not_wait_for_a_store_that_hangs(
    tmp_path: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose every refusal takes its time: what is done besides judging is put off."""
    monkeypatch.setattr(archive, "_REST", DAY)
    away = Away(tmp_path / "data" / "archive")
    away.fails = True
    keys = [Key("job", number, "main") for number in range(30)]
    with serving(tmp_path / "data", scanner, PATIENT._replace(linger=0.0)) as service:
        service.archive.objects = away
        for key in keys:
            send(service, key, FATAL)
            end(service, key)
        for key in keys:
            assert final(service, key).verdict.reason == "ECC Error"
        waiting.until(lambda: away.calls)
        for _ in range(3):
            looked(service)
        assert away.calls < 10 and len(service.holding.attempts) == 30
        away.fails = False
        service.archive._failed_at = -1e9  # the time has passed
        waiting.until(lambda: looked(service) and not service.holding.attempts)
        assert all(bytes_of(service, key) == FATAL for key in keys)


def end_unheard(service: Service) -> None:
    service.end(KEY.job, KEY.attempt, End("", 1, None, None, time.time()))


def test_an_end_before_the_kill_is_judged_after_it(tmp_path: Path, scanner: Scanner) -> None:
    with serving(tmp_path / "data", scanner) as service:
        service.watch.stop()  # it dies before it can read, and judge
        service.intake.open(KEY)
        service.intake.take(KEY, 0, STEPS + FATAL).result()
        end_unheard(service)
        copy = killed(tmp_path / "data", tmp_path / "copy")
    with serving(copy, scanner) as service:
        assert final(service, KEY).verdict.reason == "ECC Error"


def test_bytes_after_the_verdict_and_before_the_kill_are_judged_after_it(tmp_path: Path, scanner: Scanner) -> None:
    with serving(tmp_path / "data", scanner) as service:
        send(service, KEY, STEPS)
        end(service, KEY)
        before = final(service, KEY)
        service.watch.stop()
        service.intake.take(KEY, len(STEPS), FATAL).result()
        copy = killed(tmp_path / "data", tmp_path / "copy")
    with serving(copy, scanner) as service:
        after = waiting.until(lambda: (s := final(service, KEY)).id != before.id and s)
        assert after and after.verdict.reason == "ECC Error"


def test_a_settled_attempt_is_not_read_again(tmp_path: Path, scanner: Scanner) -> None:
    log = next(CORPUS.glob("failures/*.log")).read_bytes()
    for turn in range(3):
        with serving(tmp_path / "data", scanner) as service:
            if not turn:
                send(service, KEY, log)
                end(service, KEY)
                stored = final(service, KEY)
            else:
                assert service.holding.figures().attempts == 0
            assert service.records.current("job", 1) == stored
