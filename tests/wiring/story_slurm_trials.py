"""A trial in array jobs of a real Slurm: workers take shards from a folder, and one that is cancelled is replaced."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from logdoctor.errors import TrialError
from logdoctor.trials import queue_folder
from logdoctor.trials.journal import Failed, Finished, Started, read_journal
from logdoctor.wiring.slurm_trials import SlurmPlace
from tests import waiting
from tests.nodes.slurm_cluster import SlurmCluster, slurm_cluster
from tests.trials.conftest import Trials, eval_set, trials

__all__ = ["trials"]  # a fixture


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm_cluster(nodes=2) as made:
        yield made


def test_a_cancelled_worker_is_replaced_and_costs_no_set(trials: Trials, cluster: SlurmCluster) -> None:
    sets = [eval_set(name, "slow-0.5", 16, splittable=False) for name in ("a", "b")]  # 8 s each, on a worker each
    path = trials.file(*sets)
    out = trials.folder / "out"
    arguments = [
        "trials",
        "run",
        str(path),
        "--out",
        str(out),
        "--slurm",
        "--json",
        "--priors",
        str(trials.folder / "times"),
    ]
    command = [sys.executable, "-m", "logdoctor.cli", *arguments]
    process = subprocess.Popen(command, env={**os.environ, **cluster.env}, stdout=subprocess.PIPE, text=True)
    journal = out / "journal.jsonl"
    waiting.until(lambda: sum(isinstance(event, Started) for event in read_journal(journal)) >= 2)
    job = cluster.command("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i").split()[0]
    cluster.command("scancel", job)
    told, _ = process.communicate()
    assert process.returncode == 0, told
    assert all(one["metrics"]["ordered"] == 1 for one in json.loads(told)["sets"])
    events = read_journal(journal)
    assert [event.why for event in events if isinstance(event, Failed) and event.lost]
    assert sum(event.shard.samples for event in events if isinstance(event, Finished)) == 32
    waiting.until(lambda: not cluster.command("squeue", "--noheader").strip())


def test_jobs_that_end_before_they_begin_are_an_error_that_says_where_their_logs_are(
    trials: Trials, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(queue_folder, "_ASK", 0.2)
    monkeypatch.setattr("logdoctor.wiring.slurm_trials._MORE", 0)
    broken = trials.folder / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    trial = trials.trial(eval_set("a"), workers=1)
    with monkeypatch.context() as patched:
        patched.setattr("sys.executable", shlex.quote(str(broken)))
        place = SlurmPlace(trials.folder / "slurm", trial, 0, {})
        with pytest.raises(queue_folder.WorkerLost):
            place.worker(0, lambda: False)
        with pytest.raises(TrialError, match=r"jobs of Slurm: end before they begin to work\. Look at the logs in"):
            place.worker(0, lambda: False)
        place.close()
