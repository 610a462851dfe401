"""Bytes come in once, in order, and can be read back; what cannot be taken is refused whole."""

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from logdoctor.errors import LimitReached, LogdoctorError, OffsetMismatch, StorageFull, StoreError
from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.store.archive import FRAME
from logdoctor.store.frames import Packer
from logdoctor.store.names import Key
from tests.service.disks import fill, small_disk
from tests.service.services import BOUNDS, PATIENT, end, eventually, final, killed, looked, opened, plan, send, serving

KEY = Key("job", 1, "rank 0")


def content(service: Service, key: Key) -> bytes:
    """All lines of a stream, as they are read back."""
    lines = service.intake.lines(key, 1, 1 << 40, 1 << 40)
    assert lines.complete
    return b"".join(line + b"\n" for line in lines.lines)


def test_bytes_are_taken_where_the_stream_ends_and_nowhere_else(service: Service) -> None:
    with service.intake.opened(KEY) as stream:
        service.intake.take(stream, 0, b"one\n").result(90)
        for offset in (0, 3, 5, 10**15, -1):
            with pytest.raises(OffsetMismatch) as mismatch:
                service.intake.take(stream, offset, b"other\n")
            assert mismatch.value.next_offset == 4
        service.intake.take(stream, 4, b"two\n").result(90)
        service.intake.take(stream, 8, b"").result(90)
        assert stream.standing().next_offset == 8
    assert content(service, KEY) == b"one\ntwo\n"
    assert service.intake.figures().refused == 5


def test_many_may_be_on_their_way_at_once(service: Service) -> None:
    lines = [b"%05d\n" % n for n in range(5000)]
    with service.intake.opened(KEY) as stream:
        futures = [service.intake.take(stream, 6 * n, line) for n, line in enumerate(lines)]
        for future in futures:
            future.result(90)
        assert (stream.durable, stream.lines_in) == (30_000, 5000)
        assert service.intake.durable_offset(stream) == 30_000
    assert content(service, KEY) == b"".join(lines)
    assert service.intake.figures().groups < 2500


def test_a_mark_is_taken_once_also_after_a_restart_and_a_kill(folder: Path, scanner: Scanner, tmp_path: Path) -> None:
    with serving(folder, scanner) as service:
        with service.intake.opened(KEY) as stream:
            for mark in ("a", "b", "a", "a", "b"):
                service.intake.push(stream, mark.encode() + b"\n", mark).result(90)
        copy = killed(folder, tmp_path / "killed")
    for place in (folder, copy):
        with serving(place, scanner) as service:
            with service.intake.opened(KEY) as stream:
                for mark in ("b", "a", "c", "c"):
                    service.intake.push(stream, mark.encode() + b"\n", mark).result(90)
            assert content(service, KEY) == b"a\nb\nc\n"


def test_marks_of_old_are_forgotten_those_of_late_are_not(service: Service) -> None:
    with service.intake.opened(KEY) as stream:
        for n in range(400):
            service.intake.push(stream, b"x\n", f"m{n}").result(90)
        assert len(stream.marks) == 256
        service.intake.push(stream, b"x\n", "m399").result(90)
        assert stream.accepted == 800


def test_one_who_no_longer_waits_disturbs_nobody(service: Service) -> None:
    """A client that goes away cancels the future that it waited for."""
    with service.intake.opened(KEY) as stream:
        for _ in range(200):
            service.intake.take(stream, stream.accepted, bytes(10_000)).cancel()
        service.intake.take(stream, stream.accepted, b"last\n").result(90)
        assert stream.durable == 200 * 10_000 + 5


@pytest.mark.parametrize("restarted", [False, True])
def test_lines_come_from_memory_and_from_the_archive(folder: Path, scanner: Scanner, restarted: bool) -> None:
    chance = random.Random(4)
    lines = [b"%d " % n + b"x" * chance.choice([0, 10, 5000, 100_000]) for n in range(150)]
    with serving(folder, scanner) as service:
        for line in lines:
            send(service, KEY, line + b"\n")
        send(service, KEY, b"no end")
        eventually(lambda: service.intake.figures().unarchived < 2 * FRAME)
        if not restarted:
            check_lines(service, [*lines, b"no end"])
    if restarted:
        with serving(folder, scanner) as service:
            check_lines(service, [*lines, b"no end"])


def check_lines(service: Service, lines: list[bytes]) -> None:
    for first in (1, 2, 77, 149, 151, 152):
        for last in (first, first + 3, 10**9):
            found = service.intake.lines(KEY, first, last, 1 << 30)
            assert (found.first, found.lines, found.complete) == (first, lines[first - 1 : last], True)
    few = service.intake.lines(KEY, 1, 151, 200_000)
    assert not few.complete and few.lines == lines[: len(few.lines)]


