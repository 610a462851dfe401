"""Work in forked processes, some of which die."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection

import pytest

from logdoctor.errors import InputError, StoreError
from logdoctor.pipeline.batch.processes import Died, _shares, apart, worked


def squared(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 5:
        raise ValueError("five")
    return number * number


@pytest.mark.parametrize("workers", [1, 2, 40])
def test_each_item_has_its_result_whoever_dies(workers: int) -> None:
    results = dict(worked(squared, range(20), workers))
    assert results.pop(3) == Died.process("killed by signal SIGKILL")
    assert results.pop(5) == Died.raised(ValueError("five"))
    assert results == {number: number * number for number in range(20) if number not in (3, 5)}


def half(number: int) -> int:
    """Dies while it sends its result."""

    def send(self: Connection, data: bytes) -> None:
        os.write(self.fileno(), data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    Connection._send = send  # type: ignore[attr-defined] # in its own process
    return number


def test_who_dies_while_it_sends_has_died() -> None:
    assert dict(worked(half, range(3), 2)) == {number: Died.process("killed by signal SIGKILL") for number in range(3)}


def test_what_the_function_raised_is_said() -> None:
    error = Died.raised(ValueError("five")).of("a.log")
    assert str(error) == "a.log cannot be diagnosed: ValueError: five. Report it, with the log if you can share it."


def returned(number: int) -> StoreError:
    return StoreError("the bucket", "fails", str(number))


def test_an_error_that_is_returned_is_a_result() -> None:
    assert [str(error) for _, error in worked(returned, range(2), 1)] == [str(returned(0)), str(returned(1))]


def failing(number: int) -> int:
    raise StoreError("the bucket", "fails", "Wait.") if number == 3 else OSError(number)


def test_an_error_of_ours_ends_the_work() -> None:
    results = worked(failing, range(20), 1)
    assert [next(results)[1] for _ in range(3)] == [Died.raised(OSError(number)) for number in range(3)]
    with pytest.raises(StoreError, match="the bucket fails"):
        next(results)


def test_items_are_taken_as_they_are_needed() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = worked(abs, items(), 2)
    next(results)
    assert len(taken) <= 4


def stuck(number: int) -> int:
    """Never returns, but for 0."""
    while number:
        signal.pause()
    return number


def test_what_lies_side_by_side_goes_to_one_process_until_another_has_nothing_left() -> None:
    one, other = _shares(iter(range(10)), 2, together=4)
    assert [next(one), next(other), next(one)] == [0, 4, 1]
    assert [next(other) for _ in range(6)] == [5, 6, 7, 8, 9, 3]
    assert [*one, *other] == [2]


def test_who_does_not_want_more_waits_for_nobody() -> None:
    results = worked(stuck, [0, 1], 2)
    assert next(results) == (0, 0)
    del results


def test_what_is_yielded_apart_comes_here_with_its_errors() -> None:
    assert list(apart(lambda: range(2500))) == list(range(2500))
    assert set(apart(lambda: [os.getpid()])) != {os.getpid()}

    def failing() -> Iterator[int]:
        yield 1
        raise InputError("a log", "is bad", "Look.")

    with pytest.raises(InputError, match="a log is bad"):
        list(apart(failing))

    def dying() -> Iterator[int]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield 1

    with pytest.raises(StoreError, match=r"died \(killed by signal SIGKILL\)"):
        list(apart(dying))
    assert next(apart(lambda: iter(int, 1))) == 0, "endless"


def test_a_process_apart_has_so_much_memory_and_no_more() -> None:
    def filling() -> list[int]:
        return [len(bytearray(1 << 29))]

    assert list(apart(filling, memory=1 << 30)) == [1 << 29]
    with pytest.raises(StoreError, match="cannot be read: MemoryError"):
        list(apart(filling, memory=8 << 20))


def test_an_exception_apart_is_said_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("five")

    with pytest.raises(StoreError, match="cannot be read: ValueError: five"):
        list(apart(failing))
    assert capfd.readouterr().err == ""


def test_what_is_not_wanted_any_more_ends_whatever_a_signal_means_here() -> None:
    def endless() -> Iterator[int]:
        yield from range(1000)
        stuck(1)

    former = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        some = apart(endless)
        next(some)
        del some
    finally:
        signal.signal(signal.SIGTERM, former)


FORKED: list[Callable[[], None]] = []
"""What is called in this process whenever it forks."""
os.register_at_fork(after_in_parent=lambda: [one() for one in FORKED])


def test_ctrl_c_while_a_process_begins_is_not_lost() -> None:
    """Python forgets what is raised by what it calls when it forks; the system may give a signal to any thread."""
    over = threading.Event()
    threading.Thread(target=over.wait).start()
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    FORKED.append(lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            list(worked(squared, range(2), 1))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        over.set()
        FORKED.clear()
        signal.signal(signal.SIGINT, former)


def sockets() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {one for one in found if one.startswith("socket:")}


def test_no_process_keeps_the_pipes_of_another() -> None:
    before = sockets()
    results = worked(stuck, [0, 1], 2)
    next(results)
    pipes = sockets() - before
    assert len(pipes) == 2 and not pipes & set(apart(sockets))
    del results
