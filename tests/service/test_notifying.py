"""The notifier: who is told, once, when, and what happens when they cannot be."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from logdoctor.errors import NoticeRefused
from logdoctor.service.delivering import GIVE_UP, NotifyTerms
from logdoctor.service.notify.quiet import read_quiet
from logdoctor.service.notify.routing import read_routes
from logdoctor.service.notifying import STALE
from logdoctor.store.incidents.mutes import Mutes
from logdoctor.store.incidents.notices import Notice
from logdoctor.store.incidents.table import Incidents
from logdoctor.store.jobs.records import JobFacts
from tests import waiting
from tests.notify.receivers import receiving
from tests.notify.stories import VERDICT
from tests.service.desks import NOON, Desk, desk_in


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path) as desk:
        yield desk


def test_an_incident_is_told_once_to_all(desk: Desk) -> None:
    desk.fail("a")
    for _ in range(3):
        desk.turn()
        desk.turn("research")
        desk.now += 3600
    assert desk.got() == desk.got("research") == ["incident.opened a"]
    (one,), (other,) = desk.receivers["ops"].got, desk.receivers["research"].got
    assert one.is_signed() and other.is_signed() and one.id != other.id
    assert one.json["data"]["recovery"] == "isolate_and_restart" and one.json["data"]["link"] == ""


def test_more_attempts_of_an_incident_are_no_news(desk: Desk) -> None:
    for attempt in (1, 2, 3):
        desk.records.publish("a", attempt, VERDICT, True, desk.now)
        desk.records.publish("b", attempt, VERDICT, True, desk.now)
        desk.turn()
    assert len(desk.posts) == 1 and len(desk.notices.notices().items) == 2


def test_a_provisional_verdict_settles_first(desk: Desk) -> None:
    desk.fail("a", final=False)
    desk.fail("b", final=False)
    desk.turn()
    desk.now += 19
    desk.records.publish("b", 1, msgspec.structs.replace(VERDICT, outcome="completed"), True, desk.now)
    desk.turn()
    assert desk.got() == []
    desk.now += 1
    desk.turn()
    assert desk.got() == ["incident.opened a"]
    assert desk.receivers["ops"].got[0].json["data"]["provisional"] is True
    desk.now += 3600
    desk.turn()
    assert len(desk.got()) == 1


def test_a_final_verdict_is_told_at_once(desk: Desk) -> None:
    desk.fail("a", final=False)
    desk.turn()
    desk.fail("a", final=True)
    desk.turn()
    assert desk.got() == ["incident.opened a"]


def test_its_end_tells_what_became_of_it(desk: Desk) -> None:
    first = desk.fail("a")
    desk.turn()
    desk.now += 60
    desk.records.publish("a", 2, first.verdict, True, desk.now)
    desk.records.publish("b", 1, first.verdict, True, desk.now + 1)
    desk.resolve("a")
    desk.turn()
    desk.turn()
    assert desk.got() == ["incident.opened a", "incident.resolved b"], "its end is told once"
    opened, over = (one.json["data"] for one in desk.receivers["ops"].got)
    assert (over["state"], over["by"], over["note"]) == ("resolved", "u1", "node replaced")
    assert (opened["job"], opened["attempts"], opened["jobs"]) == ("a", 1, 1)
    assert (over["job"], over["attempt"], over["attempts"], over["jobs"]) == ("b", 1, 3, 2)
    assert over["verdict"] > opened["verdict"]
    assert (over["opened"], over["link"]) == (opened["opened"], opened["link"])


def test_its_end_need_not_be_told(desk: Desk) -> None:
    desk.another(NotifyTerms(gather=0.0, resolved=False))
    desk.fail("a")
    desk.turn()
    desk.resolve("a")
    desk.fail("b")
    desk.notifier.collect()
    desk.resolve("b")
    desk.turn()
    assert desk.got() == ["incident.opened a"]
    assert sorted(desk.states()) == ["delivered", "withdrawn", "withdrawn", "withdrawn"]


def test_many_at_once_are_one_message(desk: Desk) -> None:
    for number in range(14):
        desk.fail(f"j{number}")
    desk.turn()
    assert desk.got() == ["incidents.summary 14"]
    assert len(desk.receivers["ops"].got[0].json["data"]["numbers"]) == 14
    for number in range(3):
        desk.fail(f"k{number}")
    desk.turn()
    assert desk.got()[1:] == [f"incident.opened k{number}" for number in range(3)]
    for number in range(20):
        desk.fail(f"l{number}")
        desk.turn()
        desk.now += 1
    assert len(desk.got()) == 5, "two more, then a minute's wait"
    desk.now += 60
    desk.turn()
    assert len(desk.got()) == 6 and desk.got()[-1] == "incidents.summary 19"
    assert sum(one.state == "summed" for one in desk.notices.notices(limit=100, target="ops").items) == 33


def test_quiet_hours(desk: Desk) -> None:
    desk.another(NotifyTerms(gather=0.0, quiet=read_quiet("22:00-07:00", "UTC"), quiet_except=frozenset({"ask_human"})))
    desk.now = NOON + 11 * 3600
    for number in range(3):
        desk.fail(f"j{number}", recovery="restart")
        desk.turn()
        desk.now += 60
    desk.fail("urgent", recovery="ask_human")
    desk.fail("resolved", recovery="restart")
    desk.turn()
    desk.resolve("resolved")
    desk.turn()
    assert desk.got() == ["incident.opened urgent"]
    desk.now = NOON + 19 * 3600 - 1
    desk.turn()
    assert len(desk.got()) == 1
    desk.now += 1
    desk.turn()
    assert desk.got() == ["incident.opened urgent", "incidents.summary 3"]
    desk.fail("day", recovery="restart")
    desk.turn()
    assert desk.got()[2:] == ["incident.opened day"]


def test_one_incident_of_the_night_comes_as_itself(desk: Desk) -> None:
    desk.another(NotifyTerms(gather=0.0, quiet=read_quiet("22:00-07:00", "UTC")))
    desk.now = NOON + 11 * 3600
    desk.fail("a")
    desk.turn()
    assert desk.states()[0] == "held" and desk.got() == []
    desk.now = NOON + 19 * 3600
    desk.turn()
    assert desk.got() == ["incident.opened a"]


def test_tries_with_growing_waits_and_one_id(desk: Desk) -> None:
    desk.receivers["ops"].always(500, body=b"down")
    desk.fail("a")
    waits = []
    while (last := desk.notices.notices(target="ops").items) == [] or last[0].state == "waiting":
        desk.turn()
        (notice,) = desk.notices.notices(target="ops").items
        waits.append(notice.due - desk.now)
        desk.now = max(notice.due, desk.delivery()._paused)
        assert len(waits) < 60
    assert len({one.id for one in desk.posts}) == 1 and all(one.is_signed() for one in desk.posts)
    assert 15 <= len(waits) <= 40, "over about a day"
    assert waits[0] < 10 and max(waits) > 3600
    assert GIVE_UP * 0.8 < desk.now - NOON < GIVE_UP * 1.2
    (notice,) = desk.notices.notices(target="ops").items
    assert notice.state == "dead" and notice.why == "given up: 500"


def test_what_is_no_use_is_not_tried_again(desk: Desk) -> None:
    desk.receivers["ops"].always(400, body=b"invalid_blocks")
    desk.fail("a")
    desk.turn()
    desk.now += 86_400
    desk.turn()
    assert len(desk.posts) == 1
    (notice,) = desk.notices.notices(target="ops").items
    assert (notice.state, notice.why) == ("dead", "400: invalid_blocks")


def test_a_target_says_when_to_come_back(desk: Desk) -> None:
    desk.receivers["ops"].always(429, {"Retry-After": "1000"})
    desk.fail("a")
    desk.turn()
    desk.fail("b")
    desk.now += 990
    desk.turn()
    assert len(desk.posts) == 1
    desk.receivers["ops"].always(204)
    desk.now += 20
    desk.turn()
    assert desk.got() == ["incident.opened a", "incident.opened a", "incident.opened b"]


def test_a_target_that_is_gone(desk: Desk) -> None:
    desk.receivers["ops"].always(410, body=b"channel_is_archived")
    for job in ("a", "b"):
        desk.fail(job)
    desk.turn()
    desk.fail("c")
    desk.turn()
    assert len(desk.posts) == 1
    ops, research = desk.notifier.targets()
    assert ops.closed is not None and "channel_is_archived" in ops.closed.why and ops.dead == 3
    assert research.closed is None
    desk.receivers["ops"].always(204)
    assert desk.notifier.test("ops", "u1", seconds=300.0).state == "delivered"  # which opens it again
    assert desk.notifier.targets()[0].closed is None
    desk.fail("d")
    desk.turn()
    assert desk.got()[-1] == "incident.opened d"


def test_another_url_opens_a_target_that_is_gone(desk: Desk) -> None:
    desk.receivers["ops"].always(410)
    desk.fail("a")
    desk.turn()
    with receiving() as moved:
        desk.another(start=True)
        assert desk.notifier.targets()[0].closed is not None
        desk.notifier.stop()
        desk.receivers["ops"].close()
        desk.receivers["ops"] = moved
        desk.another(start=True)
        assert desk.notifier.targets()[0].closed is None


def test_a_target_that_is_down_holds_up_nobody(desk: Desk) -> None:
    desk.receivers["ops"].answers = lambda got, number: "hang"
    desk.another(start=True)
    desk.fail("a")
    desk.notifier.wake()
    waiting.until(lambda: desk.got("research") == ["incident.opened a"])
    desk.fail("b")
    desk.notifier.wake()
    waiting.until(lambda: len(desk.got("research")) == 2)
    assert len(desk.posts) == 1
    desk.notifier.stop()
    assert not desk.receivers["ops"].released.is_set(), "what hangs is broken off"


def test_a_target_that_comes_back_is_told_all(desk: Desk) -> None:
    desk.receivers["ops"].answers = lambda got, number: "reset"
    for job in ("a", "b", "c"):
        desk.fail(job)
        desk.turn()
    assert len(desk.posts) == 1, "it is left alone after a failure"
    desk.receivers["ops"].always(204)
    desk.now += 600
    desk.turn()
    assert sorted(desk.got()[1:]) == ["incident.opened a", "incident.opened b", "incident.opened c"]


def test_an_old_incident_is_no_news(desk: Desk) -> None:
    desk.fail("a")
    desk.now += STALE + 1
    desk.turn()
    assert desk.got() == [] and desk.notices.unsent(0.0, desk.now) == []


def test_without_targets_nothing_waits(desk: Desk) -> None:
    desk.receivers, kept = {}, desk.receivers
    desk.another()
    desk.fail("a")
    desk.notifier.collect()
    desk.receivers = kept
    desk.another()
    desk.turn()
    assert desk.got() == [], "who is set later is not told what was before"


def test_a_test_tells_its_result(desk: Desk) -> None:
    found = desk.notifier.test("ops", "u1", seconds=300.0)
    assert (found.state, found.why, found.event, found.by) == ("delivered", "204", "test", "u1")
    assert desk.posts[0].json["type"] == "test" and desk.posts[0].is_signed()
    desk.receivers["ops"].always(404, body=b"no_service")
    failed = desk.notifier.test("ops", "u1", seconds=300.0)
    assert (failed.state, failed.why) == ("dead", "404: no_service")
    desk.receivers["ops"].always(500)
    assert desk.notifier.test("ops", "u1", seconds=300.0).state == "dead", "it is not tried again"
    with pytest.raises(NoticeRefused, match="ops, research"):
        desk.notifier.test("nobody", "u1")


def test_a_test_that_takes_long_goes_on_in_the_background(desk: Desk) -> None:
    desk.receivers["ops"].answers = lambda got, number: "hang"
    found = desk.notifier.test("ops", "u1", seconds=0.2)
    assert found.state == "waiting"
    with pytest.raises(NoticeRefused, match="in progress"):
        desk.notifier.test("ops", "u2")
    assert desk.notifier.test("research", "u2", seconds=300.0).state == "delivered"
    desk.receivers["ops"].released.set()
    waiting.until(lambda: state(desk, found) == "dead")


def state(desk: Desk, notice: Notice) -> str:
    found = desk.notices.notice(notice.id)
    assert found is not None
    return found.state


def test_a_dead_letter_is_sent_again(desk: Desk) -> None:
    desk.receivers["ops"].always(400)
    desk.fail("a")
    desk.turn()
    (dead,) = desk.notices.notices(state="dead").items
    desk.receivers["ops"].always(204)
    again = desk.notifier.retry(dead.id, "u1")
    assert (again.state, again.by) == ("delivered", "u1")
    assert desk.posts[0].id == desk.posts[1].id, "receivers can tell that it is the same"
    with pytest.raises(NoticeRefused, match="is delivered"):
        desk.notifier.retry(dead.id, "u1")
    with pytest.raises(NoticeRefused, match="does not exist"):
        desk.notifier.retry(99, "u1")


def test_a_dead_letter_is_sent_again_by_the_service(desk: Desk) -> None:
    desk.receivers["ops"].always(500)
    desk.another(start=True)
    desk.fail("a")
    desk.notifier.wake()
    waiting.until(lambda: any(one.why == "500" for one in desk.notices.notices().items))
    desk.receivers["ops"].always(204)
    (dead,) = [one for one in desk.notices.notices().items if one.target == "ops"]
    assert desk.notifier.retry(dead.id, "u1").state == "waiting"
    waiting.until(lambda: state(desk, dead) == "delivered")


def test_an_incident_goes_where_its_routes_lead(desk: Desk) -> None:
    routes = read_routes("ops=user:anna research=team:rl")
    desk.another(NotifyTerms(gather=0.0, routes=tuple(routes)))
    desk.records.put_job("a", JobFacts(user="anna"), desk.now)
    desk.records.put_job("b", JobFacts(user="ben", labels={"team": "rl"}), desk.now)
    for job in ("a", "b", "c"):
        desk.fail(job)
    desk.turn()
    desk.turn("research")
    assert desk.got() == ["incident.opened a", "incident.opened c"], "c fits no route, so that all are told"
    assert desk.got("research") == ["incident.opened b", "incident.opened c"]
    desk.resolve("a")
    desk.turn()
    desk.turn("research")
    assert desk.got()[-1] == "incident.resolved a" and desk.got("research")[-1] == "incident.opened c"


def test_a_muted_incident_is_told_to_nobody_until_it_is_heard_again(desk: Desk) -> None:
    mutes = Mutes(desk.records.database)
    stored = desk.fail("a")
    mute = mutes.mute("fingerprint", stored.verdict.fingerprint, "anna", "known", desk.now + 3600, desk.now)
    desk.turn()
    assert desk.got() == []
    mutes.lift(mute.id, "anna", desk.now)
    desk.turn()
    assert desk.got() == ["incident.opened a"]


def test_who_was_told_is_told_again_when_a_snooze_ends(desk: Desk) -> None:
    desk.fail("a")
    desk.turn()
    incidents = Incidents(desk.records.database)
    incidents.snooze(1, desk.now + 7 * 86_400, None, "anna", "", desk.now)
    desk.now += 7 * 86_400
    assert incidents.tend(desk.now) == 1
    desk.turn()
    assert desk.got() == ["incident.opened a", "incident.opened a"]
