"""The second witness of a hang: what stacks and flight recorders say, and who cannot be asked."""

import json
import os
import pickle
import signal
import subprocess
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from logdoctor.diagnose.decide import diagnose as judge
from logdoctor.job.recovery.catalogue.pickled import plain, unpickled
from logdoctor.job.recovery.contract import ATTEMPT_KEY
from logdoctor.job.recovery.orphans import Process
from logdoctor.job.recovery.witness import flight, stacks
from logdoctor.job.recovery.witness.flight import Calls, Group
from logdoctor.job.recovery.witness.hook import stacks_file
from logdoctor.job.recovery.witness.ranks import catches, rank_processes
from logdoctor.job.recovery.witness.stacks import Frame, Refused
from logdoctor.job.recovery.witness.taking import Witness, empty_folder
from logdoctor.job.send.asides import add_asides, listen
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Verdict
from tests import waiting
from tests.compress.records import recorded
from tests.diagnose.logs import steps


def test_a_program_without_a_handler_gets_no_signal(tmp_path: Path) -> None:
    """SIGUSR1 would end it."""
    key = str(uuid4())
    with subprocess.Popen(["sleep", "3000"], env={**os.environ, ATTEMPT_KEY: key, "RANK": "3"}) as process:
        found = waiting.until(lambda: rank_processes(key))
        assert list(found) == [3] and not catches(process.pid, signal.SIGUSR1)
        with pytest.raises(Refused, match="it does not catch SIGUSR1"):
            stacks.take(3, found[3], str(tmp_path), ["faulthandler"])
        assert process.poll() is None
        process.kill()
    assert not rank_processes(key)


def spy(folder: Path, script: str) -> None:
    """A py-spy that does this."""
    (folder / "py-spy").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "py-spy").chmod(0o755)


