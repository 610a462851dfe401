"""Every failure that stands is in one incident, whatever becomes of verdicts, and whoever decides beside it."""

from collections import Counter
from typing import Any, get_args

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from logdoctor.errors import CursorError, IncidentRefused
from logdoctor.store import schema
from logdoctor.store.incidents.grouping import BY_US, QUIET, group_of
from logdoctor.store.incidents.mutes import Mutes
from logdoctor.store.incidents.table import Incident, Incidents, State, Told, WantedIncidents
from logdoctor.store.jobs.records import End, JobFacts, Records, StoredVerdict
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types import Evidence, Suspect, Verdict
from tests.at_once import at_once
from tests.databases import empty
from tests.soak import SOAKING
from tests.store.conftest import on_both
from tests.store.test_records import BASE, begin, on

ALL: tuple[State, ...] = ("new", "acknowledged", "resolved")
EVERY = WantedIncidents(states=ALL)
USER_CODE = msgspec.structs.replace(
    BASE, reason="Key Error", category="Script", fault="user", recovery="fix_first", fingerprint="f1"
)
UNKNOWN = msgspec.structs.replace(
    BASE, reason="Unknown", category="None", fault="unknown", recovery="ask_human", fingerprint="f2"
)
DONE = msgspec.structs.replace(BASE, outcome="completed", reason="None", fingerprint="")


def verdict(base: Verdict = BASE, **changes: Any) -> Verdict:
    return msgspec.structs.replace(base, **changes)


@pytest.fixture
def incidents(records: Records) -> Incidents:
    return Incidents(records.database)


def publish(
    records: Records, job: str, number: int, what: Verdict, at: float, final: bool = True
) -> StoredVerdict | None:
    return records.publish(job, number, what, final, at)


def found(incidents: Incidents, wanted: WantedIncidents = EVERY) -> list[int]:
    return [one.id for one in incidents.search(wanted).items]


def known(incidents: Incidents, id: int, prefixes: tuple[str, ...] = ()) -> Incident:
    one = incidents.one(id, prefixes)
    assert one is not None
    return one


def steps(incidents: Incidents, id: int) -> list[Told]:
    return [event.step for event in reversed(incidents.events(id))]


# groups


def test_failures_of_one_cause_are_one_incident(records: Records, incidents: Incidents) -> None:
    for number, job in enumerate(("a", "b", "a"), 1):
        publish(records, job, number, USER_CODE, float(number))
    one = known(incidents, 1)
    assert (one.attempts, one.jobs, one.opened, one.last) == (3, 2, 1.0, 3.0)
    assert (one.state, one.node, one.by, one.merged_into, one.others) == ("new", "", BY_US, None, 0)
    assert one.newest == records.current("a", 3)
    assert [incidents.of("a", 1), incidents.of("b", 2), incidents.of("a", 2)] == [1, 1, None]
    assert [(stored.job, stored.attempt) for stored in incidents.members(1).items] == [("a", 3), ("b", 2), ("a", 1)]
    assert steps(incidents, 1) == ["opened", "joined", "joined"]


def test_a_failing_node_has_its_own_incident(records: Records, incidents: Incidents) -> None:
    for number, node in enumerate(("gpu-12", "gpu-13", "gpu-12", "gpu-12"), 1):
        publish(records, "a", number, verdict(suspects=on(node, "gpu-99")), float(number))
    publish(records, "b", 1, verdict(fingerprint="other", suspects=on("gpu-12")), 9.0)
    one, two = known(incidents, 1), known(incidents, 2)
    assert (one.node, one.attempts, one.on_node, one.others) == ("gpu-12", 3, 4, 1)
    assert (two.node, two.attempts, two.on_node, two.others) == ("gpu-13", 1, 1, 1)


def test_suspected_nodes_of_other_faults_do_not_matter(records: Records, incidents: Incidents) -> None:
    for number, node in enumerate((None, "gpu-1", "gpu-2"), 1):
        publish(records, "a", number, verdict(USER_CODE, suspects=on(node)), float(number))
    publish(records, "a", 4, verdict(suspects=on(None)), 4.0)
    assert [known(incidents, id).attempts for id in found(incidents)] == [1, 3]


def test_unknown_failures_of_two_jobs_are_two_incidents(records: Records, incidents: Incidents) -> None:
    for number, job in enumerate(("a", "b", "a"), 1):
        publish(records, job, number, UNKNOWN, float(number))
    assert [known(incidents, id).attempts for id in (1, 2)] == [2, 1] and known(incidents, 1).others == 1


def test_what_did_not_fail_is_in_no_incident(records: Records, incidents: Incidents) -> None:
    for number, outcome in enumerate(("completed", "running", "cancelled", "recovered"), 1):
        publish(records, "a", number, verdict(outcome=outcome), 1.0)
    assert found(incidents) == [] and incidents.counts(EVERY)["state"] == {}


def test_a_verdict_without_a_fingerprint_is_grouped_by_its_reason() -> None:
    one, two = group_of("a", verdict(USER_CODE, fingerprint="")), group_of("b", verdict(USER_CODE, fingerprint=""))
    assert one == two and one != group_of("a", verdict(USER_CODE, fingerprint="", reason="Name Error"))


