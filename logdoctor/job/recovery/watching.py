"""Watches a running attempt, and asks for its end when its verdict says that it makes no progress.

A watcher is a process beside the attempt. It uses the same file as anybody else (`running.StopRequest`), so it may die,
or be wrong, without harming the supervisor.
"""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from logdoctor.errors import NotTaken
from logdoctor.job.recovery.judged import Judged, judged
from logdoctor.job.recovery.running import request_stop
from logdoctor.job.recovery.witness.states import States
from logdoctor.job.send import environment
from logdoctor.job.send.asides import add_asides
from logdoctor.job.send.client import Client
from logdoctor.job.send.copy import FollowedCopy
from logdoctor.job.send.target import ShippingTarget

REASONS = {"hang": "Hang", "loss-spike": "Loss Spike"}
"""Options that allow ending a running attempt, each with the verdict's reason."""

_LOOK_SECONDS = 0.25  # between looks at the output; steps within it look like one burst
_ASK_SECONDS = 2.0  # between requests to a service
_STANDS_SECONDS = 4.0  # that a verdict must stand: the next step withdraws a hang
_WITNESS_SECONDS = 10.0  # for diagnosing what a second witness said
_AGAIN_SECONDS = 5.0  # until ranks suspected to hang are asked again: one that moved does not hang
_LATE_SECONDS = 10.0  # a look this late means that this process was stopped, and the job with it
_RESUMED_SECONDS = 60.0  # for a job that a person held to reach its next step
_LEAST_SECONDS = b"20"  # shortest time without a step that is a hang, when the output is followed here
_FOLLOW = ("-P", "-m", "logdoctor.cli", "diagnose", "--follow", "--json", "--supervised")


class Look(Protocol):
    """A source of provisional verdicts on the running attempt."""

    def __call__(self) -> Mapping[str, Any] | None:
        """Return the current verdict as a JSON object; None without one."""

    @property
    def is_suspect(self) -> bool:
        """Return whether waiting ranks, reported by a witness, would make it a hang."""


