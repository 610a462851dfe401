"""Build the tracer: spans by OpenTelemetry's SDK, sent to a collector by OTLP over HTTP.

Whatever is not set here comes from the SDK's own variables (OTEL_...). This module adds what it lacks: a queue that
counts what does not fit, a rate limit that no sender of logs can exceed, and distrust of a collector's answers.
"""

import atexit
import logging
import os
import socket
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import structlog

from logdoctor import tracing
from logdoctor.errors import ExtraMissing, SettingsError
from logdoctor.service.turns import Turns
from logdoctor.settings import Settings
from logdoctor.tracing import NOTHING, Span, Value, trace_id

try:
    import requests
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.trace import Span as SdkSpan
    from opentelemetry.trace import Status, StatusCode, get_current_span, use_span
except ModuleNotFoundError as error:
    raise ExtraMissing(error.name or "opentelemetry", "tracing") from error

log = structlog.get_logger()

_PATH = "/v1/traces"
_QUEUE = 2048  # waiting spans
_BATCH = 512  # spans per request
_EVERY = 1.0  # seconds between two batches that are not full
_STOP_SECONDS = 2.0  # for the last spans before the process ends
_BURST, _PER_SECOND = 20.0, 1.0  # spans of one name and attempt: at once, and then every second
_BURST_OF_ALL, _PER_SECOND_OF_ALL = 1000.0, 200.0
_PACED = 10_000  # names and attempts whose rates are kept
_LONGEST = 256  # characters of an attribute
_SENDERS = ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.exporter.otlp.common")

_wanted: ContextVar[int] = ContextVar("logdoctor_trace")
"""The trace id for the span that is being started."""


def tracer(settings: Settings, clock: Callable[[], float] = time.monotonic) -> "AttemptTracer":
    """Return a tracer that sends spans to the configured collector, and ends with the process. `clock` gives seconds,
    for rate limits."""
    made = AttemptTracer(_exporter(settings.otlp_url), urlsplit(settings.otlp_url).hostname or "", clock)
    atexit.register(made.stop)
    return made


def _exporter(url: str) -> SpanExporter:
    """Return the exporter to a collector; `SettingsError` for an invalid URL."""
    for name in _SENDERS:  # they would log each failed batch
        logging.getLogger(name).setLevel(logging.CRITICAL)
    base = url.rstrip("/")
    try:
        parts = urlsplit(base)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError("LOGDOCTOR_OTLP_URL", "is no http:// or https:// URL", "Set it as http://collector:4318.")
    return OTLPSpanExporter(endpoint=base if base.endswith(_PATH) else base + _PATH, session=_Session())


class _Session(requests.Session):
    """Takes the status of an answer and never reads its body, however long."""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        response = super().request(*arguments, **{**options, "stream": True, "allow_redirects": False})
        response.close()
        if 300 <= response.status_code < 400:
            raise requests.TooManyRedirects("redirects are not followed")
        return response


class _AttemptIds(RandomIdGenerator):
    """Gives a trace the id of its attempt."""

    def generate_trace_id(self) -> int:
        return _wanted.get()

    def is_trace_id_random(self) -> bool:
        return False


class _Queue(SpanProcessor):
    """Holds spans until a thread has sent them. Those that do not fit are dropped, and counted."""

    def __init__(self, exporter: SpanExporter, where: str) -> None:
        self._exporter, self._where = exporter, where
        self._waiting: deque[ReadableSpan] = deque()
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter(sent=0, failed=0, dropped=0)
        self._fails = self._sending = False
        self._turns = Turns("traces", self._turn)
        self._turns.start()

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            if len(self._waiting) >= _QUEUE:
                self.counts["dropped"] += 1
                return
            self._waiting.append(span)
            is_due = len(self._waiting) == _BATCH
        if is_due:
            self._turns.wake()

    def stop(self) -> None:
        """Send the waiting spans, for two seconds at most."""
        if self._turns.stopping.is_set():
            return
        self._turns.wake()
        until = time.monotonic() + _STOP_SECONDS
        while (self._waiting or self._sending) and time.monotonic() < until:
            time.sleep(0.01)  # for two seconds at most, once
        self._turns.stop()

    def _turn(self) -> float:
        """Send all waiting spans, a batch at a time."""
        while not self._turns.stopping.is_set():
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH))]
                self._sending = bool(batch)
            if not batch:
                break
            self._send(batch)
        return _EVERY

    def _send(self, batch: list[ReadableSpan]) -> None:
        sent = False
        try:
            sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # the edge of the thread: whatever an exporter raises, the next spans are tried
            log.exception("traces not sent", host=self._where)
        with self._lock:
            self.counts["sent" if sent else "failed"] += len(batch)
        if self._fails == sent:  # log only the first failure, and the recovery
            say = log.info if sent else log.warning
            say("traces sent again" if sent else "traces not sent", host=self._where)
        self._fails = not sent