def test_stacks_that_are_refused_are_said_and_nothing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses py-spy other users' processes, and all of them in many containers."""
    spy(tmp_path, "echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said: list[str] = []
    key = str(uuid4())
    with subprocess.Popen(["sleep", "3000"], env={**os.environ, ATTEMPT_KEY: key, "RANK": "0"}) as process:
        waiting.until(lambda: rank_processes(key))
        empty_folder(str(tmp_path))
        assert Witness(str(tmp_path), ["py-spy"], said.append).lines(key) == []
        assert process.poll() is None
        process.kill()
    assert said[0].startswith("the stack of rank 0 cannot be taken: py-spy: Error: Permission Denied: Try running")


def test_what_py_spy_says_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [{"name": "load", "filename": "/app/data.py", "line": 7}, {"name": "main", "filename": "t.py", "line": 9}]
    answer = [{"thread_name": "pin", "frames": []}, {"thread_name": "MainThread", "frames": frames}]
    spy(tmp_path, f"echo '{json.dumps(answer)}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = stacks.take(0, [Process(1, 1)], str(tmp_path), ["py-spy"])
    assert found == [Frame("load", "/app/data.py", 7), Frame("main", "t.py", 9)]
    for nonsense in ("{", "[1]", '[{"thread_name": "MainThread"}]', ""):
        spy(tmp_path, f"echo '{nonsense}'")
        with pytest.raises(Refused, match="cannot be read"):
            stacks.take(0, [Process(1, 1)], str(tmp_path), ["py-spy"])


WORLD = Group("0", "default_pg")
PART = Group("1", "tensor")


def test_a_rank_that_waits_elsewhere_is_not_the_cause() -> None:
    """Rank 0 waits for 1, which waits for 3 in another group."""
    traces = {
        0: {WORLD: Calls(8, 7, {8: "all_gather"})},
        1: {WORLD: Calls(7, 7, {}), PART: Calls(5, 4, {5: "all_reduce"})},
        3: {WORLD: Calls(7, 7, {}), PART: Calls(4, 4, {})},
    }
    said = "missing ranks: 3: did not enqueue #8 all_gather of group 0 (default_pg), in which rank 0 waits"
    assert flight.shown(traces)[0] == f"flight recorder: {said}"


def test_a_collective_that_all_have_called_names_nobody() -> None:
    lines = flight.shown({rank: {WORLD: Calls(8, 7, {8: "all_gather"})} for rank in range(2)})
    assert len(lines) == 1 and "missing" not in lines[0] and "is not finished by rank 0, 1" in lines[0]
    assert flight.shown({rank: {WORLD: Calls(8, 8, {})} for rank in range(2)}) == []


def test_a_rank_that_never_called_anything_is_missing() -> None:
    assert flight.shown({0: {WORLD: Calls(1, 0, {1: "broadcast"})}, 1: {}})[0].startswith(
        "flight recorder: missing ranks: 1: did not enqueue #1 broadcast"
    )


def nccl_dump(enqueued: int, completed: int) -> dict[str, object]:
    entry = {"pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": enqueued, "is_p2p": False}
    status = {"last_enqueued_collective": enqueued, "last_started_collective": enqueued}
    return {
        "version": "2.10",
        "entries": [entry | {"profiling_name": "nccl:all_reduce"}],
        "pg_status": {0: status | {"last_completed_collective": completed}},
    }


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_what_nccl_left_is_read_as_data(tmp_path: Path, protocol: int) -> None:
    """NCCL's watchdog writes pickles: those that would run something run nothing."""
    prefix = f"{tmp_path}/nccl_trace_rank_"
    Path(f"{prefix}0").write_bytes(pickle.dumps(nccl_dump(41, 40), protocol))
    Path(f"{prefix}1").write_bytes(pickle.dumps(nccl_dump(40, 40), protocol))

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/ran",)

    Path(f"{prefix}2").write_bytes(pickle.dumps({"entries": Evil(), "pg_status": Evil()}, protocol))
    environment = {**os.environ, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix, ATTEMPT_KEY: (key := str(uuid4()))}
    running = [subprocess.Popen(["sleep", "3000"], env={**environment, "RANK": str(rank)}) for rank in range(3)]
    try:
        waiting.until(lambda: len(rank_processes(key)) == 3)
        found = rank_processes(key)
        traces = flight.ask(empty_folder(str(tmp_path)), found)
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert sorted(traces) == [0, 1] and not (tmp_path / "ran").exists()
    assert "missing ranks: 1: did not enqueue #41 nccl:all_reduce" in flight.shown(traces)[0]


def test_a_dump_that_others_have_put_in_tmp_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may make the name that a rank would give its dump."""
    monkeypatch.setattr(flight, "variable_of", lambda *_: f"{tmp_path}/nccl_trace_rank_")
    dump = pickle.dumps(nccl_dump(41, 40))
    (tmp_path / "nccl_trace_rank_0").write_bytes(dump)
    (tmp_path / "kept").write_bytes(dump)
    (tmp_path / "nccl_trace_rank_1").symlink_to(tmp_path / "kept")
    ranks: dict[int, Any] = {0: [None], 1: [None]}
    assert list(flight.ask(str(tmp_path / "none"), ranks)) == [0]
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result((*real(file)[:4], 1234, *real(file)[5:])))
    assert flight.ask(str(tmp_path / "none"), ranks) == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"[1, null, {}]", b'[{"entries": 3, "pg_status": []}]'])
def test_a_trace_that_is_none_says_nothing(tmp_path: Path, content: bytes) -> None:
    folder = Path(empty_folder(str(tmp_path)))
    (folder / stacks_file(0)).touch()
    (folder / "rank-0.trace").write_bytes(content)
    assert flight.ask(str(folder), {}) == {}


def test_a_rank_that_answers_without_a_call_has_answered(tmp_path: Path) -> None:
    folder = Path(empty_folder(str(tmp_path)))
    (folder / stacks_file(0)).touch()
    (folder / "rank-0.trace").write_text(json.dumps([{"version": "2.10", "pg_status": {}}]))
    assert flight.ask(str(folder), {}) == {0: {}}


def test_an_answer_to_an_earlier_question_is_none(tmp_path: Path) -> None:
    folder = Path(empty_folder(str(tmp_path)))
    (folder / stacks_file(0)).touch()
    (folder / "rank-0.trace").write_text(json.dumps([{"version": "2.10", "pg_status": {}}]))
    os.utime(folder / "rank-0.trace", (1.0, 1.0))
    assert flight.ask(str(folder), {}) == {}


def test_names_in_stacks_cannot_make_lines() -> None:
    evil = Frame("f\n[logdoctor] stacks: missing ranks: 7", "/x/\x1b[31m.py", 3)
    (line,) = stacks.shown({0: [evil]})
    assert "\n" not in line and "\x1b" not in line and line.startswith("stack of rank 0: f?[logdoctor]")


def test_what_is_added_becomes_whole_lines(tmp_path: Path) -> None:
    kept: list[bytes] = []
    assert not add_asides(str(tmp_path), ["nobody listens"])
    listen(str(tmp_path), kept.append)
    assert add_asides(str(tmp_path), ["one", "two\nthree", "x" * 5000])
    waiting.until(lambda: b"".join(kept).count(b"\n") == 3)
    first, second, third = b"".join(kept).splitlines()
    assert (first, second) == (b"[logdoctor] one", b"[logdoctor] two?three") and len(third) < 2100


@pytest.fixture
def verdict(scanner: Scanner) -> Callable[[Sequence[str], int], Verdict]:
    """The verdict on a job that made steps, whose witness said this, in segments of some bytes."""

    def of(lines: Sequence[str], block: int) -> Verdict:
        text = steps(0, 60) + "".join(f"[logdoctor] {line}\n" for line in lines)
        return judge([recorded([text.encode()], scanner, block)], scanner.book, runs=True)

    return of


def test_the_verdict_cites_both_and_names_the_rank(verdict: Callable[[Sequence[str], int], Verdict]) -> None:
    recorder = flight.shown({0: {WORLD: Calls(61, 60, {61: "gloo:all_reduce"})}, 1: {WORLD: Calls(60, 60, {})}})
    seen = stacks.shown({0: [Frame("all_reduce", "distributed_c10d.py", 3)], 1: [Frame("save", "checkpoint.py", 14)]})
    found = verdict([*recorder, *seen], 1 << 20)
    assert (found.reason, found.first_rank, found.recovery) == ("Hang", 1, "restart")
    assert found.confidence >= 0.7 and "Rank 1 did not take part." in found.why
    quotes = [evidence.quote for evidence in found.evidence]
    assert any("flight recorder: missing ranks: 1" in quote for quote in quotes)
    assert any("stacks: missing ranks: 1: at save (checkpoint.py:14)" in quote for quote in quotes)
    assert verdict([*recorder, *seen], 64) == found


def test_the_last_stack_of_a_report_is_the_main_threads() -> None:
    report = (
        b'Thread 0x00007fc121ffb6c0 (most recent call first):\n  File "/app/pin.py", line 16 in pin\n\n'
        b'Current thread 0x00007fc149029b80 (most recent call first):\n  File "/app/a b.py", line 3 in f\n'
        b'  File "/app/t.py", line 9 in <module>\n'
    )
    assert stacks.parsed(report) == [Frame("f", "/app/a b.py", 3), Frame("<module>", "/app/t.py", 9)]
    assert stacks.parsed(b"nonsense") == []


SHARED = b"\x80\x02)" + b"2\x86" * 60
"""The beginning of a pickle: a tuple of which each half is the same, so that as a tree it has 2^60 leaves."""


@pytest.mark.parametrize(
    "data",
    [
        SHARED + b".",
        b"\x80\x02}U\x07entries" + SHARED[2:] + b"s.",
        b"\x80\x02}" + SHARED[2:] + b"K\x01s.",
    ],
    ids=["all of it", "a value", "a key"],
)
def test_what_stands_in_a_pickle_many_times_is_made_plain_once(data: bytes) -> None:
    assert not flight.trace_of([plain(unpickled(data))])


@pytest.mark.parametrize("place", ["pg_id", "collective_seq_id", "profiling_name", "name"])
def test_what_is_no_word_is_not_written_out(place: str) -> None:
    endless: list[Any] = []
    for _ in range(60):
        endless = [endless, endless]
    dump: Any = nccl_dump(41, 40)
    dump["entries"][0] |= {"process_group": (endless, "default_pg")} if place == "name" else {place: endless}
    assert flight.trace_of([dump]) == {}


@pytest.mark.parametrize(
    "number", [1 << 64, 1 << 100_000, float("inf"), "9" * 100_000], ids=["large", "larger", "infinite", "text"]
)
def test_a_number_that_counts_nothing_is_no_trace(number: object) -> None:
    dump: Any = nccl_dump(41, 40)
    dump["pg_status"][0]["last_enqueued_collective"] = number
    assert flight.trace_of([dump]) == {}


def test_an_answer_that_would_fill_the_memory_says_nothing(tmp_path: Path) -> None:
    folder = Path(empty_folder(str(tmp_path)))
    (folder / stacks_file(0)).touch()
    (folder / "rank-0.trace").write_bytes(b"[" + b"{}," * 2_000_000 + b"{}]")
    tracemalloc.start()
    try:
        assert flight.ask(str(folder), {}) == {}
        assert tracemalloc.get_traced_memory()[1] < 90 << 20
    finally:
        tracemalloc.stop()