class Watching(NamedTuple):
    """How an attempt is watched. `look_at` makes a look at an attempt, with a factor for its hang patience. `reasons`
    may end it, `say` reports, `witness` is asked about a hang before the end."""

    folder: str
    look_at: Callable[[str, float], Look]
    reasons: Collection[str]
    say: Callable[[str], None]
    dry_run: bool = False
    witness: Callable[[str], list[str]] | None = None
    """Returns lines about a hanging attempt, by its key."""
    states: Callable[[str], States] | None = None
    """Returns the process states of an attempt, by its key."""

    def watch(self, key: str, times: float = 1.0) -> int:
        """Watch until the attempt should end, then request that; a dry run only reports it.

        Watching also stops when the parent process is gone: it would hold the job's lease forever.
        """
        parent = os.getppid()
        look, since, asked = self.look_at(key, times), None, False
        states = self.states(key) if self.states else None
        held_until, before = 0.0, time.monotonic()
        while True:
            if os.getppid() != parent:
                return 1
            time.sleep(_LOOK_SECONDS)  # nobody announces a changed verdict
            verdict, now = look(), time.monotonic()
            if states is not None and (lines := states.look(look.is_suspect)):
                add_asides(self.folder, lines)
            if (states is not None and states.is_held) or now - before > _LATE_SECONDS:
                held_until = now + _RESUMED_SECONDS
            asked = look.is_suspect and (asked or self._suspect(key))
            before = time.monotonic()
            found = _read(verdict)
            if verdict is None or found is None or not self._ends(found) or now < held_until:
                since = None
                continue
            since = now if since is None else since
            if now - since >= _STANDS_SECONDS and (verdict := self._with_witness(look, key, verdict)) is not None:
                break
        found = judged(verdict)
        if self.dry_run:
            self.say(f"it would be ended now: its verdict is {found.reason}.")
        else:
            self.say(f"its verdict is {found.reason}{_of_rank(verdict)}: it is ended. {found.suggestion}".strip())
            request_stop(self.folder, key, verdict)
        return 0

    def _suspect(self, key: str) -> bool:
        """Ask the second witness about a suspected hang; add its lines to the output. Return True. Lines that change
        within seconds are dropped: those ranks do not hang."""
        if self.dry_run or self.witness is None or not (lines := self.witness(key)):
            return True
        time.sleep(_AGAIN_SECONDS)
        if self.witness(key) == lines:
            add_asides(self.folder, lines)
        return True

    def _with_witness(self, look: Look, key: str, verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the verdict that a second witness leads to; None when it is withdrawn meanwhile."""
        found = judged(verdict)
        if self.dry_run or self.witness is None or found.reason != REASONS["hang"] or _of_rank(verdict):
            return verdict
        lines = self.witness(key)
        if not lines or not add_asides(self.folder, lines):
            return verdict
        until = time.monotonic() + _WITNESS_SECONDS
        while time.monotonic() < until:
            now = _read(standing := look())
            if standing is None or now is None or not self._ends(now):
                return None
            if now.fingerprint != found.fingerprint:
                return standing
            time.sleep(_LOOK_SECONDS)
        return verdict

    def _ends(self, found: Judged) -> bool:
        return found.outcome == "failed" and found.reason in {REASONS[name] for name in self.reasons}


def _of_rank(verdict: Mapping[str, Any]) -> str:
    """Return the rank that a verdict names, in words; "" if none."""
    rank = verdict.get("first_rank")
    return f" (rank {rank})" if isinstance(rank, int) else ""


def _read(verdict: Mapping[str, Any] | None) -> Judged | None:
    """Parse a verdict; None without one, or when it cannot be read."""
    with suppress(ValueError):
        return judged(verdict) if verdict else None
    return None


class ServiceLook:
    """Polls the service."""

    is_suspect = False

    def __init__(self, target: ShippingTarget, key: str) -> None:
        self._client, self._key = Client(target), key
        self._number: int | None = None
        self._asked_at = 0.0
        self._verdict: Mapping[str, Any] | None = None

    def __call__(self) -> Mapping[str, Any] | None:
        """Return the provisional verdict; None without one, or when the service does not answer."""
        if time.monotonic() - self._asked_at >= _ASK_SECONDS:
            self._verdict, self._asked_at = self._ask(), time.monotonic()
        return self._verdict

    def _ask(self) -> Mapping[str, Any] | None:
        with suppress(NotTaken):
            if self._number is None:
                number = self._client.number_attempt(self._key).body.get("attempt")
                self._number = number if isinstance(number, int) else None
            if self._number is not None:
                answer = self._client.verdict(self._number)
                verdict = answer.body.get("verdict")
                if answer.status == 200 and answer.body.get("final") is False and isinstance(verdict, Mapping):
                    return verdict
        return None


class LocalLook:
    """Follows the local copy of the output with the same pipeline, where all of logdoctor is installed."""

    def __init__(self, folder: str, times: float = 1.0) -> None:
        self.is_suspect = False
        self._copy = FollowedCopy(folder)
        self._verdict: Mapping[str, Any] | None = None
        self._said = b""
        told = {b"LOGDOCTOR_HANG_LEAST_SECONDS": _LEAST_SECONDS, **environment.for_child()}
        self._process = subprocess.Popen(
            [sys.executable, *_FOLLOW, f"{times:g}", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=told,
        )

    def __call__(self) -> Mapping[str, Any] | None:
        """Return the last verdict printed; None once it was withdrawn, or when nothing can be diagnosed here."""
        assert self._process.stdin
        with suppress(OSError):  # the process ended: nothing new is known
            for data in self._copy.read():
                self._process.stdin.write(data)
                self._read(0.0)
            self._process.stdin.flush()
        self._read(_LOOK_SECONDS / 4)  # it may still be reading the last lines
        return self._verdict

    def _read(self, seconds: float) -> None:
        """Read what was printed until now."""
        assert self._process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(seconds):
                data = os.read(self._process.stdout.fileno(), 1 << 20)
                if not data:
                    return
                *lines, self._said = (self._said + data).split(b"\n")
                for line in lines:
                    with suppress(ValueError):
                        self._take(json.loads(line))

    def _take(self, said: Mapping[str, Any]) -> None:
        if "suspect" in said:
            self.is_suspect = bool(said["suspect"])
        else:
            self._verdict = said


class FirstLook:
    """Asks looks in order."""

    def __init__(self, *looks: Look) -> None:
        self._looks = looks

    def __call__(self) -> Mapping[str, Any] | None:
        """Return the first verdict that a look knows; None without one."""
        return next((found for look in self._looks if (found := look()) is not None), None)

    @property
    def is_suspect(self) -> bool:
        """Return whether any look suspects a hang."""
        return any(look.is_suspect for look in self._looks)
