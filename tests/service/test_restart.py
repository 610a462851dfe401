"""A service that was stopped, killed or lost its last writes goes on where it was; damage costs what is damaged."""

import os
import random
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from logdoctor import pipeline
from logdoctor.errors import StoreError
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.store.frames import Frame, walk
from logdoctor.store.names import Key
from tests.diagnose.logs import ECC, steps
from tests.service.sender import LOGS
from tests.service.services import CORPUS, end, eventually, final, killed, plain, send, serving

KEY = Key("job", 1, "rank 0")
OTHER = Key("other", 1, "rank 0")
ROOT = Path(__file__).parents[2]
STEPS, FATAL = steps(1, 30).encode(), ECC.encode()


def archived(folder: Path, key: Key = KEY) -> Path:
    return folder / "archive" / key.job / str(key.attempt) / f"{key.stream.replace(' ', '%20')}.zst"


def frames(path: Path) -> list[Frame]:
    with path.open("rb") as file:
        return list(walk(file.fileno()))


def overwrite(path: Path, begin: int, end: int) -> None:
    content = bytearray(path.read_bytes())
    content[begin:end] = bytes(end - begin)
    path.write_bytes(content)


def bytes_of(service: Service, key: Key) -> bytes:
    return b"".join(line + b"\n" for line in service.intake.lines(key, 1, 1 << 40, 1 << 30).lines)


def caught_up(service: Service) -> None:
    eventually(lambda: not service.intake.unscanned)


@pytest.fixture(scope="module")
def large() -> bytes:
    """Some MiB of steps that end badly."""
    text = steps(1, 40_000).encode()
    assert len(text) > 8 << 20
    return text + FATAL


@pytest.mark.parametrize("seed", range(2))
def test_what_was_acknowledged_before_a_kill_is_there(
    tmp_path: Path, scanner: Scanner, limits: ReadLimits, seed: int
) -> None:
    command = [sys.executable, "-m", "tests.service.sender", str(tmp_path / "data"), str(seed)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        told = child.stdout.readline()
        killer = threading.Timer(random.Random(seed).random() * 0.3 + 0.05, child.send_signal, [signal.SIGKILL])
        killer.start()
        told += child.stdout.read()
    killer.join()
    reached = {job: int(size) for job, size in (line.split() for line in told.decode().split("\n")[:-1])}
    assert reached.pop("begun") == 0 and reached
    with serving(tmp_path / "data", scanner) as service:
        for path in LOGS:
            key, log = Key(path.stem, 1, "main"), path.read_bytes()
            with service.intake.opened(key) as stream:
                assert stream.accepted >= reached.get(path.stem, 0)
                assert log.startswith(service.archive.open(key).read(0, 1 << 30))
                service.intake.take(stream, stream.accepted, log[stream.accepted :]).result(90)
            end(service, key)
        for path in LOGS:
            verdict = final(service, Key(path.stem, 1, "main")).verdict
            assert plain(verdict) == plain(pipeline.diagnose([pipeline.LogFile("main", path)], scanner, limits))


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 20)


def _gone(path: Path) -> None:
    path.unlink()


def _unwritten_data(path: Path) -> None:
    last = frames(path)[-1]
    overwrite(path, last.data, last.end)


def _unwritten_header(path: Path) -> None:
    first = frames(path)[0]
    overwrite(path, first.begin, first.data)


def _unwritten(path: Path) -> None:
    overwrite(path, 0, path.stat().st_size)


@pytest.mark.parametrize("loss", [_cut, _gone, _unwritten_data, _unwritten_header, _unwritten])
def test_what_the_archive_lost_with_the_power_comes_from_the_journal(
    tmp_path: Path, scanner: Scanner, loss: Callable[[Path], None]
) -> None:
    """Until the archive is synced, and the journal released, any page of it may be lost."""
    with serving(tmp_path / "data", scanner) as service:
        for part in (STEPS, b"more\n", FATAL):
            send(service, KEY, part)
            service.intake.archive(service.intake.attempts["job", 1])
        copy = killed(tmp_path / "data", tmp_path / "copy")
    loss(archived(copy))
    with serving(copy, scanner) as service:
        assert bytes_of(service, KEY) == STEPS + b"more\n" + FATAL
        end(service, KEY)
        verdict = final(service, KEY).verdict
        assert verdict.reason == "ECC Error" and not verdict.problems


def test_an_empty_append_and_a_kill(tmp_path: Path, scanner: Scanner) -> None:
    with serving(tmp_path / "data", scanner) as service:
        send(service, KEY, b"")
        send(service, OTHER, FATAL)
        copy = killed(tmp_path / "data", tmp_path / "copy")
    with serving(copy, scanner) as service:
        assert bytes_of(service, OTHER) == FATAL
        send(service, KEY, FATAL)


def test_many_small_appends_are_replayed_in_time(tmp_path: Path, scanner: Scanner) -> None:
    lines = [b"%049d\n" % n for n in range(20_000)]
    with serving(tmp_path / "data", scanner) as service:
        with service.intake.opened(KEY) as stream:
            for line in lines:
                future = service.intake.take(stream, stream.accepted, line)
            future.result(90)
        copy = killed(tmp_path / "data", tmp_path / "copy")
    took: list[bool] = []

    def start() -> None:
        with serving(copy, scanner) as service:
            took.append(bytes_of(service, KEY) == b"".join(lines))

    starting = threading.Thread(target=start)
    starting.start()
    starting.join(10)
    assert took == [True]


