"""Work is done once, again when it fails, and by the next process when this one dies."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logdoctor.errors import Busy, StoreError
from logdoctor.service import task_runner
from logdoctor.service.task_runner import NotYet, TaskRunner
from logdoctor.store.jobs.records import Records
from logdoctor.store.keeping.work import COUNT, RECHECK, NewWork, Work, WorkItem
from tests import waiting
from tests.databases import url_in
from tests.service.services import Clock, turned

HOUR, DAY = 3600.0, 86_400.0


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    records = Records(url_in(tmp_path / "records.sqlite"))
    yield Work(records.database)
    records.close()


@contextmanager
def running(work: Work, duties: Mapping[str, Callable[[WorkItem], object]], **given: Any) -> Iterator[TaskRunner]:
    """Work that is done, until the block ends."""
    found = TaskRunner("test", work, duties, **given)  # type: ignore[arg-type]
    found.start()
    yield found
    found.stop()
    found.join()


def test_much_work_is_done_once(work: Work) -> None:
    done: list[str] = []
    work.enter([NewWork(COUNT, str(i)) for i in range(150)], time.time())
    with running(work, {COUNT: lambda item: done.append(item.key)}):
        waiting.until(lambda: not work.keys((COUNT,)))
    assert done == [str(i) for i in range(150)]


@pytest.mark.parametrize(
    "error",
    [StoreError("the disk", "is full", "Wait."), KeyError("x"), NotYet(HOUR), Busy("a", "it stops", "Start it.")],
)
def test_work_that_fails_is_tried_again_and_holds_up_no_other(work: Work, error: Exception) -> None:
    clock, tries, done = Clock(time.time), list[int](), list[str]()

    def fail_twice(item: WorkItem) -> None:
        tries.append(item.tries)
        if len(tries) < 3:
            raise error

    work.enter([NewWork(COUNT, "a/1"), NewWork(RECHECK, "a/1")], time.time())
    with running(work, {COUNT: fail_twice, RECHECK: lambda item: done.append(item.key)}, clock=clock) as found:
        for tried in (1, 2, 3):
            turned(found._turns)
            assert len(tries) == tried, "it is left alone for a while"
            clock.leap(HOUR)
    assert tries == [0, 1, 2] and done == ["a/1"] and not work.keys((COUNT, RECHECK))


def test_what_a_stop_broke_off_is_done_by_the_next(work: Work) -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def slow(item: WorkItem) -> None:
        begun.set()
        go_on.wait()

    work.enter([NewWork(COUNT, "a/1")], time.time())
    with running(work, {COUNT: slow}) as first:
        begun.wait()
        first.stop()
        go_on.set()
    assert work.keys((COUNT,)) == {"a/1"}
    work.resume(time.time())
    with running(work, {COUNT: lambda item: done.append(item.key)}):
        waiting.until(lambda: done)


def test_work_that_always_fails_is_given_up_unless_people_said_it(work: Work) -> None:
    clock, tries = Clock(time.time), {COUNT: 0, RECHECK: 0}

    def fail(item: WorkItem) -> None:
        tries[item.kind] += 1
        raise StoreError("the log", "is damaged", "Restore it.")

    work.enter([NewWork(COUNT, "a/1"), NewWork(RECHECK, "a/1")], time.time() - 2 * DAY)
    with running(work, {COUNT: fail, RECHECK: fail}, kept=(RECHECK,), clock=clock) as found:
        for _ in range(task_runner._TRIES + 3):
            turned(found._turns)
            clock.leap(HOUR)
    assert tries == {COUNT: task_runner._TRIES, RECHECK: task_runner._TRIES + 3}
    assert work.keys((COUNT, RECHECK)) == {"a/1"}
