"""`logdoctor serve`: settings, application and server put together."""

import ctypes
import gc
import ipaddress
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from logdoctor import wiring
from logdoctor.errors import SettingsError, StorageFull
from logdoctor.settings import Settings
from logdoctor.store.keeping.identity import session_key
from logdoctor.web.app import application
from logdoctor.web.bodies import Allowed
from logdoctor.web.dependencies import AppOptions, BirthLimits
from logdoctor.web.push.labels import DEFAULT, label_map
from logdoctor.web.server import listener, server
from logdoctor.web.single_sign_on import single_sign_on
from logdoctor.wiring import learning, running, stored
from logdoctor.wiring.stored import open_to_others

log = structlog.get_logger()

_GC = (50_000, 20, 20)
_MALLOPT = {-3: 1 << 18, -1: 1 << 18, -8: 2}  # glibc's M_MMAP_THRESHOLD, M_TRIM_THRESHOLD (bytes) and M_ARENA_MAX
_REPEATED, _CAUSES = 60.0, 100  # seconds in which an event with the same cause is left out; causes that are kept


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. `SettingsError` when nobody could use the service."""
    configure_logging()
    return_memory()
    write_privately()
    labels, sign_on = label_map(settings.labels or DEFAULT), single_sign_on(settings)
    listening = listener(settings.host, settings.port)
    _check_folder(stored.made_folder(settings))
    service = running.service(settings)
    wants_token = settings.auth == "on" or not is_loopback(settings.host) or sign_on is not None
    if wants_token and sign_on is None and not service.tokens.list():
        raise SettingsError(
            f"host {settings.host}",
            "every request needs a token, and there is none",
            f"Create one first: logdoctor tokens create NAME --scope admin --data-dir {stored.made_folder(settings)}",
        )
    options = AppOptions(
        wants_token,
        settings.rate_limit,
        Allowed(settings.max_body_bytes, 16 * settings.max_body_bytes, settings.slow_seconds, settings.max_expansion),
        wiring.limits(settings)._replace(workers=1),
        labels,
        session_key(service.records.database),
        settings.public_url.lower().startswith("https://"),
        learning.known_causes(settings, service.scanner.book),
        sign_on,
        BirthLimits(settings.new_jobs_per_push, settings.new_jobs_per_minute),
    )
    http = server(application(service, options), settings.slow_seconds)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: http.stop_soon())
    try:
        service.start()
    except OSError as error:
        cause = f"data accepted earlier cannot be archived ({error.strerror})"
        raise StorageFull(str(stored.made_folder(settings)), cause, "Free some space: nothing is lost.") from error
    collect_rarely()
    http.run([listening])


def _check_folder(folder: Path) -> None:
    """Warn when others may enter the data folder. Only the files that we write are closed to them."""
    if mode := open_to_others(folder):
        log.warning("data folder is open to others", folder=str(folder), mode=mode, next_step=f"chmod 700 {folder}")


def write_privately() -> None:
    """Make new files readable by this user alone: logs may be confidential."""
    os.umask(0o077)


def collect_rarely() -> None:
    """Exempt long-lived rules and code from garbage collection, which would take a tenth of a core."""
    gc.freeze()
    gc.set_threshold(*_GC)


def return_memory() -> None:
    """Let the C library return large buffers, which otherwise stay between small long-lived objects."""
    with suppress(OSError, AttributeError):  # a C library without it
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOPT.items():
            mallopt(option, value)


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def once_a_minute(clock: Callable[[], float] = time.monotonic) -> structlog.typing.Processor:
    """Return what leaves out events that the database causes, but the first of each cause in a minute: while it is
    away, everything fails. The next one says how many were `left_out`."""
    said: dict[str, tuple[float, int]] = {}

    def kept(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        cause = str(event.get("cause", ""))
        if not cause.startswith("the database "):
            return event
        since, left_out = said.get(cause, (-_REPEATED, 0))
        if clock() - since < _REPEATED:
            said[cause] = since, left_out + 1
            raise structlog.DropEvent
        if len(said) >= _CAUSES:
            said.clear()
        said[cause] = clock(), 0
        return {**event, "left_out": left_out} if left_out else event

    return kept


def configure_logging() -> None:
    """Log one JSON object per line on standard error; lines for people on a terminal."""
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer()
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        [once_a_minute(), *shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
