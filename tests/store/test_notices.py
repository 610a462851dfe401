"""The outbox: an incident is told once, a message is sent by one at a time, and nothing that waits is lost."""

from collections.abc import Iterator

import msgspec
import pytest
import sqlalchemy as sa

from logdoctor.errors import NoticeRefused
from logdoctor.store.incidents.notices import OPENED, RESOLVED, Closed, NewNotice, Notice, Notices
from logdoctor.store.incidents.table import Incidents
from logdoctor.store.jobs.records import Records
from logdoctor.store.schema import incidents as table
from tests.notify.stories import AT, VERDICT
from tests.store.conftest import on_both

DAY = 86_400.0


class Box:
    """A database with incidents and an outbox."""

    def __init__(self, url: str) -> None:
        self.records = Records(url)
        self.incidents = Incidents(self.records.database)
        self.notices = Notices(self.records.database)

    def fail(self, job: str, reason: str = "ECC Error", at: float = AT, final: bool = True) -> int:
        """The incident of a job that failed."""
        verdict = msgspec.structs.replace(VERDICT, reason=reason, fingerprint=f"{reason} {job}")
        self.records.publish(job, 1, verdict, final, at)
        found = self.incidents.of(job, 1)
        assert found is not None
        return found

    def recover(self, job: str, at: float = AT) -> None:
        """The verdict on a job says no more that it failed."""
        self.records.publish(job, 1, msgspec.structs.replace(VERDICT, outcome="completed"), True, at)

    def told(self, job: str = "a", targets: tuple[str, ...] = ("ops",), at: float = AT) -> list[Notice]:
        """The messages about a failed job."""
        incident = self.fail(job, at=at)
        (unsent,) = [one for one in self.notices.unsent(at - DAY, at - 20) if one.id == incident]
        assert self.notices.enqueue(unsent, [entry(target, at) for target in targets], at)
        return self.notices.of(incident)

    def resolve(self, incident: int) -> None:
        self.incidents.step(incident, "resolve", "u1", "restarted", AT + 1, None)


def entry(target: str = "ops", at: float = AT, dead: str = "") -> NewNotice:
    return NewNotice(target, "{}", at, at + DAY, dead)


@pytest.fixture
def box(url: str) -> Iterator[Box]:
    box = Box(url)
    yield box
    box.records.close()


def test_an_incident_is_told_once(box: Box) -> None:
    incident = box.fail("a")
    (unsent,) = box.notices.unsent(AT - DAY, AT - 20)
    assert (unsent.id, unsent.state, unsent.opened, unsent.attempts, unsent.jobs) == (incident, "new", AT, 1, 1)
    assert (unsent.verdict.job, unsent.verdict.final, unsent.verdict.verdict.reason) == ("a", True, "ECC Error")
    assert box.notices.enqueue(unsent, [entry("ops"), entry("research")], AT)
    assert not box.notices.enqueue(unsent, [entry("ops")], AT)
    assert box.notices.unsent(AT - DAY, AT - 20) == []
    assert [(one.target, one.state, one.event) for one in box.notices.of(incident)] == [
        ("ops", "waiting", OPENED),
        ("research", "waiting", OPENED),
    ]
    keys = {one.key for one in box.notices.of(incident)}
    assert len(keys) == 2 and all(key.startswith("msg_") for key in keys)
    box.records.publish("a", 2, VERDICT, True, AT + 1)  # another attempt of what was told


@on_both
def test_what_went_away_or_is_old_is_not_told(box: Box) -> None:
    box.fail("a", final=False)
    box.recover("a")
    box.fail("old", at=AT - 2 * DAY)
    resolved = box.fail("b")
    (unsent,) = box.notices.unsent(AT - DAY, AT - 20)
    box.resolve(resolved)
    assert not box.notices.enqueue(unsent, [entry()], AT), "it was resolved in between"
    assert box.notices.unsent(AT - DAY, AT - 20) == []
    with box.records.database.reading() as connection:
        assert connection.scalar(sa.select(sa.func.count()).where(table.c.notified.is_(False))) == 0


