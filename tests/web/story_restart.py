"""How a job is restarted, as Slurm itself understands the command."""

import os
import shlex
import shutil
import subprocess
from itertools import takewhile
from pathlib import Path

import pytest

from logdoctor.store.jobs.records import JobFacts
from logdoctor.web.incidents.restart import restart
from tests.web.test_pages import FAULT


@pytest.mark.parametrize("told", ["sbatch -N 2 -J a run.sh", "srun -n2 --mem 3G --exclusive hostname"])
def test_slurm_itself_leaves_the_node_out(tmp_path: Path, told: str) -> None:
    if shutil.which("sbatch") is None:
        pytest.fail("sbatch not found: run `apt-get install slurm-wlm`")
    (line,) = restart("j", JobFacts(command=told), FAULT).lines
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    nodes = "NodeName=gpu-31 CPUs=1 State=UNKNOWN\nPartitionName=p Nodes=ALL Default=YES\n"
    (tmp_path / "slurm.conf").write_text(f"ClusterName=x\nSlurmctldHost=localhost\nSlurmctldPort=1\n{nodes}")
    program, *words = shlex.split(line)
    kept = {"PATH": os.environ["PATH"], "SLURM_CONF": str(tmp_path / "slurm.conf")}
    # it tells its options at once, and then tries for long to reach a controller
    asked = [program, "-vv", "--test-only", *words]
    with subprocess.Popen(asked, stderr=subprocess.PIPE, text=True, env=kept, cwd=tmp_path) as ran:
        assert ran.stderr is not None
        heard = list(takewhile(lambda text: "end of defined options" not in text, ran.stderr))
        ran.kill()
    (said,) = [text for text in heard if ": exclude " in text]
    assert "node-1" in said
