"""What people do with incidents beside their state, and what becomes of them by themselves."""

import time

import pytest
import sqlalchemy as sa

from logdoctor.errors import CursorError, IncidentRefused
from logdoctor.store.incidents.mutes import Mutes
from logdoctor.store.incidents.notices import Notices
from logdoctor.store.incidents.runbooks import Desk
from logdoctor.store.incidents.table import Incidents, Told, WantedIncidents
from logdoctor.store.incidents.tending import RUNS_ON
from logdoctor.store.jobs.records import End, JobFacts, Records
from logdoctor.store.schema import incidents as table
from logdoctor.store.schema import node_cordons, streams
from tests.store.conftest import on_both
from tests.store.test_incidents import DONE, USER_CODE, found, known, publish, steps, verdict
from tests.store.test_records import BASE, on

LATER = WantedIncidents(states=("new", "acknowledged"), quiet="hide")
QUIET = WantedIncidents(states=("new", "acknowledged"), quiet="only")
OTHER = verdict(USER_CODE, fingerprint="f9", reason="Name Error")


@pytest.fixture
def incidents(records: Records) -> Incidents:
    return Incidents(records.database)


@pytest.fixture
def mutes(records: Records) -> Mutes:
    return Mutes(records.database)


def told(incidents: Incidents, id: int, step: Told) -> list[tuple[str, str]]:
    return [(one.by, one.note) for one in incidents.events(id) if one.step == step]


# whose it is, what is said


@on_both
def test_an_incident_is_assigned_and_given_back(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, USER_CODE, 1.0)
    before = known(incidents, 1)
    one = incidents.assign(1, "anna", "ops", "she knows it", 2.0)
    assert (one.assignee, one.state) == ("anna", "new") and one.event > before.event
    assert found(incidents, WantedIncidents(assignee="anna")) == [1]
    assert found(incidents, WantedIncidents(assignee="ben")) == []
    assert incidents.assign(1, "", "anna", "", 3.0).assignee == ""
    assert told(incidents, 1, "assigned") == [("anna", "to nobody"), ("ops", "to anna: she knows it")]
    with pytest.raises(IncidentRefused, match="nobody has it"):
        incidents.assign(1, " ", "anna", "", 4.0)
    with pytest.raises(IncidentRefused, match="incident 9 does not exist"):
        incidents.assign(9, "anna", "ops", "", 4.0)
    with pytest.raises(IncidentRefused, match="no name was given"):
        incidents.assign(1, "anna", " ", "", 4.0)


def test_a_comment_changes_no_state(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, USER_CODE, 1.0)
    before = known(incidents, 1)
    after = incidents.comment(1, "anna", "seen on the old image, too", 2.0)
    assert (after.state, after.by, after.note) == (before.state, before.by, before.note)
    assert after.event > before.event and told(incidents, 1, "commented") == [("anna", "seen on the old image, too")]
    with pytest.raises(IncidentRefused, match="the comment is empty"):
        incidents.comment(1, "anna", "  ", 3.0)
    assert steps(incidents, 1) == ["opened", "commented"]


def test_who_may_not_see_all_attempts_sees_neither_comments_nor_the_assignee(
    records: Records, incidents: Incidents
) -> None:
    publish(records, "a-1", 1, USER_CODE, 1.0)
    publish(records, "b-1", 1, USER_CODE, 2.0)
    incidents.assign(1, "anna", "ops", "because of b-1", 3.0)
    incidents.comment(1, "anna", "b-1 is secret", 3.0)
    assert known(incidents, 1, ("a-",)).assignee == ""
    said = incidents.events(1, prefixes=("a-",))
    assert "secret" not in str(said) and "anna" not in str(said)


# snoozes


@on_both
def test_a_snoozed_incident_is_listed_apart_until_its_time(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, USER_CODE, 1.0)
    publish(records, "b", 1, OTHER, 2.0)
    now = time.time()
    one = incidents.snooze(1, now + 600.0, None, "anna", "until the new image", now)
    assert one.snoozed and one.snoozed_until == now + 600.0
    assert (found(incidents, LATER), found(incidents, QUIET)) == ([2], [1])
    assert incidents.counts(QUIET)["state"] == {"new": 1} and incidents.counts(LATER)["state"] == {"new": 1}
    assert incidents.tend(now + 599.0) == 0
    assert incidents.tend(now + 601.0) == 1
    assert not known(incidents, 1).snoozed and found(incidents, LATER) == [2, 1]
    assert steps(incidents, 1) == ["opened", "snoozed", "woken"]
    assert incidents.tend(now + 602.0) == 0