def test_a_provisional_one_waits_and_holds_up_no_other(box: Box) -> None:
    early = box.fail("a", final=False)
    late = box.fail("b", at=AT + 5)
    assert [one.id for one in box.notices.unsent(AT - DAY, AT - 1, limit=1)] == [late]
    assert box.notices.oldest_unsent(AT) == AT
    assert [one.id for one in box.notices.unsent(AT - DAY, AT)] == [early, late]


@on_both
def test_who_was_told_is_told_of_the_end_once(box: Box) -> None:
    assert box.notices.resolutions() == ([], 0)
    box.notices.saw(0)
    told, other = box.told("a", ("ops", "research", "gone")), box.told("b")
    incident = told[0].incident
    assert incident is not None and other[0].incident is not None
    for notice in (*told[:2], *other):
        box.notices.claim(notice.id, AT, 30.0)
    box.notices.settle_notice(told[0].id, "delivered", "204", AT)
    box.notices.settle_notice(told[2].id, "dead", "410", AT)
    box.resolve(incident)
    gone, event = box.notices.resolutions()
    assert [(one.id, one.by, one.note) for one in gone] == [(incident, "u1", "restarted")] and event is not None
    entries = {name: entry(name) for name in ("ops", "research", "gone", "new")}
    assert box.notices.enqueue_resolved(incident, entries, AT) == 2
    assert box.notices.enqueue_resolved(incident, entries, AT) == 0
    box.notices.saw(event)
    assert box.notices.resolutions() == ([], None)
    last = [one for one in box.notices.of(incident) if one.event == RESOLVED]
    assert [(one.target, one.due) for one in last] == [("ops", AT), ("research", AT + 30.0)]


def test_what_nobody_tried_to_send_is_withdrawn(box: Box) -> None:
    (notice,) = box.told()
    assert notice.incident is not None
    box.resolve(notice.incident)
    assert box.notices.enqueue_resolved(notice.incident, {"ops": entry()}, AT + 2) == 0
    (kept,) = box.notices.of(notice.incident)
    assert kept.state == "withdrawn" and "resolved" in kept.why
    assert box.notices.due("ops", AT + 10) == []


@on_both
def test_a_message_is_claimed_by_one(box: Box) -> None:
    (notice,) = box.told()
    assert [one.id for one in box.notices.due("ops", AT)] == [notice.id] and box.notices.due("research", AT) == []
    claimed = box.notices.claim(notice.id, AT, 30.0)
    assert claimed is not None and (claimed.tries, claimed.due, claimed.key) == (1, AT + 30, notice.key)
    assert box.notices.claim(notice.id, AT + 29, 30.0) is None and box.notices.due("ops", AT + 29) == []
    again = box.notices.claim(notice.id, AT + 30, 30.0)  # who claimed it died
    assert again is not None and again.tries == 2
    assert box.notices.last_tried("ops") is None
    assert box.notices.settle_notice(notice.id, "delivered", "204", AT + 31).state == "delivered"
    last = box.notices.last_tried("ops")
    assert last is not None and last.why == "204" and box.notices.last_tried("research") is None
    assert box.notices.claim(notice.id, AT + 100, 30.0) is None and box.notices.next_due("ops") is None
    assert box.notices.put_off(again, AT + 200, "late", AT + 150).state == "delivered"


def test_who_wants_it_sent_again_is_not_put_off(box: Box) -> None:
    (notice,) = box.told()
    claimed = box.notices.claim(notice.id, AT, 30.0)
    assert claimed is not None
    box.notices.send_again(notice.id, "u1", AT + 1, AT + DAY)
    assert box.notices.put_off(claimed, AT + 900, "500", AT + 2).due == AT + 1


def test_the_outbox_outlives_its_process(box: Box, url: str) -> None:
    (notice,) = box.told()
    box.notices.claim(notice.id, AT, 30.0)
    after = Box(url)  # the first one was killed
    assert after.notices.due("ops", AT + 1) == [] and after.notices.next_due("ops") == AT + 30
    assert [one.key for one in after.notices.due("ops", AT + 30)] == [notice.key]
    after.records.close()


