"""Runs one attempt: starts it, forwards signals, grants its grace, and ends what it leaves behind."""

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from logdoctor.job.recovery import orphans
from logdoctor.job.recovery.death import Death
from logdoctor.job.recovery.judged import Judged, judged
from logdoctor.job.recovery.orphans import Process
from logdoctor.job.send import child as children
from logdoctor.job.send import environment
from logdoctor.safe.lasting_files import Folder

STOP = "stop.json"
_SI_KERNEL = 0x80
_LOOK_SECONDS = 0.5
_ENDS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
_HEARD = children.FORWARDED | {signal.SIGCHLD}
_ANSWER_BYTES = 4096  # no more than a pipe holds
_MARKER_BYTES = 4 << 20


class Ended(NamedTuple):
    """How an attempt ended. `status` is its wait status, `seconds` its monotonic duration. `interrupted`: somebody
    ended it from outside; `cut_short`: its grace ran out first; `stopped_for`: the verdict it was stopped for;
    `is_started`: its command could be started. `sending` are the seconds of sending output after the command's end,
    `left` the ranks that a killed launcher left behind."""

    status: int
    seconds: float
    interrupted: bool = False
    cut_short: bool = False
    stopped_for: Judged | None = None
    is_started: bool = True
    sending: float = 0.0
    left: tuple[int, ...] = ()

    @property
    def code(self) -> int:
        """Return its exit code, or 128 plus the signal it died of."""
        return 128 + os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else os.WEXITSTATUS(self.status)

    @property
    def launcher_gone(self) -> bool:
        """Return whether only the launcher was killed, and nobody asked this supervisor to end it."""
        return bool(self.left) and not self.interrupted and self.stopped_for is None

    def after(self, death: Death | None, began: float) -> "Ended":
        """Return it with what its command's death adds."""
        if death is None:
            return self
        seconds = min(max(death.at - began, 0.0), self.seconds)
        sending = self.seconds - seconds
        return self._replace(seconds=seconds, sending=sending, is_started=death.is_started, left=death.left)


