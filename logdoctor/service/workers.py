"""Worker processes on this machine, so that all of its cores compress and judge.

They share the tables and the archive with the process that started them, and end with it. Leases settle which of them
reads what (store/log/shards.py): a dead one is restarted, and others take over its attempts meanwhile.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import structlog

from logdoctor.service.turns import Turns

log = structlog.get_logger()

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before a dead one is restarted
_LASTING = 60.0  # seconds of life after which a death is not one at the start
_STOP_SECONDS = 60.0
_LOOK = 0.2  # seconds between checks that they run


class _Process:
    """One worker process."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None
        self._pause, self._begun, self._again = _FIRST_PAUSE, 0.0, 0.0

    def look(self, now: float) -> None:
        """Start it, unless it runs or has just died."""
        if self._child is not None and (code := self._child.poll()) is not None:
            self._child = None
            self._pause = _FIRST_PAUSE if now - self._begun > _LASTING else min(2 * self._pause, _LONGEST_PAUSE)
            self._again = now + self._pause
            log.error("worker died", exit_code=code, started_again_in=self._pause)
        if self._child is None and now >= self._again:
            # it ends when its standard input closes, so it cannot outlive this process
            self._begun, self._again = now, now + self._pause
            try:
                self._child = subprocess.Popen(self._command, stdin=subprocess.PIPE)
            except OSError as error:
                log.error("worker not started", cause=str(error), started_again_in=self._pause)

    def end(self) -> None:
        """Make it end once it has started and written what it read. A signal would kill one that is starting."""
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()

    def wait(self, deadline: float) -> None:
        """Wait until it ends, and kill it after the deadline."""
        if self._child is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(max(deadline - time.monotonic(), 0.0))
        if self._child.poll() is None:
            log.error("worker killed", cause="it did not stop in time; nothing is lost")
            self._child.kill()
            self._child.wait()


class Workers:
    """A number of worker processes, kept running by a thread."""

    def __init__(self, count: int, arguments: Sequence[str] = ()) -> None:
        command = [sys.executable, "-P", "-m", "logdoctor.cli", "worker", "--workers=1", "--until-eof", *arguments]
        self._processes = [_Process(command) for _ in range(count)]
        self._turns = Turns("workers", self._look)
        self.start = self._turns.start

    def stop(self) -> None:
        """Make them write what they have read, and end."""
        self._turns.stop()
        self._turns.join()
        for process in self._processes:
            process.end()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._processes:
            process.wait(deadline)

    def _look(self) -> float:
        """Restart dead ones; return the seconds until the next check."""
        for process in self._processes:
            process.look(time.monotonic())
        return _LOOK
