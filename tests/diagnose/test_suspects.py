"""Who is suspected stays cheap to say, however many ranks fail and whatever the log claims of places."""

import pytest

from logdoctor.diagnose import suspects
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import nccl_timeout, steps

CUDA = "[rank{0}]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def test_what_is_told_of_places_is_read_once(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    real = suspects._reported_hosts
    monkeypatch.setattr(suspects, "_reported_hosts", lambda *given: read.append(given) or real(*given))
    verdict = diagnose(steps(0, 40) + "".join(CUDA.format(rank) + nccl_timeout([rank]) for rank in range(300)))
    assert verdict.reason == "ECC Error" and verdict.suspects
    assert 0 < len(read) <= 4


def test_a_task_is_on_the_node_that_slurm_first_names(diagnose: Diagnose) -> None:
    log = steps(0, 40) + CUDA.format(0).replace("[rank0]", "3")
    log += "srun: error: gpu-07: tasks 2-5: Exited\nsrun: error: gpu-09: task 3: Exited\n"
    assert [one.node for one in diagnose(log).suspects] == ["gpu-07"]


def test_a_claim_of_a_billion_tasks_is_bounded(diagnose: Diagnose) -> None:
    claims = "srun: error: gpu-07: tasks 0-900000000: Exited with exit code 1\n" * 50
    verdict = diagnose(steps(0, 40) + CUDA.format(0).replace("[rank0]", "3") + claims)
    assert [one.node for one in verdict.suspects] == ["gpu-07"]


@pytest.mark.parametrize(("length", "named"), [(253, True), (254, False)])
def test_a_name_longer_than_a_host_can_have_names_no_node(diagnose: Diagnose, length: int, named: bool) -> None:
    node = "gpu-" + "1" * (length - 4)
    log = steps(0, 40) + CUDA.format(0).replace("[rank0]", "3") + f"srun: error: {node}: task 3: Exited\n"
    assert [one.node == node for one in diagnose(log).suspects] == [True] * named
