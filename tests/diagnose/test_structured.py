"""What programs say through loggers that wrap it: reports within one record, in the column of a table, at their end."""

import json

import pytest

from logdoctor.text import said_in
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import steps, traceback

FRAMES = '  File "train.py", line 7, in main\n    run()\n  File "data.py", line 3, in run\n    open(path)\n'
REPORT = f"Traceback (most recent call last):\n{FRAMES}FileNotFoundError: [Errno 2] No such file or directory: 'a.bin'"
CHAINED = (
    f"{REPORT}\n\nDuring handling of the above exception, another exception occurred:\n\n"
    f"Traceback (most recent call last):\n{FRAMES}RuntimeError: reading failed"
)


def in_json(report: str) -> str:
    return json.dumps({"level": "error", "event": "run failed", "exception": report})


def in_logfmt(report: str) -> str:
    return f"ts=2026-11-28T03:58:35Z level=error rank=0 msg={json.dumps('run failed' + chr(10) + report)}"


def in_docker(report: str) -> str:
    return json.dumps({"log": in_json(report)})


def in_field(report: str) -> str:
    return json.dumps({"event": "run failed", "exc_info": report})


@pytest.mark.parametrize("report", [REPORT, CHAINED])
@pytest.mark.parametrize("wrapped", [in_json, in_logfmt, in_docker, in_field])
@pytest.mark.parametrize("prefix", ["", "[rank1] "])
def test_a_report_in_one_record_is_read(diagnose: Diagnose, report: str, wrapped: object, prefix: str) -> None:
    assert callable(wrapped)
    verdict = diagnose(steps(0, 20) + prefix + wrapped(report) + "\n")
    assert (verdict.reason, verdict.recovery, verdict.evidence[0].line) == ("File Not Found Error", "fix_first", 21)


@pytest.mark.parametrize("label", ['{"level": "INFO", "msg": "sample", "text": ', '{"prompt": ', "judge stderr: "])
def test_a_report_that_is_data_is_none(diagnose: Diagnose, label: str) -> None:
    data = f"{label}{json.dumps(REPORT)}" + ("}" if label.startswith("{") else "")
    assert diagnose(steps(0, 20) + data + "\n").outcome == "running"


@pytest.mark.parametrize("words", ["all 8 ranks completed step 30", "all 8 workers finished loading"])
def test_words_of_all_hide_no_death(diagnose: Diagnose, words: str) -> None:
    log = steps(0, 20) + "launcher: rank 1 (pid 4103) killed by signal 9\n"
    assert diagnose(f"{log}{words}\n").outcome == diagnose(log).outcome == "failed"


def test_a_report_wrapped_in_a_column_is_read(diagnose: Diagnose) -> None:
    column = " " * 29
    rows = ["Traceback (most recent call last):", "  File", '  "/srv/data.py",', "  line 3, in run", "    open(path)"]
    rows += ["PermissionError: [Errno 13] Permission", "denied: 'data/train.jsonl'"]
    table = "".join(f"{column}{row:<50}\n" for row in rows)
    verdict = diagnose(steps(0, 20) + f"[03:51:04] ERROR    run failed{' ' * 20}run.py:9\n" + table)
    assert (verdict.reason, verdict.evidence[0].line) == ("Permission Error", 27)


@pytest.mark.parametrize(
    "last", ["all 20 steps complete, exiting", '{"level": "info", "msg": "Finished in 51s"}', 'level=info msg="done."']
)
def test_errors_of_threads_after_the_last_words_are_of_no_failure(diagnose: Diagnose, last: str) -> None:
    late = "Exception in thread uploader:\n" + traceback("KeyError: 'session'")
    log = "".join(f'{{"level": "info", "msg": "step {n} took {n} ms"}}\n' for n in range(20)) + f"{last}\n"
    assert diagnose(log).outcome == "completed"
    assert (diagnose(log + late).outcome, diagnose(log + traceback("KeyError: 'x'")).outcome) == ("completed", "failed")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ('{"level": "info", "msg": "a \\"b\\" c"}', 'a "b" c'),
        ('level=info rank=0 msg="done \\"well\\""', 'done "well"'),
        ("plain text", "plain text"),
        ("a=1 b=2", "a=1 b=2"),
        ('{"step": 3, "loss": 1.0}', '{"step": 3, "loss": 1.0}'),
        ('{"msg": " "}', '{"msg": " "}'),
        ('level=info msg="cut off', 'level=info msg="cut off'),
    ],
)
def test_what_a_record_says(message: str, said: str) -> None:
    assert said_in(message) == said


def test_an_error_of_a_thread_after_the_last_step_is_of_no_failure(diagnose: Diagnose) -> None:
    log = "".join(f"step {n}/30 | loss {3 - n / 30:.3f} | lr 3e-4\n" for n in range(1, 31))
    assert diagnose(log).outcome == "completed"
    assert diagnose(log + "Exception in thread uploader:\n" + traceback("KeyError: 'session'")).outcome == "completed"
    assert diagnose(log + traceback("KeyError: 'session'")).outcome == "failed"
