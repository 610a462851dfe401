"""Build the service: its plan and its parts."""

from collections.abc import Callable
from functools import partial

import structlog

from logdoctor import wiring
from logdoctor.rules import compiling
from logdoctor.service.acting import Actor
from logdoctor.service.notifying import Notifier
from logdoctor.service.parts import Parts
from logdoctor.service.retention import Rules
from logdoctor.service.service import Plan, Service, ServiceBounds
from logdoctor.service.silence import Timing
from logdoctor.settings import Settings
from logdoctor.wiring.failures import climbing
from logdoctor.wiring.learning import log_agent
from logdoctor.wiring.models import Model
from logdoctor.wiring.nodes import actor
from logdoctor.wiring.notices import notifier
from logdoctor.wiring.stored import database_url, made_folder, objects, redis_state

log = structlog.get_logger()


def plan(settings: Settings) -> Plan:
    """Return the plan of the service: its limits, intervals and folders."""
    return Plan(
        database_url(settings),
        ServiceBounds(
            settings.max_stream_bytes,
            settings.max_streams,
            shard_bytes=2 * settings.log_bytes,
            behind=settings.log_bytes,
            unscanned=24 << 20,
            unarchived=settings.log_bytes // 4,
        ),
        Timing(
            settings.scan_seconds,
            settings.quiet_seconds,
            settings.hang_seconds,
            settings.linger_seconds,
            settings.abandon_seconds,
            settings.hang_least_seconds,
        ),
        Rules(
            settings.retention_days * 86_400,
            settings.retention_bytes,
            every=600.0,
            notices=settings.notify_retention_days * 86_400,
        ),
        settings.min_free_bytes,
        settings.learn_recheck,
        objects(settings),
        Parts(scans=settings.role == "all" and settings.serve_workers == 0),
        settings.serve_workers if settings.role == "all" else 0,
        settings.lease_seconds,
        redis_state(settings),
    )


def service(settings: Settings) -> Service:
    """Return the service over the data folder; not yet started."""
    acting = partial(actor, settings, taking_up=True)
    return _service(settings, plan(settings), acting, partial(notifier, settings))


def worker(settings: Settings) -> Service:
    """Return a worker, the part of a service that compresses and judges. Its process starts the other configured
    workers; not yet started."""
    others = max(settings.serve_workers - 1, 0)
    return _service(settings, plan(settings)._replace(parts=Parts(serves=False), workers=others))


def _log_compiling(done: int, total: int) -> None:
    if done in (0, total):
        log.info("compiling rules" if done == 0 else "rules compiled", parts=total)


def _service(
    settings: Settings,
    planned: Plan,
    acting: Callable[..., Actor] | None = None,
    notifying: Callable[..., Notifier] | None = None,
) -> Service:
    if settings.otlp_url:
        from logdoctor.wiring.tracing import trace

        trace(settings)
    compiling.watch(_log_compiling)
    compiled, model = wiring.scanner(settings), Model(settings)
    learning = None if settings.learn == "off" else partial(log_agent, settings, compiled, model=model)
    rungs_of = partial(climbing, settings, compiled, model)
    return Service(made_folder(settings), compiled, planned, learning, rungs_of, acting, notifying)
