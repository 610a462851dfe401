"""What rows say: the numbers of the table by reason, held against some that were reckoned by hand."""

import datetime

from logdoctor.jobs.report import Spread
from logdoctor.pipeline.batch.rows import Row
from logdoctor.pipeline.batch.summary import summarise

MARCH = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)


def failure(job: str = "a", begin: float = 0, hours: float = 2.0, **changes: object) -> Row:
    """A row of a job that ran for some hours from the first of March on."""
    start = MARCH + datetime.timedelta(hours=begin)
    known: dict[str, object] = {
        "source": f"{job}.log",
        "job": job,
        "framework": "megatron",
        "gpus": 8,
        "started": start,
        "ended": start + datetime.timedelta(hours=hours),
        "outcome": "failed",
        "reason": "ECC Error",
        "category": "Infrastructure",
        "confidence": 0.95,
        "decided_by": "rule",
        "rule": "diagnosis/infrastructure/ecc",
    }
    return Row(**(known | changes))  # type: ignore[arg-type]


def test_costs_are_those_reckoned_by_hand() -> None:
    found = summarise(
        [
            failure(suspects=("gpu-1", "gpu-2")),
            failure(begin=3, hours=4, gpus=24, suspects=("gpu-1",)),
            failure("b", reason="Key Error", category="Script", started=None, ended=None, gpus=None, framework=None),
            failure("c", outcome="completed", reason="None", category="None"),
        ]
    )
    ecc, key = found.report.reasons
    assert (ecc.name, ecc.count, ecc.gpus, ecc.to_failure) == (
        "ECC Error",
        2,
        Spread(2, 16, 16),
        Spread(2, 10800, 10800),
    )
    assert (ecc.gpu_hours, ecc.share) == (8 * 2 + 24 * 4, 1.0)
    assert ecc.to_restart == Spread(1, 3600.0, 3600.0)  # the second attempt began an hour after the first one failed
    assert (key.count, key.gpus.known, key.to_failure.known) == (1, 0, 0)
    assert found.outcomes == {"failed": 3, "completed": 1}
    assert found.days == {"2026-03-01": {"Infrastructure": 2}}
    assert found.frameworks == {"megatron": {"Infrastructure": 2}, "unknown": {"Script": 1}}
    assert list(found.nodes.items()) == [("gpu-1", {"Infrastructure": 2}), ("gpu-2", {"Infrastructure": 1})]
    assert sum(found.confidence) == found.confidence[9] == 3
    assert sum(week.count for week in found.report.weeks) == 2  # the one without a date is in none


def test_what_cannot_be_read_is_counted_and_named() -> None:
    rows = [Row(source=f"{number}.gz", error=f"{number}.gz: is damaged. Try again.") for number in range(150)]
    found = summarise(rows)
    assert (found.rows, found.errors, len(found.unread)) == (150, 150, 100)
    assert found.report.total.count == 0 and found.outcomes == {} and found.made_with == {}


def test_the_clock_of_a_log_tells_days_and_no_durations() -> None:
    found = summarise([failure(ended=None, onset=MARCH + datetime.timedelta(days=2))])
    assert found.days == {"2026-03-03": {"Infrastructure": 1}}
    assert found.report.total.to_failure.known == 0 and found.report.total.gpu_hours == 0


def test_learned_rules_are_told_from_shipped_ones() -> None:
    found = summarise([failure(), failure(rule="learned/diagnosis/1a"), failure(rule=None, decided_by="agent")])
    assert {name: number for name, number in found.report.decided.items() if number} == {
        "rule": 1,
        "learned": 1,
        "agent": 1,
    }


def test_nothing_is_a_summary_too() -> None:
    found = summarise([])
    assert (found.rows, found.report.total.count, found.days) == (0, 0, {})
