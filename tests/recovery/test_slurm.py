"""A supervised batch script of a real Slurm: a job on a faulty node is started again without it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logdoctor.errors import SendError
from logdoctor.recovery import slurm
from logdoctor.send.environment import BatchStep
from tests.nodes.slurm_cluster import SlurmCluster, slurm_cluster
from tests.recovery.conftest import TRAINER, Job

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=llm --nodes=1 --open-mode=append --output={folder}/out
exec {python} -m logdoctor.recovery run --restart --delay 0 --drain-seconds 60 --verdict-seconds 120 -- \\
  srun {python} {trainer} {folder}/plan.json
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[SlurmCluster]:
    with slurm_cluster(nodes=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: SlurmCluster) -> SlurmCluster:
    shared.reset()
    return shared


def submit(cluster: SlurmCluster, job: Job, plan: list[dict[str, Any]], *options: str) -> str:
    """Submit a supervised trainer; the number of its job. Its records are in the folder that its name gives."""
    (job.folder / "plan.json").write_text(json.dumps(plan))
    script = job.folder / "job.sh"
    script.write_text(SCRIPT.format(folder=job.folder, python=sys.executable, trainer=TRAINER))
    command = ["sbatch", "--parsable", *options, str(script)]
    environment = {**cluster.env, **job.environment, "PATH": cluster.env["PATH"]}
    done = subprocess.run(command, env=environment, cwd=job.folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def nodes_of(job: Job) -> list[str]:
    """The nodes that the trainer was started on, in order."""
    return [start["env"]["SLURMD_NODENAME"] for start in job.starts]


def wait_until_pending(cluster: SlurmCluster, number: str) -> None:
    """Wait until a job that was put back waits, and nothing of it runs any more."""
    shown = ("squeue", "--noheader", f"--jobs={number}", "--states=all", "--format=%T")
    cluster.wait_for(lambda: cluster.command(*shown, ok=False).strip() == "PENDING", "its batch script has ended")


def start_now(cluster: SlurmCluster, number: str) -> None:
    """Spare a job that was put back the two minutes that Slurm lets it wait from when its batch script has ended."""
    wait_until_pending(cluster, number)
    cluster.command("scontrol", "update", f"JobId={number}", "StartTime=now")


def test_a_job_on_a_faulty_node_is_requeued_without_it(cluster: SlurmCluster, job: Job) -> None:
    cluster.command("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=first on n1")
    plan = [{"steps": [0, 6], "say": "S3", "exit": 1}, {"steps": [0, 9], "say": "[HOST] ECC", "exit": 1}, {}]
    number = submit(cluster, job, plan, "--requeue", "--exclude=n3")
    cluster.wait_for(lambda: "requeued" in (event["event"] for event in job.events()), "it is put back")
    shown = cluster.command("scontrol", "show", "job", number)
    assert "ExcNodeList=n3,n1" in shown, shown  # those that it left out before, too
    cluster.command("scontrol", "update", "NodeName=n2", "State=RESUME")
    start_now(cluster, number)
    cluster.wait_for(lambda: job.decisions[-1:] == ["stop"], "it completes")
    assert nodes_of(job) == ["n1", "n1", "n2"]  # what passes is started again in the allocation
    assert job.decisions == ["restart", "move", "stop"]
    keys = [start["env"]["LOGDOCTOR_ATTEMPT_KEY"] for start in job.starts]
    assert keys == [f"{number}.0.1", f"{number}.0.2", f"{number}.1.3"]
    assert [event["anew"] for event in job.events("begun")] == [True, False]


def test_a_job_whose_bad_node_is_not_known_is_held(cluster: SlurmCluster, job: Job) -> None:
    number = submit(cluster, job, [{"steps": [0, 6], "say": "ECC", "exit": 1}, {}], "--requeue")
    cluster.wait_for(
        lambda: (
            "JobHeldUser" in cluster.command("scontrol", "show", "job", number)
            or "held_state" in cluster.command("scontrol", "show", "job", number)
        ),
        "it is held",
    )
    assert job.decisions == ["wait"]
    cluster.wait_for(lambda: all(cluster.state(name) == "idle" for name in cluster.names), "its nodes are free")
    wait_until_pending(cluster, number)

    def completes() -> bool:  # Slurm may put it back a second time when its batch script has ended: ask again
        cluster.command("scontrol", "release", number, ok=False)
        cluster.command("scontrol", "update", f"JobId={number}", "StartTime=now", ok=False)
        return job.decisions[-1:] == ["stop"]

    cluster.wait_for(completes, "it completes")
    assert len(job.starts) == 2


def test_a_job_that_may_not_be_requeued_says_what_to_do(cluster: SlurmCluster, job: Job) -> None:
    number = submit(cluster, job, [{"steps": [0, 6], "say": "[HOST] ECC", "exit": 1}], "--no-requeue")
    cluster.wait_for(lambda: "ExitCode=92:0" in cluster.command("scontrol", "show", "job", number), "it ends")
    said = f"Submit it with --requeue; by hand: sbatch --exclude={nodes_of(job)[0]}"
    assert said in (job.folder / "out").read_text()


def test_slurm_that_is_away_is_an_error_with_a_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    batch = BatchStep("7", "n[1-2]")
    assert slurm.job_nodes(batch) == ()
    with pytest.raises(SendError, match="cannot be run"):
        slurm.requeue(batch, ["n1"])