def test_lines_can_be_read_while_they_come(service: Service) -> None:
    send(service, KEY, b"%07d\n" % 0)
    failures: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            stream = service.intake.known(KEY)
            assert stream is not None
            count = stream.lines_in
            found = service.intake.lines(KEY, max(count - 5, 1), count, 10_000)
            if found.lines != [b"%07d" % n for n in range(max(count - 6, 0), count)]:
                failures.append((count, found))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    attempt = service.intake.attempts["job", 1]
    for n in range(1, 400):
        send(service, KEY, b"%07d\n" % n)
        if n % 10 == 0:
            service.intake.archive(attempt)
    done.set()
    for reader in readers:
        reader.join(10)
    assert not failures


def refusal(call: Callable[[], object]) -> LogdoctorError:
    with pytest.raises(LogdoctorError) as refused:
        call()
    return refused.value


def test_bounds(folder: Path, scanner: Scanner) -> None:
    bounds = BOUNDS._replace(stream_bytes=1000, streams=3, open_streams=5)
    with serving(folder, scanner, bounds=bounds) as service:
        with service.intake.opened(KEY) as stream:
            service.intake.take(stream, 0, bytes(1000)).result(90)
            assert isinstance(refusal(lambda: service.intake.take(stream, 1000, b"x")), LimitReached)
            assert isinstance(refusal(lambda: service.intake.push(stream, b"x", "m")), LimitReached)
            service.intake.take(stream, 1000, b"").result(90)
        send(service, Key("job", 1, "b"), b"x")
        send(service, Key("job", 1, "c"), b"x")
        assert isinstance(refusal(lambda: send(service, Key("job", 1, "d"), b"x")), LimitReached)
        send(service, Key("job", 2, "a"), b"x")
        send(service, Key("job", 2, "b"), b"x")
        refusal(lambda: send(service, Key("job", 3, "a"), b"x"))
        send(service, Key("job", 2, "b"), b"x")
    with serving(folder, scanner, bounds=bounds._replace(open_streams=2)) as service:  # lowered: it starts
        assert len(service.intake.attempts) == 2
        refusal(lambda: send(service, Key("job", 4, "a"), b"x"))


def test_what_is_too_large_for_one_frame_is_refused_not_lost(service: Service) -> None:
    with service.intake.opened(KEY) as stream:
        assert isinstance(refusal(lambda: service.intake.take(stream, 0, bytes((64 << 20) + 1))), LimitReached)
        service.intake.take(stream, 0, b"small\n").result(90)
    assert content(service, KEY) == b"small\n"


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


