"""Which values of ranks are told to differ: those that do, and no others."""

from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from logdoctor.checkpoint.replicas import hash_of
from logdoctor.checkpoint.staging import Stager

BITS = torch.arange(40_000, dtype=torch.float32)


def two(first: Any, second: Any) -> Any:
    """A tensor that wraps two."""
    return TwoTensor(first, second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": (2, {})}, {"b": (2, {}), "a": 1}),
        ({0, 8, 16}, {16, 8, 0}),
        (BITS.reshape(200, 200).t(), BITS.reshape(200, 200).t().contiguous()),
        (torch.ones(10)[::5][:1], torch.ones(1)),
        (BITS[:1].expand(40_000), torch.zeros(40_000)),
        (torch.ones(3, dtype=torch.complex64).conj(), torch.ones(3, dtype=torch.complex64).conj().resolve_conj()),
        (two(BITS, BITS + 1), two(BITS.clone(), BITS + 1)),
    ],
    ids=[
        "order of a dict",
        "order of a set",
        "transposed",
        "stride of one element",
        "expanded",
        "conjugate",
        "wrapped",
    ],
)
def test_equal_values_have_equal_hashes(one: Any, other: Any) -> None:
    found = []
    for value in (one, other):
        copy = Stager().begin({"value": (value,)})
        copy.run()
        found.append(hash_of(copy.tree["value"]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (({"a": 1}, {"b": 2}), ({"a": 1, "b": 2}, {})),
        ({"a": {}, "b": 1}, {"a": {"b": 1}}),
        ({"1": 0}, {1: 0}),
        ({1, 2}, {1, 3}),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(1), torch.zeros(1, dtype=torch.int32)),
        (two(BITS, BITS), two(BITS, BITS + 1)),
        (1, True),
        ([1], (1,)),
    ],
    ids=["two dicts", "nested", "keys", "sets", "dimensions", "dtype", "wrapped", "bool", "list"],
)
def test_other_values_have_other_hashes(one: Any, other: Any) -> None:
    assert hash_of(one) != hash_of(other)
