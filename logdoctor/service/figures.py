"""Metrics of this process, and those that every worker publishes in the database.

A process that owns shards publishes its figures with each heartbeat, so that any process that answers requests can
report them. When a worker falls silent its figures end; they are never added up, so no sum goes down.
"""

import os
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import structlog

from logdoctor import tracing
from logdoctor.errors import LogdoctorError
from logdoctor.llm.spending import Counts, Guarded
from logdoctor.service.holding import Holding
from logdoctor.service.learning import Learner
from logdoctor.service.retention import Retention
from logdoctor.service.turns import Turns
from logdoctor.service.watch import Watch
from logdoctor.store.database import Database
from logdoctor.store.log.shard_state import LogState, state_of

log = structlog.get_logger()

_LOOK = 2.0  # seconds between queries of the database
_BELIEVED = 10.0  # seconds for which the last result holds when queries fail
_SHORT = 8  # characters of a worker's id that labels show
_HOST = 64  # characters of its host name
_NO_MODEL = Counts({}, 0, 0, 0.0, "closed")


class ProcessFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one process holds now and did since its start. `model_calls` and `spans` are by result, `failures` by
    reason, `verdict_buckets` as in `verdict_counts`. It `leads` when it is the leader, and is `catching_up` while it
    reads taken-over streams again."""

    host: str = ""
    pid: int = 0
    leads: bool = False
    shards: int = 0
    streams: int = 0
    attempts: int = 0
    unscanned_bytes: int = 0
    unarchived_bytes: int = 0
    scan_lag_seconds: float = 0.0
    archive_bytes: int = 0
    catching_up: bool = False
    scanned_bytes: int = 0
    verdicts: int = 0
    failures: Mapping[str, int] = {}
    verdict_buckets: tuple[int, ...] = ()
    verdict_seconds: float = 0.0
    filtered_lines: int = 0
    lessons: int = 0
    model_calls: Mapping[str, int] = {}
    model_tokens_in: int = 0
    model_tokens_out: int = 0
    model_dollars: float = 0.0
    model_breaker: str = "closed"
    spans: Mapping[str, int] = {}
    cpu_seconds: float = 0.0


class WorkerFigures(NamedTuple):
    """A worker by its short id, the seconds until its lease ends, and its figures."""

    worker: str
    lasts: float
    figures: ProcessFigures


class Overview(NamedTuple):
    """The state of the log and the other workers' figures; empty when unknown."""

    log: LogState = LogState()
    others: tuple[WorkerFigures, ...] = ()

    @property
    def catching_up(self) -> bool:
        """Whether a worker is catching up, or shards have no owner."""
        return any(one.figures.catching_up for one in self.others) or any(not one.owner for one in self.log.shards)


_decoder = msgspec.json.Decoder(ProcessFigures)


def process_figures(
    holding: Holding, watch: Watch, retention: Retention, learner: Learner | None, model: Guarded | None, leads: bool
) -> ProcessFigures:
    """Return the figures of this process."""
    failures, buckets, seconds = watch.counts.read()
    held, counts = holding.figures(), model.counts() if model else _NO_MODEL
    return ProcessFigures(
        host=socket.gethostname()[:_HOST],
        pid=os.getpid(),
        leads=leads,
        shards=held.shards,
        streams=held.streams,
        attempts=held.attempts,
        unscanned_bytes=held.unscanned,
        unarchived_bytes=held.unarchived,
        scan_lag_seconds=round(holding.lag(), 3),
        archive_bytes=retention.bytes,
        catching_up=watch.is_behind(),
        scanned_bytes=watch.scanned_bytes,
        verdicts=watch.verdicts,
        failures=failures,
        verdict_buckets=buckets,
        verdict_seconds=seconds,
        filtered_lines=learner.filtered_lines if learner else 0,
        lessons=learner.agent.lessons if learner else 0,
        model_calls=dict(counts.calls),
        model_tokens_in=counts.tokens_in,
        model_tokens_out=counts.tokens_out,
        model_dollars=counts.dollars,
        model_breaker=counts.breaker,
        spans=tracing.counts(),
        cpu_seconds=round(time.process_time(), 2),
    )


def short(worker: str) -> str:
    """Return the short id of a worker, as labels and messages show it."""
    return worker[:_SHORT]


class OverviewPoller:
    """Polls the database every two seconds, so that requests for metrics wait for no query."""

    def __init__(self, database: Database, worker: str) -> None:
        self._database, self._worker = database, worker
        self._last, self._looked = Overview(), 0.0
        self.failed = False
        """Whether the database could not be asked when it was last tried."""
        self._turns = Turns("overview", self._look_safely)

    def start(self) -> None:
        """Start."""
        self._look_safely()
        self._turns.start()

    def stop(self) -> None:
        """Stop."""
        self._turns.stop()
        self._turns.join()

    def overview(self) -> Overview:
        """Return the last result; an empty one when it is too old because the database is away."""
        return self._last if time.monotonic() - self._looked < _BELIEVED else Overview()

    def _look_safely(self) -> float:
        try:
            self._look()
            self.failed = False
        except LogdoctorError as error:
            self.failed = True
            log.warning("workers not looked at", cause=str(error))
        return _LOOK

    def _look(self) -> None:
        begun, found = time.monotonic(), state_of(self._database)
        others = [one for one in found.workers if one.worker != self._worker]
        self._last = Overview(
            found, tuple(WorkerFigures(short(one.worker), one.lasts, _read(one.figures)) for one in others)
        )
        self._looked = begun


def _read(text: str) -> ProcessFigures:
    """Decode a worker's figures; zeros when they cannot be read, as from another version."""
    try:
        return _decoder.decode(text)
    except msgspec.MsgspecError:
        return ProcessFigures()