def test_failures_that_no_line_names_are_grouped_by_job() -> None:
    hang = verdict(USER_CODE, evidence=(Evidence("", "main", 7, "step 7", "progress/stall"),))
    one, again, other = group_of("a", hang), group_of("a", hang), group_of("b", hang)
    assert one == again != other
    broken = verdict(hang, fault="infrastructure", suspects=on("gpu-12"))
    assert group_of("a", broken) == group_of("b", broken), "they have the node in common"


def test_failures_that_look_the_same_and_are_of_another_fault_are_apart() -> None:
    network = verdict(fingerprint="f1", fault="infrastructure", recovery="restart", suspects=())
    assert group_of("a", network) == group_of("b", network) != group_of("a", verdict(network, fault="user"))


# verdicts that change


def test_a_provisional_verdict_that_changes_keeps_its_incident(records: Records, incidents: Incidents) -> None:
    for at, what in enumerate((UNKNOWN, BASE, verdict(fingerprint="f9"), USER_CODE), 1):
        publish(records, "a", 1, what, float(at), final=False)
    one = known(incidents, 1)
    assert (found(incidents), one.attempts, one.fingerprint, one.node) == ([1], 1, "f1", "")
    assert (one.opened, one.last) == (1.0, 1.0) and incidents.counts(EVERY)["reason"] == {"Key Error": 1}
    publish(records, "a", 1, USER_CODE, 5.0)
    assert known(incidents, 1).event > one.event and known(incidents, 1).newest == records.current("a", 1)
    publish(records, "b", 1, UNKNOWN, 6.0)
    assert incidents.of("b", 1) == 2, "nobody has the first key any more"


def test_a_late_duplicate_changes_nothing(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, BASE, 1.0)
    before = known(incidents, 1)
    assert publish(records, "a", 1, verdict(seconds=9.0), 2.0) is None
    assert known(incidents, 1) == before and steps(incidents, 1) == ["opened"]


def test_an_attempt_that_runs_again_leaves(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, BASE, 1.0, final=False)
    publish(records, "b", 1, BASE, 2.0)
    publish(records, "b", 1, verdict(outcome="running", reason="None"), 3.0, final=False)
    one = known(incidents, 1)
    assert (one.attempts, one.jobs, one.state, one.last) == (1, 1, "new", 1.0)
    assert one.newest == records.current("a", 1)
    assert incidents.events(1)[0].note == "its verdict says running" and incidents.of("b", 1) is None


def test_an_incident_that_all_left_is_resolved(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, BASE, 1.0, final=False)
    publish(records, "a", 1, DONE, 2.0)
    one = known(incidents, 1)
    assert (one.state, one.by, one.changed, one.newest, one.attempts) == ("resolved", BY_US, 2.0, None, 0)
    assert "no failed attempt" in one.note and steps(incidents, 1) == ["opened", "left", "resolved"]
    assert found(incidents, WantedIncidents()) == [] and found(incidents, WantedIncidents(states=("resolved",))) == [1]
    with pytest.raises(IncidentRefused, match="no failed attempts left"):
        incidents.step(1, "reopen", "ops", "", 3.0, "resolved")
    publish(records, "a", 1, BASE, 4.0)
    assert incidents.of("a", 1) == 2 and (known(incidents, 1).others, known(incidents, 2).others) == (1, 0)


def test_one_of_many_that_changes_goes_elsewhere(records: Records, incidents: Incidents) -> None:
    for number in (1, 2):
        publish(records, "a", number, BASE, float(number))
    publish(records, "a", 2, USER_CODE, 3.0)
    assert [known(incidents, id).attempts for id in (1, 2)] == [1, 1]
    publish(records, "a", 3, BASE, 4.0)
    publish(records, "a", 3, USER_CODE, 5.0)
    assert [known(incidents, id).attempts for id in (1, 2)] == [1, 2]
    assert [event.note for event in incidents.events(1) if event.step == "left"] == [
        "its verdict has another cause: incident 2"
    ] * 2


def test_what_was_said_of_a_merged_incident_stands_in_the_other_one(records: Records, incidents: Incidents) -> None:
    for number in (1, 2, 3):
        publish(records, f"j{number}", 1, verdict(USER_CODE, fingerprint=f"f{number}"), float(number))
    incidents.step(1, "acknowledge", "ops", "the switch is changed", 4.0, None)
    publish(records, "j1", 1, verdict(USER_CODE, fingerprint="f2"), 5.0)
    publish(records, "j3", 1, verdict(USER_CODE, fingerprint="f2"), 6.0)
    told = [event for event in incidents.events(2) if event.by != BY_US]
    assert [(one.step, one.by, one.note, one.at) for one in told] == [
        ("acknowledged", "ops", "of incident 1: the switch is changed", 4.0)
    ]
    assert known(incidents, 2).state == "new", "nobody took it on"


def test_a_chain_of_merged_incidents_ends_in_an_open_one(records: Records, incidents: Incidents) -> None:
    for number in (1, 2, 3):
        publish(records, f"j{number}", 1, verdict(USER_CODE, fingerprint=f"f{number}"), float(number))
    publish(records, "j1", 1, verdict(USER_CODE, fingerprint="f2"), 4.0)
    publish(records, "j1", 1, DONE, 5.0)
    publish(records, "j2", 1, verdict(USER_CODE, fingerprint="f3"), 6.0)
    assert [known(incidents, id).merged_into for id in (1, 2, 3)] == [3, 3, None]
    assert found(incidents) == [3] and incidents.counts(EVERY)["state"] == {"new": 1}
    assert known(incidents, 3).opened == 2.0, "the attempt that failed before is in none any more"
    for id in (1, 2):
        with pytest.raises(IncidentRefused, match=r"merged into incident \d\. Use that incident"):
            incidents.step(id, "acknowledge", "ops", "", 7.0, None)


