"""Work in forked processes, which share what this one has loaded; it survives the death of any of them."""

import resource
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from logdoctor.errors import InputError, LogdoctorError, StoreError

Item = TypeVar("Item")
Result = TypeVar("Result")

_FORK = get_context("fork")
_END_SECONDS = 5.0
_ASKED = "the bucket or service"
_TOGETHER = 1000  # items sent at once


class Died(NamedTuple):
    """The result of an item whose process died, or on which the function raised: how, and what to do."""

    how: str
    next_step: str = "Give it more memory, or look at the log."

    @classmethod
    def process(cls, how: str) -> "Died":
        """Return the result for a process that ended in this way."""
        return cls(f"its process died ({how})")

    @classmethod
    def raised(cls, error: Exception) -> "Died":
        """Return the result for an exception."""
        return cls(f"{type(error).__name__}: {str(error)[:200]}", "Report it, with the log if you can share it.")

    def of(self, name: str) -> InputError:
        """Return the error for a log."""
        return InputError(name, f"cannot be diagnosed: {self.how}", self.next_step)


class _Raised(NamedTuple):
    """A logdoctor error raised by the function, which ends the work."""

    error: LogdoctorError


def worked(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, together: int = 1
) -> Iterator[tuple[Item, Result | Died]]:
    """Yield items with the function's results as they complete, not in order.

    If its process dies, or the function raises an exception, an item comes with `Died`; logdoctor's errors are raised
    here instead. At most `workers` items are in progress. Items are taken on demand, `together` at a time per process,
    unless another one has nothing left to do. Ctrl-C reaches only this process.
    """
    feeds = _shares(iter(items), workers, together)
    idle: list[_Worker[Item, Result]] = []
    busy: list[_Worker[Item, Result]] = []

    def begin() -> None:
        """Let idle or new workers begin the next items."""
        while len(busy) < workers:
            feed = idle[-1].feed if idle else feeds[-1]
            for item in feed:
                if not idle:
                    idle.append(_Worker(function, feeds.pop()))
                worker = idle.pop()
                worker.begin(item)
                busy.append(worker)
                break
            else:
                return

    try:
        begin()
        while busy:
            ready = wait([worker.pipe for worker in busy])
            for worker in [worker for worker in busy if worker.pipe in ready]:
                item, result = worker.item, worker.result()
                busy.remove(worker)
                if worker.is_alive:
                    idle.append(worker)
                else:
                    feeds.append(worker.feed)
                if isinstance(result, _Raised):
                    raise result.error
                begin()
                yield item, result
    finally:
        for worker in idle:
            worker.end()
        for worker in busy:
            worker.end(at_once=True)


def _shares(given: Iterator[Item], workers: int, together: int) -> list[Iterator[Item]]:
    """Return an iterator per worker over its share: consecutive items, then the next free ones, at last the end of the
    longest other share."""
    shares: list[deque[Item]] = [deque() for _ in range(workers)]

    def share(mine: deque[Item]) -> Iterator[Item]:
        while True:
            mine.extend(islice(given, 0 if mine else together))
            longest = max(shares, key=len)
            if not longest:
                return
            yield mine.popleft() if mine else longest.pop()

    return list(map(share, shares))


def _unanswered(died: Died) -> StoreError:
    return StoreError(_ASKED, f"cannot be read: {died.how}", died.next_step)


def apart(
    function: Callable[[], Iterable[Item]],
    failed: Callable[[Died], LogdoctorError] = _unanswered,
    memory: int | None = None,
) -> Iterator[Item]:
    """Yield what a function yields in a forked process; errors of logdoctor and the system are raised here, and
    `failed` makes the error for a death or any other exception.

    For a library whose threads would break later forks, or whose memory must be bounded: beyond `memory` bytes on top
    of this process's own, the function gets `MemoryError` or dies.
    """
    child = _Child(partial(_send, function, memory))
    try:
        while (some := _received(child)) is not None:
            if isinstance(some, Exception):
                raise some
            if isinstance(some, Died):
                raise failed(some)
            yield from some
    finally:
        child.end(at_once=True)


def _received(child: "_Child") -> Any:
    try:
        return child.pipe.recv()
    except (EOFError, OSError):
        return Died(f"the process that asked it died ({child.ended()})", "Give the same command again.")


def _end_of(process: BaseProcess) -> str:
    code = process.exitcode or 0
    return f"killed by signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _send(function: Callable[[], Iterable[Any]], memory: int | None, pipe: Connection) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        try:
            if memory is not None:
                _bound(memory)
            items = iter(function())
            while some := list(islice(items, _TOGETHER)):
                pipe.send(some)
            pipe.send(None)
        except (LogdoctorError, OSError) as error:
            pipe.send(error)
        except Exception as error:  # noqa: BLE001 -- told where it was asked for
            pipe.send(Died.raised(error))


def _bound(memory: int) -> None:
    """Limit this process to `memory` more bytes than it has, and disable core dumps."""
    with open("/proc/self/statm", encoding="ascii") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + memory
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(most, soft), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C: Python loses one that comes while it forks, because the callbacks it runs then may not raise. Only
    the main thread gets it; blocking it there would deliver it to other threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    former = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
        for number in came[:1]:
            signal.raise_signal(number)


class _Child:
    """A forked process with a pipe. It ignores Ctrl-C and holds no other child's pipe: each child ends when its own is
    closed."""

    _ours: ClassVar[set[Connection]] = set()  # this process's ends of the pipes to all its children

    def __init__(self, work: Callable[[Connection], None]) -> None:
        self.pipe, theirs = _FORK.Pipe()
        self._ours.add(self.pipe)
        self._process = _FORK.Process(target=self._begin, args=(work, theirs), daemon=True)
        with _uninterrupted():
            self._process.start()
        theirs.close()

    @classmethod
    def _begin(cls, work: Callable[[Connection], None], pipe: Connection) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for other in cls._ours:
            other.close()
        cls._ours.clear()
        work(pipe)

    def ended(self) -> str:
        """End it, and return how it ended."""
        self.end()
        return _end_of(self._process)

    def end(self, at_once: bool = False) -> None:
        """End the process, with `at_once` even while it works."""
        self._ours.discard(self.pipe)
        self.pipe.close()
        if at_once:
            self._process.terminate()
        self._process.join(_END_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


class _Worker(_Child, Generic[Item, Result]):
    """A forked process that works on one item at a time."""

    item: Item

    def __init__(self, function: Callable[[Item], Result], feed: Iterator[Item]) -> None:
        super().__init__(partial(_serve, function))
        self.feed = feed

    @property
    def is_alive(self) -> bool:
        """Return whether it can take another item."""
        return not self.pipe.closed

    def begin(self, item: Item) -> None:
        """Give it an item."""
        self.item = item
        try:
            self.pipe.send(item)
        except OSError:
            pass  # it died between two items, which its result will show

    def result(self) -> "Result | Died | _Raised":
        """Wait for its result on its item, or the error that ends the work."""
        try:
            result: Result | Died | _Raised = self.pipe.recv()
            return result
        except (EOFError, OSError):  # it died before or while sending its result
            return Died.process(self.ended())


def _serve(function: Callable[[Any], object], pipe: Connection) -> None:
    """Work on items until the pipe is closed, at latest by the parent's end."""
    while True:
        try:
            pipe.send(_outcome(function, pipe.recv()))
        except (EOFError, OSError):
            return


def _outcome(function: Callable[[Any], object], item: Any) -> object:
    try:
        return function(item)
    except LogdoctorError as error:
        return _Raised(error)
    except Exception as error:  # noqa: BLE001 -- told where the item was given
        return Died.raised(error)