@on_both
def test_many_become_one(box: Box) -> None:
    found = [box.told(job)[0] for job in "abc"]
    ids = [one.id for one in found]
    summary = box.notices.sum_up(ids, entry(), AT)
    assert summary is not None and (summary.event, summary.incident) == ("incidents.summary", None)
    assert [box.notices.notice(id).summary for id in ids] == [summary.id] * 3  # type: ignore[union-attr]
    assert [one.id for one in box.notices.due("ops", AT)] == [summary.id]
    other = box.told("d")[0]
    box.notices.claim(other.id, AT, 30.0)
    assert box.notices.sum_up([other.id], entry(), AT) is None, "somebody sends it"


@on_both
def test_who_was_told_by_a_summary_is_told_of_the_end(box: Box) -> None:
    first, second = box.told("a", ("ops", "research"))
    for notice, state in ((first, "delivered"), (second, "dead")):
        summary = box.notices.sum_up([notice.id], entry(notice.target), AT)
        assert summary is not None
        settle(box, summary, state)
    assert first.incident is not None
    box.resolve(first.incident)
    assert box.notices.enqueue_resolved(first.incident, {name: entry(name) for name in ("ops", "research")}, AT) == 1
    assert [one.target for one in box.notices.of(first.incident) if one.event == RESOLVED] == ["ops"]


def test_what_is_held_back_comes_later(box: Box) -> None:
    (notice,) = box.told()
    box.notices.hold([notice.id], AT + 100, AT + DAY, AT)
    assert box.notices.due("ops", AT + 99) == []
    (held,) = box.notices.due("ops", AT + 100)
    assert held.state == "held" and box.notices.open_counts() == {"ops": {"held": 1}}


@on_both
def test_a_target_that_is_gone_is_sent_nothing(box: Box) -> None:
    waiting, other = box.told("a", ("ops", "research"))
    box.notices.close_target("ops", Closed("digest", AT, "410"))
    box.notices.close_target("ops", Closed("digest", AT, "410 again"))
    assert box.notices.closed_targets() == {"ops": Closed("digest", AT, "410 again")}
    kept = box.notices.notice(waiting.id)
    assert kept is not None and kept.state == "dead" and "gone" in kept.why
    assert box.notices.due("research", AT) == [other]
    box.notices.open_target("ops")
    assert box.notices.closed_targets() == {}
    box.fail("b")
    (unsent,) = box.notices.unsent(AT - DAY, AT - 20)
    box.notices.enqueue(unsent, [entry(dead="the target is gone")], AT)
    assert box.notices.due("ops", AT) == [] and box.notices.open_counts()["ops"] == {"dead": 2}


@on_both
def test_dead_letters_can_be_sent_again(box: Box) -> None:
    (notice,) = box.told()
    box.notices.settle_notice(notice.id, "dead", "400: bad", AT)
    again = box.notices.send_again(notice.id, "u1", AT + 5, AT + DAY)
    assert (again.state, again.tries, again.due, again.by, again.key) == ("waiting", 0, AT + 5, "u1", notice.key)
    box.notices.settle_notice(notice.id, "delivered", "204", AT + 6)
    with pytest.raises(NoticeRefused, match="is delivered"):
        box.notices.send_again(notice.id, "u1", AT + 7, AT + DAY)
    for id in (0, -1, 99, 2**70):
        with pytest.raises(NoticeRefused, match="does not exist"):
            box.notices.send_again(id, "u1", AT, AT + DAY)
    trial = box.notices.enter_trial(entry(), "u1", AT)
    assert box.notices.open_counts() == {}, "tests do not count"
    with pytest.raises(NoticeRefused, match="is a test"):
        box.notices.send_again(trial.id, "u1", AT, AT + DAY)


