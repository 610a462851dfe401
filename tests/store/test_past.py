"""Attempts that were over when they were entered: they count for reports and lists, and disturb nobody."""

import itertools
from typing import Any

import msgspec
import pytest

from logdoctor.errors import InputError, LimitReached, NameRefused
from logdoctor.store.incidents.grouping import QUIET
from logdoctor.store.incidents.notices import Notices
from logdoctor.store.incidents.table import Incidents, WantedIncidents
from logdoctor.store.jobs.past import PastAttempt, PastRecords
from logdoctor.store.jobs.records import End, JobFacts, Records, Wanted
from logdoctor.store.jobs.report import Reports
from logdoctor.store.learning.confirmed import Confirmed, NewConfirmation
from logdoctor.store.log.table import LogLimits, LogTable, NewBytes, Reached
from logdoctor.store.names import MAX_ATTEMPT, Key
from logdoctor.types import Verdict
from tests.store.conftest import on_both
from tests.store.test_records import BASE, verdict

NOW = 1_795_500_000.0
DAY = 86_400.0
LONG_AGO = NOW - 300 * DAY


def past(
    job: str = "old", key: str = "a.log", ended: float = LONG_AGO, number: int | None = None, said: Verdict = BASE
) -> PastAttempt:
    facts = JobFacts(framework="megatron", gpus=1024)
    return PastAttempt(
        job=job, key=key, number=number, facts=facts, started=ended - 3600, ended=ended, exit_code=1, verdict=said
    )


