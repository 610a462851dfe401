"""The results of a trial."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from logdoctor.trials.progress import Progress, SetProgress
from logdoctor.trials.trial_file import Trial


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one set. `seconds` are those of all its shards, `score_seconds` those of scoring."""

    model: str
    step: int | None
    set: str
    metric: str
    value: float
    samples: int
    seconds: float
    score_seconds: float


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A trial as JSON: its model, the progress of each set, and the expected seconds until all is done (None if nobody
    works on it)."""

    folder: str
    model: str
    step: int | None
    checkpoint: str
    digest: str
    ended: bool
    sets: list[SetProgress]
    remaining: float | None = None


def results_of(folder: Path, trial: Trial, progress: Progress, remaining: float | None = None) -> Results:
    """Return the results of a trial so far."""
    return Results(
        folder=str(folder),
        model=trial.model.name,
        step=trial.model.step,
        checkpoint=trial.model.path,
        digest=progress.digest,
        ended=progress.ended,
        sets=progress.of_sets(trial),
        remaining=remaining,
    )


def rows_of(trial: Trial, progress: Progress) -> list[Result]:
    """Return a row per metric, in the order of the trial file."""
    made: list[Result] = []
    for one in trial.sets:
        scored = progress.scored.get(one.name)
        if scored is not None:
            seconds = sum(progress.finished[shard].seconds for shard in progress.parts(one.name))
            made += [
                Result(
                    model=trial.model.name,
                    step=trial.model.step,
                    set=one.name,
                    metric=metric,
                    value=value,
                    samples=one.samples,
                    seconds=seconds,
                    score_seconds=scored.seconds,
                )
                for metric, value in scored.metrics.items()
            ]
    return made


def failed(sets: Sequence[SetProgress]) -> list[SetProgress]:
    """Return the sets that failed."""
    return [one for one in sets if one.state == "failed"]
