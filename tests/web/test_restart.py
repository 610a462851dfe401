"""How a job is restarted: only where that helps, without the nodes at fault, and running nothing else."""

import shlex
from typing import Any

import pytest

from logdoctor.store.jobs.records import JobFacts
from logdoctor.types import Progress, Suspect
from logdoctor.web.incidents.restart import restart
from tests.web.test_pages import FAULT, changed

COMMAND = "torchrun --nproc-per-node 8 train.py --name 'run 3'"


@pytest.mark.parametrize(
    ("facts", "verdict", "lines"),
    [
        (
            {"launcher": "srun"},
            {},
            (
                "scontrol requeuehold 4711",
                "scontrol update JobId=4711 ExcNodeList=node-1",
                "scontrol release 4711",
            ),
        ),
        ({"launcher": "slurm"}, {"recovery": "restart"}, ("scontrol requeue 4711",)),
        ({"command": "sbatch -N 8 job.sh"}, {}, ("sbatch --exclude=node-1 -N 8 job.sh",)),
        ({"command": COMMAND}, {"recovery": "restart"}, (COMMAND,)),
        ({"command": f"srun {COMMAND}"}, {}, (f"srun --exclude=node-1 {COMMAND}",)),
        ({"command": "A=1 /opt/slurm/bin/srun t.py"}, {}, ("A=1 /opt/slurm/bin/srun --exclude=node-1 t.py",)),
        ({"command": "srun --exclusive t.py"}, {}, ("srun --exclude=node-1 --exclusive t.py",)),
        ({"command": "deepspeed t.py"}, {}, ("deepspeed t.py",)),
        ({"command": "torchrun t.py --sampler srun a"}, {}, ("torchrun t.py --sampler srun a",)),
        (
            {"launcher": "kubernetes", "name": "llama-70b"},
            {},
            (
                "kubectl cordon node-1",
                "kubectl delete job llama-70b --ignore-not-found",
                "kubectl apply -f MANIFEST.yaml",
            ),
        ),
    ],
)
def test_a_restart_as_a_command(facts: dict[str, str], verdict: dict[str, Any], lines: tuple[str, ...]) -> None:
    assert restart("4711", JobFacts(**facts), changed(**verdict)).lines == lines  # type: ignore[arg-type]


def test_a_job_without_a_number_is_submitted_again() -> None:
    found = restart("j", JobFacts(launcher="slurm", nodes=8, command=COMMAND), FAULT)
    assert found.lines[0].startswith("sbatch --nodes=8 --exclude=node-1 '--wrap=torchrun") and len(found.lines) == 1


@pytest.mark.parametrize(
    ("facts", "verdict", "why"),
    [
        ({"command": COMMAND}, {"recovery": "fix_first"}, "do not restart: fix first"),
        ({"command": COMMAND}, {"recovery": "ask_human"}, "ask a person"),
        ({"command": COMMAND}, {"reason": "Unknown"}, "The cause is unknown"),
        ({"command": COMMAND}, {"suspects": ()}, "none is known to be at fault"),
        ({"command": COMMAND}, {"suspects": (Suspect("--all; rm -rf /", None, None, ""),)}, "none is known"),
        ({}, {}, "not known how the job was started"),
        ({"command": "echo 'half"}, {}, "not one simple command"),
        ({"command": "python t.py\nrm -rf /"}, {}, "cannot be read as one command"),
        ({"command": "python \u202et.py"}, {}, "cannot be read as one command"),
        ({"launcher": "slurm"}, {}, "started with slurm, but its command was not reported"),
        ({"launcher": "kubernetes", "name": "a b; rm"}, {}, "where it has another name"),
        ({"command": COMMAND}, {"outcome": "completed"}, "did not fail"),
        *(
            ({"launcher": "slurm", "command": command}, {}, "submits its job itself")
            for command in ("nohup sbatch train.sh", "env FOO=1 /usr/bin/sbatch train.sh", "bash -c 'sbatch t.sh'")
        ),
        ({"command": "SLURM_HOSTFILE=hosts srun train"}, {}, "chooses its nodes itself"),
    ],
)
def test_no_restart_without_a_reason(facts: dict[str, str], verdict: dict[str, Any], why: str) -> None:
    found = restart("j", JobFacts(**facts), changed(**verdict))  # type: ignore[arg-type]
    assert found.lines == () and why in found.why_not