class _Level(NamedTuple):
    """A token bucket of spans, with how many were left out since the last one."""

    left: float
    at: float
    thinned: int = 0

    def filled(self, now: float, burst: float, rate: float) -> "_Level":
        """Return the bucket at a later time."""
        return self._replace(left=min(self.left + (now - self.at) * rate, burst), at=now)


class _Pace:
    """Limits the rate of spans by name and attempt, and of all together."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._levels: OrderedDict[tuple[str, int], _Level] = OrderedDict()
        self._all = _Level(_BURST_OF_ALL, clock())
        self.thinned = 0

    def admit(self, name: str, trace: int) -> int | None:
        """Return how many spans of the name were left out before this one. It is None if this one is left out, too."""
        now, key = self._clock(), (name, trace)
        with self._lock:
            self._all = self._all.filled(now, _BURST_OF_ALL, _PER_SECOND_OF_ALL)
            level = self._levels.pop(key, _Level(_BURST, now)).filled(now, _BURST, _PER_SECOND)
            while len(self._levels) >= _PACED:
                self._levels.popitem(last=False)
            if level.left < 1.0 or self._all.left < 1.0:
                self._levels[key] = level._replace(thinned=level.thinned + 1)
                self.thinned += 1
                return None
            self._all = self._all._replace(left=self._all.left - 1.0)
            self._levels[key] = _Level(level.left - 1.0, now)
            return level.thinned


class _OpenSpan(NamedTuple):
    """An open span of the SDK."""

    span: SdkSpan

    def add(self, **attributes: Value) -> None:
        """Add attributes."""
        self.span.set_attributes(attributes)


class AttemptTracer:
    """Makes spans, each in the trace of its attempt, and sends them. All methods are thread-safe."""

    def __init__(self, exporter: SpanExporter, where: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._queue, self._pace = _Queue(exporter, where), _Pace(clock)
        provider = TracerProvider(
            resource=_resource(),
            id_generator=_AttemptIds(),
            span_limits=SpanLimits(max_attribute_length=_LONGEST),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._queue)
        self._tracer = provider.get_tracer("logdoctor")

    def stop(self) -> None:
        """Send the waiting spans, for two seconds at most. Spans that end later are not sent."""
        self._queue.stop()

    def counts(self) -> dict[str, int]:
        """Return how many spans were `sent`, and how many not, by cause. `failed`: the collector refused them;
        `dropped`: too many were waiting; `thinned`: an attempt had too many."""
        return {**self._queue.counts, "thinned": self._pace.thinned}

    @contextmanager
    def span(self, name: str, job: str, attempt: int, attributes: Mapping[str, Value]) -> Iterator[Span]:
        """Yield a span that lasts as long as the block, or `NOTHING` above the limit."""
        span = self._begun(name, job, attempt, attributes)
        if span is None:
            yield NOTHING
            return
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield _OpenSpan(span)
        except BaseException as error:  # its text may come from a log: record only its name
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            span.end()

    def spent(self, name: str, job: str, attempt: int, since: int, attributes: Mapping[str, Value]) -> None:
        """Record a span that ends now and began at `since`, in nanoseconds since the epoch."""
        if span := self._begun(name, job, attempt, attributes, since):
            span.end()

    def _begun(
        self, name: str, job: str, attempt: int, attributes: Mapping[str, Value], since: int | None = None
    ) -> SdkSpan | None:
        trace = trace_id(job, attempt)
        thinned = self._pace.admit(name, trace)
        if thinned is None:
            return None
        all_of_it = {"job": job, "attempt": attempt, **attributes, **({"thinned": thinned} if thinned else {})}
        is_within = get_current_span().get_span_context().trace_id == trace
        before = _wanted.set(trace)
        try:
            return self._tracer.start_span(
                name, None if is_within else Context(), attributes=all_of_it, start_time=since
            )
        finally:
            _wanted.reset(before)


def _resource() -> Resource:
    """Return the description of the process: by the OTEL_ variables, else logdoctor."""
    said = Resource.create({"host.name": socket.gethostname(), "process.pid": os.getpid()})
    if str(said.attributes.get("service.name", "")).startswith("unknown_service"):
        return said.merge(Resource({"service.name": "logdoctor"}))
    return said


def trace(settings: Settings) -> None:
    """Turn tracing on in this process, to the configured collector."""
    tracing.use(tracer(settings))
