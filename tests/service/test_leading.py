"""Which of several processes leads, and what happens when taking over fails or takes long."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.errors import StoreError
from logdoctor.service.leading import Leading
from logdoctor.store.database import Database
from logdoctor.store.leader import LeaderLease
from tests.service.services import eventually

_LEASE = 0.4


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'logdoctor.db'}")
    yield opened
    opened.close()


def test_who_takes_long_to_take_over_leads_in_the_end(database: Database) -> None:
    taken: list[float] = []

    def slowly() -> None:
        taken.append(time.monotonic())
        time.sleep(3 * _LEASE)

    leading = Leading(LeaderLease(database, "first", _LEASE), slowly)
    leading.start()
    assert leading() and len(taken) == 1
    time.sleep(3 * _LEASE)
    assert leading() and len(taken) == 1, "what was taken over is not taken over again"
    leading.stop()
    assert not leading()


def test_what_fails_while_taking_over_is_tried_again(database: Database) -> None:
    tries: list[int] = []

    def fail_twice() -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise StoreError("the database", "is away", "Wait.")

    leading = Leading(LeaderLease(database, "first", _LEASE), fail_twice)
    with pytest.raises(StoreError):
        leading.start()
    again = Leading(LeaderLease(database, "first", _LEASE), fail_twice)
    with pytest.raises(StoreError):
        again.start()
    last = Leading(LeaderLease(database, "first", _LEASE), fail_twice)
    last.start()
    assert last()
    last.stop()


def test_another_leads_once_the_first_has_ended_and_back(database: Database) -> None:
    taken: list[str] = []
    pair = {
        name: Leading(LeaderLease(database, name, _LEASE), lambda name=name: taken.append(name))  # type: ignore[misc]
        for name in ("first", "second")
    }
    for one in pair.values():
        one.start()
    assert [one() for one in pair.values()] == [True, False]
    pair["first"].stop()
    eventually(pair["second"])
    assert taken == ["first", "second"] and not pair["first"]()
    pair["second"].stop()
