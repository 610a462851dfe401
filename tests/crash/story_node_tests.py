"""logdoctor killed in the middle of a test of nodes: nothing keeps running, and the next process knows what to do."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from logdoctor.settings import Settings
from logdoctor.store.nodes.records import NodeRecords, StoredTest
from logdoctor.wiring import nodes, stored
from tests import waiting
from tests.nodes.faults import faulty_python, running


def killed_in_the_middle(folder: Path) -> tuple[NodeRecords, StoredTest, str]:
    """The records of a test of four local nodes whose process was killed when one world had ended and one hung; and
    what the test is called on the nodes."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LOGDOCTOR_")}
    variables |= {
        "LOGDOCTOR_DATA_DIR": str(folder / "data"),
        "LOGDOCTOR_TEST_PYTHON": faulty_python(folder, {"local-3": "hangs"}),
    }
    words = [sys.executable, "-m", "logdoctor.cli", "nodes", "test", "--launcher", "local", "--nodes", "local-[0-3]"]
    process = subprocess.Popen(words, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        (folder / "data").mkdir(exist_ok=True)
        records = stored.node_records(Settings(data_dir=folder / "data"))
        waiting.until(lambda: records.running() and len(records.results(records.running()[0].id)) == 1, "a result")
        (test,) = records.running()
        (name,) = {word for pid in pids(process.pid) if (word := name_of(pid))}
        assert running(name)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return records, test, name


def pids(parent: int) -> list[int]:
    """The children of all threads of a process."""
    threads = Path(f"/proc/{parent}/task").iterdir()
    return [int(word) for thread in threads for word in (thread / "children").read_text().split()]


def name_of(pid: int) -> str:
    """What the test of a probe is called, "" for a process that is none."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[words.index(b"--test") + 1].decode() if b"--test" in words else ""


def test_no_process_is_left_and_the_test_goes_on(tmp_path: Path) -> None:
    records, test, name = killed_in_the_middle(tmp_path)
    waiting.until(lambda: not running(name), "no process is left")
    (known,) = records.results(test.id)
    python = faulty_python(tmp_path, {})  # the node has been mended meanwhile
    actor = nodes.actor(Settings(data_dir=tmp_path / "data", test_python=python), taking_up=True)
    actor.start()
    try:
        assert actor.wait(test.id, 300)
        kept = records.test(test.id)
        assert kept is not None
        assert kept.conclusion is not None and len(kept.conclusion.named("healthy")) == 4
        results = records.results(test.id)
        assert known in results
        assert [result.world.number for result in results].count(known.world.number) == 1  # it was not run again
    finally:
        actor.stop()
    waiting.until(lambda: not running(name), "no process is left")


def test_no_process_is_left_and_the_test_is_ended(tmp_path: Path) -> None:
    records, test, name = killed_in_the_middle(tmp_path)
    waiting.until(lambda: not running(name), "no process is left")
    actor = nodes.actor(Settings(data_dir=tmp_path / "data"))
    actor.start()
    try:
        actor.cancel(test.id, "user-17")
        kept = records.test(test.id)
        assert kept is not None and (kept.state, kept.why) == ("aborted", "cancelled by user-17")
    finally:
        actor.stop()
    assert not running(name)
