"""A thread that takes a turn whenever it is woken, and when the last turn said that there would be more to do."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from logdoctor.errors import LogdoctorError

log = structlog.get_logger()

_AFTER_FAILURE = 15.0  # seconds until the next turn when one failed
_NOT_OURS = 0.5  # seconds between two looks at whether turns may be taken
_STOP_SECONDS = 5.0


@contextmanager
def shielded(event: str, **values: object) -> Iterator[None]:
    """Log what goes wrong inside, and go on behind it."""
    try:
        yield
    except LogdoctorError as error:
        log.error(event, cause=str(error), **values)
    except Exception:
        log.exception(event, **values)


class Turns:
    """Takes turns in a thread of its own. `turn` gives the seconds until there may be more; between two turns there are
    `pause` seconds at least, and none is taken while `may` says no. What a turn raises ends that turn alone: it is
    logged, and the next one begins anew from what is stored. All methods are for any thread."""

    def __init__(
        self, name: str, turn: Callable[[], float], pause: float = 0.0, may: Callable[[], bool] = lambda: True
    ) -> None:
        self.stopping = threading.Event()
        """Set when the turns come to an end; one that takes long looks at it."""
        self.done = 0
        """How many turns came to an end since the start, those among them that might not be taken."""
        self._turn, self._pause, self._may = turn, pause, may
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def runs(self) -> bool:
        """Whether turns are taken: between start and end."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Take a turn now, or another one after that which is being taken."""
        self._woken.set()

    def stop(self) -> None:
        """Begin to come to an end."""
        self.stopping.set()
        self._woken.set()

    def join(self, seconds: float = _STOP_SECONDS) -> None:
        """Wait for the end, for so long at most."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            self._woken.clear()
            if self.stopping.is_set():  # asked after the clearing, which may have taken the call to stop away
                return
            seconds = self._taken()
            self.done += 1
            self._woken.wait(seconds)
            self.stopping.wait(self._pause)

    def _taken(self) -> float:
        """Seconds until the next turn, after one turn."""
        with shielded("turn failed", thread=self._thread.name):
            return self._turn() if self._may() else _NOT_OURS
        return _AFTER_FAILURE
