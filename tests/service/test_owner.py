"""Several services over one database: they share its attempts, take over from each other, and say nothing wrongly."""

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
from logdoctor.store.names import Key
from logdoctor.store.records import End, JobFacts, StoredVerdict
from logdoctor.store.schema import shards, streams
from logdoctor.store.shards import shard_of
from logdoctor.types import Verdict
from tests.diagnose.logs import ECC, steps
from tests.service.services import BOUNDS, CORPUS, PATIENT, end, eventually, final, looked, plain, plan, send

pytestmark = pytest.mark.usefixtures("each_database")

KEY = Key("job", 1, "main")
LOGS = sorted(CORPUS.glob("*/*.log"))[::7]
STEPS, FATAL = steps(1, 30).encode(), ECC.encode()
Starts = Callable[..., Service]


@pytest.fixture
def starts(folder: Path, scanner: Scanner) -> Iterator[Starts]:
    """Starts services over one folder; the first one serves, the others only scan. They are stopped in the end."""
    started: list[Service] = []

    def start(lease: float = 1.0) -> Service:
        alone = plan(folder, PATIENT._replace(linger=0.0))
        service = Service(folder, scanner, alone._replace(parts=Parts(serves=not started), lease=lease))
        service.start()
        started.append(service)
        return service

    yield start
    for service in started[::-1]:
        if not service.holding._archivist.stopping.is_set():
            service.stop()


def count(service: Service) -> int:
    return service.holding.figures().shards


def verdict(service: Service, key: Key) -> StoredVerdict:
    """The final verdict, whoever gives it."""
    found = eventually(lambda: (one := service.records.current(key.job, key.attempt)) and one.final and one)
    assert found
    return found


def feed(service: Service, key: Key, data: bytes) -> None:
    service.intake.open(key)
    service.intake.push(key, data, "").result(90)


def over(service: Service, key: Key) -> None:
    service.end(key.job, key.attempt, End("", None, None, None, time.time()))


def take_away(service: Service, key: Key, until: float = 2e10) -> None:
    """Let another worker own the shard of an attempt."""
    with service.records.database.appending() as connection:
        mine = shards.c.shard == shard_of(key.job, key.attempt)
        values = {"owner": "another", "epoch": shards.c.epoch + 1, "until": until}
        connection.execute(sa.update(shards).where(mine).values(values))


def test_services_share_the_shards_and_give_the_same_verdicts(
    starts: Starts, scanner: Scanner, limits: ReadLimits
) -> None:
    one, two = starts(), starts()
    eventually(lambda: count(one) == count(two) == 32)
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
    for key in logs:
        over(one, key)
    for key, path in zip(logs, LOGS, strict=True):
        wanted = pipeline.diagnose([pipeline.LogFile("main", path)], scanner, limits)
        eventually(lambda key=key, wanted=wanted: plain(verdict(one, key).verdict) == plain(wanted))  # type: ignore[misc]
        assert b"".join(one.logs.view(key).chunks()) == path.read_bytes()
        assert one.logs.standing(key).problem == ""


def test_a_service_that_stops_leaves_its_shards_to_others_at_once(starts: Starts) -> None:
    one, two = starts(lease=60.0), starts(lease=60.0)
    for service in (one, two, one):
        service.owner._beat()
    assert count(one) == count(two) == 32
    keys = [Key("job", number, "main") for number in range(8)]
    for key in keys:
        feed(one, key, STEPS + FATAL)
    eventually(lambda: len(one.holding.attempts) + len(two.holding.attempts) == 8)
    two.stop()
    one.owner._beat()
    assert count(one) == 64
    for key in keys:
        over(one, key)
        assert verdict(one, key).verdict.reason == "ECC Error"


