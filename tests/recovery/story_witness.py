"""The second witness of a hang: stacks and flight recorders of real ranks name the one that the others wait for."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logdoctor.job.recovery.contract import ATTEMPT_KEY, STACKS_DIR
from logdoctor.job.recovery.orphans import processes
from logdoctor.job.recovery.witness import stacks
from logdoctor.job.recovery.witness.stacks import Frame, Refused
from logdoctor.job.recovery.witness.taking import WAYS, Witness, empty_folder, witness_folder
from tests import waiting
from tests.recovery import witness_ranks
from tests.recovery.conftest import Job
from tests.send.conftest import ROOT
from tests.soak import SOAKING

HANGS = [(2, seed) for seed in range(20 if SOAKING else 1)] + [(4, seed) for seed in range(10 if SOAKING else 1)]
Ranks = Callable[[int, int], str]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """Starts ranks of which one hangs, and gives the key of their attempt once the others begin to wait for it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(world: int, seed: int) -> str:
        key = f"{tmp_path.name}.{world}.{seed}"
        told = {ATTEMPT_KEY: key, STACKS_DIR: empty_folder(str(tmp_path)), "TORCH_FR_BUFFER_SIZE": "100"}
        told |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, witness_ranks.__file__, str(world), str(seed), str(tmp_path / "store")]
        for rank in range(world):
            environment = {**os.environ, **told, "RANK": str(rank)}
            started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == b"is there\n"
        return key

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


@pytest.mark.parametrize(("world", "seed"), HANGS)
def test_the_missing_rank_of_a_hang_is_named_by_both(ranks: Ranks, tmp_path: Path, world: int, seed: int) -> None:
    key, said = ranks(world, seed), list[str]()
    witness, wanted = Witness(str(tmp_path), WAYS, said.append), witness_ranks.missing_rank(world, seed)
    named = (
        f"flight recorder: missing ranks: {wanted}: did not enqueue #",
        f"stacks: missing ranks: {wanted}: at wait_for_data (witness_ranks.py:",
    )

    def both_name_it() -> bool:
        lines = witness.lines(key)
        return all(any(line.startswith(begin) for line in lines) for begin in named)

    waiting.until(both_name_it, "; ".join(named))
    assert not said


def test_a_program_that_prints_its_own_stacks_goes_on(tmp_path: Path) -> None:
    code = """
import faulthandler, signal
faulthandler.register(signal.SIGUSR1)
print(1, flush=True)
while True: signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr and process.stdout.readline()
        (found,) = processes(lambda pid: pid == process.pid)
        assert stacks.take(0, [found], str(tmp_path), ["faulthandler"]) == []
        assert b"most recent call first" in process.stderr.readline() and process.poll() is None
        process.kill()


def test_the_real_py_spy_sees_where_a_process_hangs(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import time\ndef waiting():\n    print(flush=True)\n    time.sleep(3000)\nwaiting()\n")
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        (found,) = processes(lambda pid: pid == process.pid)

        def seen() -> list[Frame] | str:
            try:
                return stacks.take(0, [found], str(tmp_path), ["py-spy"])
            except Refused as error:  # it may be between two instructions: nothing stops it
                return str(error) if "Permission" in str(error) else ""

        stack = waiting.until(seen)
        assert process.poll() is None
        process.kill()
    if isinstance(stack, str):  # refused by the kernel, as in many containers
        return
    assert [frame for frame in stack if frame.file == str(program)] == [
        Frame("waiting", str(program), 4),
        Frame("<module>", str(program), 5),
    ]


def test_a_job_whose_stacks_nobody_asks_for_is_left_alone(job: Job) -> None:
    assert job.run([{"steps": [0, 2]}], "--end-on", "hang") == 0
    assert STACKS_DIR not in job.starts[0]["env"]
    assert not os.path.exists(witness_folder(str(job.state)))
