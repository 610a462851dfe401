"""How commands end that cannot write, or that are interrupted: real processes, and the exit codes that scripts see."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import waiting
from tests.programs import is_gone

ECC_LOG = Path(__file__).parents[1] / "eval" / "corpus" / "failures" / "inf-028.log"
PROGRAM = [sys.executable, "-m", "logdoctor.cli"]
LINE = b"[2024-03-02 11:08:47] iteration %d | loss 2.1 | NCCL WARN something else that no rule takes away %d\n"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A log that takes long."""
    path = tmp_path_factory.mktemp("large") / "large.log"
    block = b"".join(LINE % (number, number * 7919) for number in range(40_000))
    with path.open("wb") as file:
        for _ in range(100):
            file.write(block)
    yield path
    path.unlink()


def children(process: "subprocess.Popen[str]") -> list[str]:
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def work(process: str) -> int:
    """The ticks of the clock that a process has worked for."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11])


@pytest.mark.parametrize(
    "words",
    [
        ("diagnose", ECC_LOG),
        ("diagnose", "--json", ECC_LOG),
        ("rules", "list"),
        ("--help",),
        ("batch", ECC_LOG, "--out", "v.csv"),
    ],
)
def test_an_output_that_cannot_be_written_is_no_result(words: tuple[object, ...], tmp_path: Path) -> None:
    words = tuple(tmp_path / "v.csv" if word == "v.csv" else word for word in words)
    with open("/dev/full", "w") as full:
        ran = subprocess.run([*PROGRAM, *map(str, words)], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ran.returncode == 2, ran.stderr
    assert "the output cannot be written (No space left on device)" in ran.stderr
    assert "Traceback" not in ran.stderr and "Exception ignored" not in ran.stderr


INTERRUPTS = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from logdoctor.cli import main
sys.argv = ["logdoctor", "diagnose", {log!r}]
main()
"""


@pytest.mark.parametrize(("name", "said"), [("click", ""), ("logdoctor.cli.nodes", ""), ("numpy", "Interrupted.\n")])
def test_ctrl_c_while_the_program_starts(name: str, said: str) -> None:
    code = INTERRUPTS.format(name=name, log=str(ECC_LOG))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", said)


def test_a_reader_that_has_gone_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            [*PROGRAM, "diagnose", "--json", str(ECC_LOG)],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("whom", ["all", "parent"])
def test_ctrl_c_ends_it_and_its_workers(large: Path, whom: str, count: int) -> None:
    """One log is read by several processes, of several each has a process; a terminal signals all of them."""
    command = [*PROGRAM, "diagnose", "--json", *[str(large)] * count]
    environment = {**os.environ, "LOGDOCTOR_WORKERS": "2"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        waiting.until(lambda: len(children(process)) >= 2 and all(map(work, children(process))), "its workers work")
        if whom == "all":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    finally:
        if not is_gone(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, out) == (130, ""), err
    assert err == "Interrupted.\n"
    waiting.until(lambda: is_gone(process.pid), "no process is left")
