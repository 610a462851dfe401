"""Who is suspected stays cheap to say, however many ranks fail and whatever the log claims of places."""

import pytest

from logdoctor.diagnose import suspects
from logdoctor.diagnose.suspects import of_job
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import OFF_THE_BUS, nccl_timeout, prefixed, steps

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


def test_a_host_that_a_line_alone_names_is_no_suspect_where_the_log_shows_those_of_the_job(diagnose: Diagnose) -> None:
    hosts = "".join(f"gpu-0{host}:4182:4182 [0] NCCL INFO NET/IB : Using mlx5_0\n" for host in (7, 8))
    verdict = diagnose(steps(0, 40) + hosts + OFF_THE_BUS)
    assert verdict.reason == "CUDA Error" and not verdict.suspects
    own = diagnose(steps(0, 40) + hosts + OFF_THE_BUS.replace("wn061", "gpu-07"))
    assert [one.node for one in own.suspects] == ["gpu-07"]


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        ([], True),
        (["wn061", "wn062"], True),
        (["WN061.cluster.example"], True),
        (["wn06", "wn0611"], False),
        (["10.0.0.61"], False),
    ],
)
def test_a_node_that_is_not_of_the_job_is_named_and_not_suspected(
    diagnose: Diagnose, nodes: list[str], kept: bool
) -> None:
    verdict = diagnose(steps(0, 40) + OFF_THE_BUS)
    of_it = of_job(verdict, nodes)
    assert [one.node for one in of_it.suspects] == ["wn061"] * kept
    assert (of_it == verdict) == kept
    assert ("Named in the log, but not part of this job: wn061." in of_it.why) == (not kept)
    assert of_job(of_it, nodes) == of_it


def test_an_address_stands_for_itself_where_nodes_have_names(diagnose: Diagnose) -> None:
    verdict = diagnose(steps(0, 40) + prefixed("(RayTrainWorker pid=7, ip=10.0.0.7) ", CUDA.format(0)))
    assert [one.node for one in of_job(verdict, ["gpu-1"]).suspects] == ["10.0.0.7"]
    assert [one.node for one in of_job(verdict, ["10.0.0.7"]).suspects] == ["10.0.0.7"]
    assert not of_job(verdict, ["10.0.0.8"]).suspects


def test_who_says_that_another_went_away_is_no_suspect(diagnose: Diagnose) -> None:
    """Before, it was rank 0, whose only fault was that its peer had died."""
    said = "NCCL error: remote process exited or there was a network error, NCCL version 2.28.9"
    log = steps(0, 40) + f"[rank0]:[E1126 12:46:29.9 ProcessGroupNCCL.cpp:612] [Rank 0] raised the following: {said}\n"
    log += "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    verdict = diagnose(log)
    assert verdict.reason == "NCCL Remote Error" and not verdict.suspects


def test_a_sample_with_a_line_of_a_kernel_suspects_nobody(diagnose: Diagnose) -> None:
    """Where the log shows no hosts, a line of the kernel itself begins with its stamp and its host."""
    xid = "Jun 26 19:01:44 gpu-07 kernel: NVRM: Xid (PCI:0000:52:00): 48, pid=9, DBE (double bit error) in L2 cache\n"
    assert [one.node for one in diagnose(xid).suspects] == ["gpu-07"]
    assert not diagnose(f"sample: {xid}").suspects
