"""Which of several processes leads, and what happens when taking over fails or takes long."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.errors import StoreError
from logdoctor.service.leading import Leading
from logdoctor.store.database import Database
from logdoctor.store.keeping.leader import LeaderLease
from tests.service.services import LEASE, Clock, turned


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'logdoctor.db'}")
    yield opened
    opened.close()


def test_who_takes_long_to_take_over_leads_in_the_end(database: Database) -> None:
    clock, taken = Clock(), []

    def slowly() -> None:
        taken.append("slowly")
        clock.leap(3 * LEASE)

    leading = Leading(LeaderLease(database, "first", LEASE), slowly, clock)
    leading.start()
    assert leading() and len(taken) == 1
    clock.leap(LEASE)
    assert not leading(), "it may be that another leads"
    turned(leading._turns)
    assert leading() and len(taken) == 1, "what was taken over is not taken over again"
    leading.stop()
    assert not leading()


def test_who_cannot_renew_its_lease_leads_as_long_as_it_lasts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, lease = Clock(), LeaderLease(database, "first", LEASE)
    leading = Leading(lease, lambda: None, clock)
    leading.start()

    def failing() -> bool:
        raise StoreError("the database", "is away", "Wait.")

    with monkeypatch.context() as patched:
        patched.setattr(lease, "beat", failing)
        turned(leading._turns)
        assert leading()
        clock.leap(LEASE)
        turned(leading._turns)
        assert not leading()
    turned(leading._turns)
    assert leading()
    leading.stop()


def test_what_fails_while_taking_over_is_tried_again(database: Database) -> None:
    tries: list[int] = []

    def fail_twice() -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise StoreError("the database", "is away", "Wait.")

    for _ in range(2):
        with pytest.raises(StoreError):
            Leading(LeaderLease(database, "first", LEASE), fail_twice).start()
    last = Leading(LeaderLease(database, "first", LEASE), fail_twice)
    last.start()
    assert last()
    last.stop()


def test_another_leads_once_the_first_has_ended_and_back(database: Database) -> None:
    taken: list[str] = []
    pair = {
        name: Leading(LeaderLease(database, name, LEASE), lambda name=name: taken.append(name))  # type: ignore[misc]
        for name in ("first", "second")
    }
    for one in pair.values():
        one.start()
    assert [one() for one in pair.values()] == [True, False]
    pair["first"].stop()
    turned(pair["second"]._turns)
    assert pair["second"]()
    assert taken == ["first", "second"] and not pair["first"]()
    pair["second"].stop()
