"""Deliveries when something is wrong: clocks, processes, storms, faults of ours, messages of other versions."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from logdoctor.errors import StoreError
from logdoctor.service.delivering import Delivery, NotifyTerms
from logdoctor.service.notify import sending
from logdoctor.service.notify.quiet import read_quiet
from logdoctor.service.notify.sending import LONGEST_RETRY_AFTER, Target, Way, send
from logdoctor.service.notifying import Notifier
from logdoctor.store.incidents.notices import Notice, Notices
from logdoctor.store.jobs.records import Records
from logdoctor.store.schema import notices as table
from tests import waiting
from tests.notify.receivers import SECRET
from tests.service.desks import NOON, TERMS, Desk, desk_in

YEAR = 365 * 86_400.0
NIGHT = NotifyTerms(gather=0.0, quiet=read_quiet("22:00-07:00", "UTC"))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path) as desk:
        yield desk


def only(desk: Desk, state: str | None = None) -> Notice:
    """The one message to ops."""
    (found,) = desk.notices.notices(state=state, target="ops").items
    return found


def rewrite(desk: Desk, body: str) -> None:
    """All messages become what another version might have written."""
    with desk.records.database.writing() as connection:
        connection.execute(sa.update(table).values(body=body))


# The clock


def test_what_a_clock_that_was_ahead_put_off_is_sent(desk: Desk) -> None:
    """As after a start before the time is known: a wrong year, and then the right one."""
    desk.receivers["ops"].always(503)
    desk.now = NOON + 73 * YEAR
    desk.fail("tried")
    desk.turn()
    assert only(desk).why == "503"
    desk.fail("entered")
    desk.notifier.collect()
    desk.receivers["ops"].always(204)
    desk.now = NOON
    desk.turn()
    assert desk.got() == ["incident.opened tried", "incident.opened tried", "incident.opened entered"]
    assert all(one.until < NOON + YEAR for one in desk.notices.notices(target="ops").items)


def test_what_waits_after_a_start_by_a_wrong_clock_is_sent(desk: Desk) -> None:
    desk.now = NOON + YEAR
    desk.fail("a")
    desk.notifier.collect()
    claimed = desk.notices.claim(only(desk).id, desk.now, 15.0)  # and the process dies
    assert claimed is not None
    desk.now = NOON
    desk.another()
    desk.turn()
    assert desk.got() == ["incident.opened a"]


def test_a_storm_by_a_wrong_clock_holds_up_nothing_afterwards(desk: Desk) -> None:
    desk.now = NOON + YEAR
    for number in range(20):
        desk.fail(f"j{number}")
        desk.turn()
    desk.now = NOON
    desk.fail("k")
    desk.turn()
    assert "summary" in desk.got()[-1]
    told = sum(one.json["data"].get("opened", 0) if "summary" in one.json["type"] else 1 for one in desk.posts)
    assert told == 21


def test_a_provisional_incident_of_a_wrong_clock_is_told(desk: Desk) -> None:
    desk.now = NOON + YEAR
    desk.fail("a", final=False)
    desk.now = NOON
    desk.turn()
    assert desk.got() == ["incident.opened a"]


def test_a_clock_that_leaps_forward_sends_once(desk: Desk) -> None:
    desk.fail("a")
    desk.turn()
    desk.now += YEAR
    desk.turn()
    desk.another()
    desk.turn()
    assert desk.got() == ["incident.opened a"]


def test_a_retry_after_of_a_year_is_one_of_hours(desk: Desk) -> None:
    desk.receivers["ops"].always(429, {"Retry-After": str(int(YEAR))})
    desk.fail("a")
    desk.turn()
    desk.receivers["ops"].always(204)
    desk.now += LONGEST_RETRY_AFTER - 60
    desk.turn()
    assert len(desk.posts) == 1
    desk.now += 61
    desk.turn()
    assert only(desk).state == "delivered"


# Processes


def test_killed_between_sending_and_marking_it_comes_again_with_its_id(desk: Desk) -> None:
    desk.fail("a")
    desk.notifier.collect()
    first = desk.delivery()
    claimed = desk.notices.claim(only(desk).id, desk.now, first.lease)
    assert claimed is not None
    assert send(first.target, claimed.key, claimed.body, desk.way).outcome == "taken"  # and the process dies
    desk.another()
    desk.turn()
    assert len(desk.posts) == 1, "it may still be at it"
    desk.now += first.lease
    desk.turn()
    assert len(desk.posts) == 2 and len({one.id for one in desk.posts}) == 1
    assert (only(desk).state, only(desk).tries) == ("delivered", 2)
    desk.now += 3600
    desk.turn()
    assert len(desk.posts) == 2


def test_two_services_on_one_database_tell_each_incident_once(desk: Desk) -> None:
    terms = TERMS._replace(per_minute=1000)
    target = Target("ops", "webhook", desk.receivers["ops"].url + "/hook", (SECRET,))
    others = [Records(desk.url) for _ in range(2)]
    pair = [Notifier([target], Notices(one.database), terms, desk.way, lambda: desk.now) for one in others]
    for one in pair:
        one.start()
    jobs = [f"j{number}" for number in range(20)]
    for job in jobs:
        desk.fail(job)
        for one in pair:
            one.wake()
    waiting.until(lambda: sorted(desk.got()) == sorted(f"incident.opened {job}" for job in jobs))
    for job in jobs:
        desk.resolve(job)
        for one in pair:
            one.wake()
    waiting.until(lambda: len(desk.posts) >= 40)
    for one in pair:
        one.stop()
    told = [f"incident.{what} {job}" for what in ("opened", "resolved") for job in jobs]
    assert sorted(desk.got()) == sorted(told)
    for kept in others:
        kept.close()


def test_an_answer_that_comes_too_late_is_no_answer(desk: Desk) -> None:
    """A 200 after the time is over: the receiver has it, and gets it again, with the same id."""
    released = threading.Event()

    def slow(got: object, number: int) -> tuple[int, dict[str, str], bytes]:
        if number == 1:
            released.wait()
        return 200, {}, b""

    desk.receivers["ops"].answers = slow
    desk.way = Way(0.3)
    desk.another()
    desk.fail("a")
    desk.turn()
    assert only(desk).why == "no answer within 0.3 s"
    released.set()
    desk.way = Way(300.0)
    desk.another()
    desk.now += 60
    desk.turn()
    assert only(desk).state == "delivered" and len({one.id for one in desk.posts}) == 1


# Storms


def test_hundreds_of_incidents_in_a_minute_are_a_few_messages(desk: Desk) -> None:
    desk.receivers.pop("research").close()
    desk.another()
    for number in range(250):
        desk.fail(f"j{number}")
        desk.now += 0.1
        if number % 20 == 0:
            desk.turn()
    assert len(desk.got()) <= TERMS.per_minute + 1
    for _ in range(3):
        desk.now += 61
        for _ in range(3):  # no more than 200 incidents are entered at a time
            desk.notifier.collect()
        desk.turn()
    told = [one.json["data"] for one in desk.posts]
    assert sum(data["opened"] if "numbers" in data else 1 for data in told) == 250
    assert len(told) <= TERMS.per_minute + 4
    assert max(len(one.body) for one in desk.posts) < 40_000


# Faults of ours


def test_a_fault_of_ours_loses_no_message(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can be opened: neither a socket nor what an event loop needs."""

    def exhausted() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    desk.fail("a")
    with monkeypatch.context() as patch:
        patch.setattr(sending, "_Loop", exhausted)
        desk.turn()
    assert only(desk).state == "waiting" and "OSError" in only(desk).why
    desk.now += 60
    desk.turn()
    assert desk.got() == ["incident.opened a"] and only(desk).state == "delivered"


