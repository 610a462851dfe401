"""Services for tests: small folders, a clock that leaps, and ways to wait for what threads do."""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from logdoctor.learning.filters.agent import LogAgent
from logdoctor.rules.scanner import Scanner
from logdoctor.service.consulting import Climbing
from logdoctor.service.retention import Rules
from logdoctor.service.service import Plan, Service, ServiceBounds, Stores
from logdoctor.service.silence import Timing
from logdoctor.service.turns import Turns
from logdoctor.settings import Settings
from logdoctor.store.jobs.records import End, Records, StoredVerdict
from logdoctor.store.keeping.leader import LeaderLease
from logdoctor.store.learning.learned import LearnedRules, NewRule, Source
from logdoctor.store.learning.refusals import Votes
from logdoctor.store.log.shards import Leases
from logdoctor.store.names import Key
from logdoctor.store.schema import attempts, ends, streams
from logdoctor.types import Verdict
from logdoctor.wiring import failures, models
from logdoctor.wiring.learning import log_agent
from tests import waiting
from tests.databases import databases, url_in

CORPUS = Path(__file__).parents[2] / "eval" / "corpus"
BOUNDS = ServiceBounds(
    stream_bytes=1 << 40,
    streams=1000,
    shard_bytes=512 << 20,
    behind=64 << 20,
    unscanned=64 << 20,
    unarchived=64 << 20,
)
HOUR, DAY = 3600.0, 86_400.0
PATIENT = Timing(scan=0.05, quiet=HOUR, hang=10 * HOUR, linger=HOUR, abandon=10 * DAY, least=5 * HOUR)
"""Only what is asked for is done, unless the clock leaps."""
LEASE = 600.0
"""Longer than any test."""

Learning = Callable[[Records, LearnedRules], LogAgent]
"""What makes the Log Agent of a service."""

Rungs = Callable[[Stores], Climbing]
"""What makes the rungs above the rules of a service."""


class Clock:
    """A clock that goes on as a real one does, and leaps when a test says so."""

    def __init__(self, real: Callable[[], float] = time.monotonic) -> None:
        self._real, self._ahead = real, 0.0

    def __call__(self) -> float:
        return self._real() + self._ahead

    def leap(self, seconds: float) -> None:
        self._ahead += seconds


def plan(
    folder: Path,
    timing: Timing = PATIENT,
    bounds: ServiceBounds = BOUNDS,
    retention: Rules = Rules(0, 0, 3600),  # noqa: B008 - immutable
    min_free: int = 0,
    recheck: int = 0,
) -> Plan:
    url = url_in(folder / "logdoctor.db")
    return Plan(url, bounds, timing, retention, min_free, recheck, lease=LEASE, clock=Clock())


def learning(scanner: Scanner, **changed: Any) -> Learning:
    """A Log Agent as the settings make it, the miner unless they say otherwise."""
    return partial(log_agent, Settings(**{"learn": "miner", **changed}), scanner)


def opened(
    folder: Path,
    scanner: Scanner,
    timing: Timing = PATIENT,
    bounds: ServiceBounds = BOUNDS,
    log_agent: Learning | None = None,
    recheck: int = 0,
    ladder: Rungs | None = None,
) -> Service:
    """A started service; stop it."""
    folder.mkdir(parents=True, exist_ok=True)
    service = Service(folder, scanner, plan(folder, timing, bounds, recheck=recheck), log_agent, ladder)
    service.start()
    return service


@contextmanager
def serving(
    folder: Path,
    scanner: Scanner,
    timing: Timing = PATIENT,
    bounds: ServiceBounds = BOUNDS,
    log_agent: Learning | None = None,
    recheck: int = 0,
    ladder: Rungs | None = None,
) -> Iterator[Service]:
    service = opened(folder, scanner, timing, bounds, log_agent, recheck, ladder)
    try:
        yield service
    finally:
        service.stop()


def killed(folder: Path, copy: Path) -> Path:
    """What a kill at this moment would leave of a data folder that is in use, once the leases have run out.

    The database is copied before the archive, so that what moves from one to the other meanwhile is in both.
    """
    copy.mkdir()
    if databases.of_postgresql:
        databases.copy(folder / "logdoctor.db", copy / "logdoctor.db")
        leases_end(copy)
    else:
        with sqlite3.connect(folder / "logdoctor.db") as database, sqlite3.connect(copy / "logdoctor.db") as other:
            database.backup(other)
    if (folder / "archive").exists():
        shutil.copytree(folder / "archive", copy / "archive", copy_function=_copied)
    return copy


def leases_end(folder: Path) -> None:
    """Let the leases of processes end that live no more. A service over SQLite knows that by itself."""
    with closing(Records(url_in(folder / "logdoctor.db"))) as records:
        Leases(records.database, "nobody").clear()
        LeaderLease(records.database, "nobody").clear()