@on_both
def test_targets_that_are_set_no_more(box: Box) -> None:
    box.told("a", ("ops", "former"))
    box.notices.keep_only(["ops"], AT)
    assert box.notices.open_counts() == {"former": {"dead": 1}, "ops": {"waiting": 1}}
    box.notices.keep_only([], AT)
    assert box.notices.open_counts() == {"former": {"dead": 1}, "ops": {"dead": 1}}


@on_both
def test_pages_are_whole(box: Box) -> None:
    for number in range(7):
        box.told(f"j{number}", ("ops", "research"))
    box.notices.settle_notice(3, "dead", "400", AT)
    cursor, seen = None, []
    while True:
        page = box.notices.notices(cursor, 3)
        seen += [one.id for one in page.items]
        if (cursor := page.next) is None:
            break
    assert seen == list(range(14, 0, -1))
    assert [one.id for one in box.notices.notices(state="dead").items] == [3]
    assert len(box.notices.notices(target="research").items) == 7 and box.notices.notices(target="x").items == []


# What is deleted


def settle(box: Box, notice: Notice, state: str = "delivered", at: float = AT) -> None:
    box.notices.settle_notice(notice.id, state, "204", at)  # type: ignore[arg-type]


def kept(box: Box) -> list[int]:
    return [one.id for one in reversed(box.notices.notices(limit=500).items)]


def closed(box: Box, job: str, *states: str) -> list[int]:
    """The messages about an incident that is resolved, to targets of their own, settled so."""
    found = box.told(job, tuple(f"t{number}" for number in range(len(states))))
    for notice, state in zip(found, states, strict=True):
        settle(box, notice, state)
    assert found[0].incident is not None
    box.resolve(found[0].incident)
    return [one.id for one in found]


def newest(box: Box, *targets: str) -> None:
    """The newest message to each target, so that those before it are not."""
    for target in targets:
        box.notices.enter_trial(entry(target), "u1", AT)


def test_messages_are_deleted_when_they_are_old(box: Box) -> None:
    delivered, dead = closed(box, "a", "delivered"), closed(box, "b", "dead")
    newest(box, "t0")
    assert box.notices.forget(AT, AT) == 0
    assert box.notices.forget(AT + 1, AT) == 1 and kept(box) == [*dead, 3]
    assert box.notices.forget(AT + 1, AT + 1) == 1 and kept(box) == [3]
    assert box.notices.forget(AT + 1, AT + 1) == 0 and delivered


def test_what_waits_is_never_deleted(box: Box) -> None:
    waiting, held = box.told("a")[0], box.told("b")[0]
    box.notices.hold([held.id], AT + 100, AT + DAY, AT)
    for notice in (waiting, held):
        assert notice.incident is not None
        box.resolve(notice.incident)
    newest(box, "ops")
    assert box.notices.forget(AT + DAY * 999, AT + DAY * 999) == 0 and kept(box) == [1, 2, 3]


@on_both
def test_messages_about_an_incident_stay_until_it_is_resolved(box: Box) -> None:
    (notice,) = box.told("a")
    settle(box, notice)
    newest(box, "ops")
    assert box.notices.forget(AT + 1, AT + 1) == 0
    assert notice.incident is not None
    box.resolve(notice.incident)
    assert box.notices.enqueue_resolved(notice.incident, {"ops": entry()}, AT) == 1, "they are told of its end"
    (_, last) = box.notices.of(notice.incident)
    newest(box, "ops")
    settle(box, last, at=AT + 50)
    assert box.notices.forget(AT + 50, AT + 50) == 0, "those of an incident go together"
    assert box.notices.forget(AT + 51, AT + 51) == 2 and box.notices.of(notice.incident) == []


