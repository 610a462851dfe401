"""The probe of a node on a GPU, with NCCL."""

import json
import os
import socket
import subprocess
import sys
from typing import Any

import torch

from logdoctor.nodes import probe


def started(node: str, nodes: str, port: int, *words: str, **env: str) -> "subprocess.Popen[str]":
    """A probe of one node of a world on this machine."""
    command = [sys.executable, probe.__file__, "--test", "gpu", "--world", "1", "--node", node, "--nodes", nodes]
    return subprocess.Popen(
        [*command, "--port", str(port), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | env,
    )


def said(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, err = process.communicate(timeout=120)
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    print(found, err[-2000:])
    return found


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_one_node() -> None:
    found = said(started("n1", "n1=127.0.0.1", free_port(), "--repeats", "2"))
    assert found["ok"] and found["why"] == "" and found["stage"] == "done" and found["tool"] == "torch/nccl"
    assert found["gpus"] == torch.cuda.device_count() and found["gpu"] == torch.cuda.get_device_name(0)
    assert found["tflops"] > 50


def test_two_nodes_gather_with_nccl() -> None:
    """Each is told that it is on a host of its own, so that they may share the GPU."""
    port = free_port()
    both = [
        started(name, "n1=127.0.0.1,n2=127.0.0.1", port, NCCL_HOSTID=name, NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
        for name in ("n1", "n2")
    ]
    found = [said(process) for process in both]
    assert [one["why"] for one in found] == ["", ""]
    for one in found:
        assert one["ok"] and len(one["bandwidth"]) == len(probe.GPU_SIZES) and min(one["bandwidth"].values()) > 0.05


def test_one_that_goes_away_is_told_by_the_other() -> None:
    port = free_port()
    alone = started("n1", "n1=127.0.0.1,n2=127.0.0.1", port, "--seconds", "25", NCCL_SOCKET_IFNAME="lo")
    found = said(alone)
    assert not found["ok"] and found["why"].startswith(("no answer", "connection")) and found["seconds"] < 27


def test_a_node_with_fewer_gpus() -> None:
    found = said(started("n1", "n1=127.0.0.1", free_port(), "--gpus", str(torch.cuda.device_count() + 1)))
    assert found["why"].startswith("fewer GPUs") and not found["ok"]


def test_a_healthy_gpu_has_no_warning_of_its_state() -> None:
    found = said(started("n1", "n1=127.0.0.1", free_port()))
    assert [one for one in found["state"] if "Xid" not in one] == []  # the kernel log may tell of what ran before


def test_the_kernel_log_tells_of_a_program_that_wrote_anywhere() -> None:
    program = """
import torch
out = torch.zeros(32, device="cuda")
index = torch.full((32,), 1 << 40, device="cuda")
torch.cuda.synchronize()
torch.ops.aten.index_put_(out, [index], torch.ones(32, device="cuda"))
torch.cuda.synchronize()
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode
    found = said(started("n1", "n1=127.0.0.1", free_port()))
    assert found["ok"] and any(": 43, pid=" in one or ": 31, pid=" in one for one in found["state"])
