"""A copy of the state in host memory, made while training continues.

`begin` captures the state of that moment: containers, numbers and small tensors are copied at once, so only large
tensors are copied later (`Copy.run`), and only an optimizer step may change them. That nothing changed in between is
checked: each large tensor must keep its version and the values of some elements. The memory is reused for the next
copy: one copy of the state for the life of a `Stager`.
"""

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from logdoctor.checkpoint import pinned
from logdoctor.checkpoint.memory import available
from logdoctor.errors import CheckpointError

_SMALL = 64 << 10  # bytes; buffers that a forward pass changes (batch norm, amax histories) are smaller
_SAMPLED = 16  # elements of a large tensor
_SPARE = 256 << 20  # bytes of host memory left to others
Path = tuple[Any, ...]


def plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state with each object that has a `state_dict` replaced by its result."""
    return {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state.items()}


class _Large(NamedTuple):
    """A tensor to copy, its target, and evidence that it has not changed."""

    source: Any
    target: Any
    version: int
    sample: Any

    def changed(self) -> bool:
        return _version(self.source) != self.version or not torch.equal(_sample(self.source), self.sample)


class Copy:
    """A state being copied: `tree` has its form at once, and its values after `run`."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self._large: list[_Large] = []
        self._streams: dict[Any, Any] = {}  # per device other than the host

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def run(self) -> None:
        """Copy the large tensors; `CheckpointError` when the state has changed since `begin`."""
        large, self._large = self._large, []
        try:
            for each in large:
                with self._beside(each):
                    each.target.copy_(each.source, non_blocking=each.source.device in self._streams)
        finally:
            for stream in self._streams.values():
                stream.synchronize()
        if any(self._changed(each) for each in large):
            raise CheckpointError("the state", "was changed while it was copied", _WAIT)

    def _changed(self, each: _Large) -> bool:
        with self._beside(each):
            return each.changed()

    def _beside(self, each: _Large) -> Any:
        """Return a context for work on a tensor that does not wait for training's."""
        return self._streams.get(each.source.device) or nullcontext()


_WAIT = "Call before_optimizer_step() before anything changes it, or make the Checkpointer with copy='at once'."


class Stager:
    """Copies states of one form, one at a time, into memory that it keeps; `begin` overwrites the last copy. `ranks` of
    this machine do so at once, and each takes at most its share of the free memory."""

    def __init__(self, ranks: int = 1) -> None:
        self._ranks = ranks
        self._kept: dict[Path, Any] = {}

    @property
    def bytes(self) -> int:
        """Return the bytes of memory kept."""
        return sum(each.nbytes for each in self._kept.values())

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def begin(self, state: Mapping[str, Any]) -> Copy:
        """Copy small values, and allocate memory for the rest; `CheckpointError` when memory is short."""
        making = _Making(self._kept, self._ranks)
        begun = Copy()
        begun.tree = {key: making.copied((key,), value) for key, value in state.items()}
        self._kept = making.used
        begun._large = [_Large(source, target, _version(source), _sample(source)) for source, target in making.large]
        for device in {each.source.device for each in begun._large} - {torch.device("cpu")}:
            begun._streams[device] = torch.Stream(device)
            begun._streams[device].wait_stream(torch.accelerator.current_stream(device))
        return begun