def entered(records: Records, *some: PastAttempt) -> list[tuple[int | None, str]]:
    return [(one.attempt, one.what) for one in PastRecords(records.database).enter_past(some, NOW)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"exit_code": 1 << 40}, "its exit code cannot be"),
        ({"key": "k" * 201}, "its key cannot be"),
        ({"facts": JobFacts(user="u" * 10_001)}, "'user' in its facts cannot be"),
        ({"facts": JobFacts(gpus=-1)}, "'gpus' in its facts cannot be"),
    ],
)
def test_a_data_folder_takes_no_more_than_a_service(records: Records, values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        PastRecords(records.database).enter_past([past(), msgspec.structs.replace(past("new"), **values)], NOW)
    assert records.job("old") is None


@on_both
def test_a_past_attempt_counts_for_its_own_time(records: Records) -> None:
    assert entered(records, past()) == [(1, "entered")]
    (stored,) = records.search(Wanted(since=LONG_AGO - 1, until=LONG_AGO + 1)).items
    assert (stored.job, stored.attempt, stored.at, stored.final, stored.verdict) == ("old", 1, LONG_AGO, True, BASE)
    (failure,) = Reports(records.database).failures(LONG_AGO - 1, LONG_AGO + 1).items
    assert (failure.reason, failure.started, failure.failed, failure.gpus) == (
        "ECC Error",
        LONG_AGO - 3600,
        LONG_AGO,
        1024,
    )
    attempt = records.attempt("old", 1)
    assert attempt is not None and attempt.settled and attempt.deleted == NOW
    assert attempt.ends == (End("", 1, None, None, LONG_AGO),)
    assert records.unsettled() == [] and records.awaiting() == (0, None)


def test_nobody_is_told_and_nothing_is_open(records: Records) -> None:
    entered(records, past(), past("young", ended=NOW - 60))
    incidents = Incidents(records.database)
    assert incidents.search(WantedIncidents(states=("new", "acknowledged"))).items == []
    resolved = incidents.search(WantedIncidents(states=("resolved",))).items
    assert sorted(one.last for one in resolved) == [LONG_AGO, NOW - 60]
    assert Notices(records.database).unsent(0.0, NOW) == []
    assert Notices(records.database).resolutions()[0] == []


def test_failures_of_one_time_are_one_incident_and_leave_open_ones_alone(records: Records) -> None:
    records.publish("live", 1, BASE, True, NOW)
    entered(
        records,
        *(past(f"old-{number}", ended=LONG_AGO + number * DAY) for number in range(3)),
        past("much-later", ended=LONG_AGO + 3 * QUIET),
        past("just-now", ended=NOW - 60),
    )
    incidents = Incidents(records.database)
    (live,) = incidents.search(WantedIncidents(states=("new",))).items
    assert (live.attempts, live.opened) == (1, NOW)
    resolved = incidents.search(WantedIncidents(states=("resolved",))).items
    assert sorted(one.attempts for one in resolved) == [1, 1, 3]
    records.publish("live-2", 1, BASE, True, NOW + 1)  # the next real one joins the open one
    assert [one.attempts for one in incidents.search(WantedIncidents(states=("new",))).items] == [2]


@on_both
@pytest.mark.parametrize("order", list(itertools.permutations((0, 5, 10))))
def test_incidents_do_not_depend_on_the_order_of_entering(records: Records, order: tuple[int, ...]) -> None:
    entered(records, *(past(f"job-{day}", ended=LONG_AGO + day * DAY) for day in order))
    found = Incidents(records.database).search(WantedIncidents(states=("resolved",))).items
    (whole,) = (one for one in found if one.attempts)
    assert (whole.attempts, whole.jobs, whole.opened, whole.last) == (3, 3, LONG_AGO, LONG_AGO + 10 * DAY)
    assert all(one.merged_into == whole.id for one in found if not one.attempts)


def test_entered_twice_it_is_there_once(records: Records) -> None:
    assert entered(records, past(), past("b"), past()) == [(1, "entered"), (1, "entered"), (1, "unchanged")]
    assert entered(records, past(), past("b")) == [(1, "unchanged"), (1, "unchanged")]
    other = verdict(reason="Key Error", category="Script", fingerprint="f9", suspects=())
    assert entered(records, past(said=other)) == [(1, "replaced")]
    (stored,) = records.search(Wanted(job="old")).items
    assert (stored.verdict.reason, stored.at, len(records.history("old", 1))) == ("Key Error", LONG_AGO, 2)
    incidents = Incidents(records.database)
    assert incidents.search(WantedIncidents(states=("new", "acknowledged"))).items == []
    assert Notices(records.database).unsent(0.0, NOW) == []


def test_what_a_person_said_stays(records: Records) -> None:
    entered(records, past())
    Confirmed(records.database).add(NewConfirmation("old", 1, "anna", "ECC Error"), NOW)
    assert entered(records, past(said=verdict(reason="Key Error"))) == [(1, "confirmed")]
    assert records.search(Wanted(job="old")).items[0].verdict == BASE


def test_what_the_service_watched_stays(records: Records) -> None:
    records.publish("live", 1, BASE, True, NOW)
    other = verdict(reason="Key Error")
    assert entered(records, past("live", number=1, said=other)) == [(1, "known")]
    assert entered(records, past("live", said=other)) == [(None, "known")]
    assert entered(records, past("live", number=2, said=other)) == [(2, "entered")]
    current = records.current("live", 1)
    assert current is not None and current.verdict == BASE
    records.put_job("told", JobFacts(framework="deepspeed", user="anna"), NOW)
    entered(records, past("told"))
    job = records.job("told")
    assert job is not None and (job.facts.framework, job.facts.user, job.facts.gpus) == ("deepspeed", "anna", 1024)


def test_nodes_of_a_past_attempt_are_a_claim(records: Records) -> None:
    facts = JobFacts(nodelist="gpu-[01-08]", placed=True, like="megatron")
    PastRecords(records.database).enter_past(
        [PastAttempt(job="j", key="k", facts=facts, ended=LONG_AGO, verdict=BASE)], NOW
    )
    job = records.job("j")
    assert job is not None and job.facts == JobFacts(nodelist="gpu-[01-08]", placed=False)


def test_attempts_of_a_job_get_numbers_in_their_order(records: Records) -> None:
    some = [past(key=name, ended=LONG_AGO + place) for place, name in enumerate("abc")]
    assert entered(records, *some) == [(1, "entered"), (2, "entered"), (3, "entered")]
    assert entered(records, some[1]) == [(2, "unchanged")]


@pytest.mark.parametrize("ended", [float("nan"), float("inf"), -1.0, NOW + DAY])
def test_times_that_cannot_be_enter_nothing(records: Records, ended: float) -> None:
    with pytest.raises(InputError, match="cannot have run"):
        PastRecords(records.database).enter_past([past("fine"), past(ended=ended)], NOW)
    assert records.job("fine") is None


def test_all_are_entered_or_none(records: Records) -> None:
    with pytest.raises(NameRefused):
        PastRecords(records.database).enter_past([past("fine"), past("a\0b")], NOW)
    assert records.job("fine") is None and records.search(Wanted()).items == []


def test_nothing_is_judged_again_without_a_log(records: Records) -> None:
    entered(records, past())
    assert records.reopen("old", 1) is None
    assert records.search(Wanted(job="old")).items[0].final


def incidents_of(records: Records, state: str) -> list[tuple[int, float]]:
    """How many attempts incidents in this state have, and when the last of them failed."""
    found = Incidents(records.database).search(WantedIncidents(states=(state,))).items
    return [(one.attempts, one.last) for one in found if one.attempts]


def test_a_live_attempt_takes_the_place_of_a_past_one(records: Records) -> None:
    entered(records, past(), past("beside"))
    (begun,) = records.open_attempts([("old", 1)], NOW)
    assert begun == records.attempt("old", 1) and begun.deleted is None
    assert (begun.started, begun.ended, begun.settled, begun.ends) == (NOW, None, False, ())
    former = records.current("old", 1)
    assert former is not None and (former.verdict, former.final) == (BASE, False)
    log = LogTable(records.database, LogLimits(1000, 10, 1 << 20))
    assert log.append([NewBytes(Key("old", 1, "main"), 0, b"a\n")], NOW) == [Reached(2, 1)]
    assert entered(records, past(number=1, said=verdict(reason="Key Error"))) == [(1, "known")]
    assert records.open_attempts([("old", 1)], NOW + 5)[0].started == NOW  # it begins once
    beside = records.attempt("beside", 1)
    assert beside is not None and beside.deleted == NOW and beside.ended == LONG_AGO


@pytest.mark.parametrize("said", [BASE, verdict(reason="Key Error", category="Script", fingerprint="f9", suspects=())])
def test_the_failure_of_a_live_attempt_is_a_new_one(records: Records, said: Verdict) -> None:
    entered(records, past())
    records.open_attempts([("old", 1)], NOW)
    former = records.current("old", 1)
    stored = records.publish("old", 1, said, False, NOW - 30.0)  # by a clock that is behind
    assert stored is not None and former is not None and (stored.at, stored.id) != (former.at, former.id)
    assert [one.current for one in records.history("old", 1)] == [True, False]
    assert (incidents_of(records, "new"), incidents_of(records, "resolved")) == ([(1, NOW)], [])
    assert len(Notices(records.database).unsent(0.0, NOW + 100)) == 1
    assert records.publish("old", 1, said, False, NOW + 1) is None
    records.publish("old", 1, said, True, NOW + 2)
    assert incidents_of(records, "new") == [(1, NOW)]
    (failure,) = Reports(records.database).failures().items
    assert (failure.started, failure.failed) == (NOW, NOW)


def test_a_past_attempt_whose_clock_was_ahead_is_before_the_live_one(records: Records) -> None:
    entered(records, past(ended=NOW + 30))
    (begun,) = records.open_attempts([("old", 1)], NOW)
    assert begun.started > NOW + 30
    records.publish("old", 1, BASE, True, NOW + 1)
    assert len(records.history("old", 1)) == 2 and incidents_of(records, "new") == [(1, begun.started)]


@on_both
def test_a_past_attempt_with_a_higher_number_is_no_later_one(records: Records) -> None:
    records.open_attempts([("old", 1)], NOW)
    entered(records, past(number=7))
    assert records.later_attempt("old", 1) is None
    assert records.last_attempts(["old", "none"]) == {"old": (1, True)}
    records.open_attempts([("old", 2)], NOW + 1)
    later = records.later_attempt("old", 1)
    assert later is not None and later.number == 2 and records.last_attempts(["old"]) == {"old": (2, True)}
    entered(records, past("all", "a", number=3), past("all", "b", LONG_AGO - DAY, number=4))
    later = records.later_attempt("all", 3)
    assert later is not None and later.number == 4, "past ones have the order of their numbers"
    assert records.last_attempts(["all"]) == {"all": (4, False)}
    entered(records, past(key="new", ended=NOW + 40, number=8))
    assert records.last_attempts(["old"]) == {"old": (2, True)}, "it began before"


@on_both
def test_what_was_said_of_a_past_attempt_is_not_said_of_the_live_one_in_its_place(records: Records) -> None:
    entered(records, past())
    confirmed = Confirmed(records.database)
    case = confirmed.add(NewConfirmation("old", 1, "anna", "ECC Error"), NOW - 10)
    assert confirmed.live("old", 1) == case
    records.open_attempts([("old", 1)], NOW)
    other = verdict(reason="Key Error", category="Script", fingerprint="f9", suspects=())
    records.publish("old", 1, other, True, NOW + 1)
    confirmed.keep_lines("old", 1, [], outcome="failed", reason="Key Error")
    kept = confirmed.kept("old", 1)
    assert confirmed.live("old", 1) is None and kept is not None and not kept.confirmed
    assert [failure.reason for failure in Reports(records.database).failures().items] == ["Key Error"]
    assert confirmed.cases() == [case], "what was learned of the past one is known for ever"
    again = confirmed.add(NewConfirmation("old", 1, "ben", "Key Error"), NOW + 2)
    assert confirmed.live("old", 1) == again


def test_an_end_opens_a_live_attempt(records: Records) -> None:
    entered(records, past())
    ended = records.end("old", 1, End("", 0, None, None, NOW))
    assert (ended.deleted, ended.started, ended.ends) == (None, NOW, (End("", 0, None, None, NOW),))
    assert [one.job for one in records.unsettled()] == ["old"]


def test_no_sender_has_the_key_of_a_past_attempt(records: Records) -> None:
    entered(records, past(key="k"))
    for key in ("past/k", "past/other"):
        with pytest.raises(NameRefused, match="begins with past/, as those of past attempts do"):
            records.allot_attempt("old", key, NOW)
    assert records.allot_attempt("old", "k", NOW) == 2


@on_both
def test_a_past_attempt_without_a_number_has_none_beyond_the_last(records: Records) -> None:
    entered(records, past(number=MAX_ATTEMPT))
    with pytest.raises(LimitReached, match=f"attempt {MAX_ATTEMPT}"):
        PastRecords(records.database).enter_past([past("fine"), past(key="b")], NOW)
    assert records.job("fine") is None


def test_dates_that_are_corrected_arrive(records: Records) -> None:
    entered(records, past(), past("beside", ended=LONG_AGO + 60))
    corrected = LONG_AGO + 30 * DAY
    assert entered(records, past(ended=corrected)) == [(1, "replaced")]
    assert entered(records, past(ended=corrected)) == [(1, "unchanged")]
    attempt, job = records.attempt("old", 1), records.job("old")
    assert attempt is not None and (attempt.started, attempt.ended) == (corrected - 3600, corrected)
    assert attempt.ends[0].at == corrected and attempt.deleted == NOW
    assert job is not None and (job.created, job.updated) == (corrected - 3600, corrected)
    (stored,) = records.search(Wanted(job="old")).items
    assert (stored.at, stored.final, stored.verdict) == (corrected, True, BASE)
    assert sorted(incidents_of(records, "resolved")) == [(1, LONG_AGO + 60), (1, corrected)]
    assert incidents_of(records, "new") == [] and Notices(records.database).unsent(0.0, NOW) == []
    other = verdict(reason="Key Error", category="Script", fingerprint="f9", suspects=())
    assert entered(records, past(ended=LONG_AGO, said=other)) == [(1, "replaced")]
    attempt = records.attempt("old", 1)
    assert attempt is not None and attempt.ended == LONG_AGO
    assert sorted(incidents_of(records, "resolved")) == [(1, LONG_AGO), (1, LONG_AGO + 60)]


def told(key: str, ended: float, **facts: Any) -> PastAttempt:
    return msgspec.structs.replace(past(key=key, ended=ended), facts=JobFacts(**facts))


def test_facts_that_are_corrected_arrive_unless_others_told_them(records: Records) -> None:
    first, last = told("a", LONG_AGO, gpus=8, framework="fsdp"), told("b", LONG_AGO + DAY, gpus=16, user="anna")
    assert entered(records, first, last) == [(1, "entered"), (2, "entered")]
    assert entered(records, first, last) == [(1, "unchanged"), (2, "unchanged")]
    assert entered(records, told("b", LONG_AGO + DAY, gpus=32, user="ben")) == [(2, "replaced")]
    job = records.job("old")
    assert job is not None and job.facts == JobFacts(gpus=32, user="ben", framework="fsdp")
    assert {one.user for one in records.search(Wanted(user="ben")).items} == {"ben"}
    assert len(records.search(Wanted(user="ben")).items) == 2
    records.put_job("old", JobFacts(gpus=64), NOW)
    assert entered(records, last) == [(2, "unchanged")]
    job = records.job("old")
    assert job is not None and job.facts.gpus == 64
