"""When the loss of a running stream is looked at: what is told of each segment, whatever its size."""

import math
from collections.abc import Iterator

import pytest

from logdoctor.compress.cut import Cutter
from logdoctor.compress.filter import compress
from logdoctor.compress.progress import Meter, read
from logdoctor.rules.scanner import Scanner
from logdoctor.service.live.losses import Losses
from tests.diagnose.logs import steps


def meters(scanner: Scanner, text: str, block: int) -> Iterator[Meter]:
    """What is read of a text that comes in pieces."""
    cutter, data = Cutter("main"), text.encode()
    for begin in range(0, len(data), block):
        for segment in cutter.push(data[begin : begin + block]):
            yield read(compress(segment, scanner), scanner.book)


@pytest.mark.parametrize("block", [100, 1000])
def test_it_turns_bad_once_and_good_once(scanner: Scanner, block: int) -> None:
    def loss(step: int) -> float:
        return 40.0 if 300 <= step < 330 else 2.0

    losses = Losses()
    turns = [losses.is_bad for meter in meters(scanner, steps(0, 400, loss), block) if losses.add(meter)]
    assert turns == [True, False]


def test_losses_that_are_no_numbers_are_bad_where_no_rule_reads_them(scanner: Scanner) -> None:
    """Of frameworks without rules of their own such lines are evidence, and no progress."""
    losses = Losses()
    said = {s: "nan" if 60 <= s < 90 else f"0.5{s % 7}" for s in range(120)}
    text = "".join(f"step: {s} | loss: {loss}\n" for s, loss in said.items())
    assert [losses.is_bad for meter in meters(scanner, text, 50) if losses.add(meter)] == [True, False]


def test_many_bad_ones_at_once_are_seen_and_stay_bad(scanner: Scanner) -> None:
    """More than are remembered, while much waited for compression; and long after."""
    losses = Losses()
    text = steps(0, 2000, lambda step: 40.0 if step >= 300 else 2.0)
    assert [losses.is_bad for meter in meters(scanner, text, 100_000) if losses.add(meter)] == [True]


def test_what_came_back_within_a_segment_is_nothing_new(scanner: Scanner) -> None:
    text = steps(0, 400, lambda step: 40.0 if 300 <= step < 330 else 2.0)
    assert not any([Losses().add(meter) for meter in meters(scanner, text, 1 << 20)])


def test_healthy_losses_and_other_lines_change_nothing(scanner: Scanner) -> None:
    losses = Losses()
    text = "hello\n" * 9 + steps(0, 400, lambda step: 3.0 - step / 200 + 0.1 * math.sin(step))
    assert not any([losses.add(meter) for meter in meters(scanner, text, 500)])
    assert not losses.is_bad


def test_far_into_a_log_it_is_seen_as_soon(scanner: Scanner) -> None:
    losses = Losses()
    text = steps(0, 9000) + steps(9000, 9010, lambda step: 50.0)
    assert [losses.is_bad for meter in meters(scanner, text, 7000) if losses.add(meter)] == [True]