class Signals:
    """The signals of the supervisor: blocked, and waited for here. Commands are started with `mask`."""

    def __init__(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._ends = children.not_ignored(_ENDS)
        self._asked_to_end = False
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)

    def wait(self, seconds: float) -> signal.struct_siginfo | None:
        """Return the next signal; None when none comes within `seconds`."""
        return signal.sigtimedwait(_HEARD, seconds)

    def asks_to_end(self, heard: signal.struct_siginfo | None) -> bool:
        """Return whether a signal asks to end; ignored ones (inherited) do not."""
        return heard is not None and heard.si_signo in self._ends

    def sleep(self, seconds: float) -> bool:
        """Sleep; return whether a signal has asked to end, before or meanwhile. That is remembered."""
        until = time.monotonic() + seconds
        while not self._asked_to_end:
            left = max(until - time.monotonic(), 0.0)
            heard = self.wait(left)
            self._asked_to_end = self.asks_to_end(heard)
            if heard is None and not left:
                break
        return self._asked_to_end

    def pause(self, seconds: float) -> bool:
        """Wait at most `seconds` for a signal; return whether one has asked to end. That is remembered."""
        self._asked_to_end = self._asked_to_end or self.asks_to_end(self.wait(seconds))
        return self._asked_to_end

    def forget(self) -> None:
        """Unblock signals, before this process dies of one."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


class StopRequest:
    """A file by which a watcher asks to end the running attempt: `{"attempt": KEY, "verdict": {...}}`.

    Only a request that names the current attempt is followed; one left for an earlier attempt is removed.
    """

    def __init__(self, folder: str, key: str) -> None:
        self._folder = Folder(folder, private=True)
        self._key = key
        self.clear()

    def clear(self) -> None:
        """Remove any request."""
        with suppress(OSError):
            self._folder.remove(STOP)

    def verdict(self) -> Judged | None:
        """Return the verdict for which this attempt should be ended; None without a request."""
        try:
            request = json.loads(self._folder.read(STOP, _MARKER_BYTES))
            return judged(request["verdict"]) if request["attempt"] == self._key else None
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None


def request_stop(folder: str, key: str, verdict: Mapping[str, Any]) -> None:
    """Request the end of an attempt; `OSError` when the state folder cannot be written."""
    request = json.dumps({"attempt": key, "verdict": dict(verdict)}).encode()
    Folder(folder, private=True).write(STOP, request, lasting=False)


class Grace(NamedTuple):
    """Seconds that a job has to save after it was asked to end, and then to send its output."""

    save: float
    drain: float


def fork(run: Callable[[], int], variables: Mapping[str, str], mask: set[Any]) -> int:
    """Fork a process that runs a function with these variables and exits with its result; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        environment.set_variables(variables)
        code = run()
    except BaseException as error:  # noqa: BLE001 - the edge of the process
        with suppress(OSError):
            os.write(2, f"[logdoctor] {type(error).__name__}: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(code)


def aside(work: Callable[[], str], signals: Signals, seconds: int = 0) -> str:
    """Run `work` in a separate process and return its text; "" when that dies, exceeds its CPU `seconds`, or somebody
    asks to end."""

    def run() -> int:
        if seconds:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        os.write(writing, os.fsencode(work())[:_ANSWER_BYTES])
        return 0

    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as answer:
        pid = fork(run, {}, set(_HEARD))
        os.close(writing)
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if signals.pause(_LOOK_SECONDS):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return ""
        return os.fsdecode(answer.read())


def attend(
    pid: int,
    signals: Signals,
    grace: Grace,
    stop: Callable[[], Judged | None],
    began: float,
    spared: Collection[Process] = (),
) -> Ended:
    """Wait for a process to end; forward signals, end it for a verdict of `stop`, and kill what outlasts its grace,
    except the `spared` processes and their descendants."""
    ending: float | None = None
    interrupted = cut_short = False
    verdict: Judged | None = None
    while True:
        heard = signals.wait(_LOOK_SECONDS)
        if signals.asks_to_end(heard):
            interrupted, ending = True, ending or time.monotonic()
        if (status := _reaped(pid)) is not None:
            return Ended(status, time.monotonic() - began, interrupted, cut_short, verdict)
        if heard is not None and heard.si_signo != signal.SIGCHLD:
            _pass(pid, heard)
        if ending is None and (verdict := stop()) is not None:
            ending = time.monotonic()
            os.kill(pid, signal.SIGTERM)
            orphans.send(orphans.descendants(os.getpid(), spared), signal.SIGCONT)  # wakes stopped ones
        if ending is not None and time.monotonic() > ending + grace.save:
            running = {one for one in orphans.descendants(os.getpid(), spared) if one.pid != pid}
            cut_short |= bool(running)
            orphans.send(running, signal.SIGKILL)
            if time.monotonic() > ending + grace.save + grace.drain:
                os.kill(pid, signal.SIGKILL)


def clear_away(mark: str, seconds: float, spared: Collection[Process] = ()) -> set[Process]:
    """End what earlier attempts of a job left behind; return what survives. Descendants of `spared` processes are left
    alone: a batch script may have children before it becomes this program."""

    def left() -> set[Process]:
        own = os.getpid()
        return {one for one in orphans.marked(mark) | orphans.descendants(own, spared) if one.pid != own}

    return orphans.end(left, seconds)


def _reaped(pid: int) -> int | None:
    """Return the wait status of a process if it has ended; reap adopted orphans, too."""
    found = None
    with suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                break
            found = status if ended == pid else found
    return found


def _pass(pid: int, heard: signal.struct_siginfo) -> None:
    """Forward a signal, unless the kernel sent it to the whole process group (Ctrl-C)."""
    if heard.si_code != _SI_KERNEL:
        with suppress(OSError):
            os.kill(pid, heard.si_signo)
