"""A thread that takes a turn when it is woken, and when the last turn said there would be more to do."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from logdoctor.errors import LogdoctorError

log = structlog.get_logger()

_AFTER_FAILURE = 15.0  # seconds until the next turn after a failure
_NOT_OURS = 0.5  # seconds between checks whether turns may be taken
_STOP_SECONDS = 5.0


@contextmanager
def shielded(event: str, **values: object) -> Iterator[None]:
    """Log exceptions of the block, and go on after it."""
    try:
        yield
    except LogdoctorError as error:
        log.error(event, cause=str(error), **values)
    except Exception:
        log.exception(event, **values)


class Turns:
    """Takes turns in its own thread. `turn` returns the seconds until there may be more; at least `pause` seconds pass
    between turns, and none is taken while `may` returns False. An exception ends only its turn: it is logged, and
    the next turn starts again from what is stored. Thread-safe."""

    def __init__(
        self, name: str, turn: Callable[[], float], pause: float = 0.0, may: Callable[[], bool] = lambda: True
    ) -> None:
        self.stopping = threading.Event()
        """Set when stopping; long turns check it."""
        self.done = 0
        """Number of turns since the start, including those that `may` prevented."""
        self._turn, self._pause, self._may = turn, pause, may
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def runs(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def wake(self) -> None:
        """Take a turn now, or another after the current one."""
        self._woken.set()

    def stop(self) -> None:
        """Begin to stop."""
        self.stopping.set()
        self._woken.set()

    def join(self, seconds: float = _STOP_SECONDS) -> None:
        """Wait at most `seconds` for the thread to finish."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            self._woken.clear()
            if self.stopping.is_set():  # checked after clearing, which may have erased the wake-up of `stop`
                return
            seconds = self._taken()
            self.done += 1
            self._woken.wait(seconds)
            self.stopping.wait(self._pause)

    def _taken(self) -> float:
        """Take one turn; return the seconds until the next."""
        with shielded("turn failed", thread=self._thread.name):
            return self._turn() if self._may() else _NOT_OURS
        return _AFTER_FAILURE
