"""Steps and losses are read from learned lines when all of them have one and the steps go on."""

import re
import time

import pytest

from logdoctor.learning.filters.metrics import ACCURACY, KNOWN, LOSS, RATE, RATE_IN_UNITS, STEP, STEP_OF, metrics


def lines(form: str, count: int = 10) -> list[tuple[str, int, str]]:
    return [("main", number, form.format(number, 9 / number)) for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("step {0} loss: {1:.3f}", (STEP, LOSS)),
        ("step: {0}/500 loss={1:.3e}", (STEP_OF, LOSS)),
        ("{{'loss': {1:.3f}, 'grad_norm': 2.5}}", (LOSS,)),
        ("Iteration {0} | lm loss: {1:.2E} | ok", (STEP, LOSS)),
        ("global_step={0} train_loss: {1:.1f}", (STEP, LOSS)),
        ("iter {0}", (STEP,)),
        ("loss scale: {0}", ()),
        ("saved to /ckpt/step_{0}", ()),
        ("footstep {0}", ()),
        ("glossary: {0}", ()),
        ("gizmo {0} turns", ()),
        ("Epoch[0] Batch [{0}] Speed: {1:.2f} samples/sec accuracy={1:.2f}", (STEP, RATE, ACCURACY)),
        ("batch size {0}", ()),
        ('{{"iter": {0}, "tokens_per_second": {1:.1f}, "top1": 0.5}}', (STEP, RATE, ACCURACY)),
        ("epoch 3, {1:.1f} images/s", (RATE_IN_UNITS,)),
        ("moved {0} images", ()),
        ("train_acc: {1:.4f}", (ACCURACY,)),
        ("inaccuracy: {1:.4f}", ()),
        ("loss is {1}", ()),
    ],
)
def test_what_is_read(form: str, wanted: tuple[str, ...]) -> None:
    assert metrics(lines(form)) == wanted


def test_the_values_are_those_that_are_printed() -> None:
    text = b"iteration 120/ 500000 | lm loss: 6.81E+00 | nothing"
    step, loss = re.search(STEP_OF.encode(), text), re.search(LOSS.encode(), text)
    assert step and loss and (step["step"], step["total"], loss["loss"]) == (b"120", b"500000", b"6.81E+00")
    for value in (b"nan", b"-inf", b"NaN", b"inf", b"0.5", b"12"):
        found = re.search(LOSS.encode(), b"loss: " + value)
        assert found and found["loss"] == value


def test_what_some_lines_lack_is_not_read() -> None:
    assert metrics([*lines("step {0} loss: {1:.3f}"), ("main", 11, "step 11 skipped")]) == (STEP,)
    assert metrics([]) == ()


def test_numbers_that_do_not_go_on_are_no_steps() -> None:
    back = [("main", number, f"step {100 - number} left") for number in range(10)]
    assert metrics(back) == ()
    assert metrics([*lines("step {0} ok", 30), ("main", 31, "step 1 ok"), ("main", 32, "step 2 ok")]) == (STEP,)


def test_steps_go_on_in_each_stream() -> None:
    ranks = [(f"rank{rank}", number, f"step {number}") for number in range(10) for rank in range(4)]
    assert metrics(ranks) == (STEP,)


@pytest.mark.parametrize("text", ["step " * 400, "s" * 2000, "loss" * 500, "loss: " * 300, " \t" * 1000, "step:" * 400])
def test_hostile_lines_are_read_in_bounded_time(text: str) -> None:
    for expression in (STEP, STEP_OF, LOSS):
        re.search(expression.encode(), text.encode())
    metrics([("main", 1, text)] * 5)


PIECES = (
    b" ", b"\t", b"1,", b"1.", b"1", b"acc", b"acc ", b"step ", b"loss: ", b"speed = ", b"1 it", b"'", b"|", b"%|",
)  # fmt: skip


@pytest.mark.parametrize("expression", sorted(KNOWN))
def test_no_line_of_a_log_holds_up_the_reading(expression: str) -> None:
    """A metric line is searched in its first 4,096 bytes, without a limit of time."""
    for piece in PIECES:
        begin = time.process_time()
        for line in (piece * 4096, b"acc" + piece * 4096 + b"x", b"step" + piece * 4096 + b"x"):
            re.search(expression.encode(), line[:4096])
        assert time.process_time() - begin < 0.3, piece
