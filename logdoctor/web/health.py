"""Is it alive, is it ready, and how does it do."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Request
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.responses import Response

from logdoctor.errors import StoreError
from logdoctor.llm.spending import Counts, Guarded
from logdoctor.log_agent.guards import GUARDS
from logdoctor.service.service import Service
from logdoctor.store.learned import STATUSES
from logdoctor.web.dependencies import AppState, Reader, TheService, once, state_of
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import TEXT, TEXTS, shows
from logdoctor.web.problems import describe, problem

_NAMED = 200  # filter rules with a series of their own
_RESULTS = ("answered", "unavailable", "nonsense", "budget", "waiting")
_BREAKER = ("closed", "half-open", "open")
_NO_MODEL = Counts({}, 0, 0, 0.0, "closed")


class _Figures(Collector):
    """The figures of a service, read when they are asked for."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        figures = self._service.intake.figures()
        watch = self._service.watch
        counters = {
            "bytes_in": ("Bytes of logs made durable.", figures.bytes_in),
            "lines_in": ("Lines of logs made durable.", figures.lines_in),
            "journal_groups": ("Writes of the journal, each with one sync.", figures.groups),
            "refused": ("Requests that were refused for their offset or for lack of space.", figures.refused),
            "verdicts": ("Verdicts published.", watch.verdicts),
        }
        gauges: dict[str, tuple[str, float]] = {
            "streams": ("Streams in memory.", figures.streams),
            "attempts": ("Attempts in memory.", figures.attempts),
            "unscanned_bytes": ("Bytes that wait for compression.", figures.unscanned),
            "unarchived_bytes": ("Bytes that are in the journal only.", figures.unarchived),
            "scan_lag_seconds": ("How long the oldest bytes have waited for compression.", self._service.intake.lag()),
            "archive_bytes": (
                "Bytes of the archive on disk when last measured.",
                self._service.retention.bytes,
            ),
        }
        for name, (meaning, count) in counters.items():
            yield CounterMetricFamily(f"logdoctor_{name}", meaning, value=count)
        for name, (meaning, value) in gauges.items():
            yield GaugeMetricFamily(f"logdoctor_{name}", meaning, value=value)


