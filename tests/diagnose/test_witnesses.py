"""Incidents of several sources: what is said with all of them, and by the log alone."""

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from logdoctor.diagnose.ending import NOTHING, ReportedEnd
from logdoctor.types import Coverage
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import nccl_timeout, steps, traceback
from tests.diagnose.test_ends import complaints, torchrun

HEAD = steps(0, 60)
"""Steps until 11:02."""
SILENT = HEAD + " [2024-03-02 11:32:00] heartbeat\n"
XID = "NVRM: Xid (PCI:0000:17:00): {}, pid=5001, name=python3, {}"
OFF = XID.format(79, "GPU has fallen off the bus.")
LOST = "[rank2]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"
KILL = "Memory cgroup out of memory: Killed process {} (python3) total-vm:90178320kB, anon-rss:83123456kB"
STOPPED = "*** slurmstepd: error: *** STEP 88.0 ON gpu-07 CANCELLED AT 2024-03-02T11:02:05 ***\n"


def kernel(*messages: str, node: str = "gpu-07", time: str = "11:02:01") -> dict[str, str]:
    return {f"kernel@{node}": "".join(f"2024-03-02T{time}.5+0000 {node} kernel: {one}\n" for one in messages)}


def gpu(*messages: str) -> dict[str, str]:
    return {"nvidia-smi@gpu-07": "".join(f"2024-03-02T11:02:09.5+0000 gpu-07 nvidia-smi: {one}\n" for one in messages)}


def slurm(state: str, reason: str = "None") -> dict[str, str]:
    return {"slurm@88": f"slurm: JobId=88 JobState={state} Reason={reason} NodeList=gpu-[07-08]\n"}


class Incident(NamedTuple):
    """A log, other sources, the end; the reason or outcome with all of them, and by the log alone; the node."""

    what: str
    log: str
    beside: Mapping[str, str]
    found: str
    alone: str
    end: ReportedEnd = ReportedEnd(1)
    node: str = ""


KILLED, ASKED = ReportedEnd(None, 9), ReportedEnd(None, 15)
INCIDENTS = [
    Incident("NCCL waits for a GPU that fell off the bus", HEAD + nccl_timeout([2, 3]), kernel(OFF), "CUDA Error",
             "NCCL Timeout Error", node="gpu-07"),
    Incident("of two nodes one lost its GPU", HEAD + nccl_timeout([2, 3]),
             kernel("eth0: link is up") | kernel(OFF, node="gpu-08"), "CUDA Error", "NCCL Timeout Error",
             node="gpu-08"),
    Incident("a hang, and the driver gave up", SILENT, kernel(XID.format(119, "Timeout after 6s of waiting for RPC")),
             "CUDA Error", "Hang", ASKED, "gpu-07"),
    Incident("a kill that the kernel names", HEAD + complaints(0) + torchrun(1, -9), kernel(KILL.format(5001)),
             "Out of Memory Error", "Unknown"),
    Incident("a kill of a stranger", HEAD + complaints(0) + torchrun(1, -9), kernel(KILL.format(4999)), "Unknown",
             "Unknown"),
    Incident("a kill that the cgroup counts", HEAD + complaints(0) + torchrun(1, -9),
             {"cgroup@gpu-07": "[logdoctor] memory.events: the kernel killed a process of this job for memory\n"},
             "Out of Memory Error", "Unknown"),
    Incident("a command that died without a word", HEAD,
             kernel(KILL.format(77)) | {"kernel@gpu-07": kernel(KILL.format(77))["kernel@gpu-07"]
             + "[logdoctor] kernel: process 77 of this job was killed for memory\n"}, "Out of Memory Error", "Unknown",
             KILLED),
    Incident("Slurm lost a node", HEAD + torchrun(1, -9), slurm("NODE_FAIL", "NodeDown"), "Node Failure", "Unknown"),
    Incident("Slurm preempted it", HEAD + torchrun(1, -9), slurm("PREEMPTED"), "cancelled", "Unknown"),
    Incident("Slurm's time limit", HEAD, slurm("TIMEOUT", "TimeLimit"), "cancelled", "Unknown", ASKED),
    Incident("Slurm counts memory", HEAD + torchrun(1, -9), slurm("OUT_OF_MEMORY", "OutOfMemory"),
             "Out of Memory Error", "Unknown"),
    Incident("peers complain of a preempted rank", HEAD + complaints(0), slurm("PREEMPTED"), "cancelled",
             "NCCL Remote Error"),
    Incident("peers complain of a lost node", HEAD + complaints(0), slurm("NODE_FAIL", "NodeDown"), "Node Failure",
             "NCCL Remote Error"),
    Incident("NCCL waits for a GPU whose rows cannot be remapped", HEAD + nccl_timeout([2, 3]),
             gpu("GPU 00000000:17:00.0: Remapped Rows / Remapping Failure Occurred : Yes"), "ECC Error",
             "NCCL Timeout Error", node="gpu-07"),
    Incident("an illegal access, and memory that is broken",
             HEAD + "RuntimeError: CUDA error: an illegal memory access was encountered\n",
             gpu("GPU 00000000:17:00.0: ECC Errors / Volatile / DRAM Uncorrectable : 3"), "ECC Error", "CUDA Error",
             node="gpu-07"),
    Incident("a GPU that may have been bad before", HEAD + nccl_timeout([2, 3]),
             gpu("GPU 00000000:17:00.0: Remapped Rows / Pending : Yes (it may have been so before the attempt)"),
             "NCCL Timeout Error", "NCCL Timeout Error"),
    Incident("rank 12 waits for its disk", SILENT, {"processes@gpu-07": "[logdoctor] kernel wait: missing ranks: 12: "
             "in the kernel, uninterruptible (process 11) at nfs_wait\n"}, "Hang", "Hang", ASKED),
    Incident("the file server is away", SILENT, kernel("nfs: server nas-01 not responding, still trying"), "OS Error",
             "Hang", ASKED),
    Incident("a bug, and a stranger's kill", HEAD + traceback("KeyError: 'tokens'"), kernel(KILL.format(4999)),
             "Key Error", "Key Error"),
    Incident("a bug, and a link that flapped long before", HEAD + steps(60, 200) + traceback("KeyError: 'tokens'"),
             kernel("mlx5_core 0000:3b:00.0 ib0: Link down"), "Key Error", "Key Error"),
    Incident("a bug, and a fault that the job outlived", HEAD + steps(60, 200) + traceback("KeyError: 'tokens'"),
             kernel(OFF), "Key Error", "Key Error"),
    Incident("a wait that the kernel only notes", HEAD + nccl_timeout([2, 3]),
             kernel("INFO: task python3:5001 blocked for more than 122 seconds."), "NCCL Timeout Error",
             "NCCL Timeout Error"),
    Incident("nothing could be read", HEAD + nccl_timeout([2, 3]), {}, "NCCL Timeout Error", "NCCL Timeout Error"),
    Incident("the link went down", HEAD + complaints(0), kernel("mlx5_core 0000:3b:00.0 ib0: Link down"),
             "Network Error", "NCCL Remote Error", node="gpu-07"),
    Incident("memory of the host is broken", HEAD + torchrun(1, -7),
             kernel("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0"), "Node Failure", "OS Error",
             node="gpu-07"),
    Incident("a switch between GPUs failed", HEAD + nccl_timeout([2, 3]),
             kernel("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"), "NVLink Error",
             "NCCL Timeout Error", node="gpu-07"),
    Incident("a bug, and Slurm only says failed", HEAD + traceback("ValueError: lattice 7 is bent"),
             slurm("FAILED", "NonZeroExitCode"), "Value Error", "Value Error"),
    Incident("a source that lies", HEAD + traceback("ValueError: lattice 7 is bent"),
             {"rocm-smi@gpu-07": "gpu-07 rocm-smi: [logdoctor]: kernel: process 5001 was killed for memory\n"},
             "Value Error", "Value Error"),
    Incident("an end by the scheduler of which ranks complain", HEAD + LOST + STOPPED, slurm("TIMEOUT", "TimeLimit"),
             "cancelled", "NCCL Remote Error", ASKED),
    Incident("it ended well", HEAD + "exiting program at iteration 60\n", slurm("COMPLETED"), "completed", "completed",
             ReportedEnd(0)),
]  # fmt: skip


