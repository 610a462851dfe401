"""Whether confidence is calibrated: of 100 verdicts with confidence 0.8, 80 should be right."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

BINS = 10
SURE = 0.9
"""Confidence from which on people act without a second look, so that hardly any may be wrong."""


class JudgedConfidence(NamedTuple):
    """The confidence of one verdict that names a reason, and whether the reason is acceptable."""

    confidence: float
    right: bool


class Bin(msgspec.Struct, frozen=True):
    """The verdicts in a range of confidence: how many, their mean confidence, and the share that is right."""

    verdicts: int
    confidence: float
    right: float


class Calibration(msgspec.Struct, frozen=True):
    """The curve and its expected error: the mean gap between confidence and truth, weighted by verdicts.

    `sure` counts verdicts with a confidence of at least `SURE`, `sure_right` is the share of them that is right; None
    without any.
    """

    bins: list[Bin]
    error: float
    sure: int
    sure_right: float | None


def calibration(judged: Iterable[JudgedConfidence]) -> Calibration:
    """Return the calibration of verdicts; without any it has no bins and no error."""
    bins: dict[int, list[JudgedConfidence]] = {}
    for one in judged:
        bins.setdefault(min(int(one.confidence * BINS + 1e-9), BINS - 1), []).append(one)
    curve = [_bin(bins[number]) for number in sorted(bins)]
    total = sum(one.verdicts for one in curve) or 1
    sure = [one.right for some in bins.values() for one in some if one.confidence >= SURE]
    return Calibration(
        curve,
        round(sum(one.verdicts * abs(one.confidence - one.right) for one in curve) / total, 4),
        len(sure),
        round(sum(sure) / len(sure), 4) if sure else None,
    )


def _bin(some: list[JudgedConfidence]) -> Bin:
    size = len(some)
    confidence, right = sum(one.confidence for one in some) / size, sum(one.right for one in some) / size
    return Bin(size, round(confidence, 4), round(right, 4))


def summary(found: Calibration) -> str:
    """Return the calibration as one line."""
    if not found.bins:
        return "confidence: no verdict names a reason"
    sure = (
        "" if found.sure_right is None else f", {100 * found.sure_right:.1f} % of {found.sure} right from {SURE:.0%} on"
    )
    return f"confidence: expected calibration error {found.error:.3f}{sure}"
