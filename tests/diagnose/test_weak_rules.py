"""Rules that know little yield: to rules that know the message, and to a job that went on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logdoctor import pipeline
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.types import Verdict
from tests.diagnose.logs import traceback
from tests.rules.books import diagnosis, small_scanner

Judged = Callable[..., Verdict]
CALL = "cudart call 7 failed: invalid handle"
MISSING = "run.sh: line 3: nvtop: command not found"
ENDED = "launcher: rank 3 ended"


@pytest.fixture
def judged(tmp_path: Path, limits: ReadLimits) -> Judged:
    """`judged(log, *rules)`: the verdict on a log by a book of these rules alone."""

    def judge(log: str, *rules: dict[str, Any]) -> Verdict:
        (tmp_path / "x.log").write_text(log)
        return pipeline.diagnose(
            [LogFile("main", tmp_path / "x.log")], small_scanner(tmp_path / "rules", *rules), limits
        )

    return judge


def ordinary(lines: int) -> str:
    return "".join(f"the gizmo number {number} turns\n" for number in range(lines))


def weak(rule: dict[str, Any], **claim: Any) -> dict[str, Any]:
    return rule | {"verdict": rule["verdict"] | claim}


@pytest.mark.parametrize("fallback", [True, False])
def test_a_fallback_yields_to_whoever_knows_the_message(judged: Judged, fallback: bool) -> None:
    kind = diagnosis("kind", r"cudart call \d+ failed: \w+ \w+") | {
        "fallback": fallback,
        "must_match": [{"text": CALL}],
    }
    assert judged(CALL + "\n", kind).reason == "CUDA Error"
    known = diagnosis("known", "invalid handle", reason="Value Error", role="proximate")
    assert judged(CALL + "\n", kind, known).reason == ("Value Error" if fallback else "CUDA Error")


@pytest.mark.parametrize("fallback", [True, False])
def test_a_fallback_yields_to_one_that_says_harmless(judged: Judged, fallback: bool) -> None:
    kind = diagnosis("kind", r"cudart call \d+ failed") | {"fallback": fallback, "must_match": [{"text": CALL}]}
    harmless = diagnosis("harmless", "invalid handle", role="note")
    assert judged(CALL + "\n", kind, harmless).outcome == ("unknown" if fallback else "failed")


@pytest.mark.parametrize(("behind", "outcome"), [(0, "failed"), (19, "failed"), (20, "unknown"), (199, "unknown")])
def test_what_programs_go_on_after_counts_only_where_little_follows(judged: Judged, behind: int, outcome: str) -> None:
    rule = diagnosis("missing", "command not found", reason="File Not Found Error", role="cause")
    log = f"{MISSING}\n{ordinary(behind)}"
    assert judged(log, weak(rule, mild=True)).outcome == outcome
    assert judged(log, rule).outcome == "failed"


def test_lines_with_signs_of_trouble_are_no_ordinary_output(judged: Judged) -> None:
    rule = weak(diagnosis("missing", "command not found", reason="File Not Found Error"), mild=True)
    assert judged(f"{MISSING}\n{ordinary(19)}ERROR: the loom is gone\n{MISSING}\n", rule).outcome == "failed"


def test_a_traceback_is_never_mild(judged: Judged) -> None:
    rule = weak(diagnosis("missing", "command not found", reason="File Not Found Error"), mild=True)
    assert judged(traceback("OSError: nvtop: command not found") + ordinary(150), rule).outcome == "failed"


@pytest.mark.parametrize(("behind", "outcome"), [(900, "failed"), (1100, "unknown")])
def test_what_a_job_plainly_outlives_did_not_stop_it(judged: Judged, behind: int, outcome: str) -> None:
    log = traceback("KeyError: 'tokens'") + ordinary(behind)
    machine = diagnosis("machine", "fabric is down", reason="NVLink Error", role="cause")
    assert judged(log, machine).outcome == outcome
    assert judged("the fabric is down\n" + ordinary(behind), machine).outcome == "failed", "a job may hang on"


@pytest.mark.parametrize(("behind", "outcome"), [(1999, "failed"), (2000, "unknown")])
def test_a_job_outlives_a_part_of_it(judged: Judged, behind: int, outcome: str) -> None:
    rule = diagnosis("ended", r"rank \d+ ended", reason="Unknown", role="teardown") | {"must_match": [{"text": ENDED}]}
    assert judged(f"{ENDED}\n{ordinary(behind)}", rule).outcome == outcome
