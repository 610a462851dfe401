"""How a job is restarted: only where that helps, without the nodes at fault, and running nothing else."""

from typing import Any

import pytest

from logdoctor.store.records import JobFacts
from logdoctor.types import Suspect
from logdoctor.web.commands import command_words, restart
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
        ({"command": "A=1 deepspeed t.py"}, {}, ("A=1 deepspeed --exclude=node-1 t.py",)),
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
        ({"command": COMMAND}, {"reason": "Unknown"}, "Nobody knows why"),
        ({"command": COMMAND}, {"suspects": ()}, "none is known to be at fault"),
        ({"command": COMMAND}, {"suspects": (Suspect("--all; rm -rf /", None, None, ""),)}, "none is known"),
        ({}, {}, "Nobody told how"),
        ({"command": "echo 'half"}, {}, "cannot be read as one command"),
        ({"command": "python t.py\nrm -rf /"}, {}, "cannot be read as one command"),
        ({"command": "python \u202et.py"}, {}, "cannot be read as one command"),
        ({"launcher": "slurm"}, {}, "started with slurm, but its command is not on record"),
        ({"launcher": "kubernetes", "name": "a b; rm"}, {}, "where it has another name"),
        ({"command": COMMAND}, {"outcome": "completed"}, "did not fail"),
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


def test_what_a_sender_told_runs_nothing_else() -> None:
    evil = "python t.py; rm -rf ~ && $(reboot) `id` | sh > /etc/passwd"
    (line,) = restart("j", JobFacts(command=evil), changed(recovery="restart")).lines
    assert line == "python 't.py;' rm -rf '~' '&&' '$(reboot)' '`id`' '|' sh '>' /etc/passwd"
    assert command_words("x" * 5000) == []
