"""Four times the log is four times the work, whatever is in it: a program can print as many errors as lines."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from logdoctor.diagnose.decide import diagnose
from logdoctor.diagnose.episodes import episodes
from logdoctor.rules.scanner import Scanner
from tests.diagnose.conftest import Log, Recorded
from tests.diagnose.logs import prefixed, traceback

XID = "kernel: NVRM: Xid (PCI:0000:52:00): 48, pid=1, uncorrectable ECC"
Trace = Callable[[FrameType, str, Any], Any]
FEW, MOST = 20, 5  # errors of the smaller log; the most times its work that one with four times as many takes


def retries(count: int) -> Log:
    """One writer that catches another exception each time."""
    return "".join(traceback(f"ValueError: {letters(n)}") + f"going on with {letters(n)}\n" for n in range(count))


def together(count: int) -> Log:
    """Ranks that write into each other's tracebacks."""
    reports = [prefixed(f"[rank{n}]: ", traceback(f"KeyError: '{letters(n)}'")).splitlines() for n in range(count)]
    return "".join(f"{line}\n" for lines in zip(*reports, strict=True) for line in lines)


def alone(count: int) -> Log:
    """A line for each error, with a line of work in between."""
    oom = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    return "".join(f"[rank{n}]: {oom}\nworker {letters(n)} did a step\n" for n in range(3 * count))


def nodes(count: int) -> Log:
    """A node for each error."""
    return "".join(f"[gpu-{n}] {XID}\n" for n in range(2 * count))


def ranks(count: int) -> Log:
    """A file for each rank."""
    return {f"rank{n}": f"[gpu-{n}] {XID}\n" + traceback("KeyError: 1") for n in range(count)}


def bars(count: int) -> Log:
    """A bar that is drawn anew behind each error."""
    states = "".join(f"{n}%| {n}/90 [00:01<00:02]\r" for n in range(12))
    return "".join(f"{states}\n" + traceback(f"ValueError: {letters(n)}") for n in range(count))


def processes(count: int) -> Log:
    """A process for each error, while others work."""
    reports = (prefixed(f"(train pid={n}) ", traceback("KeyError: 1")) for n in range(count))
    return "".join(f"{report}" + 4 * f"(judge pid={9000 + n}) scored a sample\n" for n, report in enumerate(reports))


def margins(count: int) -> Log:
    """A prefix that nobody knows for each error."""
    return "".join(prefixed(f"{n:06} 12:34:56 {letters(n)}>> ", traceback("KeyError: 1")) for n in range(count))


def letters(number: int) -> str:
    """A word for each number."""
    return "".join(chr(ord("a") + int(digit)) for digit in f"{number:04}")


@pytest.mark.parametrize("log", [retries, together, alone, nodes, ranks, bars, processes, margins])
def test_four_times_the_errors_are_four_times_the_work(
    log: Callable[[int], Log], recorded: Recorded, scanner: Scanner
) -> None:
    def work(count: int) -> int:
        records = recorded(log(count))
        return steps(lambda: (diagnose(records, scanner.book), episodes(records, scanner.book)))

    work(1)  # what is read once for all
    few, many = work(FEW), work(4 * FEW)
    assert many < MOST * few


def steps(act: Callable[[], object]) -> int:
    """How many instructions of `logdoctor.diagnose` the interpreter takes."""
    count = 0

    def into(frame: FrameType, event: str, argument: object) -> Trace | None:
        if "/logdoctor/diagnose/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    def step(frame: FrameType, event: str, argument: object) -> Trace:
        nonlocal count
        count += event == "opcode"
        return step

    before = sys.gettrace()
    sys.settrace(into)
    try:
        act()
    finally:
        sys.settrace(before)
    return count