def test_a_snoozed_incident_wakes_after_so_many_more_failures(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, USER_CODE, 1.0)
    notices = Notices(records.database)
    (unsent,) = notices.unsent(0.0, 9.0, now=2.0)
    assert notices.enqueue(unsent, [], 2.0)
    incidents.snooze(1, None, 2, "anna", "", 2.0)
    publish(records, "a", 2, USER_CODE, 3.0)
    assert known(incidents, 1).snoozed and notices.unsent(0.0, 9.0, now=4.0) == []
    publish(records, "a", 3, USER_CODE, 5.0)
    assert not known(incidents, 1).snoozed
    assert told(incidents, 1, "woken") == [("logdoctor", "3 attempts failed")]
    assert [one.id for one in notices.unsent(4.5, 9.0, now=6.0)] == [1], "it was woken at 5, whenever it was opened"


def test_a_snooze_ends_with_the_incident_and_by_hand(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, USER_CODE, 1.0)
    now = time.time()
    incidents.snooze(1, now + 600.0, 5, "anna", "", now)
    assert "or until 5 more fail" in told(incidents, 1, "snoozed")[0][1]
    assert not incidents.unsnooze(1, "ben", "", now).snoozed
    with pytest.raises(IncidentRefused, match="not snoozed"):
        incidents.unsnooze(1, "ben", "", now)
    incidents.snooze(1, now + 600.0, None, "anna", "", now)
    assert not incidents.step(1, "resolve", "anna", "", now, None).snoozed
    with pytest.raises(IncidentRefused, match="incident 1 is resolved"):
        incidents.snooze(1, now + 600.0, None, "anna", "", now)


@pytest.mark.parametrize(("until", "more"), [(None, None), (1.0, None), (None, 0), (None, 2_000_000)])
def test_a_snooze_that_cannot_be_is_refused(
    records: Records, incidents: Incidents, until: float | None, more: int | None
) -> None:
    publish(records, "a", 1, USER_CODE, 1.0)
    with pytest.raises(IncidentRefused):
        incidents.snooze(1, until, more, "anna", "", 5.0)
    assert steps(incidents, 1) == ["opened"]


# mutes


@on_both
def test_a_muted_fingerprint_is_told_to_nobody_until_the_mute_ends(
    records: Records, incidents: Incidents, mutes: Mutes
) -> None:
    now = time.time()
    publish(records, "a", 1, USER_CODE, now)
    mute = mutes.mute("fingerprint", "f1", "anna", "known bug", now + 3600.0, now)
    assert known(incidents, 1).muted and found(incidents, LATER) == [] and found(incidents, QUIET) == [1]
    publish(records, "b", 1, OTHER, now)
    notices = Notices(records.database)
    assert [one.id for one in notices.unsent(0.0, now, now=now)] == [2]
    assert notices.oldest_unsent(now) == now
    assert [one.id for one in notices.unsent(0.0, now, now=now + 3601.0)] == [1, 2], "it is over"
    lifted = mutes.lift(mute.id, "ben", now)
    assert (lifted.lifted, lifted.lifted_by) == (now, "ben")
    assert not known(incidents, 1).muted and mutes.all(now) == [] and mutes.all() == [lifted]
    assert steps(incidents, 1) == ["opened", "muted", "unmuted"]
    with pytest.raises(IncidentRefused, match="is over"):
        mutes.lift(mute.id, "ben", now)


@on_both
def test_a_muted_node_silences_its_incidents_only(records: Records, incidents: Incidents, mutes: Mutes) -> None:
    now = time.time()
    publish(records, "a", 1, verdict(suspects=on("gpu-1")), now)
    publish(records, "a", 2, verdict(suspects=on("gpu-2")), now)
    mutes.mute("node", "gpu-1", "anna", "", now + 60.0, now)
    assert found(incidents, LATER) == [2]
    assert [one.value for one in mutes.of("f0", "gpu-1", now)] == ["gpu-1"] and mutes.of("f0", "gpu-2", now) == []
    for until in (now, now + 400 * 86_400.0):
        with pytest.raises(IncidentRefused, match="within a year"):
            mutes.mute("node", "gpu-2", "anna", "", until, now)