class Failing(Notices):
    """An outbox whose disk is full, now and then."""

    is_full = False

    def settle_notice(self, *args: Any) -> Notice:
        if self.is_full:
            raise StoreError("the database", "fails (disk full)", "Free some space.")
        return super().settle_notice(*args)


def test_what_arrived_and_cannot_be_marked_comes_again(desk: Desk) -> None:
    desk.notices = failing = Failing(desk.records.database)
    desk.another()
    failing.is_full = True
    desk.fail("a")
    with pytest.raises(StoreError):
        desk.turn()
    failing.is_full = False
    desk.now += desk.delivery().lease
    desk.turn()
    assert len(desk.posts) == 2 and len({one.id for one in desk.posts}) == 1 and only(desk).state == "delivered"


def test_a_test_that_cannot_be_marked_waits(desk: Desk) -> None:
    desk.notices = failing = Failing(desk.records.database)
    desk.another()
    failing.is_full = True
    assert desk.notifier.test("ops", "u1", 20.0).state == "waiting"
    failing.is_full = False
    desk.now += desk.delivery().lease
    desk.turn()
    assert only(desk).state == "delivered" and len({one.id for one in desk.posts}) == 1
    assert desk.notifier.test("ops", "u1", 20.0).state == "delivered", "another one may be sent"