def test_a_full_disk_refuses_and_nothing_is_half_written(tmp_path: Path, scanner: Scanner) -> None:
    kept: dict[Key, bytes] = {Key("job", n, "s"): b"" for n in range(3)}
    with small_disk(tmp_path / "disk", 6 << 20) as folder:
        disk = plan(tmp_path)  # the records are elsewhere
        (folder / "data").mkdir()
        service = Service(folder / "data", scanner, disk._replace(min_free=200_000))
        service.start()

        def put(size: int) -> int:
            refused = 0
            futures: list[tuple[Key, bytes, Future[None]]] = []
            for key in kept:
                with service.intake.opened(key) as stream:
                    data = os.urandom(size // 2).hex().encode() + b"\n"
                    futures.append((key, data, service.intake.take(stream, stream.accepted, data)))
            for key, data, future in futures:
                try:
                    future.result(90)
                    kept[key] += data
                except StorageFull:
                    refused += 1
            return refused

        assert put(1000) == 0
        ballast = fill(folder, 300_000)
        assert sum(put(100_000) for _ in range(3)) > 0
        for key, data in kept.items():
            with service.intake.opened(key) as stream:
                assert stream.accepted == stream.durable == len(data)
        ballast.unlink()
        assert put(1000) == 0
        for key, data in kept.items():
            assert content(service, key) == data
        copy = killed(folder / "data", tmp_path / "copy")
        service.stop()
        for place in (copy, folder / "data"):
            again = Service(place, scanner, disk)
            again.start()
            for key, data in kept.items():
                assert content(again, key) == data
            again.stop()


def test_a_settled_attempt_leaves_memory_and_comes_back(folder: Path, scanner: Scanner) -> None:
    with serving(folder, scanner, PATIENT._replace(linger=0.0)) as service:
        send(service, KEY, b"one\n")
        end(service, KEY)
        before = final(service, KEY)
        eventually(lambda: looked(service) and service.intake.known(KEY) is None)
        assert service.intake.figures().streams == service.intake.figures().attempts == 0
        assert content(service, KEY) == b"one\n"
        with service.intake.opened(KEY) as stream:
            with pytest.raises(OffsetMismatch) as mismatch:
                service.intake.take(stream, 0, b"one\n")
            assert mismatch.value.next_offset == 4
            error = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
            service.intake.take(stream, 4, error).result(90)
        after = eventually(
            lambda: looked(service) and (s := service.records.current("job", 1)) and s.id != before.id and s.final and s
        )
        assert after and after.verdict.reason != before.verdict.reason
        assert [stored.id for stored in service.records.history("job", 1)] == [after.id, before.id]
        eventually(lambda: looked(service) and service.intake.known(KEY) is None)


def test_a_stream_in_use_stays_in_memory(folder: Path, scanner: Scanner) -> None:
    with serving(folder, scanner, PATIENT._replace(linger=0.0)) as service:
        send(service, KEY, b"one\n")
        with service.intake.opened(KEY) as stream:
            end(service, KEY)
            final(service, KEY)
            attempt = stream.attempt
            assert not service.intake.forget(attempt)
            assert service.intake.known(KEY) is stream
            service.intake.take(stream, 4, b"two\n").result(90)
        eventually(lambda: looked(service) and service.intake.known(KEY) is None)
        assert content(service, KEY) == b"one\ntwo\n"


def test_evicting_and_sending_at_once_loses_nothing(folder: Path, scanner: Scanner) -> None:
    """Attempts are let go all the time while others send to them."""
    keys = [Key("job", n, stream) for n in range(3) for stream in "ab"]
    sent = dict.fromkeys(keys, b"")
    done = threading.Event()
    with serving(folder, scanner, PATIENT._replace(linger=0.0)) as service:

        def evict() -> None:
            while not done.is_set():
                for attempt in list(service.intake.attempts.values()):
                    service.intake.forget(attempt)

        def put(key: Key) -> None:
            for n in range(60):
                line = b"%s %d\n" % (str(key).encode(), n)
                send(service, key, line)
                sent[key] += line

        evictor = threading.Thread(target=evict)
        senders = [threading.Thread(target=put, args=(key,)) for key in keys]
        for thread in (evictor, *senders):
            thread.start()
        for thread in senders:
            thread.join(30)
        done.set()
        evictor.join(10)
        for key in keys:
            assert content(service, key) == sent[key]
            stream = service.intake.known(key)
            assert stream is None or service.intake.attempts[key.job, key.attempt] is stream.attempt


def test_an_attempt_is_not_let_go_while_a_stream_of_it_is_opened(service: Service) -> None:
    """Opening takes its time here: the file has very many frames."""
    send(service, KEY, b"one\n")
    attempt = service.intake.attempts["job", 1]
    other = Key("job", 1, "slow")
    file, packer = service.archive.open(other), Packer()
    for _ in range(8000):
        file.append(b"x\n", packer)
    service.intake.archive(attempt)
    eventually(lambda: not service.intake.unscanned)
    opening = threading.Thread(target=service.intake.open, args=(other,))
    opening.start()
    eventually(service.intake._opening.locked)
    service.intake.forget(attempt)
    opening.join(5)
    stream = service.intake.known(other)
    assert stream is not None and service.intake.attempts["job", 1] is stream.attempt


def test_threads_send_and_end_at_once(service: Service) -> None:
    keys = [Key(f"job{n % 4}", n % 2, f"s{n}") for n in range(32)]
    total = threading.Lock(), [0]

    def put(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(40):
            for key in keys[seed::8]:
                data = b"%s " % key.stream.encode() * chance.randrange(200) + b"\n"
                send(service, key, data)
                with total[0]:
                    total[1][0] += len(data)
            if chance.random() < 0.2:
                end(service, chance.choice(keys), whole=chance.random() < 0.5)

    threads = [threading.Thread(target=put, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert service.intake.figures().bytes_in == total[1][0]
    assert service.intake.figures().lines_in == 32 * 40
    for key in keys:
        lines = service.intake.lines(key, 1, 1000, 1 << 30).lines
        assert len(lines) == 40 and all(set(line.split()) <= {key.stream.encode()} for line in lines)
    for key in keys:
        end(service, key)
    for key in keys:
        assert final(service, key).verdict.compression.lines_in == 8 * 40
