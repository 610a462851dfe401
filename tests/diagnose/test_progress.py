"""The curve of a verdict: few points that show what many metric lines say."""

import math

from logdoctor.types import Point, Verdict
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import steps

KEY = "KeyError: 'tokens'\n"


def losses(verdict: Verdict) -> list[float | None]:
    return [point.loss for point in verdict.progress.curve]


def test_few_steps_are_all_there(diagnose: Diagnose) -> None:
    verdict = diagnose(steps(5, 9, lambda step: 2.0 + step) + KEY)
    assert [(p.line, p.step, p.loss) for p in verdict.progress.curve] == [(1, 5, 7), (2, 6, 8), (3, 7, 9), (4, 8, 10)]


def test_of_many_steps_the_ends_and_every_extreme_stay(diagnose: Diagnose) -> None:
    special = {0: 11.0, 1234: 57.5, 2345: 0.25, 3999: 3.5}
    verdict = diagnose(steps(0, 4000, lambda step: special.get(step, 2.0)) + KEY)
    curve = verdict.progress.curve
    assert len(curve) <= 96
    assert [point.line for point in curve] == sorted({point.line for point in curve})
    assert {point.step: point.loss for point in curve if point.step in special} == special
    assert all(point.line == (point.step or 0) + 1 for point in curve)


def test_a_loss_printed_as_nan_is_a_gap_where_it_began(diagnose: Diagnose) -> None:
    verdict = diagnose(steps(0, 700) + steps(700, 1000, lambda step: math.nan) + KEY)
    curve = verdict.progress.curve
    assert curve[-1] == Point(1000, 999, None, None)
    assert min(point.line for point in curve if point.loss is None) == 701


def test_all_bad_losses_are_no_error(diagnose: Diagnose) -> None:
    assert set(losses(diagnose(steps(0, 300, lambda step: math.inf) + KEY))) == {None}


def test_a_log_without_metric_lines_has_none(diagnose: Diagnose) -> None:
    assert diagnose("hello\n" + KEY).progress.curve == ()
    assert diagnose("").progress.curve == ()


def test_losses_without_steps_make_a_curve_too(diagnose: Diagnose) -> None:
    log = "".join(
        f"{{'loss': {2 + n / 100}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {n / 50}}}\n" for n in range(9)
    )
    verdict = diagnose(log + KEY)
    assert [(p.line, p.step, p.loss) for p in verdict.progress.curve][:2] == [(1, None, 2.0), (2, None, 2.01)]
    assert verdict.progress.stream == "main"


def test_the_curve_is_of_the_stream_that_came_furthest(diagnose: Diagnose) -> None:
    verdict = diagnose({"rank_0": steps(0, 20, lambda step: 1.0), "rank_1": steps(0, 50, lambda step: 3.0) + KEY})
    assert verdict.progress.stream == "rank_1"
    assert set(losses(verdict)) == {3.0}


def test_lines_without_a_loss_are_no_gaps(diagnose: Diagnose) -> None:
    dense = steps(0, 200)
    bare = dense.replace("lm loss", "grad loss scale").splitlines(keepends=True)
    mixed = "".join(line if number % 3 == 0 else bare[number] for number, line in enumerate(dense.splitlines(True)))
    verdict = diagnose(mixed + KEY)
    assert set(losses(verdict)) == {2.0}
    assert {point.line % 3 for point in verdict.progress.curve} == {1}
