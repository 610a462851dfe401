"""Spans: steps of work on an attempt and their durations, for a collector of traces.

One attempt is one trace, whichever processes do the parts: the id of the trace is a digest of job and attempt. Without
a tracer, which only `logdoctor.wiring` makes, a span costs a call. Spans have names, counts and times, never text of a
log.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Protocol

Value = str | bool | int | float


class Span(Protocol):
    """An open span."""

    def add(self, **attributes: Value) -> None:
        """Add attributes."""


class Tracer(Protocol):
    """Makes spans; its methods never raise or wait."""

    def span(self, name: str, job: str, attempt: int, attributes: Mapping[str, Value]) -> AbstractContextManager[Span]:
        """Return a span that lasts as long as the block."""
        ...

    def spent(self, name: str, job: str, attempt: int, since: int, attributes: Mapping[str, Value]) -> None:
        """Record a span that ends now and began at `since`, in nanoseconds since the epoch."""

    def counts(self) -> Mapping[str, int]:
        """Return how many spans were sent, and how many were not, by cause."""
        ...


class _Nothing:
    """A span that nobody collects."""

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add(self, **attributes: Value) -> None:
        """Ignore the attributes."""


NOTHING = _Nothing()
_tracer: Tracer | None = None


def use(tracer: Tracer | None) -> None:
    """Set the tracer of this process; None turns tracing off."""
    global _tracer
    _tracer = tracer


def is_on() -> bool:
    """Return whether spans are made; callers skip costly counts otherwise."""
    return _tracer is not None


def span(name: str, job: str, attempt: int, **attributes: Value) -> AbstractContextManager[Span]:
    """Return a span that lasts as long as the block: `with span("judge", job, 1) as judging:`."""
    return NOTHING if _tracer is None else _tracer.span(name, job, attempt, attributes)


def spent(name: str, job: str, attempt: int, since: int, **attributes: Value) -> None:
    """Record a span that ends now and began at `since`, in nanoseconds since the epoch."""
    if _tracer is not None:
        _tracer.spent(name, job, attempt, since, attributes)


def counts() -> Mapping[str, int]:
    """Return how many spans of this process were `sent`, or not: `failed`, `dropped`, `thinned`."""
    return {} if _tracer is None else _tracer.counts()


def trace_id(job: str, attempt: int) -> int:
    """Return the trace id of an attempt: 16 bytes of the SHA-256 of `JOB/ATTEMPT`."""
    return int.from_bytes(sha256(f"{job}/{attempt}".encode()).digest()[:16]) or 1