def _copied(source: str, target: str) -> None:
    """A file of an archive in use; one that is being written has no name yet, and may be gone when it is read."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        if not os.path.basename(source).startswith("."):
            raise


def rungs(scanner: Scanner, **changed: Any) -> Rungs:
    """The rungs above the rules as the settings make them; without a model unless they name one."""
    settings = Settings(**changed)
    return partial(failures.climbing, settings, scanner, models.Model(settings))


def send(service: Service, key: Key, data: bytes) -> None:
    """Bytes that continue a stream, until they are durable and before the watch."""
    service.intake.open(key)
    service.intake.push(key, data, "").result()
    waiting.until(lambda: pulled(service), "what was sent is read")


def end(service: Service, key: Key, exit_code: int | None = None, whole: bool = True) -> None:
    """Tell that an attempt, or only the stream, has ended."""
    service.end(key.job, key.attempt, End("" if whole else key.stream, exit_code, None, None, time.time()))
    waiting.until(lambda: pulled(service), "the end is read")


def looked(service: Service) -> bool:
    """Have the watch look at all attempts now, which it does every second of its own accord; it has done so then."""
    for _ in range(2):  # when the second look begins the first is over
        with service.holding.lock:
            service.watch._next_look = 0.0
            service.holding.fresh.notify_all()
        waiting.until(lambda: service.watch._next_look > 0.0 and not service.watch._silent, "a look of the watch")
    return True


def scanned(service: Service) -> bool:
    """Wait until all that came is compressed."""
    waiting.until(lambda: pulled(service) and not service.holding.unscanned, "all is compressed")
    return looked(service)  # what was taken out of memory to be compressed is so when the next look comes


def passes(service: Service, seconds: float) -> None:
    """Let so many seconds pass after all that came was compressed, of silence; the watch has looked then."""
    scanned(service)
    leaps(service, seconds)


def leaps(service: Service, seconds: float) -> None:
    """Let so many seconds of silence pass now, whatever is read and compressed; the watch has looked then."""
    clock = service.holding.clock
    assert isinstance(clock, Clock)
    clock.leap(seconds)
    looked(service)


def silent(folder: Path, seconds: float) -> None:
    """Let all that came to a data folder have come so many seconds earlier, as after an outage of the service."""
    with closing(Records(url_in(folder / "logdoctor.db"))) as records, records.database.writing() as connection:
        for when in (streams.c.changed, attempts.c.started, ends.c.at):
            connection.execute(sa.update(when.table).values({when: when - seconds}))


def still(service: Service) -> Service:
    """A worker that renews its leases only when a test says so, from now on."""
    service.owner._turns.stop()
    waiting.until(lambda: not service.owner._turns.runs)
    return service


def turned(turns: Turns) -> None:
    """Have a thread take a turn now, and wait until it is over."""
    before = turns.done

    def done() -> bool:
        turns.wake()
        return turns.done > before + 1  # the first may have begun before

    waiting.until(done, "a turn")


def pulled(service: Service) -> bool:
    """Whether the service has read all that is in its log."""
    owned = dict(service.holding._shards)
    return all(number in owned and head.row <= owned[number].last for number, head in service.log.heads().items())


def final(service: Service, key: Key) -> StoredVerdict:
    """The verdict on an attempt that has ended, once all that came is in it."""

    def look() -> StoredVerdict | None:
        if not pulled(service):
            return None
        attempt = service.holding.attempts.get((key.job, key.attempt))
        if attempt is not None and not attempt.settled:
            return None
        stored = service.records.current(key.job, key.attempt)
        return stored if stored is not None and stored.final else None

    found = waiting.until(look, f"the final verdict on {key}")
    assert found is not None
    return found


def kept_lines(service: Service, key: Key) -> tuple[int, int]:
    """(lines compressed so far, lines left of them) of a stream that is being sent."""
    attempt = waiting.until(lambda: service.holding.attempts.get((key.job, key.attempt)), f"{key} is in memory")
    assert attempt is not None
    waiting.until(lambda: not service.watch.is_behind(), "all is caught up with")
    return attempt.streams[key.stream].counted


def conserves(verdict: Verdict) -> bool:
    """Law 1: each line was taken once or left."""
    account = verdict.compression
    taken = sum(count.lines for count in account.rules.values())
    return account.lines_in == account.lines_kept + taken


def rule(kind: str, pattern: str, status: str = "shadow", lines: int = 0, waits_for: str = "") -> NewRule:
    """A rule as an agent enters it."""
    votes = Votes(5, (0, 1, 2, 3, 4), "agreed")
    return NewRule(kind, pattern, "a rule", ("an example",), (), status, waits_for, "miner", Source(), votes, lines)


def activated(rules: LearnedRules, *learned: NewRule) -> list[str]:
    """The ids of rules that a human has approved until they take lines."""
    ids = [one.id for one in rules.add(learned, "tests", time.time())]
    for id in ids:
        while rules.one(id).status != "active":
            rules.approve(id, "tests", "it is harmless", time.time())
    return ids


def plain(verdict: Verdict) -> bytes:
    """A verdict without what depends on where the log lies and how fast it was read."""
    evidence = tuple(msgspec.structs.replace(line, file="") for line in verdict.evidence)
    return msgspec.json.encode(msgspec.structs.replace(verdict, file="", seconds=0.0, evidence=evidence))
