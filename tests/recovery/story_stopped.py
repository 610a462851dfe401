"""A rank that is stopped by a signal is named and its job started again; a job that a person suspends goes on later."""

import os
import signal
import sys
import time
from collections.abc import Mapping

import pytest

from logdoctor.job.recovery import orphans
from logdoctor.job.recovery.witness.states import read_states
from tests import waiting
from tests.recovery.conftest import Job

LAUNCHER = """
import os, signal, subprocess, sys, time
if "RANK" not in os.environ:
    first = not os.path.exists("begun")
    open("begun", "a").close()
    ranks = [subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": str(n)}) for n in range(2)]
    if first and len(sys.argv) > 1:
        while True: time.sleep(1)
    time.sleep(8)
    for rank in ranks: rank.kill()
    sys.exit()
signal.signal(signal.SIGCONT, lambda *_: open(f"continued-{os.environ['RANK']}", "a").close())
if os.environ["RANK"] == "0":
    for step in range(60):
        print(f"step: {step} | loss: 2.{step % 10}", flush=True)
        time.sleep(0.05)
time.sleep(3000)
"""


@pytest.fixture
def launcher(alone: Job) -> str:
    """A program that starts two ranks, and goes on for ever in the first attempt if it is given an argument."""
    path = alone.folder / "launch.py"
    path.write_text(LAUNCHER)
    alone.environment |= {"LOGDOCTOR_HANG_LEAST_SECONDS": "5"}
    return str(path)


def ranks_of(job: Job) -> Mapping[int, int]:
    """The processes of the ranks of the attempt that runs."""
    started = job.events("started")
    seen = read_states(started[-1]["key"]) if started else {}
    return {what.rank: process.pid for process, what in seen.items() if what.rank is not None}


def test_a_stopped_rank_is_named_and_the_job_goes_on(alone: Job, launcher: str) -> None:
    run = alone.start([], "--end-on", "hang", "--grace", "2", program=[sys.executable, launcher, "hangs"])
    ranks = waiting.until(lambda: len(found := ranks_of(alone)) == 2 and found)
    waiting.until(lambda: b"step: 59" in (alone.state / "log").read_bytes())
    os.kill(ranks[1], signal.SIGSTOP)
    assert run.wait() == 0
    assert [event["judged"] and event["judged"]["reason"] for event in alone.events("ended")] == ["Hang", None]
    assert "its verdict is Hang (rank 1): it is ended." in alone.err
    assert (alone.folder / "continued-1").exists(), "a process that is stopped cannot end in order"


def test_a_job_that_a_person_suspends_is_not_ended_for_that(alone: Job, launcher: str) -> None:
    run = alone.start([], "--end-on", "hang", program=[sys.executable, launcher])
    waiting.until(lambda: len(ranks_of(alone)) == 2)
    waiting.until(lambda: b"step: 59" in (alone.state / "log").read_bytes())
    suspended = list(read_states(alone.events("started")[-1]["key"]))
    orphans.send(suspended, signal.SIGSTOP)
    waiting.until(lambda: "All processes of the job are stopped" in (alone.folder / "err").read_text())
    verdict_would_stand = 12.0
    time.sleep(verdict_would_stand)
    orphans.send(suspended, signal.SIGCONT)
    assert run.wait() == 0 and alone.decisions == ["stop"]
    assert "it is ended" not in alone.err
