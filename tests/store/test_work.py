"""Work waits in rows, is due when it should be, and is removed only by who did it as it stands."""

import pytest

from logdoctor.store.jobs.records import Records
from logdoctor.store.keeping.work import COUNT, FORGET, RECHECK, TEACH, NewWork, Work, attempt_of, key_of
from logdoctor.store.learning.confirmed import Confirmed, NewConfirmation
from tests.databases import tries_of
from tests.store.conftest import on_both


@pytest.fixture
def work(records: Records) -> Work:
    return Work(records.database)


@on_both
def test_any_amount_waits_and_comes_in_its_order(work: Work) -> None:
    most = tries_of(work._database, 1000)
    work.enter([NewWork(COUNT, f"job-{i}/1", f'"{i}"') for i in range(most)], 10.0)
    work.enter([NewWork(RECHECK, "job-1/1")], 5.0)
    assert work.due((COUNT,), 9.0) == [] and work.next_due((COUNT,)) == 10.0 and work.next_due((TEACH,)) is None
    done = []
    while found := work.due((COUNT,), 10.0):
        for item in found:
            done.append((item.key, item.body))
            work.finish(item)
    assert done == [(f"job-{i}/1", f'"{i}"') for i in range(most)]
    assert work.keys((COUNT, RECHECK)) == {"job-1/1"}


@on_both
def test_what_is_entered_anew_meanwhile_is_not_removed(work: Work) -> None:
    work.enter([NewWork(COUNT, "a/1", "1")], 1.0)
    (first,) = work.due((COUNT,), 1.0)
    work.enter([NewWork(COUNT, "a/1", "2")], 2.0)
    work.finish(first)
    work.put_off(first, 99.0)
    work.begin(first, 99.0)
    (second,) = work.due((COUNT,), 2.0)
    assert (second.body, second.tries) == ("2", 0)
    work.finish(second)
    assert not work.keys((COUNT,))


@on_both
def test_what_was_begun_comes_again_after_a_pause_or_a_restart(work: Work) -> None:
    work.enter([NewWork(COUNT, "a/1")], 1.0)
    for tries in range(3):
        (item,) = work.due((COUNT,), 1.0)
        assert item.tries == tries
        work.begin(item, 100.0)
        assert work.due((COUNT,), 99.0) == [] and len(work.due((COUNT,), 100.0)) == 1
        work.resume(1.0)
    assert work.due((COUNT,), 99.0) == [], "it may be what kills the service"


@on_both
def test_it_is_entered_with_what_makes_it_due(records: Records, work: Work) -> None:
    confirmed = Confirmed(records.database)
    first = confirmed.add(NewConfirmation("a", 1, "op", "Type Error"), 1.0)
    second = confirmed.add(NewConfirmation("a", 1, "op", "Value Error"), 2.0)
    confirmed.withdraw(second.id, "op", "no", 3.0)
    found = [(item.kind, item.key) for item in work.due((TEACH, FORGET), 9.0)]
    assert found == [(TEACH, str(first.id)), (FORGET, str(first.id)), (TEACH, str(second.id)), (FORGET, str(second.id))]


def test_keys_of_attempts() -> None:
    assert attempt_of(key_of("a/b", 12)) == ("a/b", 12)


def test_work_that_was_entered_while_the_clock_was_wrong_is_due(work: Work) -> None:
    work.enter([NewWork(COUNT, "a/1")], 500 * 86_400.0)
    work.enter([NewWork(COUNT, "b/1")], 1000.0)
    assert [item.key for item in work.due((COUNT,), 100_000.0)] == ["b/1", "a/1"]
    assert [item.key for item in work.due((COUNT,), 500.0)] == ["a/1"]
