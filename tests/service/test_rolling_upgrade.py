"""Workers with another rule book come and those with the old one go: no job is judged by a mixture of the two, none is
read again before it must be, and none is lost."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from logdoctor import pipeline
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.service.parts import Parts
from logdoctor.service.service import Service
from logdoctor.store.names import Key
from logdoctor.store.schema import shards, workers
from tests import waiting
from tests.service.services import CORPUS, plain, plan, still
from tests.service.test_owner import count, feed, over, verdict

LOGS = {Key(path.stem, 1, "main"): path for path in sorted(CORPUS.glob("*/*.log"))[::7]}
EARLY = list(LOGS)[::3]
"""Jobs that end while workers of the old book live."""
Starts = Callable[..., Service]


@pytest.fixture
def upgraded(scanner: Scanner, limits: ReadLimits) -> Scanner:
    """The rules without the one that takes most lines of these logs: each verdict shows which rules made it."""
    taken: dict[str, int] = {}
    for path in LOGS.values():
        for rule, took in pipeline.diagnose([LogFile("main", path)], scanner, limits).compression.rules.items():
            taken[rule] = taken.get(rule, 0) + took.lines
    book, most = scanner.book, max(taken, key=lambda rule: taken[rule])
    fewer = tuple(rule for rule in book.filters if rule.id != most)
    return Scanner(RuleBook((*fewer, *book.diagnoses), book._tables), scanner.cache)


@pytest.fixture
def starts(folder: Path, scanner: Scanner) -> Iterator[Starts]:
    """Starts processes over one folder, whose leases are renewed and end when a test says so; the first one only
    serves."""
    started: list[Service] = []

    def start(rules: Scanner = scanner) -> Service:
        parts = Parts(scans=False) if not started else Parts(serves=False)
        service = Service(folder, rules, plan(folder)._replace(parts=parts))
        service.start()
        started.append(service)
        return still(service)

    yield start
    for service in started[::-1]:
        if not service.holding._archivist.stopping.is_set():
            service.stop()


def die(worker: Service) -> None:
    """Let the leases of a worker end, which goes on and does not know it."""
    with worker.records.database.appending() as connection:
        name = worker.owner._leases._worker
        connection.execute(sa.update(shards).where(shards.c.owner == name).values(until=0.0))
        connection.execute(sa.update(workers).where(workers.c.worker == name).values(until=0.0))


def books(web: Service) -> set[str]:
    """The rule books that the snapshots of shards are said to be of."""
    with web.records.database.reading() as connection:
        return set(connection.scalars(sa.select(shards.c.rulebook)))


def feed_part(web: Service, keys: list[Key], part: int) -> None:
    """A third of each log."""
    for key in keys:
        data = LOGS[key].read_bytes()
        third = len(data) // 3
        feed(web, key, data[part * third : (part + 1) * third] if part < 2 else data[2 * third :])


def is_read(web: Service, keys: list[Key], *of: Service) -> bool:
    """Whether workers have compressed all that was sent of jobs that go on."""
    attempts = [attempt for one in of for attempt in list(one.holding.attempts.values())]
    scans = {stream.key: stream.scan for attempt in attempts for stream in list(attempt.streams.values())}
    return all((scan := scans.get(key)) and scan.cutter.reached == web.logs.standing(key).next for key in keys)


def judged(web: Service, keys: list[Key], limits: ReadLimits, *by: Scanner) -> list[int]:
    """See that verdicts are those of the whole logs by one of these rule books; their ids."""
    found = []
    for key in keys:
        stored = verdict(web, key)
        (rules,) = (one for one in by if one.book.digest == stored.verdict.decided_by.rulebook)
        assert plain(stored.verdict) == plain(pipeline.diagnose([LogFile("main", LOGS[key])], rules, limits))
        assert b"".join(web.logs.view(key).chunks()) == LOGS[key].read_bytes()
        assert web.logs.standing(key).problem == ""
        found.append(stored.id)
    return found


@pytest.mark.parametrize("last", ["stops", "dies"])
def test_workers_of_another_rule_book_take_over_when_the_last_of_the_old_one_is_gone(
    starts: Starts, scanner: Scanner, upgraded: Scanner, limits: ReadLimits, last: str
) -> None:
    assert upgraded.book.digest != scanner.book.digest
    late = [key for key in LOGS if key not in EARLY]
    web, old, peer = starts(), starts(), starts()
    for worker in (old, peer, old):
        worker.owner._beat()
    assert count(old) == count(peer) == 32
    new = starts(upgraded)
    feed_part(web, list(LOGS), 0)
    waiting.until(lambda: is_read(web, list(LOGS), old, peer))
    new.owner._beat()
    assert count(new) == 0 and books(web) == {scanner.book.digest}

    read = old.watch.scanned_bytes
    peer.stop()
    new.owner._beat()
    old.owner._beat()
    assert (count(old), count(new)) == (64, 0), "a worker of the same book goes first"
    waiting.until(lambda: is_read(web, list(LOGS), old))
    assert old.watch.scanned_bytes < 1.05 * read, "it goes on from snapshots"

    feed_part(web, list(LOGS), 1)
    feed_part(web, EARLY, 2)
    for key in EARLY:
        over(web, key)
    ids = judged(web, EARLY, limits, scanner)
    waiting.until(lambda: is_read(web, late, old))
    if last == "stops":
        old.stop()
    else:
        die(old)
    new.owner._beat()
    assert count(new) == 64 and books(web) == {upgraded.book.digest}
    feed_part(web, late, 2)
    for key in late:
        over(web, key)
    judged(web, late, limits, upgraded)
    assert all(len(web.records.history(key.job, 1)) == 1 for key in late)
    if last == "stops":
        assert judged(web, EARLY, limits, scanner) == ids, "each is judged once"
        waiting.until(lambda: new.watch.verdicts == len(late))
    else:  # what was not archived is read again, and judged by whoever reads it
        judged(web, EARLY, limits, scanner, upgraded)
        assert old.watch.verdicts == len(EARLY), "the one that was taken for dead says nothing more"