# size


def test_a_large_job_that_died_at_once_is_not_of_low_severity(records: Records, incidents: Incidents) -> None:
    for name, gpus in (("big", 992), ("node", 64), ("one", 8)):
        records.put_job(name, JobFacts(gpus=gpus), 0.0)
        records.open_attempt(name, 1, 0.0)
        publish(records, name, 1, verdict(USER_CODE, fingerprint=f"f{gpus}"), 30.0)
    levels = {one.gpus: one.level for one in incidents.search(WantedIncidents(order="severity")).items}
    assert levels == {992: "high", 64: "moderate", 8: "low"}


@on_both
def test_severity_is_gpus_times_time_times_repeats(records: Records, incidents: Incidents) -> None:
    records.put_job("big", JobFacts(gpus=1024), 0.0)
    records.put_job("small", JobFacts(nodes=1, ranks_per_node=8), 0.0)
    publish(records, "plain", 1, verdict(USER_CODE, fingerprint="f7"), 40_000.0)
    for number in (1, 2):
        records.open_attempt("small", number, 0.0)
        publish(records, "small", number, OTHER, 36_000.0)
    records.open_attempt("big", 1, 0.0)
    publish(records, "big", 1, USER_CODE, 36.0)
    by_gpus = incidents.search(WantedIncidents(order="gpus")).items
    assert [(one.gpus, one.gpu_hours, one.severity, one.level) for one in by_gpus] == [
        (1024, 10.24, 1024.0, "high"),
        (8, 160.0, 320.0, "moderate"),
        (None, 0.0, 1.0, "low"),
    ]
    assert found(incidents, WantedIncidents(order="severity")) == [3, 2, 1]
    assert found(incidents, WantedIncidents(order="gpu_hours")) == [2, 3, 1]
    assert found(incidents) == [1, 2, 3], "the newest first"
    records.put_job("big", JobFacts(gpus=4096), 50.0)
    assert known(incidents, 3).gpus == 4096, "the job said so later"


@on_both
def test_a_list_in_another_order_goes_on_with_its_next_page(records: Records, incidents: Incidents) -> None:
    for number in range(5):
        records.put_job(f"job-{number}", JobFacts(gpus=2**number), 0.0)
        publish(records, f"job-{number}", 1, verdict(USER_CODE, fingerprint=f"x{number}"), 50.0 + number)
    wanted = WantedIncidents(order="gpus")
    ids, cursor = [], None
    while True:
        page = incidents.search(wanted, cursor, 2)
        ids += [one.id for one in page.items]
        if (cursor := page.next) is None:
            break
    assert ids == [5, 4, 3, 2, 1]
    with pytest.raises(CursorError):
        incidents.search(wanted, "x")


@on_both
def test_the_size_is_that_of_the_attempts_that_may_be_seen(records: Records, incidents: Incidents) -> None:
    for job, gpus in (("a-1", 8), ("b-1", 512)):
        records.put_job(job, JobFacts(gpus=gpus), 0.0)
        records.open_attempt(job, 1, 0.0)
        publish(records, job, 1, USER_CODE, 3600.0)
    assert known(incidents, 1).gpus == 512 and known(incidents, 1, ("a-",)).gpu_hours == 8.0
    (one,) = incidents.search(WantedIncidents(prefixes=("a-",), order="severity")).items
    assert (one.gpus, one.severity) == (8, 8.0)


# over by themselves


@on_both
def test_a_failure_that_its_job_completed_after_is_over(records: Records, incidents: Incidents) -> None:
    for job in ("a", "b"):
        publish(records, job, 1, USER_CODE, 10.0)
    publish(records, "a", 2, DONE, 20.0)
    assert incidents.tend(30.0) == 0, "b was not started again"
    publish(records, "b", 2, OTHER, 25.0)
    publish(records, "b", 3, DONE, 28.0, False)
    assert incidents.tend(30.0) == 0, "the verdict on it is not final"
    publish(records, "b", 3, DONE, 29.0)
    assert incidents.tend(30.0) == 2
    one = known(incidents, 1)
    assert (one.state, one.by, one.note) == (
        "resolved",
        "logdoctor",
        "attempt 2 of a ran on past the failure, and so did 1 more job",
    )
    assert known(incidents, 2).note == "attempt 3 of b ran on past the failure"