def test_what_a_test_of_the_nodes_found_decides_where_the_verdict_names_none() -> None:
    unnamed, job = changed(suspects=()), JobFacts(command=f"srun {COMMAND}")
    assert restart("j", job, unnamed, None).lines == ()
    assert restart("j", job, unnamed, ("gpu-2",)).lines == (f"srun --exclude=gpu-2 {COMMAND}",)
    assert restart("j", job, unnamed, ()).lines == (f"srun {COMMAND}",)
    assert restart("j", job, FAULT, ("gpu-2",)).lines == (f"srun --exclude=node-1,gpu-2 {COMMAND}",)


@pytest.mark.parametrize(
    "told",
    [
        "sbatch --exclude=gpu-99 run.sh",
        "sbatch -N 8 -xgpu-99 run.sh",
        "srun -lx a t.py",
        "srun --nodelist=node-2 t.py",
        "sbatch -w node-1.cluster.example run.sh",
        "sbatch -F hosts run.sh",
        "srun -n 1 a : -n 2 b",
        "MASTER_ADDR=node-1 srun t.py",
        "mpirun -H node-1:8,node-2:8 t",
    ],
)
def test_a_command_that_chooses_its_nodes_is_not_given(told: str) -> None:
    found = restart("j", JobFacts(command=told), FAULT)
    assert found.lines == () and found.unsure
    assert "chooses its nodes itself" in found.why_not and "add --exclude=node-1" in found.why_not


@pytest.mark.parametrize(
    "told",
    [
        "cd /work && sbatch run.sh",
        "python t.py; reboot",
        'torchrun "$WORK/t.py"',
        "torchrun --data=~/d t.py",
        "torchrun t.py d/*.bin",
        "torchrun t.py > log",
        "torchrun `which t`",
        "srun -w gpu-[1-4] t.py",
        "'A=1' t.py",
        "A=1",
    ],
)
def test_what_only_a_shell_understands_is_not_made_into_a_command(told: str) -> None:
    found = restart("j", JobFacts(command=told), changed(recovery="restart"))
    assert found.lines == () and found.unsure and found.why_not.endswith("Run it as it was sent.")
    assert "add --exclude=node-1" in restart("j", JobFacts(command=told), FAULT).why_not


def test_what_a_sender_told_runs_nothing_else() -> None:
    evil = "python t.py; rm -rf ~ && $(reboot) `id` | sh > /etc/passwd"
    assert restart("j", JobFacts(command=evil), changed(recovery="restart")).lines == ()
    quoted = f"python t.py {shlex.quote(evil)}"
    (line,) = restart("j", JobFacts(command=quoted), changed(recovery="restart")).lines
    assert shlex.split(line) == ["python", "t.py", evil] and line == quoted
    assert restart("j", JobFacts(command="x" * 5000), FAULT).lines == ()


def test_who_requeues_is_told_that_the_nodes_left_out_before_are_not_known() -> None:
    found = restart("4711", JobFacts(launcher="slurm"), FAULT)
    assert "takes the place of the nodes that the job left out before" in found.notes[1]
    assert "squeue -h -j 4711 -o %x" in found.notes[1] and "ReqNodeList must not name node-1" in found.notes[1]


def test_a_script_may_leave_nodes_out_that_are_not_known() -> None:
    assert "#SBATCH --exclude" in restart("j", JobFacts(command="sbatch run.sh"), FAULT).notes[1]
    assert "Run it on other nodes than node-1" in restart("j", JobFacts(command="torchrun t.py"), FAULT).notes[1]


def test_no_checkpoint_is_promised_that_nobody_knows() -> None:
    again = changed(recovery="restart", progress=Progress(step=1200))
    note = restart("j", JobFacts(command="python t.py"), again).notes[0]
    assert note.startswith("No checkpoint of it is known: ") and note.endswith(" (it came to step 1,200).")
    note = restart("j", JobFacts(command="python t.py", checkpoint_dir="/ckpt"), again).notes[0]
    assert note == "See that it loads its last complete checkpoint in /ckpt (it came to step 1,200)."