class _Making:
    """Walks a state once: copies small values, and collects large tensors with their target memory."""

    def __init__(self, kept: dict[Path, Any], ranks: int) -> None:
        self._kept, self._ranks = kept, ranks
        self.used: dict[Path, Any] = {}
        self._shared: dict[tuple[Any, ...], Any] = {}
        self._room = -1
        self.large: list[tuple[Any, Any]] = []
        """Tensors to copy later, with their targets."""

    def copied(self, path: Path, value: Any, one: bool = False) -> Any:
        """Return a copy in which large tensors have no values yet. A tuple is saved as `one` value, so keys in it may
        be anything."""
        if isinstance(value, torch.Tensor):
            if one and isinstance(value, DTensor):
                cause = "is a DTensor in a tuple, which is saved as one value: that of one rank"
                raise CheckpointError(_place(path), cause, "Save it outside of tuples (TrainingState does).")
            return self._tensor(path, value.detach())
        if isinstance(value, Mapping) and not (one and type(value) is not dict):
            if not one and (odd := [key for key in value if not isinstance(key, str)]):
                cause = f"has keys that are no text ({odd[0]!r})"
                raise CheckpointError(_place(path), cause, "Save an optimizer with TrainingState.")
            return {key: self.copied((*path, key), each, one) for key, each in value.items()}
        if type(value) in (list, tuple):
            one = one or type(value) is tuple
            return type(value)(self.copied((*path, place), each, one) for place, each in enumerate(value))
        if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            return value.item()  # torch would refuse to load it
        return copy.deepcopy(value)

    def _tensor(self, path: Path, source: Any) -> Any:
        if hasattr(source, "__tensor_flatten__"):  # DTensor, and other wrappers of tensors
            names, context = source.__tensor_flatten__()
            parts = {name: getattr(source, name) for name in names}
            inner = {
                name: self._tensor((*path, name), part.detach()) if isinstance(part, torch.Tensor) else part
                for name, part in parts.items()
            }
            return type(source).__tensor_unflatten__(inner, context, source.size(), source.stride())
        if type(source) is not torch.Tensor or source.layout != torch.strided:
            cause = (
                f"is a {type(source).__name__} of layout {source.layout}, which cannot be copied while training goes on"
            )
            raise CheckpointError(_place(path), cause, "Save it as a DTensor or a plain tensor.")
        return self._strided(path, source)

    def _strided(self, path: Path, source: Any) -> Any:
        """Copy small tensors at once; use one target for tensors that share memory."""
        on_host = source.device.type == "cpu"
        if source.nbytes < _SMALL and on_host:
            return source.clone()
        form = (source.device, source.data_ptr(), source.dtype, source.size(), source.stride())
        if form not in self._shared:
            place = self._place(path, source)
            self.large.append((source.clone() if source.nbytes < _SMALL else source, place))
            self._shared[form] = place
        return self._shared[form]

    def _share(self) -> int:
        """Return the bytes that this rank may take."""
        return (available() - _SPARE) // self._ranks

    def _place(self, path: Path, source: Any) -> Any:
        """Return memory for a tensor: its own from the last copy, or new memory."""
        kept = self._kept.get(path)
        if kept is None or (kept.dtype, kept.size()) != (source.dtype, source.size()):
            self._room = (self._share() if self._room < 0 else self._room) - source.nbytes
            if self._room < 0:
                of_all = f", which {self._ranks} ranks of this machine make" if self._ranks > 1 else ""
                cause = f"is short of {-self._room >> 20} MiB for a copy of the state{of_all}"
                raise CheckpointError("the memory of the host", cause, "Give the job more, or save a smaller state.")
            is_pinned = source.device.type == "cuda" and source.nbytes >= _SMALL and not source.is_quantized
            kept = pinned.empty_like(source) if is_pinned else torch.empty_like(source, device="cpu")
        self.used[path] = kept
        return kept


def _place(path: Path) -> str:
    return "state" + "".join(f"[{key!r}]" for key in path)


def _version(tensor: Any) -> int:
    """Return torch's count of in-place changes, which fused optimizers and `.data` bypass."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _sample(tensor: Any) -> Any:
    """Return the bytes of some elements; none for non-contiguous tensors."""
    if not tensor.is_contiguous():
        return torch.empty(0, dtype=torch.uint8)
    flat = tensor.view(-1)
    if flat.numel() == 1:  # it may have any stride, but torch views only stride 1 as bytes
        flat = flat.as_strided((1,), (1,))
    return flat[:: max(1, -(-flat.numel() // _SAMPLED))].clone().view(torch.uint8)
