"""Stopped ranks and ranks that wait in the kernel are reported; debugging or suspending a job does it no harm."""

import os
import signal
import subprocess
from uuid import uuid4

import pytest

from logdoctor.job.recovery.contract import ATTEMPT_KEY
from logdoctor.job.recovery.orphans import Process
from logdoctor.job.recovery.witness.states import Seen, States, read_states
from tests import waiting

LAUNCHER, ONE, TWO, WORKER = (Process(pid, 7) for pid in (100, 101, 102, 103))
RUNNING = {LAUNCHER: Seen(None, "S"), ONE: Seen(0, "S"), TWO: Seen(1, "S"), WORKER: Seen(1, "S")}


class Host:
    """A host whose processes, output and clock the test sets."""

    def __init__(self) -> None:
        self.now, self.printed, self.seen = 50.0, 0, dict(RUNNING)
        self.said: list[str] = []
        self.states = States(lambda: self.seen, lambda: self.printed, self.said.append, lambda: self.now)

    def looks(self, seconds: int, is_suspect: bool = False, prints: bool = False) -> list[str]:
        """What is told in so many seconds, with a look in each."""
        lines = []
        for _ in range(seconds):
            self.now += 1.0
            self.printed += prints
            lines += self.states.look(is_suspect)
        return lines


@pytest.fixture
def host() -> Host:
    return Host()


def test_a_rank_that_is_stopped_is_told_of_once_and_again_when_it_is_stopped_anew(host: Host) -> None:
    assert not host.looks(100)
    for _ in range(2):
        host.seen |= {TWO: Seen(1, "T")}
        assert not host.looks(5)
        (line,) = host.looks(20)
        assert line == "process state: missing ranks: 1: stopped by a signal (process 102); kill -CONT goes on"
        host.seen |= RUNNING
        assert not host.looks(20)
    assert not host.said and not host.states.is_held


def test_a_process_that_helps_a_rank_counts_for_it(host: Host) -> None:
    host.seen |= {WORKER: Seen(1, "T"), ONE: Seen(0, "T")}
    (line,) = host.looks(8)
    assert line.startswith("process state: missing ranks: 0, 1: stopped by a signal (process 101, 103)")


def test_what_is_no_rank_and_what_is_short_is_not_told_of(host: Host) -> None:
    host.seen |= {LAUNCHER: Seen(None, "T")}
    assert not host.looks(30)
    for state in "TSTSTS":
        host.seen |= {ONE: Seen(0, state)}
        assert not host.looks(4)


def test_while_the_job_prints_nothing_is_told(host: Host) -> None:
    host.seen |= {ONE: Seen(0, "T")}
    assert not host.looks(30, prints=True)
    assert not host.looks(4) and len(host.looks(4)) == 1


def test_a_wait_in_the_kernel_is_told_of_where_the_job_is_suspected_to_hang(host: Host) -> None:
    """A save that is flushed to a slow disk waits there as well."""
    host.seen |= {ONE: Seen(0, "D")}
    assert not host.looks(60)
    (line,) = host.looks(3, is_suspect=True)
    assert line == "kernel wait: missing ranks: 0: in the kernel, uninterruptible (process 101)"
    host.seen |= {ONE: Seen(0, "S")}
    host.looks(1)
    host.seen |= {ONE: Seen(0, "D")}
    assert not host.looks(5, is_suspect=True), "it is another wait"


def test_a_debugger_holds_the_job(host: Host) -> None:
    host.seen |= {ONE: Seen(0, "t", 1 << 30), TWO: Seen(1, "T")}
    assert not host.looks(60) and host.states.is_held
    (said,) = host.said
    assert said.startswith("Process 101 of rank 0 is traced by ") and "it is not ended" in said
    host.seen |= {ONE: Seen(0, "S")}
    assert len(host.looks(1)) == 1 and not host.states.is_held


def test_who_suspends_the_whole_job_holds_it(host: Host) -> None:
    host.seen = {one: Seen(what.rank, "T") for one, what in RUNNING.items()}
    assert not host.looks(60) and host.states.is_held
    assert [said.split(" (")[0] for said in host.said] == ["All processes of the job are stopped"]
    host.seen = {}
    assert not host.looks(60) and not host.states.is_held


def test_real_processes_are_seen_as_they_are() -> None:
    key = str(uuid4())
    with subprocess.Popen(["sleep", "3000"], env={**os.environ, ATTEMPT_KEY: key, "RANK": "3"}) as process:
        waiting.until(lambda: [what.rank for what in read_states(key).values()] == [3])
        process.send_signal(signal.SIGSTOP)
        waiting.until(lambda: list(read_states(key).values()) == [Seen(3, "T", 0)])
        process.kill()
    assert not read_states(key)
