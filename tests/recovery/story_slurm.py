"""A supervised batch script of a real Slurm: a job on a faulty node is started again without it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nodes.slurm_cluster import PATH, SlurmCluster, slurm_cluster
from tests.recipes.pages import block
from tests.recovery.conftest import TRAINER, Job, Judging

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=llm --nodes=1 --open-mode=append --output={folder}/out
exec {python} -m logdoctor.job.recovery run --restart --delay 0 --drain-seconds 60 --verdict-seconds 120 -- \\
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
    done = subprocess.run(command, env=environment, cwd=job.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def nodes_of(job: Job) -> list[str]:
    """The nodes that the trainer was started on, in order."""
    return [start["env"]["SLURMD_NODENAME"] for start in job.starts]


A_SECOND = 1.5
"""A node refuses a job for ever that comes back in the second in which it was killed there."""


def state_of(cluster: SlurmCluster, number: str) -> str:
    """The state of a job, such as PENDING; no such word when Slurm knows it no more."""
    shown = ("squeue", "--noheader", f"--jobs={number}", "--states=all", "--format=%T")
    return cluster.command(*shown, ok=False).strip()


def wait_until_pending(cluster: SlurmCluster, number: str) -> None:
    """Wait until a job that was put back waits, and nothing of it runs any more."""
    cluster.wait_for(lambda: state_of(cluster, number) == "PENDING", "its batch script has ended")
    time.sleep(A_SECOND)


def start_now(cluster: SlurmCluster, number: str) -> None:
    """Spare a job that was put back the two minutes that Slurm lets it wait from when its batch script has ended."""
    wait_until_pending(cluster, number)
    cluster.command("scontrol", "update", f"JobId={number}", "StartTime=now")


def is_held(cluster: SlurmCluster, number: str) -> bool:
    """Whether a job waits until somebody releases it."""
    shown = cluster.command("scontrol", "show", "job", number)
    return "JobHeldUser" in shown or "held_state" in shown


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
    cluster.wait_for(lambda: is_held(cluster, number), "it is held")
    assert job.decisions == ["wait"]
    cluster.wait_for(lambda: all(cluster.state(name) == "idle" for name in cluster.names), "its nodes are free")

    def completes() -> bool:  # Slurm may put it back a second time when its batch script has ended: ask again
        if state_of(cluster, number) == "PENDING":
            time.sleep(A_SECOND)
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


# ---- recipes of docs/recipes, which need a cluster, too


TRAIN = """\
import os
print("step 1 loss 2.5", flush=True)
if os.environ["RANK"] == "1":
    {}["prompt_len"]
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def restart_slurmctld(cluster: SlurmCluster) -> None:
    """Start the controller again, which takes up another epilog only then."""
    os.kill(cluster.daemons["slurmctld"], signal.SIGKILL)
    cluster.start_slurmctld()
    cluster.wait_for(lambda: cluster.command("scontrol", "ping", ok=False).count(" UP") == 1, "slurmctld answers")
    cluster.reset()


def batch(cluster: SlurmCluster, script: str, folder: Path, environment: dict[str, str]) -> str:
    """Submit a script in a folder with a small trainer; the number of its job."""
    (folder / "job.sh").write_text(script)
    (folder / "train.py").write_text(TRAIN)
    done = subprocess.run(
        ["sbatch", "--parsable", "job.sh"],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_recipe_for_a_batch_script_sends_what_each_node_prints(
    cluster: SlurmCluster, service: Judging, tmp_path: Path
) -> None:
    script = block(
        "sbatch.md",
        "bash",
        {
            "--nodes=16": "--nodes=2",
            "#SBATCH --gpus-per-node=8\n": "",
            "node=8": "node=1",
            "http://logdoctor:8080": service.url,
            '"$head:29500"': f'"127.0.0.1:{free_port()}"',
        },
    )
    (tmp_path / ".logdoctor-token").write_text("a-token\n")
    environment = {**cluster.env, "HOME": str(tmp_path), "LOGDOCTOR_SPOOL_DIR": str(tmp_path / "spool")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{PATH}"
    number = batch(cluster, script, tmp_path, environment)
    cluster.wait_for(lambda: any(end["exit_code"] for end in service.ends), "a node has ended")
    assert {key.split(".")[0] for key in service.keys} == {number}
    text = b"".join(map(bytes, service.streams.values()))
    assert b"KeyError: 'prompt_len'" in text
    assert any(headers.get("Authorization") == "Bearer a-token" for headers in service.headers)


def test_the_recipe_for_an_epilog_puts_a_verdict_beside_the_output(cluster: SlurmCluster, tmp_path: Path) -> None:
    epilog = tmp_path / "epilog"
    programs = f"export PATH={Path(sys.executable).parent}:{PATH}; export SLURM_CONF={cluster.folder}/slurm.conf"
    epilog.write_text(block("slurm-epilog.md", "bash", {"export PATH=/opt/logdoctor/bin:/usr/bin:/bin": programs}))
    epilog.chmod(0o755)
    conf = cluster.folder / "slurm.conf"
    before = conf.read_text()
    try:
        conf.write_text(f"{before}EpilogSlurmctld={epilog}\n")
        restart_slurmctld(cluster)
        script = f"#!/bin/bash\n#SBATCH --output={tmp_path}/job.out\nRANK=1 {sys.executable} train.py\n"
        batch(cluster, script, tmp_path, cluster.env)
        written = tmp_path / "job.out.verdict"
        cluster.wait_for(lambda: written.exists() and "╰" in written.read_text(), "the verdict is written")
    finally:
        conf.write_text(before)
        restart_slurmctld(cluster)
    lines = written.read_text().splitlines()
    assert lines[0].startswith("╭─ Key Error") and max(map(len, lines)) <= 80
    assert "KeyError: 'prompt_len'" in written.read_text()
