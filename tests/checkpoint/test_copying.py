"""A checkpoint holds the state of the moment in which it was asked for."""

import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from logdoctor.checkpoint import Checkpointer, TrainingState, load, pinned
from logdoctor.checkpoint import staging as staging_module
from logdoctor.checkpoint.reading import read
from logdoctor.checkpoint.staging import Stager
from tests.checkpoint.conftest import Gate, opening
from tests.checkpoint.states import empty, set_to, state_of, steps_in


def loaded(folder: Path, step: int) -> set[float]:
    into = empty()
    assert load(folder, into, step)
    return steps_in(into)


def as_bytes(value: Any) -> Any:
    """Values by their bits: NaN equals itself, -0.0 is not 0.0."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.size(), value.contiguous().flatten().view(torch.uint8).tolist()
    if isinstance(value, dict):
        return {key: as_bytes(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(as_bytes(each) for each in value)
    return struct.pack("d", value) if isinstance(value, float) else value


def odd_state(fill: int) -> dict[str, Any]:
    """Tensors of many kinds, large and small."""
    bits = torch.arange(70_000, dtype=torch.int32) * 7919 + fill
    one = bits.view(torch.float32).clone()
    return {
        "nan": one,
        "tied": one,
        "transposed": bits.reshape(350, 200).clone().t(),
        "every other": bits.clone()[::2],
        "bfloat16": bits.to(torch.bfloat16),
        "bool": bits % 3 == 0,
        "complex": torch.complex(bits.double(), -bits.double()),
        "fp8": bits.to(torch.float8_e4m3fn),
        "scalar": torch.tensor(-0.0),
        "none": torch.empty(0, 5),
        "parameter": torch.nn.Parameter(bits.float().clone()),
        "one": ({1: bits.float().clone(), (2,): {3: "x"}}, Counter((5, 5, 7))),
        "numbers": {"a": float("nan"), "b": -0.0, "c": 1 << 60, "d": True, "e": None, "f": (1.5, "x"), "g": [1, 2]},
    }


def test_it_is_bit_identical_to_a_synchronous_snapshot(tmp_path: Path) -> None:
    state = odd_state(0)
    expected = as_bytes(state)
    with Checkpointer(tmp_path) as checkpoints:
        assert checkpoints.save(state, step=1).wait(600)
        state["one"][1][5] += 1
        checkpoints.save(odd_state(5), step=2)  # into the same memory
    into = odd_state(9)
    assert load(tmp_path, into, 1)
    assert as_bytes(into) == expected
    assert type(into["one"][1]) is Counter and into["one"][1][5] == 2
    whole = read(tmp_path, 1)
    assert whole and whole[0].step == 1 and as_bytes(whole[1]) == expected
    assert load(tmp_path, into)
    assert as_bytes(into) == as_bytes(odd_state(5))


def test_a_second_save_before_the_first_is_persisted(
    tmp_path: Path, storage: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of(1)
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(state, step=1)
        assert storage.reached.wait(600)
        set_to(state, 2)  # it is copied, so it may be changed
        with monkeypatch.context() as patched:
            waited = opening(checkpoints, storage, patched)
            second = checkpoints.save(state, step=2)
        assert len(waited) == 1 and second.stall.backpressure > 0
    assert (loaded(tmp_path, 1), loaded(tmp_path, 2)) == ({1}, {2})


@pytest.mark.parametrize("through_data", [False, True])
def test_a_state_that_is_changed_while_it_is_copied_is_not_saved(
    tmp_path: Path, copying: Gate, through_data: bool
) -> None:
    state = state_of(1)
    with Checkpointer(tmp_path) as checkpoints:
        save = checkpoints.save(state, step=1)
        assert copying.reached.wait(600)
        changed = state["model"]["weight"]
        if through_data:
            changed.data.add_(1)  # counts as no change to torch
        else:
            changed[12_345] = 7
        copying.open()
        assert save.wait(600)
        assert save.problem and save.problem.startswith("the state was changed while it was copied. Call before_opt")
        assert checkpoints.latest() is None
        assert checkpoints.save(state, step=2).wait(600)
    assert load(tmp_path, empty(), 2)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {}], ids=str)
def test_an_optimizer_waits_for_the_copy(
    tmp_path: Path, copying: Gate, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]
) -> None:
    weight = torch.nn.Parameter(torch.zeros(300, 300))
    optimizer = torch.optim.AdamW([weight], lr=0.5, **options)
    weight.grad = torch.ones_like(weight)
    with Checkpointer(tmp_path) as checkpoints:
        save = checkpoints.save({"weight": weight}, step=1)
        with monkeypatch.context() as patched:
            waited = opening(checkpoints, copying, patched)
            optimizer.step()
        assert len(waited) == 1 and save.stall.staging > 0
        assert save.stall.total == pytest.approx(checkpoints.stats.stall.total)
        assert weight.detach().abs().min() > 0.4
    into = {"weight": torch.ones(300, 300)}
    assert load(tmp_path, into)
    assert into["weight"].abs().max() == 0


@pytest.mark.parametrize("named", [False, True])
def test_an_optimizer_with_a_closure_waits_after_it(tmp_path: Path, copying: Gate, named: bool) -> None:
    """The closure computes the gradients: the copy is hidden behind it."""
    weight = torch.nn.Parameter(torch.zeros(300, 300))
    optimizer = torch.optim.LBFGS([weight], lr=0.5)
    seen: list[float] = []

    def closure() -> Any:
        optimizer.zero_grad()
        seen.append(weight.detach().abs().max().item())
        if len(seen) == 1:
            assert copying.reached.wait(600) and not save.copied.is_set()
            copying.open()
        loss = (weight - 1).square().sum()
        loss.backward()
        return loss

    with Checkpointer(tmp_path) as checkpoints:
        save = checkpoints.save({"weight": weight}, step=1)
        optimizer.step(**{"closure": closure}) if named else optimizer.step(closure)
        assert save.wait(600) and save.state == "verified"
    assert weight.detach().abs().min() > 0.4 and seen[0] == 0
    into = {"weight": torch.ones(300, 300)}
    assert load(tmp_path, into) and into["weight"].abs().max() == 0


def test_an_optimizer_of_others_waits_before_its_closure(
    tmp_path: Path, copying: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change the state before it computes gradients."""

    class Ascending(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any) -> None:  # type: ignore[override]
            self.param_groups[0]["params"][0].add_(1)
            closure()

    weight = torch.nn.Parameter(torch.zeros(300, 300))
    with Checkpointer(tmp_path) as checkpoints:
        save = checkpoints.save({"weight": weight}, step=1)
        with monkeypatch.context() as patched:
            waited = opening(checkpoints, copying, patched)
            Ascending([weight], lr=0.5).step(lambda: None)
        assert save.wait(600) and save.state == "verified" and len(waited) == 1
    into = {"weight": torch.ones(300, 300)}
    assert load(tmp_path, into) and into["weight"].abs().max() == 0