def test_what_leaves_a_resolved_incident_is_no_open_one(records: Records, incidents: Incidents) -> None:
    for number in (1, 2):
        publish(records, "a", number, USER_CODE, float(number))
    incidents.step(1, "resolve", "ops", "", 3.0, "new")
    publish(records, "a", 1, verdict(USER_CODE, fingerprint="f2"), 4.0)  # a person's correction
    one, two = known(incidents, 1), known(incidents, 2)
    assert (one.opened, one.attempts, two.opened, two.attempts) == (2.0, 1, 1.0, 1)
    assert (two.state, two.by, two.note) == ("resolved", BY_US, "incident 1, which had it, is over")
    assert steps(incidents, 2) == ["opened", "resolved"]


def test_a_resolved_incident_stays_resolved_when_its_verdict_changes(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, BASE, 1.0)
    incidents.step(1, "resolve", "ops", "board swapped", 2.0, "new")
    publish(records, "a", 1, verdict(confidence=0.5), 3.0)
    assert (found(incidents), known(incidents, 1).state, known(incidents, 1).by) == ([1], "resolved", "ops")
    publish(records, "a", 1, USER_CODE, 4.0)  # a person's correction
    assert (found(incidents), known(incidents, 1).state) == ([1], "resolved")
    publish(records, "a", 1, DONE, 5.0)
    assert (known(incidents, 1).by, known(incidents, 1).note) == ("ops", "board swapped")


def test_a_new_attempt_opens_a_resolved_failure_anew(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, BASE, 1.0)
    incidents.step(1, "resolve", "ops", "", 2.0, None)
    publish(records, "a", 2, BASE, 3.0)
    assert (incidents.of("a", 1), incidents.of("a", 2)) == (1, 2)
    assert [known(incidents, id).others for id in (1, 2)] == [1, 1] and known(incidents, 2).on_node == 2
    with pytest.raises(IncidentRefused, match="open as incident 2"):
        incidents.step(1, "reopen", "ops", "", 4.0, None)


def test_a_failure_that_comes_back_after_long_opens_anew(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, USER_CODE, 1.0)
    publish(records, "a", 2, USER_CODE, 1.0 + QUIET)
    assert known(incidents, 1).attempts == 2 and known(incidents, 1).state == "new"
    publish(records, "a", 3, USER_CODE, 2.0 + 2 * QUIET)
    former, one = known(incidents, 1), known(incidents, 2)
    assert (former.state, former.by, former.attempts) == ("resolved", BY_US, 2)
    assert steps(incidents, 1)[-1] == "resolved"
    assert (one.state, one.attempts, one.others) == ("new", 1, 1)


def test_the_newest_attempt_is_that_which_failed_last(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, USER_CODE, 5.0)
    publish(records, "a", 2, verdict(USER_CODE, recovery="ask_human"), 3.0)
    assert known(incidents, 1).last == 5.0 and incidents.counts(EVERY)["recovery"] == {"fix_first": 1}
    publish(records, "a", 2, verdict(USER_CODE, confidence=0.1), 9.0)  # judged again
    assert known(incidents, 1).last == 5.0 and known(incidents, 1).newest == records.current("a", 1)
    publish(records, "a", 1, DONE, 10.0)
    assert known(incidents, 1).last == 3.0 and known(incidents, 1).newest == records.current("a", 2)


MONTH = 30 * 86_400.0


def notified(records: Records) -> dict[int, bool]:
    with records.database.reading() as connection:
        query = sa.select(schema.incidents.c.id, schema.incidents.c.notified)
        return {id: told for id, told in connection.execute(query)}


def test_an_old_failure_that_is_corrected_is_no_new_one(records: Records, incidents: Incidents) -> None:
    for number in (1, 2, 3):
        publish(records, "a", number, USER_CODE, float(number))
    with records.database.writing() as connection:
        connection.execute(sa.update(schema.incidents).values(notified=True))
    publish(records, "a", 3, verdict(USER_CODE, suggestion="use .get"), MONTH)
    one = known(incidents, 1)
    assert (one.opened, one.last, one.newest) == (1.0, 3.0, records.current("a", 3))
    publish(records, "a", 2, verdict(USER_CODE, fingerprint="f9"), MONTH)
    other = known(incidents, 2)
    assert (other.opened, other.last, other.changed, other.attempts) == (2.0, 2.0, MONTH, 1)
    assert notified(records) == {1: True, 2: True}, "they know of it"
    publish(records, "a", 1, verdict(USER_CODE, fingerprint="f9"), MONTH + 1)
    assert (known(incidents, 2).opened, known(incidents, 2).last) == (1.0, 2.0), "it is no other failure than it was"
    publish(records, "b", 1, verdict(USER_CODE, fingerprint="f9"), MONTH + 2)
    assert known(incidents, 2).state == "resolved" and incidents.of("b", 1) == 3 and not notified(records)[3]


