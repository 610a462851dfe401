"""Units of throughput: only those that a rule's lines tell."""

import pytest

from logdoctor.rules.scanner import Scanner
from logdoctor.types import Compression, RuleCount
from logdoctor.web import units


def of(*rules: str) -> Compression:
    return Compression(rules={rule: RuleCount(3, 1, 9) for rule in rules})


@pytest.mark.parametrize(
    ("rules", "unit"),
    [
        (("filter/megatron/iteration", "filter/nccl/info"), "TFLOP/s per GPU"),
        (("filter/megatron/iteration", "filter/nemo/progress"), "TFLOP/s per GPU"),
        (("filter/megatron/iteration", "filter/tqdm/progress"), ""),
        (("filter/transformers/progress",), ""),
        (("filter/nccl/info",), ""),
        ((), ""),
    ],
)
def test_a_unit_is_told_only_when_it_is_known(scanner: Scanner, rules: tuple[str, ...], unit: str) -> None:
    assert units.throughput(of(*rules), scanner.book) == unit