def test_bytes_after_the_verdict_are_judged_by_whoever_owns_the_attempt_then(starts: Starts) -> None:
    one = starts(lease=60.0)
    feed(one, KEY, STEPS)
    over(one, KEY)
    first = verdict(one, KEY)
    eventually(lambda: looked(one) and not one.holding.attempts)
    take_away(one, KEY, until=0.0)
    two = starts(lease=60.0)
    two.owner._beat()
    assert two.holding.owns(*KEY[:2])
    feed(one, KEY, FATAL)
    second = eventually(lambda: (found := verdict(one, KEY)).id != first.id and found)
    assert second and second.verdict.reason == "ECC Error"
    assert second.verdict.compression.bytes_in == len(STEPS + FATAL)
    eventually(lambda: two.watch.verdicts == 1)  # it counts them once they are published
    assert not one.records.current("job", 1) == first


def test_a_service_whose_lease_ran_out_publishes_nothing(starts: Starts) -> None:
    """It was stopped meanwhile, and does not know it yet."""
    service = starts(lease=600.0)
    send(service, KEY, STEPS + FATAL)
    attempt = service.holding.attempts["job", 1]
    take_away(service, KEY)
    over(service, KEY)
    eventually(lambda: ("job", 1) not in service.holding.attempts)
    time.sleep(0.3)
    assert service.records.current("job", 1) is None and not attempt.settled
    assert not service.holding.owns("job", 1)
    assert not list(service.archive.sizes())
    take_away(service, KEY, until=0.0)
    service.owner._beat()
    assert final(service, KEY).verdict.reason == "ECC Error"
    assert service.watch.verdicts == 1


def test_a_service_whose_lease_ran_out_keeps_no_snapshot_and_goes_on_with_the_rest(starts: Starts) -> None:
    service, other = starts(lease=600.0), Key("other", 7, "main")
    assert shard_of(*other[:2]) != shard_of(*KEY[:2])
    for key in (KEY, other):
        send(service, key, STEPS)
    eventually(lambda: not service.holding.unscanned)
    take_away(service, KEY)
    service.watch._timing = PATIENT._replace(quiet=0.05, hang=0.2)  # attempts leave memory, with snapshots
    eventually(lambda: looked(service) and not service.holding.attempts)
    assert service.logs.standing(other).state and not service.logs.standing(KEY).state
    service.watch._timing = PATIENT
    feed(service, other, FATAL)
    over(service, other)
    assert verdict(service, other).verdict.reason == "ECC Error"


def test_a_service_whose_lease_ran_out_says_nothing_of_what_it_compressed(starts: Starts) -> None:
    service = starts(lease=600.0)
    send(service, KEY, STEPS)
    scanned = eventually(lambda: service.logs.standing(KEY).scanned)
    take_away(service, KEY)
    with service.records.database.appending() as connection:  # as the new owner, which has read more
        connection.execute(sa.update(streams).values(scanned=1000))
    feed(service, KEY, STEPS)
    eventually(lambda: not service.holding.owns(*KEY[:2]))
    assert service.logs.standing(KEY).scanned == 1000 > scanned


def test_one_who_cannot_renew_its_leases_lets_go(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    service = starts(lease=0.4)
    send(service, KEY, STEPS)
    beat = service.owner._leases.beat

    def failing(*_: object) -> None:
        raise StoreError("the database", "is away", "Wait.")

    monkeypatch.setattr(service.owner._leases, "beat", failing)
    eventually(lambda: count(service) == 0 and not service.holding.attempts)
    monkeypatch.setattr(service.owner._leases, "beat", beat)
    eventually(lambda: count(service) == 64)
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
    alone = plan(folder, PATIENT, bounds)._replace(lease=600.0)
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

        def noted(job: str, attempt: int, found: Verdict, final: bool, *of: Any) -> StoredVerdict | None:
            published.append((final, found.compression.bytes_in))
            return publish(job, attempt, found, final, *of)

        def pulled_now_and_then() -> bool:  # as when others have filled the memory that there is for it
            return time.monotonic() % 2.5 < 0.1 and pull()

        worker.holding.pull = pulled_now_and_then  # type: ignore[method-assign]
        worker.records.publish = noted  # type: ignore[method-assign]
        worker.start()
        assert {verdict(web, key).verdict.reason for key in keys} == {"ECC Error"}
        assert [size for final, size in published if final] == [len(text)] * len(keys)
    finally:
        worker.stop()
        web.stop()
