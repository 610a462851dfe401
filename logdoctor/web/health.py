"""Is it alive, is it ready, and how does it do."""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.responses import Response

from logdoctor.live.service import Service
from logdoctor.web.gate import Caller, Gate
from logdoctor.web.openapi import TEXT, shows
from logdoctor.web.problems import describe, problem


class State:
    """Whether requests are taken: not while the service starts and stops."""

    def __init__(self) -> None:
        self.ready = False


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
            "refused": ("Requests that were refused for their offset or for want of room.", figures.refused),
            "verdicts": ("Verdicts published.", watch.verdicts),
        }
        gauges: dict[str, tuple[str, float]] = {
            "streams": ("Streams in memory.", figures.streams),
            "attempts": ("Attempts in memory.", figures.attempts),
            "unscanned_bytes": ("Bytes that wait for compression.", figures.unscanned),
            "unarchived_bytes": ("Bytes that stand in the journal only.", figures.unarchived),
            "scan_lag_seconds": ("How long the oldest bytes have waited for compression.", self._service.intake.lag()),
            "archive_bytes": (
                "Bytes on disk of the archive when it was last looked at.",
                self._service.retention.bytes,
            ),
        }
        for name, (meaning, count) in counters.items():
            yield CounterMetricFamily(f"logdoctor_{name}", meaning, value=count)
        for name, (meaning, value) in gauges.items():
            yield GaugeMetricFamily(f"logdoctor_{name}", meaning, value=value)


def routes(service: Service, gate: Gate, state: State) -> APIRouter:
    """The routes for those who run the service."""
    router = APIRouter(tags=["operations"])
    registry = CollectorRegistry()
    registry.register(_Figures(service))
    ProcessCollector(registry=registry)
    unready: dict[int | str, dict[str, Any]] = {503: describe()[503]}

    @router.get("/healthz", responses=shows({"status": "ok"}))
    async def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @router.get("/readyz", responses=unready | shows({"status": "ready", "catching_up": False}), response_model=None)
    async def readyz() -> Response | dict[str, str | bool]:
        """Whether requests are taken. `catching_up` while streams are read again after a start."""
        if not state.ready:
            return problem(503, "not_ready", "the service", "it starts or stops", "Wait.")
        return {"status": "ready", "catching_up": service.watch.is_behind()}

    @router.get("/metrics", responses={**describe(), 200: {"content": {"text/plain": TEXT}}}, response_class=Response)
    def metrics(caller: Annotated[Caller, Depends(gate.allows("read"))]) -> Response:
        """Figures in Prometheus' text format."""
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router
