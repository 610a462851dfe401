"""Several services over one database: they share its attempts, take over from each other, and say nothing wrongly."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from logdoctor import pipeline
from logdoctor.errors import StoreError
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.service.parts import Parts
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import End, JobFacts, StoredVerdict
from logdoctor.store.log.shards import shard_of
from logdoctor.store.names import Key
from logdoctor.store.schema import shards, streams
from logdoctor.types import Verdict
from tests import waiting
from tests.diagnose.logs import ECC, steps
from tests.service.services import (
    BOUNDS,
    CORPUS,
    LEASE,
    PATIENT,
    end,
    final,
    leaps,
    looked,
    passes,
    plain,
    plan,
    scanned,
    send,
    still,
)

on_each = pytest.mark.usefixtures("each_database")

KEY = Key("job", 1, "main")
LOGS = sorted(CORPUS.glob("*/*.log"))[::7]
STEPS, FATAL = steps(1, 30).encode(), ECC.encode()
Starts = Callable[..., Service]


@pytest.fixture
def starts(folder: Path, scanner: Scanner) -> Iterator[Starts]:
    """Starts services over one folder, whose leases are renewed when a test says so; the first one serves, the others
    only scan. They are stopped in the end."""
    started: list[Service] = []

    def start() -> Service:
        service = Service(folder, scanner, plan(folder)._replace(parts=Parts(serves=not started)))
        service.start()
        started.append(service)
        return still(service)

    yield start
    for service in started[::-1]:
        if not service.holding._archivist.stopping.is_set():
            service.stop()


def beat(*services: Service) -> None:
    """Have services renew their leases, and share the shards anew: whoever has too many leaves some first."""
    for service in (*services, *services):
        service.owner._beat()


def count(service: Service) -> int:
    return service.holding.figures().shards


def verdict(service: Service, key: Key) -> StoredVerdict:
    """The final verdict, whoever gives it."""
    found = waiting.until(lambda: (one := service.records.current(key.job, key.attempt)) and one.final and one)
    assert found
    return found


def feed(service: Service, key: Key, data: bytes) -> None:
    service.intake.open(key)
    service.intake.push(key, data, "").result()


def over(service: Service, key: Key) -> None:
    service.end(key.job, key.attempt, End("", None, None, None, time.time()))


def take_away(service: Service, key: Key, until: float = 2e10) -> None:
    """Let another worker own the shard of an attempt."""
    with service.records.database.appending() as connection:
        mine = shards.c.shard == shard_of(key.job, key.attempt)
        values = {"owner": "another", "epoch": shards.c.epoch + 1, "until": until}
        connection.execute(sa.update(shards).where(mine).values(values))


@on_each
def test_services_share_the_shards_and_give_the_same_verdicts(
    starts: Starts, scanner: Scanner, limits: ReadLimits
) -> None:
    one, two = starts(), starts()
    beat(one, two)
    assert count(one) == count(two) == 32
    assert not one.holding._shards.keys() & two.holding._shards.keys()
    keys = [Key(path.stem, 1, "main") for path in LOGS]
    for key, path in zip(keys, LOGS, strict=True):
        feed(one, key, path.read_bytes())
        over(one, key)
    for key, path in zip(keys, LOGS, strict=True):
        wanted = pipeline.diagnose([pipeline.LogFile("main", path)], scanner, limits)
        assert plain(verdict(one, key).verdict) == plain(wanted)
    assert one.watch.verdicts and two.watch.verdicts
    assert one.watch.verdicts + two.watch.verdicts == len(LOGS)


@on_each
def test_attempts_move_to_and_fro_while_they_are_sent(starts: Starts, scanner: Scanner, limits: ReadLimits) -> None:
    chance, one = random.Random(5), starts()
    logs = {Key(path.stem, 1, "main"): path.read_bytes() for path in LOGS}
    places = dict.fromkeys(logs, 0)
    others: list[Service] = []
    while open_ := [key for key, log in logs.items() if places[key] < len(log)]:
        key = chance.choice(open_)
        data = logs[key][places[key] :][: chance.randrange(1, 40_000)]
        feed(one, key, data)
        places[key] += len(data)
        if chance.random() < 0.03 and len(others) < 4:
            others.append(starts())
        elif chance.random() < 0.02 and others and not others[-1].holding._archivist.stopping.is_set():
            others[-1].stop()
        elif chance.random() < 0.05:
            take_away(one, key, until=0.0)
        for service in (one, *others) if chance.random() < 0.1 else ():
            if not service.holding._archivist.stopping.is_set():
                service.owner._beat()
    for key in logs:
        over(one, key)
    beat(one, *(other for other in others if not other.holding._archivist.stopping.is_set()))
    for key, path in zip(logs, LOGS, strict=True):
        wanted = pipeline.diagnose([pipeline.LogFile("main", path)], scanner, limits)
        waiting.until(lambda key=key, wanted=wanted: plain(verdict(one, key).verdict) == plain(wanted))  # type: ignore[misc]
        assert b"".join(one.logs.view(key).chunks()) == path.read_bytes()
        assert one.logs.standing(key).problem == ""


def test_a_service_that_stops_leaves_its_shards_to_others_at_once(starts: Starts) -> None:
    one, two = starts(), starts()
    beat(one, two)
    assert count(one) == count(two) == 32
    keys = [Key("job", number, "main") for number in range(8)]
    for key in keys:
        feed(one, key, STEPS + FATAL)
    waiting.until(lambda: len(one.holding.attempts) + len(two.holding.attempts) == 8)
    two.stop()
    beat(one)
    assert count(one) == 64
    for key in keys:
        over(one, key)
        assert verdict(one, key).verdict.reason == "ECC Error"


def test_bytes_after_the_verdict_are_judged_by_whoever_owns_the_attempt_then(starts: Starts) -> None:
    one = starts()
    feed(one, KEY, STEPS)
    over(one, KEY)
    first = verdict(one, KEY)
    passes(one, PATIENT.linger)
    waiting.until(lambda: looked(one) and not one.holding.attempts)
    take_away(one, KEY, until=0.0)
    two = starts()
    beat(two)
    assert two.holding.owns(*KEY[:2])
    feed(one, KEY, FATAL)
    second = waiting.until(lambda: (found := verdict(one, KEY)).id != first.id and found)
    assert second and second.verdict.reason == "ECC Error"
    assert second.verdict.compression.bytes_in == len(STEPS + FATAL)
    waiting.until(lambda: two.watch.verdicts == 1)  # it counts them once they are published
    assert not one.records.current("job", 1) == first


@on_each
def test_a_service_whose_lease_ran_out_publishes_nothing(starts: Starts) -> None:
    """It was stopped meanwhile, and does not know it yet."""
    service = starts()
    send(service, KEY, STEPS + FATAL)
    attempt = service.holding.attempts["job", 1]
    take_away(service, KEY)
    over(service, KEY)
    waiting.until(lambda: looked(service) and ("job", 1) not in service.holding.attempts)
    assert service.records.current("job", 1) is None and not attempt.settled
    assert not service.holding.owns("job", 1)
    assert not list(service.archive.sizes())
    take_away(service, KEY, until=0.0)
    beat(service)
    assert final(service, KEY).verdict.reason == "ECC Error"
    assert service.watch.verdicts == 1


@on_each
def test_a_service_whose_lease_ran_out_keeps_no_snapshot_and_goes_on_with_the_rest(starts: Starts) -> None:
    service, other = starts(), Key("other", 7, "main")
    assert shard_of(*other[:2]) != shard_of(*KEY[:2])
    for key in (KEY, other):
        send(service, key, STEPS)
    scanned(service)
    take_away(service, KEY)
    for _ in range(2):  # attempts leave memory, with snapshots
        leaps(service, PATIENT.hang + 2 * PATIENT.quiet)
    waiting.until(lambda: looked(service) and not service.holding.attempts)
    assert service.logs.standing(other).state and not service.logs.standing(KEY).state
    feed(service, other, FATAL)
    over(service, other)
    assert verdict(service, other).verdict.reason == "ECC Error"


@on_each
def test_a_service_whose_lease_ran_out_says_nothing_of_what_it_compressed(starts: Starts) -> None:
    service = starts()
    send(service, KEY, STEPS)
    known = waiting.until(lambda: looked(service) and service.logs.standing(KEY).scanned)
    take_away(service, KEY)
    with service.records.database.appending() as connection:  # as the new owner, which has read more
        connection.execute(sa.update(streams).values(scanned=1000))
    feed(service, KEY, STEPS)
    waiting.until(lambda: looked(service) and not service.holding.owns(*KEY[:2]))
    assert service.logs.standing(KEY).scanned == 1000 > known


def test_one_who_cannot_renew_its_leases_lets_go(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    service = starts()
    send(service, KEY, STEPS)

    def failing(*_: object) -> None:
        raise StoreError("the database", "is away", "Wait.")

    with monkeypatch.context() as patched:
        patched.setattr(service.owner._leases, "beat", failing)
        service.owner._beat_safely()
        assert count(service) == 64, "the lease lasts"
        passes(service, LEASE)
        service.owner._beat_safely()
        assert count(service) == 0 and not service.holding.attempts
    beat(service)
    assert count(service) == 64
    send(service, KEY, FATAL)
    end(service, KEY)
    assert final(service, KEY).verdict.reason == "ECC Error"


@pytest.mark.parametrize("told", ["the whole", "a stream"])
def test_a_worker_that_is_behind_judges_nothing_of_which_it_has_not_read_all(
    folder: Path, scanner: Scanner, told: str
) -> None:
    """The end of an attempt is on record before a worker has read what came before it."""
    text = steps(1, 20_000).encode() + FATAL
    keys = [Key(f"job-{number}", 1, "main") for number in range(3)]
    bounds = BOUNDS._replace(unscanned=1 << 20)
    alone = plan(folder, PATIENT, bounds)
    web = Service(folder, scanner, alone._replace(parts=Parts(scans=False)))
    web.start()
    worker = Service(folder, scanner, alone._replace(parts=Parts(serves=False)))
    try:
        for begin in range(0, len(text), 100_000):
            for key in keys:
                feed(web, key, text[begin : begin + 100_000])
            if begin == 0:
                web.tell("job-0", JobFacts(user="u1"), time.time())  # has the ends looked up, between bytes
        for key in keys:
            stream = "" if told == "the whole" else key.stream
            web.end(key.job, key.attempt, End(stream, 1, None, None, time.time()))
        pull, publish, published = worker.holding.pull, worker.records.publish, list[tuple[bool, int]]()
        turns = itertools.count(1)

        def noted(job: str, attempt: int, found: Verdict, final: bool, *of: Any) -> StoredVerdict | None:
            published.append((final, found.compression.bytes_in))
            return publish(job, attempt, found, final, *of)

        def pulled_now_and_then() -> bool:  # as when others have filled the memory that there is for it
            return next(turns) % 8 == 0 and pull()

        worker.holding.pull = pulled_now_and_then  # type: ignore[method-assign]
        worker.records.publish = noted  # type: ignore[method-assign]
        worker.start()
        assert {verdict(web, key).verdict.reason for key in keys} == {"ECC Error"}
        assert [size for final, size in published if final] == [len(text)] * len(keys)
    finally:
        worker.stop()
        web.stop()
