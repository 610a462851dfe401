"""A program that catches an exception goes on; the one that ends it is the last that it reports."""

import pytest

from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import DIRECT, prefixed, steps, traceback

WENT_ON = "loading the tokenizer\nbuilding the model\nready to train\n"
EARLY, LATE = traceback("KeyError: 'mlflow'"), traceback("TypeError: fit() takes 2 arguments")


def test_the_last_of_two_counts_when_the_program_went_on(diagnose: Diagnose) -> None:
    verdict = diagnose("start\n" + EARLY + WENT_ON + LATE)
    assert (verdict.reason, verdict.evidence[0].quote) == ("Type Error", "TypeError: fit() takes 2 arguments")


@pytest.mark.parametrize("between", ["", "loading the tokenizer\n", "\n\n\n\n", "  a\n  b\n  c\n  d\n", DIRECT])
def test_else_the_first_counts(diagnose: Diagnose, between: str) -> None:
    """What follows at once is of the same failure."""
    assert diagnose("start\n" + EARLY + between + LATE).reason == "Key Error"


def test_the_lines_must_be_of_the_same_writer(diagnose: Diagnose) -> None:
    log = prefixed("[rank0]: ", EARLY) + prefixed("[rank1]: ", WENT_ON + LATE)
    assert diagnose(log).reason == "Key Error"


def test_the_only_one_counts_whatever_is_printed_after_it(diagnose: Diagnose) -> None:
    assert diagnose(steps(0, 40) + LATE + WENT_ON).reason == "Type Error"


def test_the_same_one_again_is_no_other(diagnose: Diagnose) -> None:
    """Retries that end in the same error: the first is as good as the last."""
    verdict = diagnose("start\n" + EARLY + WENT_ON + EARLY)
    assert (verdict.reason, verdict.evidence[0].line) == ("Key Error", 7)


def test_a_launcher_that_reports_its_child_says_nothing(diagnose: Diagnose) -> None:
    child = "subprocess.CalledProcessError: Command '['/usr/bin/python3', 'train.py']' returned non-zero exit status 1."
    helper = "subprocess.CalledProcessError: Command '['nvidia-smi', '-L']' returned non-zero exit status 9."
    assert diagnose(steps(0, 40) + traceback(child)).reason == "Unknown"
    assert diagnose(steps(0, 40) + traceback(helper)).reason == "Called Process Error"
