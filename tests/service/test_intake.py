"""Bytes come in once, in order, and can be read back; what cannot be taken is refused whole."""

import itertools
import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from logdoctor.errors import Busy, LimitReached, LogdoctorError, OffsetMismatch, StorageFull, StoreError
from logdoctor.rules.scanner import Scanner
from logdoctor.service import silence
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import Attempt
from logdoctor.store.log.archive import FRAME
from logdoctor.store.log.shards import shard_of
from logdoctor.store.names import Key
from tests import waiting
from tests.at_once import at_once
from tests.service.disks import Away, fill, small_disk
from tests.service.services import BOUNDS, PATIENT, end, final, killed, looked, opened, plan, send, serving

KEY = Key("job", 1, "rank 0")


def content(service: Service, key: Key) -> bytes:
    """All lines of a stream, as they are read back."""
    lines = service.logs.lines(key, 1, 1 << 40, 1 << 40)
    assert lines.complete
    return b"".join(line + b"\n" for line in lines.lines)


def test_bytes_are_taken_where_the_stream_ends_and_nowhere_else(service: Service) -> None:
    service.intake.open(KEY)
    assert service.intake.take(KEY, 0, b"one\n").result().next == 4
    for offset in (0, 3, 5, 10**15, -1):
        with pytest.raises(OffsetMismatch) as mismatch:
            service.intake.take(KEY, offset, b"other\n").result()
        assert mismatch.value.next_offset == 4
    assert service.intake.take(KEY, 4, b"two\n").result().next == 8
    assert service.intake.take(KEY, 8, b"").result().next == 8
    assert service.logs.standing(KEY).next == 8
    assert content(service, KEY) == b"one\ntwo\n"
    assert service.intake.figures().refused == 5


