"""How often to save: the formulas against a search and against a simulation."""

import math
import random
from pathlib import Path

import pytest

from logdoctor.job.recovery import catalogue
from logdoctor.job.recovery.catalogue.interval import Span, advise, counted, loss, measured
from logdoctor.job.recovery.catalogue.times import timestamp
from tests.recovery.makers import NOON, ours

DAY, HOUR = 86_400.0, 3600.0


def test_young_is_the_root_and_daly_is_close_to_the_best_of_a_search() -> None:
    for save in (0.5, 10.0, 120.0, 600.0):
        for mtbf in (0.5 * HOUR, 4 * HOUR, 200 * HOUR):
            found = advise(save, mtbf, restart=300.0)
            assert found.young == pytest.approx(math.sqrt(2 * save * mtbf))
            least = min(loss(found.young * (0.3 + n / 100), save, mtbf, 300.0).total for n in range(200))
            assert found.best.total <= least * 1.002 + 1


def test_a_save_that_takes_longer_than_the_job_lives_is_made_once_per_life() -> None:
    assert advise(5000.0, 1000.0).daly == 1000.0
    assert advise(5000.0, 1.0).best.total == DAY


def test_what_is_lost_is_what_a_simulation_loses() -> None:
    dice = random.Random(5)
    interval, save, mtbf, restart = 900.0, 60.0, 2 * HOUR, 120.0
    done = clock = 0.0
    fails = dice.expovariate(1 / mtbf)
    while clock < 4000 * mtbf:
        if clock + interval + save <= fails:
            clock += interval + save
            done += interval
            continue
        clock = fails  # what was made since the last save is lost
        fails = clock + dice.expovariate(1 / mtbf)
        while clock + restart > fails:  # it may fail again while it comes back
            clock = fails
            fails = clock + dice.expovariate(1 / mtbf)
        clock += restart
    simulated = DAY * (1 - done / clock)
    assert loss(interval, save, mtbf, restart).total == pytest.approx(simulated, rel=0.03)


def test_parts_of_a_loss_make_its_sum_and_the_best_is_never_worse_than_today() -> None:
    for today in (60.0, 1800.0, DAY):
        found = advise(30.0, 6 * HOUR, today)
        assert found.present is not None and found.best.total <= found.present.total * 1.0001
        assert found.best.saving + found.best.failing == pytest.approx(found.best.total)


def test_the_checkpoints_of_a_run_tell_cost_and_interval(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        ours(tmp_path, step, seconds=step / 10)
    ours(tmp_path, 30, 2, epoch=1, seconds=2.0, saved_at=timestamp(NOON + 9_000_000))
    ours(tmp_path, 40, seconds=99.0)
    (tmp_path / "step-40.attempt-1" / "manifest.json").unlink()
    found = measured(catalogue.read(tmp_path))
    assert (found.save, found.saves, found.interval, found.intervals, found.steps) == (2.0, 4, 600.0, 2, 10)
    assert measured([]).save is None and measured([]).interval is None


def test_failures_are_counted_over_the_time_that_ran() -> None:
    found = counted([Span(3600.0, True), Span(7200.0, False), Span(-5.0, True)])
    assert (found.mtbf, found.failures, found.attempts) == (5400.0, 2, 3)
    assert counted([Span(10.0, False)]).mtbf is None
