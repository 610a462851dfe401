"""Work is done once, again when it fails, and by the next process when this one dies."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.errors import Busy, StoreError
from logdoctor.service import task_runner
from logdoctor.service.task_runner import NotYet, TaskRunner
from logdoctor.store.records import Records
from logdoctor.store.work import COUNT, RECHECK, NewWork, Work, WorkItem
from tests.databases import url_in
from tests.service.services import eventually


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    records = Records(url_in(tmp_path / "records.sqlite"))
    yield Work(records.database)
    records.close()


def test_much_work_is_done_once(work: Work) -> None:
    done: list[str] = []
    work.enter([NewWork(COUNT, str(i)) for i in range(500)], time.time())
    found = TaskRunner("test", work, {COUNT: lambda item: done.append(item.key)})
    found.start()
    eventually(lambda: not work.keys((COUNT,)), 60.0)
    found.stop()
    found.join()
    assert done == [str(i) for i in range(500)]


@pytest.mark.parametrize(
    "error",
    [StoreError("the disk", "is full", "Wait."), KeyError("x"), NotYet(0.05), Busy("a", "it stops", "Start it.")],
)
def test_work_that_fails_is_tried_again_and_holds_up_no_other(
    work: Work, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "_FIRST_PAUSE", 0.05)
    tries: list[int] = []
    done: list[str] = []

    def fail_twice(item: WorkItem) -> None:
        tries.append(item.tries)
        if len(tries) < 3:
            raise error

    work.enter([NewWork(COUNT, "a/1"), NewWork(RECHECK, "a/1")], time.time())
    found = TaskRunner("test", work, {COUNT: fail_twice, RECHECK: lambda item: done.append(item.key)})
    found.start()
    eventually(lambda: not work.keys((COUNT, RECHECK)))
    found.stop()
    found.join()
    assert tries == [0, 1, 2] and done == ["a/1"]


def test_what_a_stop_broke_off_is_done_by_the_next(work: Work) -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def slow(item: WorkItem) -> None:
        begun.set()
        go_on.wait(20)

    work.enter([NewWork(COUNT, "a/1")], time.time())
    first = TaskRunner("test", work, {COUNT: slow})
    first.start()
    assert begun.wait(20)
    first.stop()
    go_on.set()
    first.join()
    assert work.keys((COUNT,)) == {"a/1"}
    work.resume(time.time())
    second = TaskRunner("test", work, {COUNT: lambda item: done.append(item.key)})
    second.start()
    eventually(lambda: done)
    second.stop()
    second.join()


def test_work_that_always_fails_is_given_up_unless_people_said_it(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_runner, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(task_runner, "_LOOK", 0.01)
    tries = {COUNT: 0, RECHECK: 0}

    def fail(item: WorkItem) -> None:
        tries[item.kind] += 1
        raise StoreError("the log", "is damaged", "Restore it.")

    work.enter([NewWork(COUNT, "a/1"), NewWork(RECHECK, "a/1")], time.time() - 2 * task_runner._DAY)
    found = TaskRunner("test", work, {COUNT: fail, RECHECK: fail}, kept=(RECHECK,))
    found.start()
    eventually(lambda: not work.keys((COUNT,)) and tries[RECHECK] > 2 * task_runner._TRIES, 60.0)
    found.stop()
    found.join()
    assert tries[COUNT] == task_runner._TRIES and work.keys((RECHECK,)) == {"a/1"}
