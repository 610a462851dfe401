"""A class that says nothing is no cause: better Unknown than the program blamed."""

import pytest

from logdoctor.diagnose.carriers import is_report, names_another_fault
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import CONTEXT, DIRECT, nccl_timeout, steps, traceback

HEAD = steps(0, 40)


@pytest.mark.parametrize(
    "message",
    [
        "loom driver reports a jammed shuttle",
        "the fabric of ward 7 is unreachable",
        "worker 3 of the sampler exited unexpectedly",
        "object store says 507, bucket is full",
        "corrupt header in the archive of weights",
    ],
)
def test_a_generic_error_that_speaks_of_something_else_is_unknown(diagnose: Diagnose, message: str) -> None:
    for error in (f"RuntimeError: {message}", f"acme.LoomException: {message}"):
        verdict = diagnose(HEAD + traceback(error))
        assert (verdict.reason, verdict.recovery) == ("Unknown", "ask_human")
        assert verdict.evidence[0].quote == error, "it is shown all the same"
        assert verdict.decided_by.kind == "nobody"


def test_it_stands_before_what_follows_from_it(diagnose: Diagnose) -> None:
    """The time-outs of its peers are not taken for the cause."""
    verdict = diagnose(HEAD + traceback("RuntimeError: loom driver reports a jammed shuttle") + nccl_timeout([1, 2]))
    assert verdict.reason == "Unknown" and [one.reason for one in verdict.symptoms] == ["NCCL Timeout Error"]


@pytest.mark.parametrize(
    "message", ["shape '[4, 32]' is invalid for input of size 100", "expected scalar type Half", "x"]
)
def test_one_that_speaks_of_the_program_is_of_the_program(diagnose: Diagnose, message: str) -> None:
    verdict = diagnose(HEAD + traceback(f"RuntimeError: {message}"))
    assert (verdict.reason, verdict.recovery) == ("Runtime Error", "fix_first")


def test_a_class_with_a_meaning_keeps_it(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + traceback("KeyError: 'connection'"))
    assert verdict.reason == "Key Error"


def test_a_report_of_another_death_yields_to_what_it_wraps(diagnose: Diagnose) -> None:
    inner, outer = traceback("KeyError: 'tokens'"), traceback("acme.RayTaskError: worker died")
    for link in (DIRECT, CONTEXT):
        assert diagnose(HEAD + inner + link + outer).reason == "Key Error"
    alone = diagnose(HEAD + traceback("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated"))
    assert alone.reason == "Unknown" and "no log line says why" in alone.why


def test_words() -> None:
    assert is_report("a.b.ChildFailedError") and is_report("RayTaskError(KeyError)") and not is_report("KeyError")
    assert names_another_fault("RuntimeError: CUDA error: unknown") and names_another_fault("x timed out")
    assert not names_another_fault("RuntimeError: Expected all tensors to be on the same device, cuda:0 and cpu")
    assert not names_another_fault("RuntimeError: " + "x" * 2000 + "network"), "only its begin is read"


XID = "gpu-9 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4182, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "line",
    [
        f"sample text: '{XID}'",
        f'{{"prompt": "what is this?", "answer": "{XID}"}}',
        "UserWarning: CUDA error: uncorrectable ECC error encountered",
    ],
)
def test_what_a_program_prints_as_its_data_blames_no_machine_beside_its_own_error(
    diagnose: Diagnose, line: str
) -> None:
    verdict = diagnose(HEAD + line + "\n" + traceback("ValueError: expected sequence of length 4"))
    assert (verdict.reason, verdict.recovery, verdict.suspects) == ("Value Error", "fix_first", ())


@pytest.mark.parametrize(
    "line",
    [
        XID,
        f'health-agent: {{"level": "info", "event": {{"message": "{XID}"}}}}',
        f"{XID} name='a process of some length'",
    ],
)
def test_what_a_logger_reports_of_a_machine_does(diagnose: Diagnose, line: str) -> None:
    verdict = diagnose(HEAD + line + "\n" + traceback("ValueError: expected sequence of length 4"))
    assert (verdict.reason, verdict.recovery) == ("CUDA Error", "isolate_and_restart")
