"""Liveness, readiness, and the metrics of this process and the workers."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.responses import Response

from logdoctor import taxonomy
from logdoctor.errors import StoreError
from logdoctor.learning.filters.guards import GUARDS
from logdoctor.service.figures import ProcessFigures
from logdoctor.service.service import Service
from logdoctor.service.verdict_counts import BOUNDS
from logdoctor.store.incidents.query import STATES
from logdoctor.store.learning.learned import STATUSES as RULE_STATUSES
from logdoctor.web.dependencies import AppState, TheService, allows_unbound, once, state_of
from logdoctor.web.gate import Caller
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import TEXT, TEXTS, shows
from logdoctor.web.problems import describe, problem

_NAMED = 200  # filter rules with a series of their own
_RESULTS = ("answered", "unavailable", "nonsense", "budget", "waiting")
_BREAKER = ("closed", "half-open", "open")


_SPANS = ("sent", "failed", "dropped", "thinned")


class _Intake(Collector):
    """What this process has taken in, read on request."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        figures = self._service.intake.figures()
        counters = {
            "bytes_in": ("Bytes of logs made durable.", figures.bytes_in),
            "lines_in": ("Lines of logs made durable.", figures.lines_in),
            "log_groups": ("Writes of the log, each one transaction.", figures.groups),
            "refused": ("Requests that were refused for their offset or for lack of space.", figures.refused),
        }
        for name, (meaning, count) in counters.items():
            yield CounterMetricFamily(f"logdoctor_{name}", meaning, value=count)


_Read = Callable[[ProcessFigures], float]
_GAUGES: dict[str, tuple[str, _Read]] = {
    "leads": ("1 when the process does what must be done in one place.", lambda of: of.leads),
    "owned_shards": ("Shards that the worker owns.", lambda of: of.shards),
    "streams": ("Streams in memory.", lambda of: of.streams),
    "attempts": ("Attempts in memory.", lambda of: of.attempts),
    "unscanned_bytes": ("Bytes that were read and wait for compression.", lambda of: of.unscanned_bytes),
    "unarchived_bytes": ("Bytes that were read and are in the log only.", lambda of: of.unarchived_bytes),
    "scan_lag_seconds": ("How long the oldest bytes have waited for compression.", lambda of: of.scan_lag_seconds),
    "archive_bytes": ("Bytes of the whole archive, when the worker last measured it.", lambda of: of.archive_bytes),
    "catching_up": ("1 while streams are read again that were taken over.", lambda of: of.catching_up),
    "model_breaker": (
        "State of the model's circuit breaker: 0 closed, 1 half-open, 2 open.",
        lambda of: _BREAKER.index(of.model_breaker) if of.model_breaker in _BREAKER else 0,
    ),
}
_COUNTERS: dict[str, tuple[str, _Read]] = {
    "scanned_bytes": ("Bytes that were compressed, those again that were read again.", lambda of: of.scanned_bytes),
    "verdicts": ("Verdicts published.", lambda of: of.verdicts),
    "filtered_lines": ("Lines that filter rules removed from finished attempts.", lambda of: of.filtered_lines),
    "lessons": ("Lessons of the Log Agent since the start.", lambda of: of.lessons),
    "model_dollars": ("Cost of the model since the start, at the configured prices.", lambda of: of.model_dollars),
    "worker_cpu_seconds": ("Processor time that the process has used.", lambda of: of.cpu_seconds),
}
_REASONS = (*taxonomy.REASONS, "other")
_BY: dict[str, tuple[str, str, Callable[[ProcessFigures], dict[str, float]]]] = {
    "model_calls": ("Model calls since the start.", "result", lambda of: _counts(of.model_calls, _RESULTS)),
    "model_tokens": (
        "Tokens sent to and received from the model since the start.",
        "direction",
        lambda of: {"in": of.model_tokens_in, "out": of.model_tokens_out},
    ),
    "failures": (
        "Attempts whose first final verdict since the start says that they failed.",
        "reason",
        lambda of: _with_other(of.failures, _REASONS),
    ),
    "spans": ("Spans of traces by result.", "result", lambda of: _counts(of.spans, _SPANS)),
}


def _counts(given: Mapping[str, int], known: tuple[str, ...]) -> dict[str, float]:
    """Return the counts of known labels, so that no worker can invent some."""
    return {name: given.get(name, 0) for name in known}


def _with_other(given: Mapping[str, int], known: tuple[str, ...]) -> dict[str, float]:
    """Return the counts of known labels, and the sum of the rest."""
    counts = _counts(given, known)
    return counts | {"other": sum(given.values()) - sum(counts.values())}


