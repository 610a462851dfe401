"""Confidence is held against truth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.calibration import BINS, Bin, JudgedConfidence, calibration, summary


def judged(confidence: float, right: int, wrong: int) -> list[JudgedConfidence]:
    return [JudgedConfidence(confidence, True)] * right + [JudgedConfidence(confidence, False)] * wrong


def test_confidence_that_means_what_it_says_has_no_error() -> None:
    found = calibration(judged(0.8, 8, 2) + judged(0.5, 1, 1))
    assert found.bins == [Bin(2, 0.5, 0.5), Bin(10, 0.8, 0.8)]
    assert (found.error, found.sure, found.sure_right) == (0, 0, None)
    assert summary(found) == "confidence: expected calibration error 0.000"


def test_bins_count_by_their_verdicts() -> None:
    found = calibration(judged(0.95, 1, 2) + judged(0.65, 1, 0))
    assert found.error == pytest.approx((3 * (0.95 - 1 / 3) + 0.35) / 4, abs=1e-4)
    assert (found.sure, found.sure_right) == (3, 0.3333)
    assert summary(found).endswith("33.3 % of 3 right from 90% on")


@pytest.mark.parametrize(("confidence", "mates"), [(0.0, 0.09), (0.3, 0.39), (0.7, 0.79), (0.9, 1.0)])
def test_a_bin_begins_at_its_tenth(confidence: float, mates: float) -> None:
    assert len(calibration([JudgedConfidence(confidence, True), JudgedConfidence(mates, True)]).bins) == 1
    assert len(
        calibration([JudgedConfidence(confidence, True), JudgedConfidence(max(confidence - 0.01, 0), True)]).bins
    ) == (2 if confidence else 1)


def test_of_nothing_there_is_no_error() -> None:
    found = calibration([])
    assert (found.bins, found.error, found.sure_right) == ([], 0, None)
    assert summary(found) == "confidence: no verdict names a reason"


@given(st.lists(st.builds(JudgedConfidence, st.floats(0, 1), st.booleans()), max_size=60))
def test_property_the_bins_hold_every_verdict_once(some: list[JudgedConfidence]) -> None:
    found = calibration(some)
    assert sum(one.verdicts for one in found.bins) == len(some) and len(found.bins) <= BINS
    assert 0 <= found.error <= 1
    assert [one.confidence for one in found.bins] == sorted(one.confidence for one in found.bins)
