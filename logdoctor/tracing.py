"""Spans: what is done about an attempt, and how long it takes, for a collector of traces if one is set.

One attempt is one trace, whichever processes do the parts: the id of the trace is a digest of job and attempt. Without
a tracer, which only `logdoctor.wiring` makes, a span costs a call. No span has text of a log: names, counts and times.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Protocol

Value = str | bool | int | float


class Span(Protocol):
    """A span that is open."""

    def add(self, **attributes: Value) -> None:
        """Say more of what is done."""


class Tracer(Protocol):
    """Makes spans; nothing that it does may raise or wait."""

    def span(self, name: str, job: str, attempt: int, attributes: Mapping[str, Value]) -> AbstractContextManager[Span]:
        """Return a span that lasts as long as the block."""
        ...

    def spent(self, name: str, job: str, attempt: int, since: int, attributes: Mapping[str, Value]) -> None:
        """Make a span that ends now and began at `since`, in nanoseconds since the epoch."""

    def counts(self) -> Mapping[str, int]:
        """Return how many spans were sent, and how many not, and why."""
        ...


class _Nothing:
    """A span that nobody collects."""

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add(self, **attributes: Value) -> None:
        """Forget it."""


NOTHING = _Nothing()
_tracer: Tracer | None = None


def use(tracer: Tracer | None) -> None:
    """Let a tracer make the spans of this process; None for none."""
    global _tracer
    _tracer = tracer


def is_on() -> bool:
    """Return whether spans are made, for those who would have to count first."""
    return _tracer is not None


def span(name: str, job: str, attempt: int, **attributes: Value) -> AbstractContextManager[Span]:
    """Return a span of an attempt that lasts as long as the block: `with span("judge", job, 1) as judging:`."""
    return NOTHING if _tracer is None else _tracer.span(name, job, attempt, attributes)


def spent(name: str, job: str, attempt: int, since: int, **attributes: Value) -> None:
    """Make a span of an attempt that ends now and began at `since`, in nanoseconds since the epoch."""
    if _tracer is not None:
        _tracer.spent(name, job, attempt, since, attributes)


def counts() -> Mapping[str, int]:
    """Return how many spans of this process were `sent`, or not: `failed`, `dropped`, `thinned`."""
    return {} if _tracer is None else _tracer.counts()


def trace_id(job: str, attempt: int) -> int:
    """Return the id of the trace of an attempt: the first 16 bytes of SHA-256 of `JOB/ATTEMPT`."""
    return int.from_bytes(sha256(f"{job}/{attempt}".encode()).digest()[:16]) or 1