@on_both
def test_a_failure_that_turns_out_to_be_another_is_told(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, UNKNOWN, 1.0)
    with records.database.writing() as connection:
        connection.execute(sa.update(schema.incidents).values(notified=True))
    publish(records, "a", 2, UNKNOWN, 2.0, final=False)
    publish(records, "a", 2, verdict(suspects=on("gpu-12")), 3.0)
    assert (incidents.of("a", 2), notified(records)) == (2, {1: True, 2: False})


def test_no_attempt_failed_after_its_end(records: Records, incidents: Incidents) -> None:
    records.open_attempt("a", 1, 1.0)
    records.end("a", 1, End("main", 1, None, None, 2.0))
    records.end("a", 1, End("", 1, None, None, 3.0))
    publish(records, "a", 1, DONE, 4.0)
    publish(records, "a", 1, USER_CODE, MONTH)  # a person says so
    assert (known(incidents, 1).opened, known(incidents, 1).last) == (3.0, 3.0)
    begin(records, "b", "main", "other")
    records.end("b", 1, End("main", 0, None, None, 5.0))  # one stream of several
    publish(records, "b", 1, USER_CODE, 8.0)
    assert known(incidents, 1).last == 8.0


# steps


def test_people_take_steps(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, BASE, 1.0)
    heard: list[int] = []
    incidents.listeners.append(heard.append)
    one = incidents.step(1, "acknowledge", "research", "looking", 2.0, "new")
    assert (one.state, one.by, one.note, one.changed) == ("acknowledged", "research", "looking", 2.0)
    assert incidents.step(1, "resolve", "ops", "", 3.0, "acknowledged").state == "resolved"
    assert incidents.step(1, "reopen", "ops", "", 4.0, "resolved").state == "new"
    assert incidents.step(1, "resolve", "ops", "", 5.0, None).event == incidents.last_event()
    assert heard == [1] * 4
    assert steps(incidents, 1) == ["opened", "acknowledged", "resolved", "reopened", "resolved"]
    assert [event.by for event in incidents.events(1, limit=2)] == ["ops", "ops"]


def test_who_was_quicker_is_told(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, BASE, 1.0)
    incidents.step(1, "acknowledge", "research", "", 1_795_250_000.0, "new")
    for step, seen_as in (("acknowledge", "new"), ("acknowledge", None), ("resolve", "new"), ("reopen", None)):
        with pytest.raises(IncidentRefused, match=r"research acknowledged it at 2026-11-21 \d\d:\d\d:20 UTC"):
            incidents.step(1, step, "ops", "", 2.0, seen_as)  # type: ignore[arg-type]
    assert known(incidents, 1).by == "research"
    for id in (0, 2, -1, 2**63, 10**30):
        with pytest.raises(IncidentRefused, match="does not exist"):
            incidents.step(id, "resolve", "ops", "", 2.0, None)
    with pytest.raises(IncidentRefused, match="Say who you are"):
        incidents.step(1, "resolve", " ", "", 2.0, None)


@on_both
def test_of_two_people_one_acknowledges(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, BASE, 1.0)

    def acknowledge(who: str) -> str:
        try:
            return incidents.step(1, "acknowledge", who, "", 2.0, "new").by
        except IncidentRefused as refusal:
            assert "acknowledged it" in refusal.cause
            return ""

    assert set(at_once(acknowledge, "abcdefgh")) == {"", known(incidents, 1).by}


@on_both
def test_writers_of_one_failure_open_one_incident(records: Records, incidents: Incidents) -> None:
    other = Records(str(records.database._engine.url))

    def write(through: Records, job: str) -> None:
        for number in range(15):
            publish(through, job, number, USER_CODE, float(number))

    at_once(write, (records, other, records), "abc")
    other.close()
    assert (found(incidents), known(incidents, 1).attempts, known(incidents, 1).jobs) == ([1], 45, 3)


# lists


def quoted(quote: str, **changes: Any) -> Verdict:
    return verdict(evidence=(Evidence("", "main", 7, quote, "rule"),), **changes)


@pytest.fixture
def filled(records: Records, incidents: Incidents) -> Incidents:
    """1: gpu-1 of a-1 and b-1, acknowledged; 2: Key Error of b-1; 3: Unknown of c-1, resolved; 4: gpu-2 of a-1."""
    records.put_job("a-1", JobFacts(user="Zo\u00eb"), 1.0)
    publish(records, "a-1", 1, quoted("Uncorrectable ECC 100%", suspects=on("gpu-1")), 1.0)
    publish(records, "b-1", 1, quoted("uncorrectable", suspects=on("gpu-1", "gpu-7"), recovery="restart"), 2.0)
    publish(records, "b-1", 2, verdict(USER_CODE, suspects=on("gpu-7")), 3.0)
    publish(records, "c-1", 1, UNKNOWN, 4.0)
    publish(records, "a-1", 2, quoted("row_remap", suspects=on("gpu-2")), 5.0)
    records.put_job("b-1", JobFacts(user="ann"), 9.0)
    incidents.step(1, "acknowledge", "ops", "b-1 too", 6.0, None)
    incidents.step(3, "resolve", "ops", "", 7.0, None)
    return incidents