def test_attempts_that_begin_at_once_share_transactions_and_no_error(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_at_once, opening, all_wait = [], service.records.open_attempts, threading.Event()
    refused: dict[str, LogdoctorError] = {}

    def slowly(names: Sequence[tuple[str, int]], at: float) -> list[Attempt]:
        opened_at_once.append(len(names))
        all_wait.wait()
        if ("job-7", 1) in names:
            raise StoreError("job-7", "cannot be opened", "Try again.")
        return opening(names, at)

    def begin(number: int) -> None:
        try:
            service.intake.open(Key(f"job-{number}", 1, "main"))
        except LogdoctorError as error:
            refused[f"job-{number}"] = error

    monkeypatch.setattr(service.records, "open_attempts", slowly)
    threads = [threading.Thread(target=begin, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    waiting.until(lambda: len(service.intake._unopened) == 19)  # one opens its own
    all_wait.set()
    for thread in threads:
        thread.join()
    assert refused.keys() == {"job-7"} and max(opened_at_once) == 19
    for number in set(range(20)) - {7}:
        assert service.records.attempt(f"job-{number}", 1) is not None
        assert service.intake.is_open(Key(f"job-{number}", 1, "main"))
    assert not service.intake.is_open(Key("job-7", 1, "main"))


def test_many_may_be_on_their_way_at_once(service: Service) -> None:
    lines = [b"%05d\n" % n for n in range(5000)]
    service.intake.open(KEY)
    futures = [service.intake.take(KEY, 6 * n, line) for n, line in enumerate(lines)]
    assert [future.result().next for future in futures] == [6 * n + 6 for n in range(5000)]
    assert service.logs.standing(KEY)[:2] == (30_000, 5000)
    assert content(service, KEY) == b"".join(lines)
    assert service.intake.figures().groups < 2500


def test_a_mark_is_taken_once_also_after_a_restart_and_a_kill(folder: Path, scanner: Scanner, tmp_path: Path) -> None:
    def push(service: Service, marks: str) -> None:
        service.intake.open(KEY)
        for future in [service.intake.push(KEY, mark.encode() + b"\n", mark) for mark in marks]:
            future.result()

    with serving(folder, scanner) as service:
        push(service, "abaab")
        copy = killed(folder, tmp_path / "killed")
    for place in (folder, copy):
        with serving(place, scanner) as service:
            push(service, "bacc")
            assert content(service, KEY) == b"a\nb\nc\n"


def test_one_who_no_longer_waits_disturbs_nobody(service: Service) -> None:
    """A client that goes away cancels the future that it waited for."""
    service.intake.open(KEY)
    for n in range(200):
        service.intake.take(KEY, n * 10_000, bytes(10_000)).cancel()
    assert service.intake.take(KEY, 200 * 10_000, b"last\n").result().next == 200 * 10_000 + 5


def test_what_is_refused_does_not_count_as_news_of_a_stream(service: Service) -> None:
    """Else one who sends nonsense for ever would keep an attempt from being given up."""
    send(service, KEY, b"one\n")
    before = service.logs.standing(KEY).changed
    service.intake.take(KEY, 4, b"").result()
    refusal(service.intake.take(KEY, 0, b"one\n").result)
    assert service.logs.standing(KEY).changed == before
    send(service, KEY, b"two\n")
    assert service.logs.standing(KEY).changed > before


@pytest.mark.parametrize("restarted", [False, True])
def test_lines_come_from_memory_and_from_the_archive(folder: Path, scanner: Scanner, restarted: bool) -> None:
    chance = random.Random(4)
    lines = [b"%d " % n + b"x" * chance.choice([0, 10, 5000, 100_000]) for n in range(150)]
    with serving(folder, scanner) as service:
        for line in lines:
            send(service, KEY, line + b"\n")
        send(service, KEY, b"no end")
        waiting.until(lambda: service.holding.figures().unarchived < 5 * FRAME)
        if not restarted:
            check_lines(service, [*lines, b"no end"])
    if restarted:
        with serving(folder, scanner) as service:
            check_lines(service, [*lines, b"no end"])


def check_lines(service: Service, lines: list[bytes]) -> None:
    for first in (1, 2, 77, 149, 151, 152):
        for last in (first, first + 3, 10**9):
            found = service.logs.lines(KEY, first, last, 1 << 30)
            assert (found.first, found.lines, found.complete) == (first, lines[first - 1 : last], True)
    few = service.logs.lines(KEY, 1, 151, 200_000)
    assert not few.complete and few.lines == lines[: len(few.lines)]


def test_lines_can_be_read_while_they_come(service: Service) -> None:
    send(service, KEY, b"%07d\n" % 0)
    failures: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            count = service.logs.standing(KEY).lines
            found = service.logs.lines(KEY, max(count - 5, 1), count, 10_000)
            if found.lines != [b"%07d" % n for n in range(max(count - 6, 0), count)]:
                failures.append((count, found))
            done.wait(0.002)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    attempt = service.holding.attempts["job", 1]
    for n in range(1, 60):
        send(service, KEY, b"%07d\n" % n)
        if n % 10 == 0:
            service.holding.archive(attempt)
    done.set()
    for reader in readers:
        reader.join()
    assert not failures


def refusal(call: Callable[[], object]) -> LogdoctorError:
    with pytest.raises(LogdoctorError) as refused:
        call()
    return refused.value


def test_bounds(folder: Path, scanner: Scanner) -> None:
    bounds = BOUNDS._replace(stream_bytes=1000, streams=3)
    with serving(folder, scanner, bounds=bounds) as service:
        service.intake.open(KEY)
        service.intake.take(KEY, 0, bytes(1000)).result()
        assert isinstance(refusal(service.intake.take(KEY, 1000, b"x").result), LimitReached)
        assert isinstance(refusal(service.intake.push(KEY, b"x", "m").result), LimitReached)
        service.intake.take(KEY, 1000, b"").result()
        send(service, Key("job", 1, "b"), b"x")
        send(service, Key("job", 1, "c"), b"x")
        assert isinstance(refusal(lambda: send(service, Key("job", 1, "d"), b"x")), LimitReached)
        send(service, Key("job", 2, "a"), b"x")
        send(service, Key("job", 1, "b"), b"x")
        assert service.streams("job", 1) == ["b", "c", "rank 0"]
    with serving(folder, scanner, bounds=bounds._replace(streams=2)) as service:  # lowered: what is there goes on
        send(service, Key("job", 1, "b"), b"x")
        assert isinstance(refusal(lambda: send(service, Key("job", 1, "d"), b"x")), LimitReached)


def test_what_is_too_large_for_one_frame_is_refused_not_lost(service: Service) -> None:
    service.intake.open(KEY)
    assert isinstance(refusal(lambda: service.intake.take(KEY, 0, bytes((64 << 20) + 1))), LimitReached)
    service.intake.take(KEY, 0, b"small\n").result()
    assert content(service, KEY) == b"small\n"


def test_a_log_over_its_budget_refuses_and_takes_again_later(folder: Path, scanner: Scanner) -> None:
    """While the archive cannot be written; nothing that was acknowledged is lost."""
    away = Away(folder / "archive")
    bounds = BOUNDS._replace(shard_bytes=200_000, behind=300_000, unarchived=50_000)
    with serving(folder, scanner, bounds=bounds) as service:
        service.archive.objects = away
        away.fails = True
        lines = [b"%09d\n" % n * 1000 for n in range(100)]
        service.intake.open(KEY)
        kept = 0
        while not isinstance(error := service.intake.take(KEY, 10_000 * kept, lines[kept]).exception(), Busy):
            assert error is None
            kept += 1
        assert 20 <= kept <= 22 and service.logs.standing(KEY).next == 10_000 * kept
        other = Key("other", 1, "s")
        assert shard_of(*other[:2]) != shard_of(*KEY[:2])
        for _ in range(15):
            send(service, other, lines[0])  # it has a budget of its own
        waiting.until(lambda: send(service, other, b"x\n") or service.intake.is_behind)
        assert content(service, KEY) == b"".join(lines[:kept])
        end(service, KEY)
        assert final(service, KEY).verdict.compression.lines_in == 1000 * kept
        away.fails = False
        waiting.until(lambda: not service.intake.is_behind)
        waiting.until(lambda: service.intake.take(KEY, 10_000 * kept, lines[kept]).exception() is None)
        assert content(service, KEY) == b"".join(lines[: kept + 1])


def test_a_stream_that_says_little_does_not_keep_the_rest_in_the_log(folder: Path, scanner: Scanner) -> None:
    """Rows go in order, and the first one has a byte of it."""
    slow = KEY._replace(stream="slow")
    with serving(folder, scanner, bounds=BOUNDS._replace(unarchived=2 * FRAME)) as service:
        send(service, slow, b"a word\n")
        for n in range(8):
            send(service, KEY, b"%01023d\n" % n * 1024)
        waiting.until(lambda: sum(head.bytes for head in service.log.heads().values()) <= 2 * FRAME)
        assert (content(service, slow), len(content(service, KEY))) == (b"a word\n", 8 * FRAME)


def test_a_second_service_is_kept_out(service: Service, folder: Path, scanner: Scanner) -> None:
    send(service, KEY, b"x\n")
    with pytest.raises(StoreError) as refused:
        Service(folder, scanner, plan(folder))
    assert "another service" in refused.value.cause
    send(service, KEY, b"y\n")
    service.stop()
    again = opened(folder, scanner)
    assert content(again, KEY) == b"x\ny\n"
    again.stop()
    service.stop = lambda: None  # type: ignore[method-assign]


@pytest.mark.parametrize("min_free", [200_000, 0])
def test_a_full_disk_refuses_and_nothing_is_half_written(tmp_path: Path, scanner: Scanner, min_free: int) -> None:
    """Whether we see it coming or the database runs into it."""
    kept: dict[Key, bytes] = {Key("job", n, "s"): b"" for n in range(3)}
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        folder = disk / "data"
        folder.mkdir()
        service = Service(folder, scanner, plan(folder, min_free=min_free))
        service.start()

        def put(size: int) -> int:
            refused = 0
            futures: list[tuple[Key, bytes, Future[int]]] = []
            for key in kept:
                data = os.urandom(size // 2).hex().encode() + b"\n"
                futures.append((key, data, service.intake.take(key, len(kept[key]), data)))
            for key, data, future in futures:
                try:
                    future.result()
                    kept[key] += data
                except StorageFull:
                    refused += 1
            return refused

        for key in kept:
            service.intake.open(key)
        assert put(1000) == 0
        ballast = fill(disk, 300_000)
        assert waiting.until(lambda: put(100_000)) > 0
        for key, data in kept.items():
            assert service.logs.standing(key).next == len(data)
        ballast.unlink()
        assert put(1000) == 0
        for key, data in kept.items():
            assert content(service, key) == data
        copy = killed(folder, tmp_path / "copy")
        service.stop()
        for place in (copy, folder):
            again = Service(place, scanner, plan(place))
            again.start()
            for key, data in kept.items():
                assert content(again, key) == data
            again.stop()


def test_a_settled_attempt_leaves_memory_and_comes_back(folder: Path, scanner: Scanner) -> None:
    with serving(folder, scanner, PATIENT._replace(linger=0.0)) as service:
        send(service, KEY, b"one\n")
        end(service, KEY)
        before = final(service, KEY)
        waiting.until(lambda: looked(service) and not service.holding.attempts)
        figures = service.holding.figures()
        assert (figures.streams, figures.attempts, figures.unscanned, figures.unarchived) == (0, 0, 0, 0)
        assert content(service, KEY) == b"one\n"
        with pytest.raises(OffsetMismatch) as mismatch:
            service.intake.take(KEY, 0, b"one\n").result()
        assert mismatch.value.next_offset == 4
        error = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        service.intake.take(KEY, 4, error).result()
        after = waiting.until(
            lambda: looked(service) and (s := service.records.current("job", 1)) and s.id != before.id and s.final and s
        )
        assert after and after.verdict.reason != before.verdict.reason
        assert [stored.id for stored in service.records.history("job", 1)] == [after.id, before.id]
        waiting.until(lambda: looked(service) and not service.holding.attempts)


def test_evicting_and_sending_at_once_loses_nothing(
    folder: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts are let go all the time while others send to them."""
    keys = [Key("job", n, stream) for n in range(3) for stream in "ab"]
    sent = dict.fromkeys(keys, b"")
    done = threading.Event()
    monkeypatch.setattr(silence, "step", lambda *_: "unload")
    with serving(folder, scanner) as service:

        def evict() -> None:
            while not done.is_set():
                looked(service)

        def put(key: Key) -> None:
            for n in range(20):
                line = b"%s %d\n" % (str(key).encode(), n)
                send(service, key, line)
                sent[key] += line

        evictor = threading.Thread(target=evict)
        senders = [threading.Thread(target=put, args=(key,)) for key in keys]
        for thread in (evictor, *senders):
            thread.start()
        for thread in senders:
            thread.join()
        done.set()
        evictor.join()
        monkeypatch.undo()
        for key in keys:
            assert content(service, key) == sent[key]
            end(service, key)
        for key in keys:
            assert final(service, key).verdict.compression.lines_in == 40


def test_threads_send_and_end_at_once(service: Service) -> None:
    keys = [Key(f"job{n % 4}", n % 2, f"s{n}") for n in range(32)]
    total, turns = (threading.Lock(), [0]), 5

    def put(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(turns):
            for key in keys[seed::8]:
                data = b"%s " % key.stream.encode() * chance.randrange(200) + b"\n"
                send(service, key, data)
                with total[0]:
                    total[1][0] += len(data)
            if chance.random() < 0.2:
                end(service, chance.choice(keys), whole=chance.random() < 0.5)

    at_once(put, range(8))
    assert service.intake.figures().bytes_in == total[1][0]
    assert service.intake.figures().lines_in == 32 * turns
    for key in keys:
        lines = service.logs.lines(key, 1, 1000, 1 << 30).lines
        assert len(lines) == turns and all(set(line.split()) <= {key.stream.encode()} for line in lines)
    for key in keys:
        end(service, key)
    for key in keys:
        assert final(service, key).verdict.compression.lines_in == 8 * turns


def test_it_lives_on_when_its_look_at_the_log_fails(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a full disk at this moment ended the thread, and every later post hung."""
    looks = itertools.count()

    def full() -> None:
        next(looks)
        raise StorageFull("the database", "it cannot grow", "Free some space.")

    send(service, KEY, b"one\n")
    with monkeypatch.context() as patched:
        patched.setattr(service.log, "heads", full)
        while next(looks) < 3:
            service.intake._looked = 0.0  # what is believed of the log is old
            service.intake.push(KEY, b"more\n", "").result()
    service.intake.push(KEY, b"last\n", "").result()
