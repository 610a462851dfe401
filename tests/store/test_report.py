"""What a report is reckoned from, and the numbers that come of it, held against some that were reckoned by hand."""

import csv
import io

import msgspec
import pytest

from logdoctor.jobs.report import Spread, as_csv, length, reckon, second
from logdoctor.store.jobs.records import End, JobFacts, Records
from logdoctor.store.jobs.report import Reports
from logdoctor.store.learning.confirmed import AGREEMENT, Confirmed, NewConfirmation
from logdoctor.types import DecidedBy, Failures, ReportedFailure, Verdict
from tests.store.conftest import on_both
from tests.store.test_records import verdict

HOUR = 3600.0
MONDAY = 1_795_392_000.0  # 2026-11-23 00:00:00 UTC
ECC = verdict()
KEY = verdict(reason="Key Error", category="Script", suspects=(), decided_by=DecidedBy("structure", "KeyError"))
UNKNOWN = verdict(reason="Unknown", category="Anomaly", suspects=(), decided_by=DecidedBy("nobody"))


def told(records: Records, prefixes: tuple[str, ...] = ()) -> list[ReportedFailure]:
    return Reports(records.database).failures(prefixes=prefixes).items


def ran(
    records: Records, job: str, number: int, began: float, ended: float | None, said: Verdict, at: float = 0.0
) -> int:
    """An attempt with its verdict, whose id comes back; `at` is when it was judged, by default at its end."""
    records.open_attempt(job, number, began)
    if ended is not None:
        records.end(job, number, End("", 1, None, None, ended))
    stored = records.publish(job, number, said, True, at or ended or began)
    assert stored is not None
    return stored.id


def confirmed(records: Records, job: str, by: str, verdict_id: int) -> int:
    one = NewConfirmation(job, 1, by, "ECC Error", verdict=verdict_id)
    return Confirmed(records.database).add(one, MONDAY).id


@pytest.fixture
def week(records: Records) -> Records:
    """Three jobs: one that failed twice and ran on, one of unknown size, one that told nodes and ranks."""
    records.put_job("big", JobFacts(gpus=1024), MONDAY)
    ran(records, "big", 1, MONDAY, MONDAY + 2 * HOUR, ECC)
    ran(records, "big", 2, MONDAY + 2.5 * HOUR, MONDAY + 6.5 * HOUR, ECC)
    ran(records, "big", 3, MONDAY + 7 * HOUR, None, verdict(outcome="running", reason="None", category="None"))
    ran(records, "unsized", 1, MONDAY, MONDAY + HOUR, KEY)
    records.put_job("counted", JobFacts(nodes=2, ranks_per_node=8), MONDAY)
    ran(records, "counted", 1, MONDAY, MONDAY + 10 * HOUR, KEY)
    return records


def test_the_costs_are_those_reckoned_by_hand(week: Records) -> None:
    report = reckon(Reports(week.database).failures())
    ecc, key = report.reasons
    # 1,024 GPUs for 2 and 4 hours; 16 GPUs for 10 hours; one of unknown size
    assert (ecc.name, ecc.category, ecc.count) == ("ECC Error", "Infrastructure", 2)
    assert ecc.gpus == Spread(2, 1024.0, 1024.0)
    assert ecc.to_failure == Spread(2, 3 * HOUR, 3 * HOUR)
    assert ecc.gpu_hours == 6144.0
    assert ecc.to_restart == Spread(2, 0.5 * HOUR, 0.5 * HOUR)
    assert (key.name, key.count, key.gpus) == ("Key Error", 2, Spread(1, 16.0, 16.0))
    assert key.to_failure == Spread(2, 5.5 * HOUR, 5.5 * HOUR)
    assert key.gpu_hours == 160.0
    assert key.to_restart == Spread(0, None, None)
    assert report.total.gpu_hours == 6304.0
    assert (ecc.share, key.share, report.total.share) == (6144 / 6304, 160 / 6304, 1.0)
    assert report.total.gpus == Spread(3, 688.0, 1024.0)
    assert report.total.to_failure == Spread(4, 4.25 * HOUR, 3 * HOUR)
    assert [(row.name, row.count) for row in report.categories] == [("Infrastructure", 2), ("Script", 2)]
    assert report.decided == {
        "rule": 2,
        "learned": 0,
        "structure": 2,
        "case": 0,
        "agent": 0,
        "person": 0,
        "nobody": 0,
    }
    assert not report.cut


