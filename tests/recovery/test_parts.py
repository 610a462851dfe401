"""The parts of a supervisor on their own: verdicts, ranges, the record, the lease, processes, nodes, the copy."""

import ast
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logdoctor.errors import SendError
from logdoctor.job.recovery import orphans, running, slurm
from logdoctor.job.recovery.deciding import Attempt
from logdoctor.job.recovery.judged import NODE, Judged, judged, read_judged
from logdoctor.job.recovery.lease import Lease, LeaseTaken
from logdoctor.job.recovery.node_tests import nodes_said
from logdoctor.job.recovery.orphans import Process
from logdoctor.job.recovery.record import Record, attempts, facts_of
from logdoctor.job.recovery.running import StopRequest, request_stop
from logdoctor.job.recovery.skipping import Batches, batches_seen, batches_to_skip, merged, read_ranges, shown_ranges
from logdoctor.job.recovery.supervisor import _kept_id, job_folder
from logdoctor.job.recovery.witness.taking import empty_folder
from logdoctor.job.send.asides import add_asides, listen
from logdoctor.job.send.copy import OutputCopy, read_copy
from logdoctor.job.send.environment import BatchStep
from logdoctor.types import as_json
from logdoctor.types.nodes import NAME
from logdoctor.web.jobs.answers import VERDICT_EXAMPLE
from tests.send.conftest import ROOT

PLAIN: dict[str, Any] = {"outcome": "failed", "reason": "Hang", "recovery": "restart", "confidence": 0.9}