class _Workers(Collector):
    """The state and work of each process: this one now, the others as last reported. Each has its label, so that no
    counter goes down when one dies: its series ends."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        others = self._service.looking.overview().others
        found = {one.worker: one.figures for one in others} | {self._service.worker: self._service.figures()}
        for name, (meaning, read) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"logdoctor_{name}", meaning, labels=["worker"])
            for worker, figures in found.items():
                gauge.add_metric([worker], read(figures))
            yield gauge
        for name, (meaning, read) in _COUNTERS.items():
            counter = CounterMetricFamily(f"logdoctor_{name}", meaning, labels=["worker"])
            for worker, figures in found.items():
                counter.add_metric([worker], read(figures))
            yield counter
        for name, (meaning, label, split) in _BY.items():
            counter = CounterMetricFamily(f"logdoctor_{name}", meaning, labels=[label, "worker"])
            for worker, figures in found.items():
                for value, count in split(figures).items():
                    counter.add_metric([value, worker], count)
            yield counter
        yield _latency(found)
        yield _places(found)


def _latency(found: Mapping[str, ProcessFigures]) -> Metric:
    """Return how long after the end of an attempt its first final verdict was published."""
    meaning = "Seconds from the end of an attempt that was told to its first final verdict, since the start."
    histogram = HistogramMetricFamily("logdoctor_verdict_seconds", meaning, labels=["worker"])
    for worker, figures in found.items():
        counts = figures.verdict_buckets
        if len(counts) != len(BOUNDS) + 1:  # of a worker of another version
            counts = (0,) * (len(BOUNDS) + 1)
        bounds = [*map(str, BOUNDS), "+Inf"]
        buckets = [(bound, float(sum(counts[: place + 1]))) for place, bound in enumerate(bounds)]
        histogram.add_metric([worker], buckets, figures.verdict_seconds)
    return histogram


def _places(found: Mapping[str, ProcessFigures]) -> Metric:
    meaning = "1, with the machine and the process of the worker."
    places = GaugeMetricFamily("logdoctor_worker_info", meaning, labels=["worker", "host", "pid"])
    for worker, figures in found.items():
        places.add_metric([worker, figures.host, str(figures.pid)], 1)
    return places


class _Log(Collector):
    """The state of the log by the database, whoever wrote it and whoever reads it."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        state = self._service.looking.overview().log
        if not state.shards:  # the database is away: no figures are better than wrong ones
            return
        waiting = GaugeMetricFamily(
            "logdoctor_log_bytes", "Bytes in the log, which are in no archive yet.", labels=["shard"]
        )
        for one in state.shards:
            waiting.add_metric([str(one.shard)], one.bytes)
        yield waiting
        unowned = [one for one in state.shards if not one.owner]
        left = max((one.unowned for one in unowned if one.bytes), default=0.0)
        owners = len({one.owner for one in state.shards if one.owner})
        gauges: dict[str, tuple[str, float]] = {
            "workers": ("Workers that were heard of within their lease.", len(state.workers)),
            "shard_owners": ("Workers that own shards.", owners),
            "unowned_shards": ("Shards that no worker owns.", len(unowned)),
            "unowned_seconds": ("How long a shard in which bytes wait has had no owner.", left),
        }
        for name, (meaning, value) in gauges.items():
            yield GaugeMetricFamily(f"logdoctor_{name}", meaning, value=value)
        meaning = "Shards that got another owner, since the database was made."
        yield CounterMetricFamily("logdoctor_takeovers", meaning, value=sum(one.owners for one in state.shards))


class _Late(Collector):
    """The lag of verdicts by the database, and the room left for waiting bytes."""

    def __init__(self, service: Service) -> None:
        self._intake, self._records = service.intake, service.records

    def collect(self) -> Iterator[Metric]:
        limit, free = self._intake.room()
        gauges: dict[str, tuple[str, float]] = {
            "log_limit_bytes": ("Bytes that may wait in the log before senders wait, too.", limit),
            "free_bytes": ("Bytes that are free on the disk of the data folder.", free),
        }
        with suppress(StoreError):  # report the other figures
            unjudged, since = self._records.awaiting()
            waited = max(time.time() - since, 0.0) if since is not None else 0.0
            gauges |= {
                "unjudged_attempts": ("Attempts that ended and have no final verdict.", unjudged),
                "verdict_lag_seconds": ("How long the first of them has waited for its final verdict.", waited),
            }
        for name, (meaning, value) in gauges.items():
            yield GaugeMetricFamily(f"logdoctor_{name}", meaning, value=value)


class _Incidents(Collector):
    """Open incidents, by the database."""

    def __init__(self, service: Service) -> None:
        self._incidents = service.incidents

    def collect(self) -> Iterator[Metric]:
        opened = GaugeMetricFamily(
            "logdoctor_open_incidents", "Incidents that are not resolved.", labels=["category", "state"]
        )
        with suppress(StoreError):  # report the other figures
            found = self._incidents.open_by_category()
            for category in taxonomy.CATEGORIES:
                for state in STATES:
                    if state != "resolved":
                        opened.add_metric([category, state], found.get((category, state), 0))
        yield opened