class _NamedRules:
    """Which filter rules have a series of their own: the largest when they were first seen, until all places are
    taken. Once a rule is named it stays, because a counter may not go down."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def totals(self, lines: Mapping[str, int]) -> dict[str, int]:
        """Lines by rule; the rest together as `other`."""
        free = _NAMED - len(self._names)
        new = sorted(lines.keys() - self._names, key=lambda rule: -lines[rule])
        self._names.update(new[: max(free, 0)])
        totals = {rule: lines[rule] for rule in sorted(self._names & lines.keys())}
        return totals | {"other": sum(lines.values()) - sum(totals.values())}


class _Learning(Collector):
    """What was learned, and what it cost. Not `named`: the learned rules count together, for those who may not see
    them all."""

    def __init__(self, service: Service, names: _NamedRules, named: bool) -> None:
        self._service, self._names, self._is_named = service, names, named
        self._statuses: tuple[int, dict[str, int]] = (-1, {})

    def collect(self) -> Iterator[Metric]:
        learner = self._service.learner
        lines = CounterMetricFamily(
            "logdoctor_filter_lines", "Lines that filter rules removed from finished attempts.", labels=["rule"]
        )
        for rule, count in self._lines(dict(learner.lines) if learner else {}).items():
            lines.add_metric([rule], count)
        yield lines
        lessons = learner.agent.lessons if learner else 0
        yield CounterMetricFamily("logdoctor_lessons", "Lessons of the Log Agent since the start.", value=lessons)
        with suppress(StoreError):  # the other figures are told all the same
            yield from self._stored()
        model: Guarded | None = self._service.model
        yield from _model_figures(model.counts() if model else _NO_MODEL)

    def _lines(self, lines: dict[str, int]) -> dict[str, int]:
        totals = self._names.totals(lines)
        if self._is_named:
            return totals
        learned = {rule: count for rule, count in totals.items() if rule.startswith("learned/")}
        rest = {rule: count for rule, count in totals.items() if rule not in learned}
        return rest | {"learned": sum(learned.values())}

    def _stored(self) -> Iterator[Metric]:
        """What the database knows: two short queries, and a third after something changed."""
        rules = self._service.rules
        version = rules.version()
        if version != self._statuses[0]:
            kinds = rules.kinds().values()
            self._statuses = version, {name: sum(kind.get(name, 0) for kind in kinds) for name in STATUSES}
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


class _Telling(Collector):
    """How it goes with those who are told of incidents."""

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
        with suppress(StoreError):  # the other figures are told all the same
            for target, figures in self._service.notifier.figures().items() if self._service.notifier else ():
                for result, count in figures.tries.items():
                    tries.add_metric([target, result], count)
                for state, count in figures.messages.items():
                    messages.add_metric([target, state], count)
                lag.add_metric([target], figures.lag)
        yield from (tries, messages, lag)


def _model_figures(counts: Counts) -> Iterator[Metric]:
    calls = CounterMetricFamily("logdoctor_model_calls", "Model calls since the start.", labels=["result"])
    for result in _RESULTS:
        calls.add_metric([result], counts.calls.get(result, 0))
    yield calls
    tokens = CounterMetricFamily(
        "logdoctor_model_tokens", "Tokens sent to and received from the model since the start.", labels=["direction"]
    )
    tokens.add_metric(["in"], counts.tokens_in)
    tokens.add_metric(["out"], counts.tokens_out)
    yield tokens
    meaning = "Cost of the model since the start, at the configured prices."
    yield CounterMetricFamily("logdoctor_model_dollars", meaning, value=counts.dollars)
    meaning = "State of the model's circuit breaker: 0 closed, 1 half-open, 2 open."
    yield GaugeMetricFamily("logdoctor_model_breaker", meaning, value=_BREAKER.index(counts.breaker))


class Registries(NamedTuple):
    """What is measured: `whole` for those who see all jobs, `of_some_jobs` for those who are bound to some."""

    whole: CollectorRegistry
    of_some_jobs: CollectorRegistry


def _registries(state: AppState) -> Registries:
    service, names = state.service, _NamedRules()
    found = Registries(CollectorRegistry(), CollectorRegistry())
    for registry, named in ((found.whole, True), (found.of_some_jobs, False)):
        registry.register(_Figures(service))
        registry.register(_Learning(service, names, named))
        ProcessCollector(registry=registry)
    found.whole.register(_Telling(service))  # it counts over all jobs
    return found


TheRegistries = Annotated[Registries, Depends(once(_registries))]

router = APIRouter(default_response_class=Response, tags=["operations"])
_UNREADY: dict[int | str, dict[str, Any]] = {503: describe()[503]}


@router.get("/healthz", responses=shows({"status": "ok"}, schema=TEXTS))
async def healthz() -> Response:
    """Whether the process answers."""
    return Json({"status": "ok"})


@router.get("/readyz", responses=_UNREADY | shows({"status": "ready", "catching_up": False}))
async def readyz(request: Request, service: TheService) -> Response:
    """Whether requests are taken. `catching_up` while streams are read again after a start."""
    if not state_of(request).ready:
        return problem(503, "not_ready", "the service", "it starts or stops", "Wait.")
    return Json({"status": "ready", "catching_up": service.watch.is_behind()})


@router.get(
    "/metrics",
    responses={**describe(), 200: {"content": {"text/plain": TEXT}}},
)
def metrics(caller: Reader, registries: TheRegistries) -> Response:
    """Figures in Prometheus' text format."""
    figures = generate_latest(registries.of_some_jobs if caller.prefixes else registries.whole)
    return Response(figures, media_type="text/plain; version=0.0.4; charset=utf-8")
