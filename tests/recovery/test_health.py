"""Which checkpoints are suspect."""

from pathlib import Path

import pytest

from logdoctor.job.recovery import catalogue
from logdoctor.job.recovery.catalogue import Checkpoint, Onset
from tests.recovery import makers
from tests.recovery.makers import NOON, ours

CALM = {step: 3.0 - step / 100 + (step % 20) / 200 for step in range(5, 105, 5)}
"""A loss that falls from 3 to 2."""


def suspects(found: list[Checkpoint]) -> list[int | None]:
    return [one.step for one in found if one.health == "suspect"]


def saved(folder: Path, losses: dict[int, float], run: int = 1) -> list[Checkpoint]:
    for step, loss in losses.items():
        ours(folder, step, run, loss=loss, epoch=run)
    return catalogue.read(folder)


def test_a_loss_that_falls_is_healthy(tmp_path: Path) -> None:
    found = saved(tmp_path, CALM)
    assert {one.health for one in found} == {"healthy"}


def test_a_spike_just_before_a_save_makes_the_newest_suspect(tmp_path: Path) -> None:
    found = saved(tmp_path, CALM | {105: 9.0})
    assert suspects(found) == [105]
    assert found[-1].torn == "" and "after 2." in found[-1].suspect
    best = catalogue.best(found)
    assert isinstance(best, Checkpoint) and best.step == 100


def test_all_after_a_spike_that_stays_are_suspect_and_say_since_when(tmp_path: Path) -> None:
    found = saved(tmp_path, CALM | {step: 7.0 for step in range(105, 130, 5)})
    assert suspects(found) == [105, 110, 115, 120, 125]
    assert "rose from 2." in found[-1].suspect and "at step 105" in found[-1].suspect


def test_a_spike_is_seen_though_the_run_began_as_high(tmp_path: Path) -> None:
    found = saved(tmp_path, {10: 10.8, 20: 6.0, 30: 4.0, 40: 3.2, 50: 3.0, 60: 9.0})
    assert suspects(found) == [60]


@pytest.mark.parametrize(("loss", "said"), [("NaN", "NaN"), (float("nan"), "NaN"), (float("inf"), "infinite")])
def test_a_manifest_may_write_a_loss_that_is_no_number_in_two_ways(tmp_path: Path, loss: object, said: str) -> None:
    ours(tmp_path, 10, loss=loss)
    assert catalogue.read(tmp_path)[0].suspect == f"its loss is {said}"


def test_a_spike_that_comes_back_leaves_none_suspect(tmp_path: Path) -> None:
    found = saved(tmp_path, CALM | {105: 9.0, 110: 2.1, 115: 2.0, 120: 2.0})
    assert suspects(found) == []


def test_a_level_that_holds_is_no_spike(tmp_path: Path) -> None:
    """A new mix of data may raise the loss for good."""
    found = saved(tmp_path, CALM | {step: 4.0 for step in range(105, 325, 5)})
    assert suspects(found) == []


def test_nan_is_suspect_however_few_there_are(tmp_path: Path) -> None:
    found = saved(tmp_path, {10: float("nan"), 20: 2.0})
    assert suspects(found) == [10] and found[0].loss is None


def test_a_run_that_rolled_back_is_judged_by_its_own_losses(tmp_path: Path) -> None:
    saved(tmp_path, CALM | {105: 9.0, 110: 9.5, 115: 9.0})
    found = saved(tmp_path, {step: 2.0 for step in range(65, 125, 5)}, run=2)
    assert {(one.step, one.run) for one in found if one.suspect} == {(105, 1), (110, 1), (115, 1)}
    best = catalogue.best(found)
    assert isinstance(best, Checkpoint) and (best.step, best.run) == (120, 2)


def test_the_history_in_a_later_checkpoint_tells_of_an_earlier_one(tmp_path: Path) -> None:
    calm = {step: loss for step, loss in CALM.items() if step <= 60}
    spiked = calm | {step: 8.0 for step in range(65, 95, 5)}
    makers.aged(makers.trainer(tmp_path, 60, calm), NOON)
    makers.aged(makers.trainer(tmp_path, 70, {k: v for k, v in spiked.items() if k <= 70}), NOON + 60)
    makers.aged(makers.trainer(tmp_path, 90, spiked), NOON + 120)
    found = catalogue.read(tmp_path)
    assert suspects(found) == [70, 90] and found[0].health == "healthy" and found[0].loss == calm[60]


@pytest.mark.parametrize(("onset", "wanted"), [(Onset(step=20), [20, 30]), (Onset(time=NOON + 1800), [30])])
def test_what_was_saved_at_or_after_an_onset_is_suspect(tmp_path: Path, onset: Onset, wanted: list[int]) -> None:
    for step in (10, 20, 30):
        ours(tmp_path, step, loss=None)
    assert suspects(catalogue.read(tmp_path, onset=onset)) == wanted
    assert {one.health for one in catalogue.read(tmp_path)} == {"unknown"}


def test_losses_of_the_log_judge_checkpoints_that_hold_none(tmp_path: Path) -> None:
    for step in (50, 100, 110):
        makers.saved_by_torch(tmp_path / f"step-{step}", step)
    log = [*CALM.items(), *((step, 9.0) for step in range(105, 130, 5))]
    found = catalogue.read(tmp_path, losses=log)
    assert suspects(found) == [110] and {one.health for one in found[:2]} == {"healthy"}
