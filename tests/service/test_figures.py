"""What a worker says of itself is true, and costs it nothing when it cannot be said."""

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
from tests import waiting
from tests.diagnose.logs import ECC, steps
from tests.service.services import HOUR, Clock, end, final, plan, send, still

KEY = Key("job", 1, "main")
LOG = steps(1, 30).encode() + ECC.encode()


@pytest.fixture
def service(folder: Path, scanner: Scanner) -> Iterator[Service]:
    folder.mkdir(parents=True, exist_ok=True)
    service = Service(folder, scanner, plan(folder))
    service.start()
    yield still(service)
    service.stop()


def said(service: Service) -> ProcessFigures:
    """What a worker writes down of itself now."""
    service.owner._beat()
    with service.records.database.reading() as connection:
        (text,) = connection.scalars(sa.select(workers.c.figures))
    return msgspec.json.decode(text, type=ProcessFigures)


def test_a_worker_says_what_it_holds_and_did(service: Service) -> None:
    waiting.until(lambda: said(service).shards == 64 and not said(service).catching_up)
    send(service, KEY, LOG)
    waiting.until(lambda: said(service).scanned_bytes == len(LOG))
    assert (said(service).streams, said(service).attempts, said(service).unarchived_bytes) == (1, 1, len(LOG))
    end(service, KEY)
    final(service, KEY)
    waiting.until(lambda: said(service).verdicts == 1)
    assert said(service).scan_lag_seconds == 0 and said(service).cpu_seconds > 0


def test_bytes_that_are_not_read_from_the_log_count_as_lag(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    read, clock = service.log.read_each, service.holding.clock
    assert isinstance(clock, Clock)

    def failing(*_: object) -> None:
        raise StoreError("the log", "is away", "Wait.")

    monkeypatch.setattr(service.log, "read_each", failing)
    service.intake.open(KEY)
    service.intake.push(KEY, LOG, "").result()
    waiting.until(lambda: service.holding.lag() > 0.0)
    clock.leap(HOUR)
    assert HOUR < service.holding.lag() < 2 * HOUR
    assert not service.holding.figures().unscanned
    monkeypatch.setattr(service.log, "read_each", read)
    waiting.until(lambda: service.holding.lag() == 0.0)
    waiting.until(lambda: said(service).scanned_bytes == len(LOG))


def test_whoever_cannot_tell_its_figures_keeps_its_shards(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise ValueError("no figures")

    monkeypatch.setattr(service.watch, "is_behind", failing)

    def told() -> tuple[float, str]:
        with service.records.database.reading() as connection:
            return tuple(connection.execute(sa.select(workers.c.until, workers.c.figures)).one())

    for _ in range(2):
        with service.records.database.writing() as connection:
            connection.execute(sa.update(workers).values(until=1.0, figures="old"))
        service.owner._beat()
        until, text = told()
        assert until > 1.0 and text == ""
    assert service.holding.figures().shards == 64


def test_a_worker_shows_that_it_lives_while_it_reaches_the_database(
    folder: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    worker = Service(folder, scanner, plan(folder)._replace(parts=Parts(serves=False)))
    worker.start()
    still(worker)
    try:
        alive = folder / ALIVE
        alive.unlink()
        worker.owner._beat()
        assert alive.exists()

        def failing(*_: object) -> None:
            raise StoreError("the database", "is away", "Wait.")

        alive.unlink()
        with monkeypatch.context() as patched:
            patched.setattr(worker.owner._leases, "beat", failing)
            worker.owner._beat_safely()
            assert not alive.exists()
        worker.owner._beat()
        assert alive.exists()
    finally:
        worker.stop()


def test_a_service_that_serves_leaves_no_such_file(service: Service, folder: Path) -> None:
    waiting.until(lambda: said(service).shards == 64)
    assert not (folder / ALIVE).exists()
