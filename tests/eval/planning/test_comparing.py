"""Policies beside each other."""

import json

import pytest
from click.testing import CliRunner

from eval.planning.__main__ import main
from eval.planning.comparing import CLAIMED, TOLERANCE, Compared, calibrated, compare
from eval.planning.workload import Workload

SEED = 100  # near one that is calibrated


@pytest.fixture(scope="module")
def workload() -> Workload:
    return next(calibrated(SEED))[1]


@pytest.fixture(scope="module")
def compared(workload: Workload) -> dict[int, Compared]:
    return {nodes: compare(workload, nodes) for nodes in CLAIMED}


def test_the_papers_policy_does_what_the_paper_says_first(compared: dict[int, Compared]) -> None:
    for nodes, one in compared.items():
        assert one.trial_per_set / one.paper == pytest.approx(CLAIMED[nodes], abs=TOLERANCE)


def test_the_plan_is_near_its_bound_and_shorter_than_the_papers(compared: dict[int, Compared]) -> None:
    for one in compared.values():
        for planned in (one.commands, one.served):
            assert planned.bound <= planned.right + 0.01 <= 1.05 * planned.bound
            assert planned.right < one.paper < one.trial_per_set
            assert planned.half_off < one.paper and planned.wrong < one.paper
    for planned in (compared[1].commands, compared[1].served):
        assert planned.half_off < 1.08 * planned.right


def test_the_same_workload_gives_the_same_result(workload: Workload, compared: dict[int, Compared]) -> None:
    assert compare(workload, 1) == compared[1]


def test_the_figures_of_the_documentation_are_printed(compared: dict[int, Compared]) -> None:
    told = json.loads(CliRunner().invoke(main, ["--workloads", "1", "--seed", str(SEED)]).stdout)
    assert told["rows"]["paper"]["4"]["median"] == compared[4].trial_per_set / compared[4].paper
