"""A trial whose coordinator is killed: nothing of it runs on, and nothing is made twice."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from logdoctor.trials.journal import Event, Finished, read_journal
from tests import waiting
from tests.trials.conftest import Trials, eval_set


def running(folder: Path) -> list[int]:
    """The processes of the harness of these trials."""
    mine = []
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                said = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"harness.py\0infer" in said and str(folder).encode() in said:
                mine.append(int(pid))
    return mine


def test_a_killed_coordinator_leaves_no_harness_and_is_resumed(trials: Trials) -> None:
    killed = trials.folder / "killed"
    sets = [eval_set("a", f"plain@{killed}", 30, tokens=1), eval_set("b")]
    path = trials.file(*sets)
    command = [sys.executable, "-m", "logdoctor.cli", "trials"]
    options = ["--priors", str(trials.folder / "times.jsonl")]
    out = trials.folder / "out"
    process = subprocess.Popen([*command, "run", str(path), "--out", str(out), *options], stderr=subprocess.DEVNULL)

    def finished() -> list[Event]:
        return [one for one in read_journal(out / "journal.jsonl") if isinstance(one, Finished)]

    waiting.until(lambda: finished() and running(trials.folder))
    process.send_signal(signal.SIGKILL)
    process.wait()
    waiting.until(lambda: not running(trials.folder))
    killed.touch()
    before = finished()
    done = subprocess.run([*command, "resume", str(out), *options, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [one["state"] for one in told["sets"]] == ["scored", "scored"] and told["ended"]
    assert all(one["metrics"]["ordered"] == 1 for one in told["sets"])
    made = Counter(one.shard for one in finished() if isinstance(one, Finished))
    assert all(made[one.shard] == 1 for one in before if isinstance(one, Finished))
    assert not list(trials.folder.glob("logdoctor-trials-*"))
    assert list(trials.memory.iterdir()) == []