def test_what_a_forward_pass_changes_is_of_the_moment(tmp_path: Path, copying: Gate) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.BatchNorm1d(200))
    before = model[1].running_mean.clone()
    counts = {"step": 1, "history": [1, 2]}
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save({"model": model, "counts": counts}, step=1)
        model(torch.randn(8, 200))
        counts["history"].append(3)  # type: ignore[attr-defined]
        copying.open()
    assert not torch.equal(model[1].running_mean, before)
    into = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.BatchNorm1d(200))
    state = {"model": into, "counts": {"step": 0, "history": []}}
    assert load(tmp_path, state)
    assert torch.equal(into[1].running_mean, before) and into[1].num_batches_tracked == 0
    assert state["counts"] == {"step": 1, "history": [1, 2]}


def test_a_copy_at_once_is_done_when_save_returns(tmp_path: Path) -> None:
    state = state_of(1)
    with Checkpointer(tmp_path, copy="at once") as checkpoints:
        assert checkpoints.save(state, step=1).copied.is_set()
        set_to(state, 2)
    assert loaded(tmp_path, 1) == {1}


def test_a_save_before_the_first_step_leaves_training_as_it_was(tmp_path: Path) -> None:
    """Torch makes a step to learn what an optimizer keeps; the bias correction of Adam would count it."""

    def trained(at_start: Callable[[Any], object]) -> list[Any]:
        torch.manual_seed(1)
        model = torch.nn.Linear(30, 40)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        at_start({"all": TrainingState(model, optimizer)})
        for _ in range(2):
            model(torch.ones(2, 30)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [as_bytes(each) for each in model.parameters()]

    expected = trained(lambda state: None)
    with Checkpointer(tmp_path) as checkpoints:
        assert trained(lambda state: checkpoints.save(state, step=0).wait(600)) == expected
    assert trained(lambda state: load(tmp_path, state)) == expected


def test_memory_is_kept_from_save_to_save_and_no_more_than_one_copy() -> None:
    stager, state = Stager(), state_of(1)
    first, second = stager.begin(state), stager.begin(state)
    places = [
        (copy.tree["model"]["weight"].data_ptr(), copy.tree["optimizer"][0].data_ptr()) for copy in (first, second)
    ]
    assert places[0] == places[1]
    assert stager.bytes == 4 * 40_000 + 8 * 40_000
    stager.begin({"model": state["model"]})
    assert stager.bytes == 4 * 40_000


def test_short_memory_is_reported_and_saving_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        monkeypatch.setattr(staging_module, "available", lambda: 0)
        save = checkpoints.save(state_of(1), step=1)
        assert save.wait(600) and save.state == "failed"
        assert save.problem and save.problem.startswith("the memory of the host is short of 256 MiB")
        monkeypatch.undo()
        assert checkpoints.save(state_of(2), step=2).wait(600)
        assert (checkpoints.stats.failed, checkpoints.stats.saved) == (1, 1)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"a": {0: 1}}, "state['a'] has keys that are no text (0). Save an optimizer with TrainingState."),
        ({"a": torch.eye(3).to_sparse()}, "state['a'] is a Tensor of layout torch.sparse_coo"),
        ({"a": Path()}, "rank 0: the state at a holds a PosixPath, which is not loaded again"),
        (
            {"a": TwoTensor(torch.ones(3), torch.ones(3))},
            "rank 0: the state at a holds a TwoTensor, which is not loaded",
        ),
        ({"a.b": 1, "a": {"b": 2}}, "rank 0: ValueError: duplicated flatten key a.b"),
    ],
    ids=["keys", "sparse", "object", "wrapper", "twice"],
)
def test_a_state_that_cannot_be_saved_is_reported(tmp_path: Path, state: dict[str, Any], problem: str) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        save = checkpoints.save(state, step=1)
        assert save.wait(600)
        assert save.problem and save.problem.startswith(problem)
        assert checkpoints.save(state_of(2), step=2).wait(600)
    assert loaded(tmp_path, 2) == {2}


@pytest.mark.parametrize("refusal", [0, 2])
def test_memory_for_a_gpu_has_the_size_of_the_tensor(monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    """It is registered for as long as the tensor lives, unless the driver refuses. Real ones: tests/gpu."""
    registered = dict[int, int]()

    class Driver:
        def cudaHostRegister(self, place: int, size: int, flags: int) -> int:
            if not refusal:
                assert place % 4096 == 0 and registered.setdefault(place, size) == size
            return refusal

        def cudaHostUnregister(self, place: int) -> None:
            del registered[place]

    def check(code: int) -> None:
        if code:
            raise RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`")

    monkeypatch.setattr(torch.cuda, "cudart", Driver)
    monkeypatch.setattr(torch.cuda, "check_error", check)
    for source in (
        torch.rand(300, 200).t(),
        torch.rand(70_001).bfloat16(),
        torch.rand(99, 1001, dtype=torch.complex64),
    ):
        kept = pinned.empty_like(source)
        assert registered == ({} if refusal else {kept.data_ptr(): source.nbytes})
        assert (kept.stride(), kept.dtype) == (source.stride(), source.dtype)
        assert kept.untyped_storage().nbytes() == source.nbytes and torch.equal(kept.copy_(source), source)
        del kept
        assert not registered