def test_weeks_begin_on_monday(records: Records) -> None:
    records.put_job("j", JobFacts(gpus=10), MONDAY)
    ran(records, "j", 1, MONDAY - 2 * HOUR, MONDAY - 0.5, ECC)
    ran(records, "j", 2, MONDAY - HOUR, MONDAY, KEY)
    ran(records, "j", 3, MONDAY, MONDAY + 15 * 86_400, KEY)
    weeks = reckon(Reports(records.database).failures()).weeks
    assert [(week.monday, week.counts) for week in weeks] == [
        ("2026-11-16", {"Infrastructure": 1}),
        ("2026-11-23", {"Script": 1}),
        ("2026-12-07", {"Script": 1}),
    ]
    assert weeks[1].gpu_hours == {"Script": 10.0}
    assert second("2026-11-23") == MONDAY


def test_nothing_failed(records: Records) -> None:
    ran(records, "j", 1, MONDAY, MONDAY + HOUR, verdict(outcome="completed", reason="None", category="None"))
    report = reckon(Reports(records.database).failures())
    assert (report.total.count, report.total.share, report.total.gpus) == (0, None, Spread(0, None, None))
    assert (report.reasons, report.categories, report.weeks) == ((), (), ())
    assert as_csv(report).count("\n") == 1


def test_a_failure_counts_when_it_ended_else_when_it_was_first_called_one(records: Records) -> None:
    ran(records, "told", 1, MONDAY, MONDAY + HOUR, ECC, at=MONDAY + 9 * HOUR)
    ran(records, "untold", 1, MONDAY, None, verdict(outcome="running", reason="None", category="None"), at=MONDAY + 1)
    ran(records, "untold", 1, MONDAY, None, UNKNOWN, at=MONDAY + 2 * HOUR)
    ran(records, "untold", 1, MONDAY, None, KEY, at=MONDAY + 30 * 86_400)
    failed = {failure.reason: failure.failed for failure in told(records)}
    assert failed == {"ECC Error": MONDAY + HOUR, "Key Error": MONDAY + 2 * HOUR}


@on_both
def test_a_period_holds_its_begin_and_not_its_end(week: Records) -> None:
    reports = Reports(week.database)

    def count(since: float | None, until: float | None) -> int:
        return len(reports.failures(since, until).items)

    assert count(MONDAY + 2 * HOUR, None) == 3
    assert count(MONDAY + 2 * HOUR + 1, None) == 2
    assert count(None, MONDAY + 2 * HOUR) == 1
    assert count(MONDAY, MONDAY + 2 * HOUR + 1) == 2
    assert count(MONDAY + 1, MONDAY) == 0


@on_both
def test_only_jobs_of_the_prefixes_are_seen(week: Records) -> None:
    assert [failure.gpus for failure in told(week, ("big",))] == [1024, 1024]
    assert {failure.gpus for failure in told(week, ("un", "cou"))} == {None, 16}
    assert told(week, ("BIG",)) == told(week, ("%",)) == told(week, ("b_g",)) == []


@on_both
def test_facts_of_other_jobs_are_not_read(records: Records) -> None:
    for job, at in (("a-1", 100.0), ("b-1", 900.0)):
        ran(records, job, 1, at, at + 10, ECC)
        records.put_job(job, JobFacts(gpus=8), at)
        confirmed(records, job, "ops", 1)
    with records.database.writing() as connection:
        connection.exec_driver_sql("UPDATE jobs SET facts = 'damaged' WHERE job = 'b-1'")
        connection.exec_driver_sql("UPDATE confirmations SET body = 'damaged' WHERE job = 'b-1'")
    reports = Reports(records.database)
    for found in (reports.failures(prefixes=("a-",)), reports.failures(until=500.0)):
        assert [(one.decided, one.gpus) for one in found.items] == [("person", 8)]