LISTS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [4, 2, 1]),
    ({"states": ALL}, [4, 3, 2, 1]),
    ({"states": ()}, [4, 3, 2, 1]),
    ({"states": ("acknowledged",)}, [1]),
    ({"reason": "ECC Error"}, [4, 1]),
    ({"reason": "ecc error"}, []),
    ({"category": "Script"}, [2]),
    ({"recovery": "restart"}, [1]),
    ({"recovery": "isolate_and_restart"}, [4]),
    ({"fault": "user"}, [2]),
    ({"node": "gpu-7"}, [2, 1]),
    ({"node": "gpu-1"}, [1]),
    ({"user": "Zo\u00eb"}, [4, 1]),
    ({"user": "ann"}, [2, 1]),
    ({"job": "b-1"}, [2, 1]),
    ({"job": "b-1", "user": "Zo\u00eb"}, []),
    ({"fingerprint": "f0"}, [4, 1]),
    ({"text": "UNCORRECTABLE"}, [2, 1]),
    ({"text": "UNCORRECTABLE 100"}, [1]),
    ({"text": "ecc gpu-2"}, [4]),
    ({"text": "ecc gpu-2 b-1"}, []),
    ({"text": "zO\u00cb"}, [4, 1]),
    ({"text": "ann"}, [2, 1]),
    ({"text": "100%"}, [1]),
    ({"text": "row%"}, []),
    ({"text": "row_remap"}, [4]),
    ({"text": "rowxremap"}, []),
    ({"text": "  "}, [4, 2, 1]),
    ({"text": "\0 '\"; DROP TABLE"}, []),
    ({"text": "x " * 10_000}, []),
    ({"since": 2.0, "until": 5.0}, [2, 1]),
    ({"prefixes": ("a-",)}, [4, 1]),
    ({"prefixes": ("b-",)}, [2, 1]),
    ({"prefixes": ("c-",), "states": ALL}, [3]),
    ({"prefixes": ("A-", "%")}, []),
    ({"prefixes": ("a-",), "recovery": "restart"}, []),
    ({"prefixes": ("a-",), "recovery": "isolate_and_restart"}, [4, 1]),
    ({"prefixes": ("a-",), "since": 2.0}, [4]),
    ({"prefixes": ("a-",), "node": "gpu-7"}, []),
    ({"prefixes": ("a-",), "job": "b-1"}, []),
    ({"prefixes": ("a-",), "user": "ann"}, []),
    ({"prefixes": ("a-",), "text": "b-1"}, []),
]
"""What is asked for, and the incidents of `filled` that are listed then."""


@on_both
def test_a_list_holds_what_is_wanted(filled: Incidents) -> None:
    for wanted, ids in LISTS:
        asked = WantedIncidents(**wanted)
        assert found(filled, asked) == ids, wanted
        counts = filled.counts(asked)
        assert sum(counts["state"].get(state, 0) for state in asked.states or ALL) == len(ids), wanted
        if asked.reason is None:
            assert sum(counts["reason"].values()) == len(ids), wanted


def test_states_are_counted_whatever_states_are_wanted(filled: Incidents) -> None:
    assert filled.counts(WantedIncidents(states=("new",), reason="ECC Error")) == {
        "state": {"new": 1, "acknowledged": 1},
        "reason": {"ECC Error": 1},
        "category": {"Infrastructure": 1},
        "recovery": {"isolate_and_restart": 1},
    }


@on_both
def test_a_bound_token_sees_nothing_of_other_jobs(filled: Incidents, records: Records) -> None:
    mine = known(filled, 1, ("a-",))
    assert (mine.attempts, mine.jobs, mine.opened, mine.last, mine.on_node) == (1, 1, 1.0, 1.0, 1)
    assert mine.newest == records.current("a-1", 1) and (mine.by, mine.note, mine.state) == ("", "", "acknowledged")
    assert mine.others == 1 and known(filled, 1, ("b-",)).others == 0, "the other one is not theirs"
    assert filled.one(2, ("a-",)) is None and filled.one(3, ("a-",)) is None
    assert [stored.job for stored in filled.members(1, prefixes=("a-",)).items] == ["a-1"]
    assert filled.members(2, prefixes=("a-",)).items == []
    assert [one.id for one in filled.newer(0, prefixes=("a-",))] == [4, 1]
    story = filled.events(1, prefixes=("a-",))
    assert [(one.step, one.job, one.by, one.note) for one in story] == [
        ("acknowledged", None, "", ""),
        ("opened", "a-1", BY_US, ""),
    ]
    assert not filled.covers(1, ("a-",)) and filled.covers(4, ("a-",)) and filled.covers(1, ("a-", "b-"))
    assert filled.covers(1, ()) and not filled.covers(99, ("a-",)) and not filled.covers(99, ())
    assert known(filled, 1, ("a-", "b-")).note == "b-1 too"
    every = [*filled.search(WantedIncidents(states=ALL, prefixes=("a-",))).items, *filled.newer(0, prefixes=("a-",))]
    assert b"b-1" not in msgspec.json.encode(every)


@on_both
def test_what_was_said_of_others_stays_theirs(records: Records, incidents: Incidents) -> None:
    publish(records, "a-1", 1, USER_CODE, 1.0)
    publish(records, "b-1", 1, USER_CODE, 2.0)
    incidents.step(1, "acknowledge", "ops", "b-1 leaked its key", 3.0, None)
    publish(records, "b-1", 1, DONE, 4.0)
    mine = known(incidents, 1, ("a-",))
    assert (mine.attempts, mine.by, mine.note, mine.state) == (1, "", "", "acknowledged")
    assert "leaked" not in str(incidents.events(1, prefixes=("a-",))) and not incidents.covers(1, ("a-",))
    assert "leaked" not in str(incidents.search(WantedIncidents(prefixes=("a-",))).items)
    assert "leaked" not in str(incidents.newer(0, prefixes=("a-",)))
    publish(records, "a-1", 1, DONE, 5.0)
    assert not incidents.covers(1, ("a-",)), "none is left, but there were others"
    assert incidents.covers(1, ("a-", "b-")) and incidents.events(1, prefixes=("a-", "b-"))[-1].by == BY_US