def test_a_real_verdict_is_read() -> None:
    found = read_judged(as_json(VERDICT_EXAMPLE))
    assert found == Judged(
        "failed",
        "ECC Error",
        "isolate_and_restart",
        0.95,
        "4d1f0c9be2a7",
        "Cordon the node and reset the GPU, so that the row is remapped.",
        nodes=("gpu-12",),
        step=1200,
    )


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"outcome": "dead"}, "outcome"),
        ({"recovery": ["restart"]}, "recovery"),
        ({"recovery": None}, "recovery"),
        ({"confidence": 2}, "confidence"),
        ({"confidence": True}, "confidence"),
        ({"confidence": float("nan")}, "confidence"),
        ({"reason": 7}, "reason"),
        ({"fingerprint": {}}, "fingerprint"),
    ],
)
def test_what_is_no_verdict_is_refused(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        judged(PLAIN | wrong)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{", b"[" * 100_000, b"\xff"])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        read_judged(text)


def test_hostile_fields_do_no_harm() -> None:
    suspects = [{"node": "n1"}, {"node": "n1 State=DOWN"}, {"node": ["n2"]}, "n3", {"node": "--all"}, {"node": "n1"}]
    found = judged(PLAIN | {"suspects": suspects, "suggestion": "a\x1b[2Jb\n" + "x" * 5000, "progress": "far"})
    assert found.nodes == ("n1",) and found.step is None and found.onset is None
    assert found.suggestion.isprintable() and len(found.suggestion) == 300
    assert judged(PLAIN | {"progress": {"step": float("inf")}, "onset_step": -1}).step is None
    assert judged(PLAIN | {"progress": {"step": 7, "learned": True}}).step is None


def test_names_of_nodes_are_those_of_the_rest() -> None:
    assert NODE.pattern == NAME.pattern


@given(st.lists(st.builds(lambda a, n: Batches(a, a + n), st.integers(1, 60), st.integers(0, 9)), max_size=8))
def test_ranges_go_through_text_and_keep_their_batches(ranges: list[Batches]) -> None:
    batches = {number for one in ranges for number in range(one.first, one.last + 1)}
    joined = read_ranges(shown_ranges(ranges))
    assert joined == merged(ranges)
    assert [number for one in joined for number in range(one.first, one.last + 1)] == sorted(batches)
    assert all(one.last + 1 < two.first for one, two in pairwise(joined))


@pytest.mark.parametrize("text", ["0-3", "5-4", "a", "1-2-3", "-5", "1;2", "1-", "\u0661-\u0662"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no range of batches"):
        read_ranges(text)


def test_what_is_skipped_begins_at_the_data_of_the_checkpoint() -> None:
    """After a skip, the position in the data is ahead of the steps."""
    assert batches_seen(100, ()) == 100
    assert batches_seen(100, (Batches(41, 90), Batches(140, 141), Batches(300, 400))) == 152
    assert shown_ranges(batches_to_skip(100, 100, 130, 20, 0, ())) == "101-150"
    assert shown_ranges(batches_to_skip(150, 100, 130, 20, 0, (Batches(41, 90),))) == "41-90,151-200"
    assert shown_ranges(batches_to_skip(100, 100, 130, 20, 2, (Batches(101, 170),))) == "101-210"


def test_the_record_gives_back_what_it_was_given(tmp_path: Path) -> None:
    record = Record(str(tmp_path), "job")
    made = [
        Attempt(1, 1, 3.5, judged(PLAIN | {"suspects": [{"node": "n1"}]}), saved=4, resumed="/c/1", skipped="1-2"),
        Attempt(2, 137, 1.25, None, interrupted=True, back_to=4),
    ]
    for attempt in made:
        record.add("ended", **facts_of(attempt), key="k")
    assert attempts(record.events()) == made
    record.add("begun", anew=True)
    assert attempts(record.events()) == []


def test_a_torn_record_loses_its_last_line_only(tmp_path: Path) -> None:
    record = Record(str(tmp_path), "job")
    record.add("started", number=1)
    with open(record.path, "ab") as file:
        file.write(b'{"at": 1, "job": "job", "eve')
    record.add("started", number=2)
    with open(record.path, "ab") as file:
        file.write(b"\n\xff\n[]\n" + b"[" * 100_000 + b"\n" + json.dumps({"job": "other", "event": "started"}).encode())
    record.add("ended", number=2, seconds="long", status=1, judged={"nodes": []})
    assert [event["number"] for event in record.events()] == [1, 2, 2]
    assert attempts(record.events()) == []


def test_a_record_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "record.jsonl").mkdir()
    with pytest.raises(SendError, match=r"cannot be written .*--state"):
        Record(str(tmp_path), "job").add("begun")
    with pytest.raises(SendError, match="cannot be read"):
        Record(str(tmp_path), "job").events()


def test_a_lease_is_one_and_ends(tmp_path: Path) -> None:
    first = Lease(str(tmp_path), "job")
    with pytest.raises(LeaseTaken, match=rf"job job is supervised by process {os.getpid()} on "):
        Lease(str(tmp_path), "job")
    (tmp_path / "lease").write_bytes(b"[" * 4096)
    with pytest.raises(LeaseTaken, match="another process"):
        Lease(str(tmp_path), "job")
    first.release()
    Lease(str(tmp_path), "job").release()
    with pytest.raises(SendError, match="cannot be locked"):
        Lease(str(tmp_path / "not there"), "job")


def test_a_state_folder_is_private(tmp_path: Path) -> None:
    assert os.stat(job_folder(str(tmp_path / "s"), "job")).st_mode & 0o777 == 0o700
    open_to_all = tmp_path / "s" / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(SendError, match="can be written by others"):
        job_folder(str(tmp_path / "s"), "open")
    (tmp_path / "s" / "link").symlink_to(tmp_path / "s" / "job")
    with pytest.raises(SendError, match="is a link to another place"):
        job_folder(str(tmp_path / "s"), "link")
    (tmp_path / "file").touch()
    with pytest.raises(SendError, match="cannot be used"):
        job_folder(str(tmp_path / "file"), "job")


@pytest.mark.parametrize("state", ["link", "links"])
def test_no_link_in_a_shared_state_folder_has_a_file_elsewhere_written_or_removed(tmp_path: Path, state: str) -> None:
    """The folder of a job may become a link after it was looked at; so may what is in it."""
    (mine := tmp_path / "mine").mkdir(mode=0o700)
    names = ("id", "lease", "log", "log.before", "record.jsonl", "stop.json", "asides")
    for name in names:
        (mine / name).write_text("precious")
    (mine / "witness").mkdir()
    (mine / "witness" / "file").touch()
    folder = tmp_path / "job"
    if state == "link":
        folder.symlink_to(mine)
    else:
        folder.mkdir(mode=0o700)
        for path in mine.iterdir():
            (folder / path.name).symlink_to(path)
    for use in (
        lambda: Lease(str(folder), "job"),
        lambda: _kept_id(str(folder)),
        lambda: Record(str(folder), "job").add("begun"),
        lambda: Record(str(folder), "job").events(),
        lambda: StopRequest(str(folder), "key"),
        lambda: request_stop(str(folder), "key", {}),
        lambda: OutputCopy(str(folder), 100).append(b"x" * 1000),
        lambda: list(read_copy(str(folder))),
        lambda: listen(str(folder), print),
        lambda: add_asides(str(folder), ["line"]),
        lambda: empty_folder(str(folder)),
    ):
        with suppress(OSError, SendError):
            use()
    assert {path.name: path.read_text() for path in mine.iterdir() if path.is_file()} == dict.fromkeys(
        names, "precious"
    )
    assert (mine / "witness" / "file").exists()
    if state == "link":
        for use in (lambda: Lease(str(folder), "job"), lambda: Record(str(folder), "job").add("begun")):
            with pytest.raises(SendError, match="is a link to another place"):
                use()


def test_a_process_with_the_number_of_another_is_not_ended() -> None:
    with subprocess.Popen(["sleep", "3000"]) as process:
        (real,) = orphans.processes(lambda pid: pid == process.pid)
        orphans.send([Process(real.pid, real.started - 1)], 9)
        assert process.poll() is None
        orphans.send([real], 9)
        assert process.wait() == -9


class Told:
    """Signals, of which one has asked to end or none."""

    def __init__(self, to_end: bool) -> None:
        self.pause = lambda _: to_end


def test_what_takes_long_is_done_aside_and_ended_when_somebody_asks() -> None:
    assert running.aside(lambda: "\udcff is torn", cast(Any, Told(False))) == "\udcff is torn"
    slow = re.compile(r"(?:x+x+)+y")
    assert running.aside(lambda: str(slow.search("x" * 4000)), cast(Any, Told(False)), 1) == "", "for ever"
    never, _ = os.pipe()
    assert running.aside(lambda: os.read(never, 1).decode(), cast(Any, Told(True))) == ""


def test_processes_are_found_by_their_mark() -> None:
    mine, other = str(uuid4()), str(uuid4())
    marks = {"a": f"{mine}/3", "b": f"{mine}/4", "c": f"{other}/3", "d": ""}
    started = {
        name: subprocess.Popen(["sleep", "3000"], env={orphans.MARK: mark} if mark else {}, start_new_session=True)
        for name, mark in marks.items()
    }
    try:
        found = {process.pid for process in orphans.marked(f"{mine}/")}
        assert found == {started["a"].pid, started["b"].pid}
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def _action(kind: str, state: str, test: int | None = None, *nodes: str) -> dict[str, Any]:
    return {"id": 7, "kind": kind, "state": state, "nodes": nodes, "test": test}


@pytest.mark.parametrize(
    ("actions", "faulty", "state", "word"),
    [
        ([], (), "person", "Nobody tests"),
        ([_action("restart", "waiting")], (), "person", "Nobody tests"),  # from the verdict, not from a test
        ([_action("test_nodes", "waiting", None, "n1")], (), "pending", "nodes approve 7"),
        ([_action("test_nodes", "approved", None, "n1")], (), "pending", "being tested"),
        ([_action("test_nodes", "refused", None, "n1")], (), "person", "not done"),
        ([_action("test_nodes", "failed", None, "n1")], (), "person", "not done"),
        ([_action("test_nodes", "superseded", None, "n1")], (), "person", "Nobody tests"),
        ([_action("test_nodes", "done", None, "n1")], (), "person", "does not prove"),
        ([_action("restart", "waiting", 3), _action("test_nodes", "done")], (), "healthy", "all of its nodes healthy"),
        ([_action("cordon", "waiting", 3, "n1"), _action("restart", "waiting", 3)], ("n1",), "pending", "approve"),
        ([_action("cordon", "approved", 3, "n1"), _action("restart", "waiting", 3)], ("n1",), "pending", "being done"),
        ([_action("cordon", "failed", 3, "n1"), _action("restart", "waiting", 3)], ("n1",), "person", "not done"),
        ([_action("cordon", "done", 3, "n1"), _action("restart", "waiting", 3)], ("n1",), "out", "n1 faulty"),
        ([_action("cordon", "done", 3, "n1"), _action("restart", "waiting", 3)], ("n1", "n2"), "person", "n2 faulty"),
        ([_action("restart", "waiting", 3)], ("n1",), "person", "no cordon keeps jobs away"),
    ],
)
def test_what_the_policy_did_about_nodes(
    actions: list[dict[str, Any]], faulty: tuple[str, ...], state: str, word: str
) -> None:
    said = nodes_said(actions, lambda test: faulty)
    assert said.state == state and word in said.why


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(2, 60))
def test_a_copy_keeps_the_newest_bytes(pieces: list[bytes], limit: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        copy = OutputCopy(folder, limit)
        for piece in pieces:
            copy.append(piece)
        copy.close()
        kept, whole = b"".join(read_copy(folder)), b"".join(pieces)
        assert whole.endswith(kept) and len(kept) <= limit
        assert len(kept) >= min(len(whole), limit // 2)
        OutputCopy(folder, limit).close()
        assert b"".join(read_copy(folder)) == b""


def test_slurm_that_is_away_is_an_error_with_a_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    batch = BatchStep("7", "n[1-2]")
    assert slurm.job_nodes(batch) == ()
    with pytest.raises(SendError, match="cannot be run"):
        slurm.requeue(batch, ["n1"])


ALONE = ("logdoctor.job.recovery", "logdoctor.job.send", "logdoctor.errors", "logdoctor.safe.lasting_files")


def imported(path: Path) -> set[str]:
    """The modules that a module imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_the_supervisor_needs_the_standard_library_and_the_sender() -> None:
    names = {name for path in (ROOT / "logdoctor" / "job" / "recovery").glob("*.py") for name in imported(path)}
    outside = {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
    assert outside and all(name.startswith(ALONE) for name in outside), outside


@pytest.mark.parametrize("name", ["deciding", "contract", "judged", "skipping"])
def test_what_decides_knows_no_process_and_no_clock(name: str) -> None:
    names = imported(ROOT / "logdoctor" / "job" / "recovery" / f"{name}.py")
    assert not names & {"os", "subprocess", "signal", "time", "socket"}


def test_it_works_where_nothing_else_is_installed(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import logdoctor.job.recovery.__main__ as m\n"
        "sys.exit(m.main(['run', '--job', 'j', '--restart', '--', 'sh', '-c', 'echo it works; exit 3']))\n"
    )
    environment = {"PATH": os.environ["PATH"], "LOGDOCTOR_STATE_DIR": str(tmp_path)}
    bare = os.path.realpath(sys.executable)  # outside of the virtual environment nothing is installed
    done = subprocess.run([bare, "-I", "-S", "-c", code], env=environment, capture_output=True)
    assert (done.returncode, done.stdout) == (94, b"it works\n"), done.stderr
    assert b"There is no verdict" in done.stderr
