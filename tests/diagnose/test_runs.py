"""Several runs in one file, each appended to the one before: the last decides, the others are told."""

from io import StringIO

from rich.console import Console

from logdoctor.types import EarlierRun
from logdoctor.words.panel import panel
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import prefixed, steps, traceback
from tests.diagnose.test_aftermath import FAULT, SAMPLES

START = (
    "Thu Aug 21 02:29:47 2025\n| driver version 535 and its tables |\n| device name and its fans |\n"
    "reading the list of shards\nbuilding the model of 7 layers\n"
)
CANCELLED = "slurmstepd: error: *** JOB 266999 ON n14 CANCELLED AT 2025-08-21T02:26:53 ***\n"


AGAIN = START.replace("Thu Aug 21", "Sat Aug 23")


def test_the_last_of_several_runs_in_a_file_decides(diagnose: Diagnose) -> None:
    assert diagnose(START + SAMPLES + FAULT + AGAIN + SAMPLES).outcome != "failed"
    assert diagnose(START + SAMPLES + FAULT + AGAIN + SAMPLES + CANCELLED).outcome == "cancelled"
    assert diagnose(START + SAMPLES + CANCELLED + AGAIN + SAMPLES + "Success rate: 18.0%\n").outcome == "completed"
    done = "Success rate: 18.0%\n"
    assert diagnose(START + SAMPLES + done + CANCELLED + AGAIN + SAMPLES + done).outcome == "completed"
    assert diagnose(START + FAULT + AGAIN + FAULT + AGAIN + SAMPLES).outcome != "failed", "of short runs, too"
    assert diagnose(START + FAULT + AGAIN + SAMPLES + FAULT).reason == "Value Error"


def test_runs_that_begin_with_warnings_are_told_apart(diagnose: Diagnose) -> None:
    start = (
        "/env/lib/layers/__init__.py:48: FutureWarning: importing from this name fails from version 2 on\n"
        "/env/lib/transformer.py:33: UserWarning: Fail to import deformable attention from ops\n"
        "reading the list of shards\n"
    )
    other = traceback("KeyError: 'LOCAL_RANK'")
    verdict = diagnose((start + SAMPLES + FAULT) * 3 + start + SAMPLES + other)
    assert (verdict.reason, len(verdict.runs)) == ("Key Error", 3)


def test_first_lines_that_come_again_and_again_are_work(diagnose: Diagnose) -> None:
    """A log that begins in the middle of its work has no start by which another one would be known."""
    turn = "round {0} begins\nloader of {0} is ready\nmodel of {0} is set\nscore of {0} is 3\n"
    work = "".join(map(turn.format, range(20)))
    assert diagnose(work + FAULT + "round 20 begins\n").reason == "Value Error"
    report = "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 1 (pid: 77)\n"
    assert diagnose(work + FAULT + turn.format(20) + report).reason == "Value Error"


def test_earlier_runs_are_told_with_what_became_of_them(diagnose: Diagnose) -> None:
    verdict = diagnose(START + SAMPLES + FAULT + AGAIN + SAMPLES + CANCELLED + AGAIN + SAMPLES + "done.\n")
    detail = "ValueError: 9000 tokens asked for, at most 8192 fit"
    assert verdict.outcome == "completed"
    assert verdict.runs == (
        EarlierRun(1, "failed", "Value Error", detail, 71, detail, 0.86, "structure"),
        EarlierRun(73, "cancelled", "None", "", 137, CANCELLED.strip(), 0.8, "rule"),
    )
    written = StringIO()
    console = Console(file=written, width=100)
    console.print(panel("a.log", verdict))
    shown = " ".join(written.getvalue().replace("│", " ").split())
    assert "earlier runs Cancelled (line 137); Value Error (line 71)" in shown, shown


def test_steps_of_an_earlier_run_are_none_of_the_last(diagnose: Diagnose) -> None:
    verdict = diagnose(START + steps(0, 400) + FAULT + AGAIN + steps(0, 40))
    assert (verdict.outcome, verdict.progress.step, verdict.runs[0].outcome) == ("running", 39, "failed")


def test_a_restart_that_the_job_reports_is_of_the_same_run(diagnose: Diagnose) -> None:
    report = (
        "torch.distributed.elastic.agent.server.api: [INFO] [default] Worker group FAILED. 3/3 attempts left;"
        " will restart worker group\n"
    )
    verdict = diagnose(START + steps(0, 40) + FAULT + report + AGAIN + steps(20, 80))
    assert (verdict.outcome, verdict.runs) == ("recovered", ())


def test_ranks_and_actors_that_print_the_same_first_lines_are_of_one_run(diagnose: Diagnose) -> None:
    late = "waiting for the peers of this group\n" * 30
    assert diagnose(START + SAMPLES + FAULT + (START * 3) + late).reason == "Value Error"
    of = [prefixed(f"[rank{rank}]: ", START) for rank in range(2)]
    assert diagnose(of[0] + SAMPLES + FAULT + of[1] + late).reason == "Value Error"
    actors = [prefixed(f"(Trainer pid={pid}) ", START) for pid in (101, 102)]
    assert diagnose(actors[0] + SAMPLES + FAULT + actors[1] + late).reason == "Value Error"