def test_a_failure_is_over_that_a_running_attempt_has_outlasted(records: Records, incidents: Incidents) -> None:
    records.open_attempt("a", 1, 0.0)
    publish(records, "a", 1, USER_CODE, 7200.0)
    records.open_attempt("a", 2, 10_000.0)
    spoke = {"job": "a", "attempt": 2, "stream": "main", "shard": 0, "next": 0, "lines": 0, "archived": 0}
    spoke |= {"changed": 17_190.0, "scanned": 0, "kept": 0, "state": "", "problem": ""}
    with records.database.writing() as connection:
        connection.execute(sa.insert(streams).values(spoke))
    assert incidents.tend(17_200.0) == 0, "it has not run for longer than the first"
    assert incidents.tend(19_000.0) == 0, "it says nothing any more"
    assert incidents.tend(17_201.0) == 1
    assert known(incidents, 1).note == "attempt 2 of a ran on past the failure"


def test_a_failure_at_once_is_not_over_as_soon_as_the_next_attempt_starts(
    records: Records, incidents: Incidents
) -> None:
    records.open_attempt("a", 1, 0.0)
    publish(records, "a", 1, USER_CODE, 5.0)
    records.open_attempt("a", 2, 10.0)
    spoke = {"job": "a", "attempt": 2, "stream": "main", "shard": 0, "next": 0, "lines": 0, "archived": 0}
    spoke |= {"changed": RUNS_ON, "scanned": 0, "kept": 0, "state": "", "problem": ""}
    with records.database.writing() as connection:
        connection.execute(sa.insert(streams).values(spoke))
    assert incidents.tend(RUNS_ON) == 0 and incidents.tend(RUNS_ON + 11.0) == 1


@on_both
def test_a_bad_node_is_not_forgotten_because_the_job_runs_elsewhere(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, verdict(suspects=on("gpu-1")), 10.0)
    publish(records, "a", 2, DONE, 20.0)
    assert incidents.tend(30.0) == 0 and known(incidents, 1).state == "new"
    cordon = {"node": "gpu-1", "how": "slurm", "owner": "", "state": "standing", "by": "anna", "at": 25.0}
    cordon |= {"reason": "ECC", "changed": 25.0, "why": ""}
    with records.database.writing() as connection:
        connection.execute(sa.insert(node_cordons).values(cordon))
    assert incidents.tend(30.0) == 1 and known(incidents, 1).state == "resolved"


def test_an_older_attempt_or_a_failed_one_ends_nothing(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, DONE, 5.0)
    publish(records, "a", 2, USER_CODE, 10.0)
    publish(records, "a", 3, BASE, 20.0)
    records.end("a", 3, End("", 1, None, None, 21.0))
    assert incidents.tend(1e6) == 0


# runbooks


@pytest.mark.parametrize(
    "link",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "//evil.example/x",
        "ftp://host/x",
        "https://",
        "https://a b/",
        "https://user:pw@host/",
        "https://[",
        "https://höst/" + "\u202e",
        "https://host/" + "x" * 2000,
    ],
)
def test_only_a_safe_link_is_a_runbook(records: Records, link: str) -> None:
    with pytest.raises(IncidentRefused, match="the runbook"):
        Desk(records.database).put_runbook("reason", "ECC Error", link, "anna", 1.0)


@on_both
def test_the_most_precise_runbook_comes_first(records: Records) -> None:
    desk = Desk(records.database)
    for kind, value in (("reason", "ECC Error"), ("rule", "gpu/ecc"), ("fingerprint", "f0"), ("reason", "Key Error")):
        desk.put_runbook(kind, value, f"https://wiki.example/{kind}", "anna", 1.0)
    desk.put_runbook("rule", "gpu/ecc", "https://wiki.example/newer", "ben", 2.0)
    urls = [one.url for one in desk.runbooks_for("ECC Error", "gpu/ecc", "f0")]
    assert urls == ["https://wiki.example/fingerprint", "https://wiki.example/newer", "https://wiki.example/reason"]
    assert desk.forget_runbook("rule", "gpu/ecc") and len(desk.runbooks()) == 3


@on_both
def test_a_clock_of_another_time_zone_or_year_does_not_matter(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, USER_CODE, 1.0)
    incidents.snooze(1, 253_402_300_000.0, None, "anna", "", 1.0)
    with records.database.reading() as connection:
        assert connection.scalar(sa.select(table.c.snoozed_until)) == 253_402_300_000.0