@on_both
def test_no_incident_is_told_twice_because_messages_were_deleted(box: Box) -> None:
    (notice,) = box.told("a")
    incident = notice.incident
    assert incident is not None
    settle(box, notice)
    box.resolve(incident)
    box.notices.enqueue_resolved(incident, {"ops": entry()}, AT)
    settle(box, box.notices.of(incident)[1])
    newest(box, "ops")
    assert box.notices.forget(AT + 1, AT + 1, limit=1) == 1, "and then the process dies"
    assert [one.event for one in box.notices.of(incident)] == [RESOLVED], "what is told first goes first"
    for _ in range(2):
        box.incidents.step(incident, "reopen", "u1", "", AT + 2, None)
        assert box.notices.unsent(AT - DAY, AT + DAY) == []
        box.resolve(incident)
        assert box.notices.enqueue_resolved(incident, {"ops": entry()}, AT + 3) == 0
        box.notices.forget(AT + 9, AT + 9)
    assert box.notices.of(incident) == []


@on_both
def test_a_summary_stays_as_long_as_what_it_stands_for(box: Box) -> None:
    first, second = (box.told(job)[0] for job in "ab")
    summary = box.notices.sum_up([first.id, second.id], entry(), AT)
    assert summary is not None and first.incident is not None and second.incident is not None
    settle(box, summary)
    newest(box, "ops")
    box.resolve(first.incident)
    assert box.notices.forget(AT + 1, AT + 1) == 1 and kept(box) == [second.id, summary.id, 4]
    assert box.notices.forget(AT + 1, AT + 1) == 0
    box.resolve(second.incident)
    assert box.notices.forget(AT + 1, AT + 1) == 1
    assert box.notices.forget(AT + 1, AT + 1) == 1 and kept(box) == [4]


@on_both
def test_the_newest_to_each_target_stays_and_says_what_came_of_it(box: Box) -> None:
    closed(box, "a", "delivered", "delivered")
    closed(box, "b", "delivered")
    assert box.notices.forget(AT + 1, AT + 1) == 0, "that of t1 keeps those of its incident"
    newest(box, "t1")
    assert box.notices.forget(AT + 1, AT + 1) == 2 and kept(box) == [3, 4]


def test_a_dead_letter_that_is_sent_again_is_not_deleted(box: Box) -> None:
    (dead,) = closed(box, "a", "dead")
    newest(box, "t0")
    box.notices.send_again(dead, "u1", AT, AT + DAY)
    assert box.notices.forget(AT + DAY * 999, AT + DAY * 999) == 0


@on_both
def test_no_more_than_some_are_deleted_at_once(box: Box) -> None:
    for number in range(7):
        closed(box, f"j{number}", "delivered")
    newest(box, "t0")
    assert [box.notices.forget(AT + 1, AT + 1, limit=3) for _ in range(4)] == [3, 3, 1, 0]


# Clocks, figures


@on_both
def test_what_a_clock_put_off_that_was_ahead_is_brought_forward(box: Box) -> None:
    (wrong,), (right,) = box.told("a", at=AT + 10 * DAY), box.told("b")
    box.notices.hold([right.id], AT + DAY, AT + 2 * DAY, AT)
    assert box.notices.bring_forward(AT + 10 * DAY, AT + 11 * DAY) == 0
    assert box.notices.bring_forward(AT, AT + DAY) == 1
    assert [(one.id, one.until, one.changed) for one in box.notices.due("ops", AT)] == [(wrong.id, AT + DAY, AT)]
    assert box.notices.bring_forward(AT, AT + DAY) == 0


def test_a_provisional_incident_of_the_future_is_told(box: Box) -> None:
    incident = box.fail("a", final=False, at=AT + DAY)
    assert box.notices.unsent(AT - DAY, AT - 20) == []
    assert [one.id for one in box.notices.unsent(AT - DAY, AT - 20, now=AT)] == [incident]
    assert box.notices.unsent(AT - DAY, AT - 20, now=AT + DAY) == []


@on_both
def test_the_first_end_of_what_waits(box: Box) -> None:
    first, second = box.told("a", ("ops", "research"))
    box.told("b", ("ops",), at=AT + 5)
    box.notices.enter_trial(entry(at=AT - 50), "u1", AT)
    assert box.notices.first_ends() == {"ops": AT + DAY, "research": AT + DAY}
    settle(box, first)
    settle(box, second, "dead")
    assert box.notices.first_ends() == {"ops": AT + 5 + DAY}