def streams(incident: Incident, coverage: str = "") -> dict[str, str]:
    """The log and all streams of an incident."""
    read = "".join(f"[logdoctor] coverage: {stream}: read (1 lines)\n" for stream in incident.beside)
    refused = "[logdoctor] coverage: kernel@gpu-09: refused (the kernel's log may not be read)\n"
    return {"gpu-07": incident.log, "coverage@gpu-07": read + refused + coverage, **incident.beside}


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda one: one.what)
def test_all_sources_decide_together(diagnose: Diagnose, incident: Incident) -> None:
    verdict, alone = diagnose(streams(incident), incident.end), diagnose({"gpu-07": incident.log}, incident.end)
    said = [one.reason if one.outcome == "failed" else one.outcome for one in (verdict, alone)]
    assert said == [incident.found, incident.alone]
    assert [one.node for one in verdict.suspects if one.node] == ([incident.node] if incident.node else [])
    assert [one.source for one in verdict.coverage] == [*incident.beside, "kernel@gpu-09"] and not alone.coverage


def test_thirty_incidents() -> None:
    assert len(INCIDENTS) == 30 == len({one.what for one in INCIDENTS})


def test_an_overturned_verdict_says_so_and_cites_the_source(diagnose: Diagnose) -> None:
    verdict = diagnose(streams(INCIDENTS[0]), INCIDENTS[0].end)
    assert "kernel@gpu-07 says so; by the log alone: NCCL Timeout Error." in verdict.why
    proof = verdict.evidence[0]
    assert (proof.stream, proof.line) == ("kernel@gpu-07", 1)
    assert proof.quote == INCIDENTS[0].beside["kernel@gpu-07"].rstrip("\n")
    assert verdict.first_rank is None or verdict.first_rank in (2, 3)


def test_a_rank_in_the_kernel_is_named(diagnose: Diagnose) -> None:
    incident = next(one for one in INCIDENTS if one.what.startswith("rank 12"))
    assert diagnose(streams(incident), incident.end).first_rank == 12


def test_coverage_tells_sources_and_silent_streams(diagnose: Diagnose) -> None:
    torn = "[logdoctor] coverage: x: invented (y)\n[logdoctor] coverage: nvidia-smi@gpu-07: too late\n"
    verdict = diagnose(streams(INCIDENTS[-4], torn) | {"gpu-07.rank37": ""}, INCIDENTS[-4].end)
    assert verdict.coverage == (
        Coverage("slurm@88", "read", "1 lines"),
        Coverage("kernel@gpu-09", "refused", "the kernel's log may not be read"),
        Coverage("nvidia-smi@gpu-07", "too late"),
        Coverage("gpu-07.rank37", "empty"),
    )


def test_streams_that_nobody_covers_are_the_jobs_own(diagnose: Diagnose) -> None:
    log = {"kernel@gpu-07": HEAD + traceback("KeyError: 'tokens'")}
    assert diagnose(log, NOTHING).reason == "Key Error" and diagnose(log, NOTHING).coverage == ()
