"""What a worker says of itself is true, and costs it nothing when it cannot be said."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from logdoctor.errors import StoreError
from logdoctor.rules.scanner import Scanner
from logdoctor.service.figures import ProcessFigures
from logdoctor.service.parts import Parts
from logdoctor.service.service import ALIVE, Service
from logdoctor.store.names import Key
from logdoctor.store.schema import workers
from tests.diagnose.logs import ECC, steps
from tests.service.services import PATIENT, end, eventually, final, plan, send

pytestmark = pytest.mark.usefixtures("each_database")

KEY = Key("job", 1, "main")
LOG = steps(1, 30).encode() + ECC.encode()
LEASE = 0.5


@pytest.fixture
def service(folder: Path, scanner: Scanner) -> Iterator[Service]:
    folder.mkdir(parents=True, exist_ok=True)
    service = Service(folder, scanner, plan(folder, PATIENT)._replace(lease=LEASE))
    service.start()
    yield service
    service.stop()


def said(service: Service) -> ProcessFigures:
    """What a worker has written down of itself."""
    with service.records.database.reading() as connection:
        (text,) = connection.scalars(sa.select(workers.c.figures))
    return msgspec.json.decode(text, type=ProcessFigures)


def test_a_worker_says_what_it_holds_and_did(service: Service) -> None:
    eventually(lambda: said(service).shards == 64 and not said(service).catching_up)
    send(service, KEY, LOG)
    eventually(lambda: said(service).scanned_bytes == len(LOG))
    assert (said(service).streams, said(service).attempts, said(service).unarchived_bytes) == (1, 1, len(LOG))
    end(service, KEY)
    final(service, KEY)
    eventually(lambda: said(service).verdicts == 1)
    assert said(service).scan_lag_seconds == 0 and said(service).cpu_seconds > 0


def test_bytes_that_are_not_read_from_the_log_count_as_lag(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    read = service.log.read_each

    def failing(*_: object) -> None:
        raise StoreError("the log", "is away", "Wait.")

    monkeypatch.setattr(service.log, "read_each", failing)
    service.intake.open(KEY)
    service.intake.push(KEY, LOG, "").result(90)
    eventually(lambda: service.holding.lag() > 1.0)
    assert not service.holding.figures().unscanned
    monkeypatch.setattr(service.log, "read_each", read)
    eventually(lambda: service.holding.lag() == 0.0)
    eventually(lambda: said(service).scanned_bytes == len(LOG))


def test_whoever_cannot_tell_its_figures_keeps_its_shards(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise ValueError("no figures")

    monkeypatch.setattr(service.watch, "is_behind", failing)

    def told() -> tuple[float, str]:
        with service.records.database.reading() as connection:
            return tuple(connection.execute(sa.select(workers.c.until, workers.c.figures)).one())

    eventually(lambda: told()[1] == "")
    until, _ = told()
    eventually(lambda: told()[0] > until)
    time.sleep(3 * LEASE)
    assert told()[1] == ""
    assert service.holding.figures().shards == 64


def test_a_worker_shows_that_it_lives_while_it_reaches_the_database(
    folder: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    alone = plan(folder, PATIENT)._replace(lease=LEASE, parts=Parts(serves=False))
    worker = Service(folder, scanner, alone)
    worker.start()
    try:
        alive = folder / ALIVE
        first = alive.stat().st_mtime_ns
        eventually(lambda: alive.stat().st_mtime_ns > first)

        def failing(*_: object) -> None:
            raise StoreError("the database", "is away", "Wait.")

        monkeypatch.setattr(worker.owner._leases, "beat", failing)
        time.sleep(LEASE)
        last = alive.stat().st_mtime_ns
        time.sleep(2 * LEASE)
        assert alive.stat().st_mtime_ns == last
        monkeypatch.undo()
        eventually(lambda: alive.stat().st_mtime_ns > last)
    finally:
        monkeypatch.undo()
        worker.stop()


def test_a_service_that_serves_leaves_no_such_file(service: Service, folder: Path) -> None:
    eventually(lambda: said(service).shards == 64)
    assert not (folder / ALIVE).exists()
