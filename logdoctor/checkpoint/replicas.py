"""Replicas: values that several ranks hold under one name, which must be equal.

DCP keeps one of them, from the rank with least to write. Here each rank's plan has a hash of every part, taken from the
copy; where two differ the lowest rank's part is kept, as with `torch.save` on the first rank, and its name is reported.
"""

import pickle
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint.planner import SavePlan, WriteItemType


@dataclass(frozen=True)
class HashedPlan(SavePlan):  # type: ignore[misc]
    """What a rank has to save, with a hash of each part."""

    hashes: dict[Any, str] = field(default_factory=dict)


def hash_of(value: Any) -> str:
    """Return the hash (XXH3, 128 bits, hex) of a value; equal values have the same on every rank."""
    found = xxhash.xxh3_128()
    _add(found, value)
    return str(found.hexdigest())


def lowest_only(plans: Sequence[HashedPlan]) -> tuple[list[SavePlan], tuple[str, ...]]:
    """Return the plans by rank, without parts that differ from a lower rank's; and their sorted names."""
    first: dict[Any, str] = {}
    kept, names = [], set()
    for plan in plans:
        items = []
        for item in plan.items:
            # an unsharded value is known by its name: its index may differ with its number of dimensions
            part = item.index if item.type == WriteItemType.SHARD else item.index.fqn
            if first.setdefault(part, plan.hashes[item.index]) == plan.hashes[item.index]:
                items.append(item)
            else:
                names.add(str(item.index.fqn))
        kept.append(SavePlan(items, plan.storage_data, plan.planner_data, plan.usable))
    return kept, tuple(sorted(names))


def _add(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        found.update(f"{value.dtype} {tuple(value.shape)} ".encode())
        if hasattr(value, "__tensor_flatten__"):  # a wrapper of tensors
            for name in value.__tensor_flatten__()[0]:
                _add(found, getattr(value, name))
            return
        flat = value.detach().reshape(-1)
        if flat.numel() == 1:  # one element may have any stride, but torch views only stride 1 as bytes
            flat = flat.as_strided((1,), (1,))
        found.update(flat.view(torch.uint8).numpy())
    elif isinstance(value, Mapping):
        found.update(f"dict of {len(value)} ".encode())
        for key in sorted(value, key=repr):  # equal ones may be ordered differently
            found.update(f"{key!r}: ".encode())
            _add(found, value[key])
    elif isinstance(value, Set):
        found.update(f"set of {len(value)} {sorted(map(hash_of, value))} ".encode())
    elif isinstance(value, list | tuple):
        found.update(f"{type(value).__name__} of {len(value)} ".encode())
        for each in value:
            _add(found, each)
    else:
        found.update(pickle.dumps(value))
