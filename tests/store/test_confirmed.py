"""Confirmations stay on record, one of an attempt counts, and kept lines come back as they were, within bounds."""

import random
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from logdoctor.errors import ConfirmationRefused, CursorError, NameRefused
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning import confirmed as module
from logdoctor.store.learning.confirmed import Cited, Confirmed, Kept, NewConfirmation
from logdoctor.store.schema import residuals
from tests.at_once import at_once
from tests.store.conftest import on_both

NEW = NewConfirmation("run-1", 2, "user-17", "OS Error", fix="freed the disk", digests=("d1",), title="no space")


@pytest.fixture
def confirmed(records: Records) -> Confirmed:
    return Confirmed(records.database)


def new(**changes: Any) -> NewConfirmation:
    return msgspec.structs.replace(NEW, **changes)


def keep(confirmed: Confirmed, job: str, *texts: str, **said: str) -> None:
    lines = [Kept("main", number, text) for number, text in enumerate(texts, 1)]
    confirmed.keep_lines(job, 1, lines, **({"outcome": "failed", "reason": "Unknown"} | said))


def test_what_was_confirmed_comes_back(confirmed: Confirmed, records: Records) -> None:
    cited = (Cited("main", 7, "OSError: \x1b[31m[Errno 28]"),)
    added = confirmed.add(new(evidence=cited, corrects=True, verdict=9), 5.0)
    again = Confirmed(records.database)
    assert again.one(added.id) == added == again.live("run-1", 2) and again.of("run-1", 2) == [added]
    assert (added.at, added.withdrawn, added.evidence, added.fix) == (5.0, False, cited, "freed the disk")
    assert again.live("run-1", 3) is None


@on_both
def test_a_later_one_replaces_and_both_stay(confirmed: Confirmed) -> None:
    first = confirmed.add(NEW, 5.0)
    second = confirmed.add(new(by="user-18", reason="Key Error"), 6.0)
    assert [one.id for one in confirmed.cases()] == [second.id]
    before = confirmed.one(first.id)
    assert before.withdrawn and (before.withdrawn_by, before.withdrawn_at) == ("user-18", 6.0)
    assert [one.id for one in confirmed.of("run-1", 2)] == [second.id, first.id]
    assert [one.id for one in confirmed.page().items] == [second.id]
    assert [one.id for one in confirmed.page(withdrawn=True).items] == [second.id, first.id]


def test_withdrawing_is_written_down_and_happens_once(confirmed: Confirmed) -> None:
    added = confirmed.add(NEW, 5.0)
    version = confirmed.version()
    gone = confirmed.withdraw(added.id, "user-18", "was another job", 7.0)
    assert (gone.withdrawn, gone.withdrawn_by, gone.withdrawn_why, gone.withdrawn_at) == (
        True,
        "user-18",
        "was another job",
        7.0,
    )
    assert confirmed.version() > version and confirmed.cases() == [] and confirmed.live("run-1", 2) is None
    with pytest.raises(ConfirmationRefused, match="already"):
        confirmed.withdraw(added.id, "user-18", "", 8.0)
    with pytest.raises(ConfirmationRefused, match="does not exist"):
        confirmed.withdraw(added.id + 1, "user-18", "", 8.0)
    assert confirmed.add(NEW, 9.0).id == added.id + 1


@pytest.mark.parametrize(
    "changes",
    [{"reason": "Unknown"}, {"reason": "Gremlins"}, {"recovery": "pray"}, {"fault": "moon"}, {"by": " "}],
)
def test_what_no_failure_can_be_is_refused(confirmed: Confirmed, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfirmationRefused):
        confirmed.add(new(**changes), 5.0)
    assert confirmed.cases() == [] and confirmed.version() == 0


def test_bad_names_are_refused(confirmed: Confirmed) -> None:
    with pytest.raises(NameRefused):
        confirmed.add(new(job="a/b"), 5.0)
    with pytest.raises(NameRefused):
        keep(confirmed, "../x", "a line")


def test_texts_are_cut_and_fit_to_be_stored(confirmed: Confirmed) -> None:
    huge = "x" * 200_000
    added = confirmed.add(
        new(fix=huge, comment="\0\ud800", title=huge, summary=huge, evidence=(Cited("m", -1, huge),) * 900), 5.0
    )
    kept = confirmed.one(added.id)
    assert kept == added and kept.comment == "\ufffd?"
    assert len(msgspec.json.encode(kept)) < 130_000 and len(kept.evidence) == 50