def test_who_had_an_attempt_in_it_hears_that_it_is_over(records: Records, incidents: Incidents) -> None:
    publish(records, "a-1", 1, USER_CODE, 1.0)
    publish(records, "a-1", 1, DONE, 2.0)
    assert known(incidents, 1, ("a-",)).state == "resolved" and incidents.one(1, ("b-",)) is None
    assert [one.id for one in incidents.newer(0, prefixes=("a-",))] == [1]


@on_both
def test_pages_follow_each_other(records: Records, incidents: Incidents) -> None:
    for number in range(11):
        publish(records, "j", number, verdict(USER_CODE, fingerprint=f"f{number}"), float(number // 3))
    for prefixes in ((), ("j",)):
        seen: list[int] = []
        cursor = None
        while True:
            page = incidents.search(msgspec.structs.replace(EVERY, prefixes=prefixes), cursor, 4)
            seen += [one.id for one in page.items]
            if (cursor := page.next) is None:
                break
        assert seen == list(range(11, 0, -1))
    for number in range(11, 18):
        publish(records, "j", number, verdict(USER_CODE, fingerprint="f0"), 9.0)
    of_one, cursor = [], None
    while True:
        members = incidents.members(1, cursor, 3)
        of_one += [stored.attempt for stored in members.items]
        if (cursor := members.next) is None:
            break
    assert of_one == [*range(17, 10, -1), 0]
    for bad in ("", "x", "WzFd", "\u00e9" * 10):
        with pytest.raises(CursorError):
            incidents.search(EVERY, bad)
        with pytest.raises(CursorError):
            incidents.members(1, bad)


@on_both
def test_changes_come_in_order(records: Records, incidents: Incidents) -> None:
    publish(records, "a", 1, BASE, 1.0)
    publish(records, "a", 2, USER_CODE, 2.0)
    begin = incidents.last_event()
    assert incidents.newer(begin) == [] == incidents.newer(10**30)
    incidents.step(1, "acknowledge", "ops", "", 3.0, None)
    publish(records, "a", 2, BASE, 4.0)
    changed = incidents.newer(begin)
    assert {one.id for one in changed} == {1, 2} and [one.merged_into for one in changed if one.id == 2] == [1]
    assert [one.event for one in changed] == sorted(one.event for one in changed)
    assert incidents.newer(begin, limit=1) == changed[:1] and incidents.newer(changed[0].event) == changed[1:]
    assert incidents.newer(incidents.last_event()) == []


@on_both
def test_strange_ids_are_no_incidents(incidents: Incidents) -> None:
    for id in (0, -1, 1, 2**63, 10**30):
        assert incidents.one(id) is None and incidents.events(id) == [] and incidents.members(id).items == []
    assert incidents.of("\ud800\0", 10**30) is None


@on_both
def test_names_of_all_sorts_are_grouped(records: Records, incidents: Incidents) -> None:
    for number, name in enumerate(("\0", "a\nb", "%", "x" * 5000, "\u0130")):
        records.put_job("j", JobFacts(user=name), 1.0)
        publish(records, "j", number, quoted(name, suspects=on(name)), float(number))
        assert known(incidents, number + 1).attempts == 1
        records.put_job("j", JobFacts(user="ann"), 1.0)
        assert number + 1 in found(incidents, WantedIncidents(text="ann")), ascii(name)


@on_both
def test_a_database_of_an_older_version_is_caught_up(records: Records, incidents: Incidents) -> None:
    for number in range(1, 5):
        publish(records, f"j{number % 2}", number, USER_CODE if number < 4 else BASE, float(number))
    publish(records, "fine", 1, DONE, 9.0)
    with records.database.writing() as connection:
        empty(connection, "incident_events", "incident_attempts", "incidents")
    assert found(incidents) == [] and incidents.catch_up(QUIET) == 4 and incidents.catch_up(MONTH) == 0
    assert [known(incidents, id).attempts for id in (1, 2)] == [3, 1] and known(incidents, 1).opened == 1.0
    with records.database.reading() as connection:
        assert set(connection.scalars(sa.select(schema.incidents.c.notified))) == {True}
    publish(records, "new", 1, UNKNOWN, 10.0)
    with records.database.reading() as connection:
        assert not connection.scalar(sa.select(schema.incidents.c.notified).where(schema.incidents.c.id == 3))


def test_the_past_is_nothing_to_work_off(records: Records, incidents: Incidents) -> None:
    for number, at in enumerate((1.0, 2.0, MONTH, MONTH + 1), 1):
        publish(records, "a", number, verdict(USER_CODE, fingerprint=f"f{number % 2}{at > 2}"), at)
    with records.database.writing() as connection:
        empty(connection, "incident_events", "incident_attempts", "incidents")
    assert incidents.catch_up(MONTH + QUIET) == 4
    assert [known(incidents, id).state for id in (1, 2, 3, 4)] == ["resolved", "resolved", "new", "new"]
    assert known(incidents, 1).by == BY_US and steps(incidents, 1) == ["opened", "resolved"]
    assert found(incidents, WantedIncidents()) == [4, 3]
    publish(records, "a", 5, UNKNOWN, 1.0)
    assert incidents.catch_up(9 * MONTH) == 0 and known(incidents, 5).state == "new", "it was here before"


@on_both
def test_an_incident_of_many_attempts_is_not_rewritten(records: Records, incidents: Incidents) -> None:
    publish(records, "j", 0, USER_CODE, 0.0)
    with records.database.writing() as connection:  # as if they had been published
        said = {"at": 0.5, "reason": "Key Error", "category": "Script", "recovery": "fix_first"}
        row = said | {"final": True, "outcome": "failed", "fingerprint": "f1", "decided": "rule"}
        member = said | {"incident": 1, "words": "", "fault": "user"}
        numbers = range(1, 5001)
        whose = [{"job": "j", "attempt": number} for number in numbers]
        attempts = [{"job": "j", "number": number, "started": 0.0, "settled": True} for number in numbers]
        connection.execute(sa.insert(schema.attempts), attempts)
        rows = [row | one | {"id": one["attempt"] + 1, "event": -one["attempt"]} for one in whose]
        connection.execute(sa.insert(schema.verdicts), rows)
        connection.execute(
            sa.insert(schema.incident_attempts), [member | one | {"verdict": one["attempt"] + 1} for one in whose]
        )
        connection.execute(sa.update(schema.incidents).values(attempts=5001))
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT setval(pg_get_serial_sequence('verdicts', 'id'), 5001)")
    changed: list[int] = []

    def count(_: Any, cursor: Any, statement: str, *__: Any) -> None:
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):
            changed.append(cursor.rowcount)

    sa.event.listen(records.database._engine, "after_cursor_execute", count)
    publish(records, "k", 1, USER_CODE, 1.0)
    assert 5 < sum(changed) < 100
    one = known(incidents, 1)
    assert (one.attempts, one.jobs, one.last) == (5002, 2, 1.0)


# everything at once

KINDS = st.sampled_from(
    [
        *(verdict(suspects=on(node)) for node in ("gpu-1", "gpu-2", None)),
        verdict(suspects=(Suspect("gpu-1", 3, None, "x"), Suspect("gpu-2", 4, None, "y")), confidence=0.5),
        USER_CODE,
        verdict(USER_CODE, confidence=0.5),
        UNKNOWN,
        DONE,
        verdict(outcome="running", reason="None"),
    ]
)
ATTEMPTS = st.tuples(st.sampled_from(["a1", "a2", "b1"]), st.integers(1, 3))


class Told_(msgspec.Struct):
    """What the model knows of an incident."""

    key: str
    state: str = "new"
    members: set[tuple[str, int]] = msgspec.field(default_factory=set)
    merged_into: int | None = None


class Groups(RuleBasedStateMachine):
    """The incidents of a database beside those of a model that knows the rules and nothing else."""

    def __init__(self, records: Records) -> None:
        super().__init__()
        with records.database.writing() as connection:
            empty(connection, "incident_events", "incident_attempts", "incidents", "verdict_nodes", "verdict_bodies")
            empty(connection, "verdicts", "ends", "attempts", "jobs", "rule_totals")
        self.records, self.incidents = records, Incidents(records.database)
        self.model: dict[int, Told_] = {}
        self.of: dict[tuple[str, int], int] = {}
        self.now = 0.0

    @rule(attempt=ATTEMPTS, what=KINDS, final=st.booleans(), passed=st.sampled_from([1.0, 1.0, 0.0, -2.5]))
    def publish(self, attempt: tuple[str, int], what: Verdict, final: bool, passed: float) -> None:
        self.now += passed
        former = self.records.current(*attempt)
        self.records.publish(*attempt, what, final, self.now)
        group, held = group_of(attempt[0], what), self.of.get(attempt)
        if group is None:
            if held is not None:
                self._leave(held, attempt)
                del self.of[attempt]
            return
        if held is not None and self.model[held].key == group.key:
            return
        into = next((id for id, one in self.model.items() if one.key == group.key and one.state != "resolved"), None)
        if into is None and held is not None and len(self.model[held].members) == 1:
            self.model[held].key = group.key
            return
        if into is None:
            into = len(self.model) + 1
            self.model[into] = Told_(group.key)
            if former is not None and former.final and held is not None and self.model[held].state == "resolved":
                self.model[into].state = "resolved"
        elif held is not None and len(self.model[held].members) == 1:
            self.model[held].merged_into = into
        self.model[into].members.add(attempt)
        self.of[attempt] = into
        if held is not None:
            self._leave(held, attempt)

    def _leave(self, held: int, attempt: tuple[str, int]) -> None:
        self.model[held].members.discard(attempt)
        if not self.model[held].members:
            self.model[held].state = "resolved"

    @rule(attempt=ATTEMPTS, step=st.sampled_from(["acknowledge", "resolve", "reopen"]))
    def step(self, attempt: tuple[str, int], step: Any) -> None:
        if (id := self.of.get(attempt)) is None:
            return
        one = self.model[id]
        taken = any(other.key == one.key and other.state != "resolved" for other in self.model.values())
        allowed = {"acknowledge": one.state == "new", "resolve": one.state != "resolved"}
        allowed["reopen"] = one.state == "resolved" and not taken
        if allowed[step]:
            one.state = {"acknowledge": "acknowledged", "resolve": "resolved", "reopen": "new"}[step]
            assert self.incidents.step(id, step, "ops", "", self.now, None).state == one.state
        else:
            with pytest.raises(IncidentRefused):
                self.incidents.step(id, step, "ops", "", self.now, None)

    @rule(job=st.sampled_from(["a1", "b1"]), user=st.sampled_from(["ann", "Bob", None]))
    def tell(self, job: str, user: str | None) -> None:
        self.records.put_job(job, JobFacts(user=user), self.now)

    @rule(attempt=ATTEMPTS)
    def judge_again(self, attempt: tuple[str, int]) -> None:
        self.records.reopen(*attempt)

    @invariant()
    def the_model_agrees(self) -> None:
        assert self.incidents.catch_up(self.now) == 0
        with self.records.database.reading() as connection:
            rows = {row.id: row for row in connection.execute(sa.select(schema.incidents))}
            held = {(row.job, row.attempt): row for row in connection.execute(sa.select(schema.incident_attempts))}
        assert {place: row.incident for place, row in held.items()} == self.of
        assert rows.keys() == self.model.keys()
        for id, one in self.model.items():
            row = rows[id]
            assert (row.key, row.state, row.merged_into) == (one.key, one.state, one.merged_into)
            assert (row.attempts, row.jobs) == (len(one.members), len({job for job, _ in one.members}))
            mine = sorted((held[place].at, held[place].verdict) for place in one.members)
            assert row.newest == (mine[-1][1] if mine else None)
            if mine:
                assert (row.opened, row.last) == (mine[0][0], mine[-1][0])
        open_keys = Counter(row.key for row in rows.values() if row.state != "resolved")
        assert not open_keys or max(open_keys.values()) == 1

    @invariant()
    def all_that_failed_is_in_its_incident(self) -> None:
        for job, number in [(job, number) for job in ("a1", "a2", "b1") for number in (1, 2, 3)]:
            stored, id = self.records.current(job, number), self.incidents.of(job, number)
            failed = stored is not None and stored.verdict.outcome == "failed"
            assert failed == (id is not None)
            if stored is not None and id is not None:
                group = group_of(job, stored.verdict)
                assert group is not None and group.key == self.model[id].key
                words = WantedIncidents(states=ALL, user=stored.user, job=job, text=stored.user)
                assert id in found(self.incidents, words)

    @invariant()
    def lists_and_figures_agree(self) -> None:
        for prefixes in ((), ("a",), ("b",)):
            wanted = msgspec.structs.replace(EVERY, prefixes=prefixes)
            items = self.incidents.search(wanted).items
            listed = {
                id
                for id, one in self.model.items()
                if one.merged_into is None
                and (any(job.startswith(prefixes) for job, _ in one.members) if prefixes else 1)
            }
            assert {one.id for one in items} == listed
            assert self.incidents.counts(wanted)["state"] == Counter(self.model[id].state for id in listed)
            for one in items:
                mine = [place for place in self.model[one.id].members if not prefixes or place[0].startswith(prefixes)]
                assert (one.attempts, one.jobs) == (len(mine), len({job for job, _ in mine}))
                members = self.incidents.members(one.id, prefixes=prefixes).items
                assert sorted((stored.job, stored.attempt) for stored in members) == sorted(mine)
                assert one.newest == (members[0] if members else None)
                assert self.incidents.one(one.id, prefixes) == one


@on_both
@pytest.mark.more_in_soak
def test_incidents_follow_the_rules_whatever_happens(records: Records) -> None:
    most = 50 if SOAKING else 6 if records.database.is_file else 2
    chosen = settings(max_examples=most, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(lambda: Groups(records), settings=chosen)  # type: ignore[arg-type] # it may be a function


def test_the_words_of_the_story_are_those_that_are_stored(records: Records, incidents: Incidents) -> None:
    stored = publish(records, "a", 1, BASE, 1.0)
    assert stored is not None
    publish(records, "b", 1, USER_CODE, 1.0)
    publish(records, "b", 1, BASE, 2.0)
    incidents.step(1, "acknowledge", "ops", "", 3.0, None)
    incidents.step(1, "resolve", "ops", "", 3.0, None)
    incidents.step(1, "reopen", "ops", "", 3.0, None)
    publish(records, "b", 1, DONE, 4.0)
    publish(records, "a", 2, BASE, 5.0)
    incidents.assign(1, "anna", "ops", "", 6.0)
    incidents.snooze(1, None, 2, "ops", "", 6.0)
    incidents.unsnooze(1, "ops", "", 6.0)
    incidents.comment(1, "ops", "it smells", 6.0)
    mutes = Mutes(records.database)
    mutes.lift(mutes.mute("fingerprint", "f0", "ops", "", 9.0, 6.0).id, "ops", 7.0)
    cordons = NodeRecords(records.database)
    cordon = cordons.want_cordon("n1", "slurm", "ops", 7.0, "ECC", stored.id)
    for state in ("standing", "undone"):
        cordons.step_cordon(cordon.id, state, "ops", "", 7.0)
    assert {event.step for id in (1, 2) for event in incidents.events(id)} == set(get_args(Told)) - {"split"}
