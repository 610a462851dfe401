"""The fate of every rank of a failed attempt."""

import pytest

from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.diagnose.fates import shown
from logdoctor.types import Verdict
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import nccl_timeout, prefixed, steps, traceback
from tests.diagnose.test_ends import HEAD, complaints, torchrun


def told(verdict: Verdict) -> list[tuple[str, str, str]]:
    return [(one.fate, one.ranks, one.what) for one in verdict.fates]


def test_a_killed_rank_those_that_miss_it_and_one_that_wrote_nothing(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + complaints(*range(7), 8, *range(10, 3000)) + torchrun(7, -9))
    assert told(verdict) == [
        ("ended", "7", "killed by SIGKILL"),
        ("echo", "0-6,8,10-2999", "NCCL Remote Error"),
        ("wrote nothing", "9", ""),
    ]
    assert [one.count for one in verdict.fates] == [1, 2998, 1]
    assert verdict.fates[0].line and verdict.fates[1].line < verdict.fates[0].line


def test_the_rank_with_its_own_fault(diagnose: Diagnose) -> None:
    log = HEAD + prefixed("[rank3]: ", traceback("KeyError: 'tokens'")) + complaints(0, 1, 2)
    assert told(diagnose(log)) == [("own fault", "3", "Key Error"), ("echo", "0-2", "NCCL Remote Error")]


def test_a_rank_that_others_waited_for(diagnose: Diagnose) -> None:
    assert told(diagnose(HEAD + nccl_timeout([0, 1, 2, 4, 5, 6, 7]))) == [
        ("echo", "0-2,4-7", "NCCL Timeout Error"),
        ("wrote nothing", "3", ""),
    ]


def test_a_rank_that_a_line_names_as_missing(diagnose: Diagnose) -> None:
    said = "[rank0]: RuntimeError: Rank 3 failed to pass monitoredBarrier in 1800000 ms\n"
    fates = told(diagnose(HEAD + nccl_timeout([0, 1, 2]) + said))
    assert ("missing", "3", "others waited for it") in fates and "own fault" not in {fate for fate, _, _ in fates}


def test_streams_of_ranks_that_end_early_are_silent(diagnose: Diagnose) -> None:
    log = {f"rank{rank}": steps(0, 60 if rank != 2 else 5) for rank in range(4)}
    log["rank1"] += traceback("KeyError: 'tokens'")
    fates = told(diagnose(log, ReportedEnd(1)))
    assert ("own fault", "1", "Key Error") in fates and ("no error", "0,3", "") in fates
    assert ("silent", "2", "") in fates


def test_an_attempt_without_ranks_or_failure_has_none(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + traceback("KeyError: 'tokens'")).fates == ()
    assert diagnose(HEAD).fates == ()


@pytest.mark.parametrize(
    ("ranks", "text"), [([5], "5"), ([0, 1, 2, 4], "0-2,4"), ([7, 9, 10], "7,9-10"), ([0, 1], "0-1")]
)
def test_ranks_are_shown_as_ranges(ranks: list[int], text: str) -> None:
    assert shown(ranks) == text


def test_ranges_are_cut() -> None:
    text = shown(range(0, 5000, 2))
    assert len(text) <= 404 and text.startswith("0,2,4,") and text.endswith(",...")
