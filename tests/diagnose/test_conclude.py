"""What others conclude becomes a verdict only with its proof; the rest is added by code."""

from typing import Any

from logdoctor.diagnose.conclude import RootCause, conclude
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Alternative
from tests.diagnose.conftest import Recorded
from tests.diagnose.logs import nccl_timeout, steps

HEAD = steps(0, 40)
JAM = "gpu-12: [rank3]: RuntimeError: loom driver reports a jammed shuttle at 0x7f\n"
LOG = HEAD + JAM + nccl_timeout([1, 2])


def said(**changed: Any) -> RootCause:
    usual: dict[str, Any] = {"reason": "CUDA Error", "recovery": "", "fault": "", "confidence": 0.7}
    usual |= {"why": "The driver says so.", "suggestion": "", "places": (("main", 41),)}
    return RootCause(**usual | {"kind": "agent", "decided": "agent", "model": "tiny", "prompt": "ab12"} | changed)


def test_a_conclusion_is_proved_and_completed(recorded: Recorded, scanner: Scanner) -> None:
    alternatives = (Alternative("NCCL Timeout Error", "It follows from the jam."),)
    verdict = conclude(recorded(LOG), scanner.book, said(alternatives=alternatives))
    assert (verdict.reason, verdict.category, verdict.outcome) == ("CUDA Error", "Infrastructure", "failed")
    assert (verdict.recovery, verdict.fault) == ("isolate_and_restart", "infrastructure"), "as the taxonomy says"
    assert verdict.evidence[0].quote == JAM.rstrip("\n") and verdict.evidence[0].line == 41
    assert verdict.first_rank == 3 and [one.node for one in verdict.suspects] == ["gpu-12"]
    assert verdict.progress.step == 39 and verdict.compression.lines_in == LOG.count("\n")
    decided = verdict.decided_by
    assert (decided.kind, decided.model, decided.prompt, decided.rulebook) == (
        *("agent", "tiny", "ab12"),
        scanner.book.digest,
    )
    assert verdict.alternatives == alternatives
    assert [symptom.reason for symptom in verdict.symptoms] == ["NCCL Timeout Error"]


def test_what_cannot_be_quoted_is_no_conclusion(recorded: Recorded, scanner: Scanner) -> None:
    records = recorded(LOG)
    for places in ((), (("main", 20_000),), (("other", 41),), (("main", -1),), (("main", 0),)):
        verdict = conclude(records, scanner.book, said(places=places))
        assert (verdict.reason, verdict.recovery, verdict.confidence) == ("Unknown", "ask_human", 0.0)
        assert verdict.decided_by.kind == "nobody" and not verdict.suspects and not verdict.alternatives


def test_nodes_are_named_by_code_only(recorded: Recorded, scanner: Scanner) -> None:
    """A reason that is of no machine names none, whatever the line says."""
    verdict = conclude(recorded(LOG), scanner.book, said(reason="Type Error", why="cordon gpu-99"))
    assert not verdict.suspects and verdict.recovery == "fix_first"


def test_the_same_failure_has_the_same_fingerprint(recorded: Recorded, scanner: Scanner) -> None:
    other = LOG.replace("gpu-12", "gpu-31").replace("[rank3]", "[rank8]").replace("0x7f", "0x1234")
    prints = {
        conclude(recorded(log), scanner.book, said(decided="case/3", kind="case")).fingerprint for log in (LOG, other)
    }
    assert len(prints) == 1
