"""Checkpoints of tensors on a GPU hold one step, whatever the GPU does meanwhile."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from logdoctor.checkpoint import Checkpointer, TrainingState, load
from logdoctor.checkpoint import pinned as pinned_module
from logdoctor.checkpoint.staging import Copy, Stager

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
MIB = 1 << 20


@pytest.fixture
def trainer() -> Iterator["Trainer"]:
    trainer = Trainer()
    yield trainer
    torch.cuda.synchronize()


class Trainer:
    """A model on the GPU that is trained, and what it is after each step that is asked for."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        layers = [torch.nn.Linear(2048, 2048) for _ in range(6)]
        self.model = torch.nn.Sequential(*layers, torch.nn.LayerNorm(2048)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.state = {"training": TrainingState(self.model, self.optimizer), "rng": torch.cuda.get_rng_state()}

    def step(self) -> None:
        """One step, of which nothing is waited for."""
        self.model(torch.randn(4096, 2048, device="cuda")).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def now(self) -> list[Any]:
        """The values of this moment, on the host."""
        kept = [each for one in self.optimizer.state.values() for each in one.values()]
        return [each.detach().cpu().clone() for each in (*self.model.parameters(), *kept)]


def same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def test_it_is_bit_identical_although_training_goes_on(tmp_path: Path, trainer: Trainer) -> None:
    expected = {}
    with Checkpointer(tmp_path, keep=9) as checkpoints:
        for step in range(1, 9):
            trainer.step()
            expected[step] = trainer.now()
            checkpoints.save(trainer.state, step=step)
        trainer.step()
    assert checkpoints.stats.saved == 8 and checkpoints.stats.failed == 0
    for step, values in expected.items():
        other = Trainer()
        assert load(tmp_path, other.state, step)
        assert same(other.now(), values), step
    other = Trainer()
    assert load(tmp_path, other.state, 7)  # and goes on as the one that it was saved of
    torch.manual_seed(1)
    other.step()
    again = Trainer()
    assert load(tmp_path, again.state, 7)
    torch.manual_seed(1)
    again.step()
    assert same(other.now(), again.now())


def test_a_model_that_is_trained_in_a_stream_of_its_own(tmp_path: Path, trainer: Trainer) -> None:
    with torch.cuda.stream(torch.cuda.Stream()), Checkpointer(tmp_path) as checkpoints:
        for _ in range(3):
            trainer.step()
        checkpoints.save(trainer.state, step=3)  # while the GPU may be at the first
        for _ in range(2):
            trainer.step()
    torch.cuda.synchronize()
    other = Trainer()
    assert load(tmp_path, other.state, 3)
    torch.manual_seed(7)
    expected = Trainer()
    for _ in range(3):
        expected.step()
    assert same(other.now(), expected.now())


def test_a_change_without_a_wait_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"weight": torch.zeros(64 * MIB, device="cuda")}
    changed, real = threading.Event(), Copy.run

    def late(copy: Copy) -> None:
        assert changed.wait(60)
        real(copy)

    monkeypatch.setattr(Copy, "run", late)
    with Checkpointer(tmp_path) as checkpoints:
        save = checkpoints.save(state, step=1)
        state["weight"].data.add_(1)  # counts as no change to torch
        torch.cuda.synchronize()
        changed.set()
        assert save.wait(60)
    assert save.state == "failed" and save.problem and "was changed while it was copied" in save.problem


def test_it_is_loaded_on_the_host_and_back(tmp_path: Path) -> None:
    on_gpu = {"a": torch.randn(300, 300, device="cuda"), "b": torch.randn(3, device="cuda").bfloat16()}
    with Checkpointer(tmp_path) as checkpoints:
        assert checkpoints.save(on_gpu, step=1).wait(60)
    on_host = {"a": torch.zeros(300, 300), "b": torch.zeros(3, dtype=torch.bfloat16)}
    assert load(tmp_path, on_host)
    back = {"a": torch.zeros(300, 300, device="cuda"), "b": torch.zeros(3, device="cuda", dtype=torch.bfloat16)}
    assert load(tmp_path, back)
    for name, value in on_gpu.items():
        assert torch.equal(on_host[name], value.cpu()) and torch.equal(back[name], value)


def resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def test_the_host_needs_no_more_than_the_state_has() -> None:
    state = {str(place): torch.ones(17 * MIB, device="cuda") for place in range(8)}  # 68 MiB each; torch would take 128
    size = sum(each.nbytes for each in state.values())
    stager, before = Stager(), resident()
    copy = stager.begin(state)
    copy.run()
    assert stager.bytes == size and resident() - before < 1.1 * size + 32 * MIB
    assert all(each.is_pinned() and torch.equal(each, torch.ones(17 * MIB)) for each in copy.tree.values())


def test_memory_is_given_back_to_the_driver() -> None:
    source = torch.arange(4 * MIB, device="cuda").view(2048, 2048).t()
    for _ in range(50):  # at the same places, which the driver would refuse to register twice
        kept = pinned_module.empty_like(source)
        assert kept.is_pinned() and kept.stride() == source.stride()
        assert kept.untyped_storage().nbytes() == source.nbytes
        kept.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(kept, source.cpu())
        del kept


def test_a_refusal_of_the_driver_leaves_no_error_behind() -> None:
    source = torch.ones(MIB, device="cuda")
    kept = pinned_module.empty_like(source)
    assert not pinned_module._registered(kept.data_ptr(), source.nbytes)  # it is already
    pinned_module._forget_error(source.device)
    assert (source * 2).sum().item() == 2 * MIB


def test_a_process_that_forks_changes_nothing_of_it(tmp_path: Path) -> None:
    state = {"weight": torch.ones(8 * MIB, device="cuda")}
    with Checkpointer(tmp_path) as checkpoints:
        assert checkpoints.save(state, step=1).wait(60)
        child = os.fork()
        if child == 0:
            os._exit(0)
        state["weight"].fill_(2)
        assert checkpoints.save(state, step=2).wait(60)
        assert os.waitpid(child, 0)[1] == 0
    into = {"weight": torch.zeros(8 * MIB)}
    assert load(tmp_path, into, 2) and into["weight"].unique().tolist() == [2]


def test_short_memory_of_the_driver_is_no_reason_not_to_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def cudaHostRegister(self, *_: Any) -> int:
            return 2

    monkeypatch.setattr(torch.cuda, "cudart", Refusing)
    with Checkpointer(tmp_path) as checkpoints:
        assert checkpoints.save({"weight": torch.full((MIB,), 5.0, device="cuda")}, step=1).wait(60)
    into = {"weight": torch.zeros(MIB)}
    assert load(tmp_path, into) and into["weight"].unique().tolist() == [5]
