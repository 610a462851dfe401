"""The simulated cluster does what the paper measured, and rivals deal sets out by their own rules."""

from itertools import pairwise

import pytest
import simpy

from eval.planning import rivals
from eval.planning.rivals import Job
from eval.planning.simulation import Nic, Policy, Scoring, queue, simulate
from eval.planning.workload import GPUS, LOAD, Drawn, Workload, draw
from logdoctor.trials.types import Shard

ALONE = Policy(shared_model=False, stays=False, scoring=Scoring.ON_GPU)


def loaded(starts: list[float]) -> list[float]:
    """When loads that begin at these times end, on one NIC."""
    env = simpy.Environment()
    nic = Nic(env, LOAD)
    ends = [0.0] * len(starts)

    def load(number: int) -> object:
        yield env.timeout(starts[number])
        yield nic.load()
        ends[number] = env.now

    for number in range(len(starts)):
        env.process(load(number))
    env.run()
    return ends


def test_one_loads_in_four_seconds_and_eight_in_thirty_five() -> None:
    assert loaded([0.0]) == pytest.approx([4.3], abs=0.05)
    assert loaded([0.0] * 8) == pytest.approx([34.6] * 8, abs=0.05)


def test_who_comes_later_shares_what_is_left() -> None:
    half = LOAD / 2
    assert loaded([0.0, half]) == pytest.approx([half + 2 * half, half + 2 * half + half])


def humaneval() -> tuple[Workload, Drawn]:
    workload = draw(3)
    one = next(one for one in workload.sets if one.name == "humaneval")
    return workload, one


def test_humaneval_takes_on_a_full_node_what_the_paper_measured() -> None:
    workload, one = humaneval()
    eight = Workload(workload.start, tuple(one._replace(name=f"copy{number}") for number in range(GPUS)))
    took = simulate(eight, 1, ALONE, queue(rivals.trial_per_set(eight)))
    assert took == pytest.approx(221, abs=1)
    before = took - one.score - 114
    assert before / took == pytest.approx(0.295, abs=0.005)
    assert one.score / took == pytest.approx(0.19, abs=0.005)


def test_metrics_beside_the_gpu_or_after_all() -> None:
    sets = tuple(Drawn(f"set{number}", 10, 0.0, 1.0, 100.0) for number in range(2 * GPUS))
    workload = Workload(0.0, sets)
    jobs = rivals.trial_per_set(workload)
    took = {scoring: simulate(workload, 1, Policy(True, True, scoring), queue(jobs)) for scoring in Scoring}
    loading = took[Scoring.BESIDE] - 120
    assert took[Scoring.ON_GPU] == pytest.approx(loading + 220)
    assert took[Scoring.AFTER] == pytest.approx(loading + 120)


def test_a_set_that_is_not_made_whole_is_noticed() -> None:
    workload, one = humaneval()
    with pytest.raises(AssertionError, match="humaneval"):
        simulate(workload, 1, ALONE, queue([Job((Shard(one.name, 0, one.samples - 1),))]))


@pytest.mark.parametrize("gpus", [8, 32])
@pytest.mark.parametrize("seed", range(5))
def test_every_rival_makes_every_sample_once(gpus: int, seed: int) -> None:
    workload = draw(seed)
    every = {
        "alone": rivals.trial_per_set(workload),
        "paper": rivals.paper(workload, gpus),
        "size": rivals.size_partitioner(workload),
        "worker": rivals.worker_partitioner(workload, gpus),
    }
    for jobs in every.values():
        shards = [shard for job in jobs for shard in job.shards]
        for one in workload.sets:
            mine = sorted((shard.start, shard.end) for shard in shards if shard.set == one.name)
            assert mine[0][0] == 0 and mine[-1][1] == one.samples
            assert all(before[1] == after[0] for before, after in pairwise(mine))
    assert len(every["alone"]) == 63 and len(every["paper"]) == gpus


def of(*sets: Drawn) -> Workload:
    return Workload(10.0, sets)


def test_a_worker_gets_its_parts_in_turns_and_none_has_fewer_than_16_samples() -> None:
    jobs = rivals.worker_partitioner(of(Drawn("small", 16, 0, 1, 0), Drawn("other", 40, 0, 1, 0)), 4)
    assert [job.shards for job in jobs] == [
        (Shard("small", 0, 16),),
        (Shard("other", 0, 16),),
        (Shard("other", 16, 32),),
        (Shard("other", 32, 40),),
    ]


def test_sizes_are_samples_times_a_factor_and_small_sets_share_a_task() -> None:
    large = Drawn("large", 3000, 0, 1, 0)  # 60,000
    long = Drawn("long", 300, 0, 1, 0, long=True)  # 60,000
    small, labels = Drawn("small", 500, 0, 1, 0), Drawn("labels", 2500, 0, 1, 0, generated=False)  # 10,000 each
    jobs = rivals.size_partitioner(of(small, large, labels, long))
    assert sorted(sorted(shard.set for shard in job.shards) for job in jobs) == [
        ["labels", "small"],
        *([["large"]] * 2),
        *([["long"]] * 2),
    ]


def test_the_paper_breaks_long_sets_and_deals_out_the_longest_metric_first() -> None:
    sets = (Drawn("long", 100, 0, 10, 0), Drawn("scored", 10, 0, 10, 50), Drawn("short", 10, 0, 10, 0))
    jobs = rivals.paper(of(*sets), 2)  # an even share is 600 s
    assert [[shard.set for shard in job.shards] for job in jobs] == [["scored", "long"], ["long", "short"]]
