"""Scores of checkpoints: what evaluation trials measured of a job's checkpoints, by step."""

import msgspec

MOST_SCORES = 5000
"""Scores of one request."""


class Score(msgspec.Struct, frozen=True):
    """One metric of one data set at a step of a job, over `samples` samples."""

    step: int
    set: str
    metric: str
    value: float
    samples: int | None = None


class Curve(msgspec.Struct, frozen=True):
    """One metric of one data set over a job's steps: (step, value), in order."""

    set: str
    metric: str
    points: list[tuple[int, float]]


def curves(scores: list[Score]) -> list[Curve]:
    """Return a curve for each metric of each set, sorted by name."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for one in sorted(scores, key=lambda score: (score.set, score.metric, score.step)):
        found.setdefault((one.set, one.metric), []).append((one.step, one.value))
    return [Curve(*names, points) for names, points in found.items()]