def test_the_next_attempt_may_have_any_higher_number_and_begin_early(records: Records) -> None:
    ran(records, "j", 1, MONDAY, MONDAY + HOUR, ECC)
    ran(records, "j", 7, MONDAY + 0.5 * HOUR, MONDAY + 2 * HOUR, ECC)
    ran(records, "other", 8, MONDAY, MONDAY + HOUR, KEY)
    assert {failure.failed: failure.next for failure in told(records) if failure.reason == "ECC Error"} == {
        MONDAY + HOUR: MONDAY + 0.5 * HOUR,
        MONDAY + 2 * HOUR: None,
    }
    assert reckon(Reports(records.database).failures()).total.to_restart == Spread(1, 0.0, 0.0)


def test_a_superseded_verdict_does_not_count(records: Records) -> None:
    ran(records, "j", 1, MONDAY, MONDAY + HOUR, ECC)
    ran(records, "j", 1, MONDAY, MONDAY + HOUR, verdict(outcome="completed", reason="None", category="None"))
    assert told(records) == []


def test_who_decided(records: Records) -> None:
    kinds = {
        "a-rule": DecidedBy("rule", "diagnosis/infrastructure/ecc"),
        "b-learned": DecidedBy("rule", "learned/acme/1"),
        "c-case": DecidedBy("case", "case/3"),
        "d-agent": DecidedBy("agent", model="m"),
        "e-person": DecidedBy("case", "case/1"),
        "f-withdrawn": DecidedBy("agent", model="m"),
        "g-agreed": DecidedBy("agent", model="m"),
    }
    ids = {
        job: ran(records, job, 1, MONDAY, MONDAY + 1 + at, verdict(decided_by=by))
        for at, (job, by) in enumerate(kinds.items())
    }
    confirmed(records, "e-person", "ops", ids["e-person"])
    taken_back = confirmed(records, "f-withdrawn", "ops", ids["f-withdrawn"])
    Confirmed(records.database).withdraw(taken_back, "ops", "wrong", MONDAY)
    confirmed(records, "g-agreed", AGREEMENT, ids["g-agreed"])
    decided = [failure.decided for failure in reversed(told(records))]
    assert decided == ["rule", "learned", "case", "agent", "person", "agent", "agent"]


def test_too_many_are_cut_and_that_is_said(week: Records) -> None:
    found = Reports(week.database).failures(most=2)
    assert (len(found.items), found.cut) == (2, True)
    assert [failure.failed for failure in found.items] == [MONDAY + 10 * HOUR, MONDAY + 6.5 * HOUR], "the newest"
    assert reckon(found).cut
    assert not Reports(week.database).failures(most=4).cut


def test_a_size_that_makes_no_sense_is_unknown(records: Records) -> None:
    records.put_job("j", JobFacts(gpus=0, nodes=0, ranks_per_node=8), MONDAY)
    ran(records, "j", 1, MONDAY, MONDAY + HOUR, ECC)
    assert [failure.gpus for failure in told(records)] == [None]


def test_csv_has_a_row_for_each_reason_and_no_formula(week: Records) -> None:
    evil = ReportedFailure('=HYPERLINK("x"),\n', "@x", "rule", 0.0, 60.0, None, 60)
    found = Reports(week.database).failures()
    rows = list(csv.DictReader(io.StringIO(as_csv(reckon(Failures([*found.items, evil], False))), newline="")))
    assert [row["reason"] for row in rows] == ["ECC Error", "Key Error", '\'=HYPERLINK("x"),\n']
    assert rows[2]["category"] == "'@x"
    assert (rows[0]["failures"], rows[0]["gpu_hours"], rows[0]["seconds_to_failure_mean"]) == ("2", "6144.0", "10800.0")
    assert (rows[1]["gpus_known"], rows[1]["seconds_to_restart_mean"]) == ("1", "")


def test_a_report_is_json(week: Records) -> None:
    report = reckon(Reports(week.database).failures(MONDAY, None), MONDAY, None)
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59, "59 s"), (60, "1.0 min"), (5400, "1.5 h"), (90_000, "1.0 d"), (86_400 * 250, "250 d")],
)
def test_a_span_is_told_in_its_largest_unit(seconds: float, words: str) -> None:
    assert length(seconds) == words