def test_stopping_leaves_no_journal(tmp_path: Path, scanner: Scanner) -> None:
    with serving(tmp_path / "data", scanner) as service:
        send(service, KEY, STEPS)
    assert list((tmp_path / "data" / "journal").iterdir()) == []


@pytest.mark.parametrize("graceful", [True, False])
def test_a_restart_reads_only_what_is_behind_the_snapshot(
    tmp_path: Path, scanner: Scanner, large: bytes, graceful: bool
) -> None:
    """What lies before it may be unreadable, and nobody notices."""
    folder = tmp_path / "data"
    with serving(folder, scanner) as service:
        for begin in range(0, len(large), 1 << 20):
            send(service, KEY, large[begin : begin + (1 << 20)])
        caught_up(service)
        if not graceful:
            service.intake.empty_journal()  # so that the kill leaves the whole archive
            copy = killed(folder, tmp_path / "copy")
    folder = folder if graceful else copy
    for frame in frames(archived(folder))[:3]:
        overwrite(archived(folder), frame.data, frame.end)
    with serving(folder, scanner) as service:
        end(service, KEY)
        verdict = final(service, KEY).verdict
    assert verdict.reason == "ECC Error" and verdict.evidence[0].line == 40_000
    assert verdict.compression.bytes_in == len(large) and not verdict.problems


def test_only_a_snapshot_that_fits_is_used(tmp_path: Path, scanner: Scanner, large: bytes, limits: ReadLimits) -> None:
    folder = tmp_path / "data"
    with serving(folder, scanner) as service:
        send(service, KEY, large)
        caught_up(service)
    state = archived(folder).with_suffix(".state")
    whole = state.read_bytes()
    (tmp_path / "log").write_bytes(large)
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


def test_a_snapshot_of_more_than_the_archive_has_is_not_used(tmp_path: Path, scanner: Scanner, large: bytes) -> None:
    """After a loss of power that took bytes, too."""
    folder = tmp_path / "data"
    with serving(folder, scanner) as service:
        send(service, KEY, large)
        caught_up(service)
    os.truncate(archived(folder), frames(archived(folder))[1].end)
    with serving(folder, scanner) as service:
        with service.intake.opened(KEY) as stream:
            assert stream.accepted == 2 << 20
        end(service, KEY)
        assert final(service, KEY).verdict.compression.bytes_in == 2 << 20
        send(service, KEY, large[2 << 20 :])
        end(service, KEY)
        eventually(lambda: final(service, KEY).verdict.compression.bytes_in == len(large))
        assert final(service, KEY).verdict.reason == "ECC Error"


@pytest.mark.parametrize("place", ["header", "data", "last"])
def test_a_damaged_stream_costs_nobody_else_anything(tmp_path: Path, scanner: Scanner, place: str) -> None:
    folder = tmp_path / "data"
    healthy = Key("job", 1, "rank 1")
    with serving(folder, scanner) as service:
        for part in (STEPS, b"more\n", b"last\n"):
            send(service, KEY, part)
            service.intake.archive(service.intake.attempts["job", 1])
        send(service, healthy, STEPS + FATAL)
        send(service, OTHER, STEPS)
    path = archived(folder)
    first, _, last = frames(path)
    begin, until = {"header": (0, first.data), "data": (first.data, first.end), "last": (last.data, last.end)}[place]
    overwrite(path, begin, until)
    for state in path.parent.glob("*.state"):
        state.unlink()
    with serving(folder, scanner) as service:
        send(service, OTHER, FATAL)
        end(service, OTHER)
        assert final(service, OTHER).verdict.reason == "ECC Error"
        with service.intake.opened(healthy) as stream:
            assert stream.accepted == len(STEPS + FATAL)
        end(service, KEY, 1)
        verdict = final(service, KEY).verdict
        assert verdict.reason == "ECC Error" and verdict.evidence[0].stream == "rank 1"
        assert any("damaged" in problem for problem in verdict.problems)
        with pytest.raises(StoreError):
            bytes_of(service, KEY)


def test_an_end_before_the_kill_is_judged_after_it(tmp_path: Path, scanner: Scanner) -> None:
    with serving(tmp_path / "data", scanner) as service:
        service.watch.stop()  # it dies before it can judge
        send(service, KEY, STEPS + FATAL)
        end(service, KEY, 1)
        copy = killed(tmp_path / "data", tmp_path / "copy")
    with serving(copy, scanner) as service:
        assert final(service, KEY).verdict.reason == "ECC Error"


def test_bytes_after_the_verdict_and_before_the_kill_are_judged_after_it(tmp_path: Path, scanner: Scanner) -> None:
    with serving(tmp_path / "data", scanner) as service:
        send(service, KEY, STEPS)
        end(service, KEY)
        before = final(service, KEY)
        service.watch.stop()
        send(service, KEY, FATAL)
        copy = killed(tmp_path / "data", tmp_path / "copy")
    with serving(copy, scanner) as service:
        after = eventually(lambda: (s := final(service, KEY)).id != before.id and s)
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
                assert service.intake.figures().attempts == 0
            assert service.records.current("job", 1) == stored