class _NamedRules:
    """The filter rules with their own series: at most `_NAMED`, the largest first. A named rule stays, because a
    counter may not go down."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def totals(self, lines: Mapping[str, int]) -> dict[str, int]:
        """Return lines by rule; the sum of the rest as `other`."""
        free = _NAMED - len(self._names)
        new = sorted(lines.keys() - self._names, key=lambda rule: -lines[rule])
        self._names.update(new[: max(free, 0)])
        totals = {rule: lines[rule] for rule in sorted(self._names & lines.keys())}
        return totals | {"other": sum(lines.values()) - sum(totals.values())}


class _Learning(Collector):
    """The results and costs of learning."""

    def __init__(self, service: Service) -> None:
        self._service, self._names = service, _NamedRules()
        self._statuses: tuple[int, dict[str, int]] = (-1, {})

    def collect(self) -> Iterator[Metric]:
        learner = self._service.learner
        lines = CounterMetricFamily(
            "logdoctor_filter_lines", "Lines that filter rules removed from finished attempts.", labels=["rule"]
        )
        for rule, count in self._names.totals(dict(learner.lines) if learner else {}).items():
            lines.add_metric([rule], count)
        yield lines
        with suppress(StoreError):  # report the other figures
            yield from self._stored()

    def _stored(self) -> Iterator[Metric]:
        """Yield figures from the database: two short queries, and a third after a change."""
        rules = self._service.rules
        version = rules.version()
        if version != self._statuses[0]:
            kinds = rules.kinds().values()
            self._statuses = version, {name: sum(kind.get(name, 0) for kind in kinds) for name in RULE_STATUSES}
        statuses = GaugeMetricFamily("logdoctor_learned_rules", "Learned rules by status.", labels=["status"])
        for status, count in self._statuses[1].items():
            statuses.add_metric([status], count)
        yield statuses
        counts = dict.fromkeys(GUARDS, 0) | rules.refusals.counts()
        refused = CounterMetricFamily(
            "logdoctor_refused_proposals", "Proposed filter rules that were refused.", labels=["guard"]
        )
        for guard, count in counts.items():
            refused.add_metric([guard], count)
        yield refused


class _Notifications(Collector):
    """The delivery of notifications, by target."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        tries = CounterMetricFamily(
            "logdoctor_notification_tries",
            "Attempts to send a notification since the start, including tests.",
            labels=["target", "result"],
        )
        messages = GaugeMetricFamily(
            "logdoctor_notifications",
            "Notifications that wait, are held back or were given up.",
            labels=["target", "state"],
        )
        lag = GaugeMetricFamily(
            "logdoctor_notification_lag_seconds",
            "How long the oldest waiting notification has been due.",
            labels=["target"],
        )
        with suppress(StoreError):  # report the other figures
            for target, figures in self._service.notifier.figures().items() if self._service.notifier else ():
                for result, count in figures.tries.items():
                    tries.add_metric([target, result], count)
                for state, count in figures.messages.items():
                    messages.add_metric([target, state], count)
                lag.add_metric([target], figures.lag)
        yield from (tries, messages, lag)


def _registry(state: AppState) -> CollectorRegistry:
    service, registry = state.service, CollectorRegistry()
    parts = (_Intake, _Workers, _Learning, _Log, _Late, _Incidents, _Notifications)
    for collector in (*(part(service) for part in parts), state.traffic):
        registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


TheRegistry = Annotated[CollectorRegistry, Depends(once(_registry))]
FiguresReader = Annotated[Caller, Depends(allows_unbound("read", "its figures are over all jobs"))]

router = APIRouter(default_response_class=Response, tags=["operations"])
_UNREADY: dict[int | str, dict[str, Any]] = {503: describe()[503]}


@router.get("/healthz", responses=shows({"status": "ok"}, schema=TEXTS))
async def healthz() -> Response:
    """Return whether the process answers."""
    return Json({"status": "ok"})


@router.get("/readyz", responses=_UNREADY | shows({"status": "ready", "catching_up": False}))
async def readyz(request: Request, service: TheService) -> Response:
    """Return whether requests are taken: not during start and stop, nor with a full disk or without the database.
    `catching_up` while a worker
    re-reads streams that it took over, or jobs wait for a worker."""
    if not state_of(request).ready:
        return problem(503, "not_ready", "the service", "it starts or stops", "Wait.")
    if service.intake.is_full:
        cause = "its disk is full, so that it takes no logs"
        return problem(503, "not_ready", "the service", cause, "Free some space.")
    if service.looking.failed:
        cause = "its database cannot be reached, so that it takes no logs"
        return problem(503, "not_ready", "the service", cause, "Check the database server and its log.")
    behind = service.watch.is_behind() or service.looking.overview().catching_up
    return Json({"status": "ready", "catching_up": behind})


@router.get("/metrics", responses={**describe(), 200: {"content": {"text/plain": TEXT}}})
def metrics(caller: FiguresReader, registry: TheRegistry) -> Response:
    """Return the figures in Prometheus' text format. They cover all jobs, so a token that is bound to some sees
    none."""
    return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")
