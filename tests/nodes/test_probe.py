"""Parts of the probe by themselves: its source, which GPUs it counts, what ranks send and compare."""

import ast
import os
import sys
import time
from typing import Any

import pytest

from logdoctor.nodes import probe
from logdoctor.nodes.launching import source
from tests.at_once import at_once
from tests.ports import free_port


def test_probe_is_one_small_file_that_old_pythons_read_and_that_needs_torch_alone() -> None:
    assert len(source()) < 32 << 10, "it travels in command lines"
    tree = ast.parse(source(), feature_version=(3, 8))
    modules = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module.partition(".")[0] for module in modules} - set(sys.stdlib_module_names) == {"torch"}
    at_start = {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
    assert "torch" not in at_start


@pytest.mark.parametrize(
    ("named", "gpus"),
    [
        ("0,1", 2),
        ("0,-1,2", 1),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,MIG-1/2/3,x,0", 2),
        ("none", 0),
        ("3, 4", 2),
    ],
)
def test_gpus_are_counted_as_cuda_does(monkeypatch: Any, named: str, gpus: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert probe._gpus() == gpus


@pytest.fixture
def eight(monkeypatch: Any) -> None:
    """A machine with device files of eight GPUs."""
    files = [*(f"nvidia{number}" for number in range(8)), "nvidiactl", "nvidia-uvm", "null"]
    monkeypatch.setattr(os, "listdir", lambda folder: files if folder == "/dev" else [])


@pytest.mark.usefixtures("eight")
def test_a_job_that_was_given_no_gpu_proves_nothing_and_is_told_how_to_ask(monkeypatch: Any) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
    with pytest.raises(probe.Unusable, match=r"given none of the 8 GPUs: ask for them .*--gres=gpu:N"):
        probe._gpus()


@pytest.mark.usefixtures("eight")
def test_gpus_that_a_job_may_not_open_are_not_its_own(monkeypatch: Any) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: path in ("/dev/nvidia2", "/dev/nvidia3"))
    assert probe._gpus() == 2
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(probe.Unusable, match="may open none of 8 GPUs: ask for them"):
        probe._gpus()


def options(*words: str) -> Any:
    """The options of node n1 of two, read as the probe does."""
    base = ["--test", "t", "--world", "1", "--node", "n1", "--nodes", "n1=127.0.0.1,n2=127.0.0.1", "--port", "0"]
    read = probe._options([*base, *words])
    read.deadline = time.monotonic() + 3600
    return read


def test_nodes_tell_each_other_how_many_gpus_they_have() -> None:
    import torch
    import torch.distributed

    port = free_port()

    def connect(node: str, gpus: str) -> str:
        with pytest.raises(probe.ProbeFailure) as failure:
            probe._connect(torch, options("--node", node, "--gpus", gpus, "--port", str(port)), 0, None)
        return str(failure.value)

    assert at_once(connect, ("n1", "n2"), ("8", "7")) == [
        "connection: GPUs differ: n1 has 8, n2 has 7",
        "fewer GPUs: GPUs differ: n1 has 8, n2 has 7",
    ]


def test_every_rank_sends_other_values_in_every_repeat_and_a_wrong_one_is_found() -> None:
    import torch

    buffers = probe._Buffers(torch, 4096, 0, 2, torch.device("cpu"))
    sent = [buffers.expected(rank, repeat) for rank in range(2) for repeat in range(50)]
    assert buffers.size == 512 and len({tuple(values.tolist()) for values in sent}) == 100
    assert all(len(set(values.tolist())) == 512 for values in sent)
    buffers.all.copy_(torch.cat([buffers.expected(0, 7), buffers.expected(1, 7)]))
    assert probe._difference(buffers, 7, options()) == ""
    buffers.all[512 + 100] ^= 1
    buffers.all[512 + 300] ^= -(1 << 31)
    assert probe._difference(buffers, 7, options()) == (
        "2 of 512 values of rank 1 (n2) as rank 0 has them, the first at 100, in repeat 8"
    )
    assert "512 of 512 values of rank 0 (n1)" in probe._difference(buffers, 6, options())


def test_wrong_matrix_product_is_found(monkeypatch: Any) -> None:
    import torch

    assert probe._multiply(torch, torch.device("cpu")) > 0
    multiply = torch.mm

    def wrong(*tensors: Any, out: Any = None) -> Any:
        product = multiply(*tensors, out=out)
        product[3, 5] += 1
        return product

    monkeypatch.setattr(torch, "mm", wrong)
    with pytest.raises(probe.ProbeFailure, match="wrong product: 1 of 65536 values of a matrix product on cpu"):
        probe._multiply(torch, torch.device("cpu"))


@pytest.mark.parametrize(
    ("error", "stage", "meaning"),
    [
        (RuntimeError("Timed out waiting 3518ms for send"), "gather", "no answer: RuntimeError: Timed out waiting"),
        (RuntimeError("wait timeout after 10ms"), "connect", "no answer: RuntimeError: wait timeout after"),
        (
            RuntimeError("[/a/b/pair.cc:537] Connection closed by peer"),
            "gather",
            "connection: RuntimeError: Connection",
        ),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "gather", "error: RuntimeError: CUDA error"),
        (
            RuntimeError("Broken pipe\nException raised from send at x.cpp:1\nframe #0: f in libtorch_cuda.so"),
            "gather",
            "connection: RuntimeError: Broken pipe",
        ),
        (RuntimeError("no kernel image"), "compute", "error: RuntimeError: no kernel image"),
        (ValueError("x"), "gather", "error: ValueError: x"),
    ],
)
def test_errors_of_torch_are_told_apart(error: Exception, stage: str, meaning: str) -> None:
    assert probe._meaning(error, stage)["why"].startswith(meaning)


def test_memory_that_others_hold_proves_nothing() -> None:
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert set(probe._meaning(error, "gather")) == {"unusable"}


def test_interface_is_the_one_that_leads_to_the_other_node() -> None:
    assert probe._interface("127.0.0.1") == "lo"
    assert probe._interface("no-such-host.invalid") == ""
