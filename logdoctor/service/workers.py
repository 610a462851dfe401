"""More processes of this machine that read the log, so that all of its cores compress and judge.

They share the tables and the archive with the one that started them, and end with it. Which of them reads what is
settled by leases (store/shards.py): one that dies is started again, and others go on with its attempts meanwhile.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import structlog

from logdoctor.service.turns import Turns

log = structlog.get_logger()

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before one that died is started again
_LASTING = 60.0  # seconds after which one that dies did not die at its start
_STOP_SECONDS = 60.0
_LOOK = 0.2  # seconds between two looks at whether they run


class _Process:
    """One worker process."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None
        self._pause, self._begun, self._again = _FIRST_PAUSE, 0.0, 0.0

    def look(self, now: float) -> None:
        """Start it, unless it runs or has died a moment ago."""
        if self._child is not None and (code := self._child.poll()) is not None:
            self._child = None
            self._pause = _FIRST_PAUSE if now - self._begun > _LASTING else min(2 * self._pause, _LONGEST_PAUSE)
            self._again = now + self._pause
            log.error("worker died", exit_code=code, started_again_in=self._pause)
        if self._child is None and now >= self._again:
            # it ends when its standard input does, so it does not outlive this process however that ends
            self._begun, self._again = now, now + self._pause
            try:
                self._child = subprocess.Popen(self._command, stdin=subprocess.PIPE)
            except OSError as error:
                log.error("worker not started", cause=str(error), started_again_in=self._pause)

    def end(self) -> None:
        """Let it end: at once when it works, and else as soon as it has begun and taken what waits. A signal would kill
        one that begins."""
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()

    def wait(self, deadline: float) -> None:
        """Wait for its end, and kill it when the time is over."""
        if self._child is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(max(deadline - time.monotonic(), 0.0))
        if self._child.poll() is None:
            log.error("worker killed", cause="it did not stop in time; nothing is lost")
            self._child.kill()
            self._child.wait()


class Workers:
    """So many worker processes, watched by a thread."""

    def __init__(self, count: int, arguments: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "logdoctor.cli", "worker", "--workers=1", "--until-eof", *arguments]
        self._processes = [_Process(command) for _ in range(count)]
        self._turns = Turns("workers", self._look)
        self.start = self._turns.start

    def stop(self) -> None:
        """Let them write what they have read, and end."""
        self._turns.stop()
        self._turns.join()
        for process in self._processes:
            process.end()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._processes:
            process.wait(deadline)

    def _look(self) -> float:
        """See that all run; the seconds until the next look."""
        for process in self._processes:
            process.look(time.monotonic())
        return _LOOK