# Messages of another version


@pytest.mark.parametrize("body", ['{"type":"incident.opened","timestamp":"x","data":{}}', '{"type":"new"}', "{}"])
def test_a_message_of_another_version_holds_up_nobody(desk: Desk, body: str) -> None:
    ops = desk.receivers["ops"]
    chat = Delivery(Target("research", "slack", ops.url + "/chat"), desk.notices, TERMS, desk.way, lambda: desk.now)
    desk.fail("a")
    desk.notifier.collect()
    rewrite(desk, body)
    desk.fail("b")
    desk.turn()
    assert sorted(got.body.decode() == body for got in ops.got) == [False, True], "webhooks get what was stored"
    chat.turn()
    assert [one.state for one in desk.notices.notices(target="research").items] == ["delivered", "dead"]
    assert "another version" in desk.notices.notices(state="dead").items[0].why
    desk.resolve("a")
    desk.resolve("b")
    desk.turn()
    assert desk.got_of("resolved") == ["b"]


def test_a_message_of_another_version_is_in_no_summary(desk: Desk) -> None:
    desk.another(NIGHT)
    desk.now = NOON + 11 * 3600
    desk.fail("a", recovery="restart")
    desk.turn()
    rewrite(desk, "{}")
    for job in ("b", "c"):
        desk.fail(job, recovery="restart")
    desk.turn()
    assert desk.posts == []
    desk.now = NOON + 19 * 3600
    desk.turn()
    assert sorted(one.body == b"{}" for one in desk.posts) == [False, True]
    assert desk.got_of("summary") == [2]


# Figures


def test_figures(desk: Desk) -> None:
    assert desk.notifier.figures()["ops"] == ({"delivered": 0, "failed": 0}, {"waiting": 0, "held": 0, "dead": 0}, 0.0)
    desk.receivers["ops"].always(503)
    desk.fail("a")
    desk.turn()
    desk.now += 1000
    found = desk.notifier.figures()
    assert found["ops"].messages["waiting"] == found["research"].messages["waiting"] == 1
    assert found["ops"].tries == {"delivered": 0, "failed": 1}
    assert found["ops"].lag == 1000.0
    desk.receivers["ops"].always(400)
    desk.turn()
    desk.turn("research")
    found = desk.notifier.figures()
    assert found["ops"] == ({"delivered": 0, "failed": 2}, {"waiting": 0, "held": 0, "dead": 1}, 0.0)
    assert found["research"] == ({"delivered": 1, "failed": 0}, {"waiting": 0, "held": 0, "dead": 0}, 0.0)


def test_what_is_held_back_lags_from_the_morning_on(desk: Desk) -> None:
    desk.another(NIGHT)
    desk.now = NOON + 11 * 3600
    desk.fail("a")
    desk.turn()
    desk.now += 3600
    assert desk.notifier.figures()["ops"][1:] == ({"waiting": 0, "held": 1, "dead": 0}, 0.0)
    desk.now = NOON + 19 * 3600 + 10
    assert desk.notifier.figures()["ops"].lag == 10.0
