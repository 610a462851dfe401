"""Gets the verdict on an attempt: from the service, or from a diagnosis on this machine."""

import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Protocol

from logdoctor.errors import NotTaken
from logdoctor.job.recovery.judged import Judged, judged, read_judged
from logdoctor.job.send.client import Client
from logdoctor.job.send.copy import read_copy
from logdoctor.job.send.target import ShippingTarget
from logdoctor.job.send.telling import page_of

_LOOK_SECONDS = 1.0
_LEAST_SECONDS = 2.0  # a service is asked at least that long
_LOCAL_SECONDS = 900.0
_DIAGNOSE = ("-P", "-m", "logdoctor.cli", "diagnose", "--json")

Pause = Callable[[float], bool]
"""Sleeps for that many seconds; returns whether somebody asked to end meanwhile."""


class Judge(Protocol):
    """A source of verdicts on attempts."""

    def __call__(self, key: str, code: int) -> Judged | None:
        """Return the verdict on an attempt, or None. `code` is its exit code (128 plus the signal it died of)."""


class ServiceJudge:
    """Asks the service until its verdict is final. With `whole` it reports the end of the whole attempt; else the
    service waits for its other senders. An unreachable service is retried until `away_until(key)` (time.monotonic), but
    at least two seconds."""

    def __init__(
        self,
        target: ShippingTarget,
        seconds: float,
        pause: Pause,
        whole: bool = True,
        away_until: Callable[[str], float] = lambda key: math.inf,
    ) -> None:
        self._target, self._seconds, self._pause, self._whole = target, seconds, pause, whole
        self._away_until, self._has_answered = away_until, False
        self.page = page_of(target)
        """The address of the last verdict's page, or of the job's page when that is unknown."""

    def __call__(self, key: str, code: int) -> Judged | None:
        """Return the final verdict; None without one in time, or when somebody asked to end."""
        client = Client(self._target)
        until = time.monotonic() + self._seconds
        away_until = min(until, max(self._away_until(key), time.monotonic() + _LEAST_SECONDS))
        self.page, self._has_answered = page_of(self._target), False
        try:
            number: int | None = None
            while time.monotonic() < (last := until if self._has_answered else away_until):
                client.deadline = last
                with suppress(NotTaken, ValueError):
                    number = number or self._number(client, key, code)
                    if number and (found := self._final(client, number)) is not None:
                        return found
                if self._pause(min(_LOOK_SECONDS, self._seconds)):
                    return None
            return None
        finally:
            client.close()

    def _number(self, client: Client, key: str, code: int) -> int:
        """Return the number of the attempt; `NotTaken` when the service is unreachable."""
        answer = client.number_attempt(key)
        self._has_answered |= answer.status < 500
        number = answer.body.get("attempt")
        if answer.status >= 300 or not isinstance(number, int):
            raise answer.refusal()
        if self._whole:
            number_of_signal = _signal(code)
            end = {"exit_code": None if number_of_signal else code, "signal": number_of_signal}
            if (said := client.end(number, {**end, "scheduler_state": None})).status >= 300:
                raise said.refusal()
        return number

    def _final(self, client: Client, number: int) -> Judged | None:
        answer = client.verdict(number)
        if answer.status != 200 or answer.body.get("final") is not True:
            return None
        self.page = page_of(self._target, answer.body.get("id"))
        return judged(answer.body.get("verdict"))


class LocalJudge:
    """Diagnoses the local copy of the output with the same pipeline, where all of logdoctor is installed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, key: str, code: int) -> Judged | None:
        """Return the verdict; None when diagnosis is impossible here."""
        try:
            with subprocess.Popen(
                [sys.executable, *_DIAGNOSE, "--exit-code", str(code), "--beside", self._folder, "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as process:
                return self._answer(process)
        except (OSError, ValueError, subprocess.SubprocessError):
            return None

    def _answer(self, process: "subprocess.Popen[bytes]") -> Judged | None:
        assert process.stdin
        try:
            with suppress(BrokenPipeError):  # it could not start: its output is empty
                for data in read_copy(self._folder):
                    process.stdin.write(data)
            out, _ = process.communicate(timeout=_LOCAL_SECONDS)
        except BaseException:
            process.kill()
            raise
        return read_judged(out) if process.returncode in (0, 1) and out else None


def can_diagnose() -> bool:
    """Return whether all of logdoctor is installed here, not the sender alone."""
    return find_spec("hyperscan") is not None and find_spec("logdoctor.cli") is not None


def print_verdict(folder: str, code: int) -> None:
    """Diagnose the copy of an output here, and print the verdict on standard error."""
    command = [sys.executable, *_DIAGNOSE[:-1], "--exit-code", str(code), "--beside", folder, "-"]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sys.stderr, preexec_fn=_hear_signals) as process:
            assert process.stdin
            with suppress(BrokenPipeError):
                for data in read_copy(folder):
                    process.stdin.write(data)
    except OSError as error:
        print(f"logdoctor: the output cannot be diagnosed here ({error.strerror}).", file=sys.stderr)


def _hear_signals() -> None:
    """Unblock signals so that Ctrl-C ends the diagnosis; this process blocks and forwards them."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


class FirstOf:
    """Asks judges in order."""

    def __init__(self, judges: Sequence[Judge]) -> None:
        self._judges = judges

    def __call__(self, key: str, code: int) -> Judged | None:
        """Return the first verdict that a judge has; None without one."""
        for judge in self._judges:
            if (found := judge(key, code)) is not None:
                return found
        return None


def _signal(code: int) -> int | None:
    """Return the signal in an exit code above 128, as shells write it; None for others, such as the 255 of exit(-1)."""
    return code - 128 if 128 < code <= 128 + signal.SIGRTMAX else None