@on_both
def test_pages_follow_each_other(confirmed: Confirmed) -> None:
    for number in range(5):
        confirmed.add(new(attempt=number, reason="Key Error" if number % 2 else "OS Error"), float(number))
    first = confirmed.page(limit=2)
    second = confirmed.page(first.next, 2)
    third = confirmed.page(second.next, 2)
    assert [one.attempt for page in (first, second, third) for one in page.items] == [4, 3, 2, 1, 0]
    assert third.next is None
    assert [one.attempt for one in confirmed.page(reason="Key Error").items] == [3, 1]
    with pytest.raises(CursorError):
        confirmed.page("x")


@on_both
def test_many_threads_leave_one_that_counts(confirmed: Confirmed) -> None:
    at_once(lambda n: confirmed.add(new(by=f"user-{n}"), float(n)), range(8))
    assert len(confirmed.of("run-1", 2)) == 8 and len(confirmed.cases()) == 1 and confirmed.version() == 8


def test_kept_lines_come_back_with_what_the_verdict_said(confirmed: Confirmed) -> None:
    keep(confirmed, "a", "one", "zwei \u7814 \0", reason="Key Error", decided="agent", digest="d1")
    past = confirmed.kept("a", 1)
    assert past and [line.text for line in past.lines] == ["one", "zwei \u7814 \ufffd"]
    assert (past.reason, past.decided, past.digest, past.confirmed) == ("Key Error", "agent", "d1", False)
    assert confirmed.kept("a", 2) is None


def test_what_was_confirmed_wins_over_the_verdict(confirmed: Confirmed) -> None:
    keep(confirmed, "a", "one", outcome="completed", reason="None")
    added = confirmed.add(new(job="a", attempt=1), 5.0)
    (past,) = confirmed.past()
    assert (past.outcome, past.reason, past.recovery, past.confirmed) == ("failed", "OS Error", "fix_first", True)
    confirmed.withdraw(added.id, "user-17", "", 6.0)
    (past,) = confirmed.past()
    assert (past.outcome, past.reason, past.confirmed) == ("completed", "None", False)


def test_an_attempt_that_is_settled_again_is_kept_once(confirmed: Confirmed) -> None:
    keep(confirmed, "a", "one")
    keep(confirmed, "b", "two")
    keep(confirmed, "a", "three", reason="Key Error")
    assert [(past.job, past.lines[0].text) for past in confirmed.past()] == [("a", "three"), ("b", "two")]
    assert [past.job for past in confirmed.past(without=("a", 1))] == ["b"]


@on_both
def test_the_newest_attempts_are_kept(confirmed: Confirmed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ATTEMPTS", 3)
    monkeypatch.setattr(module, "_PAGE", 2)
    for number in range(6):
        keep(confirmed, f"job-{number}", "one")
    assert [past.job for past in confirmed.past()] == ["job-5", "job-4", "job-3"]


@on_both
def test_the_lines_of_most_weight_are_kept_within_the_bound(confirmed: Confirmed, records: Records) -> None:
    chance = random.Random(4)
    lines = [Kept("main", number, f"{chance.getrandbits(4000):x}", int(number % 100 == 7)) for number in range(1, 2001)]
    confirmed.keep_lines("a", 1, lines, outcome="failed", reason="Unknown")
    with records.database.reading() as connection:
        assert connection.scalar(sa.select(sa.func.length(residuals.c.frame))) <= module.MAX_PACKED
    past = confirmed.kept("a", 1)
    assert past and {line.line for line in past.lines} >= set(range(7, 2001, 100))
    assert [line.line for line in past.lines] == sorted(line.line for line in past.lines)


@on_both
def test_damaged_lines_cost_their_attempt_alone(confirmed: Confirmed, records: Records) -> None:
    keep(confirmed, "a", "one")
    keep(confirmed, "b", "two")
    with records.database.writing() as connection:
        connection.execute(sa.update(residuals).where(residuals.c.job == "b").values(frame=b"\x28\xb5\x2f\xfdnothing"))
    assert [past.job for past in confirmed.past()] == ["a"]


@on_both
def test_attempts_on_which_the_agent_agrees(confirmed: Confirmed) -> None:
    same = {"reason": "Key Error", "recovery": "fix_first", "digest": "d1"}
    keep(confirmed, "a", "x", decided="agent", **same)
    keep(confirmed, "b", "x", decided="agent", **same)
    keep(confirmed, "c", "x", decided="case", **same)
    keep(confirmed, "d", "x", decided="agent", **(same | {"recovery": "restart"}))
    keep(confirmed, "e", "x", decided="agent", **(same | {"digest": "d2"}))
    assert confirmed.agreed("d1", "Key Error", "fix_first") == [("a", 1), ("b", 1)]
