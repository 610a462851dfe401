"""How a job is restarted: only where that helps, without the nodes at fault, and running nothing else."""

import os
import shlex
import shutil
import subprocess
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from logdoctor.store.records import JobFacts
from logdoctor.types import Suspect
from logdoctor.web.incidents.restart_commands import restart
from logdoctor.web.incidents.shell_words import command_of
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
        ({"command": COMMAND}, {"reason": "Unknown"}, "It is not known why"),
        ({"command": COMMAND}, {"suspects": ()}, "none is known to be at fault"),
        ({"command": COMMAND}, {"suspects": (Suspect("--all; rm -rf /", None, None, ""),)}, "none is known"),
        ({}, {}, "It is not known how"),
        ({"command": "echo 'half"}, {}, "cannot be read as one command"),
        ({"command": "python t.py\nrm -rf /"}, {}, "cannot be read as one command"),
        ({"command": "python \u202et.py"}, {}, "cannot be read as one command"),
        ({"launcher": "slurm"}, {}, "started with slurm, but its command was not reported"),
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


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ("sbatch --exclude=gpu-99 run.sh", "sbatch --exclude=gpu-99,node-1 run.sh"),
        ("sbatch --exclude gpu-99 -N 8 run.sh", "sbatch --exclude=gpu-99,node-1 -N 8 run.sh"),
        ("sbatch -N 8 -x gpu-99 run.sh", "sbatch -N 8 --exclude=gpu-99,node-1 run.sh"),
        ("sbatch -xgpu-99 run.sh", "sbatch --exclude=gpu-99,node-1 run.sh"),
        ("sbatch -x gpu-[01-04] run.sh", "sbatch '--exclude=gpu-[01-04],node-1' run.sh"),
        ("sbatch -x node-[1-3] run.sh", "sbatch '--exclude=node-[1-3]' run.sh"),
        ("srun -x a -n 4 --exclude=b python t.py", "srun -n 4 --exclude=a,b,node-1 python t.py"),
        ("srun --label -vv python t.py --exclude=x", "srun --exclude=node-1 --label -vv python t.py --exclude=x"),
        ("srun --exclusive -l x -x y", "srun --exclude=node-1 --exclusive -l x -x y"),
        ("sbatch --wait -W -x a run.sh", "sbatch --wait -W --exclude=a,node-1 run.sh"),
        ("srun -W 5 -x a t", "srun -W 5 --exclude=a,node-1 t"),
        ("srun --nodelist=gpu-[1-4] t", "srun --exclude=node-1 '--nodelist=gpu-[1-4]' t"),
        ("/opt/slurm/bin/sbatch run.sh", "/opt/slurm/bin/sbatch --exclude=node-1 run.sh"),
        ("A='x y' B= srun t", "A='x y' B= srun --exclude=node-1 t"),
        ("'A=1' t.py", "'A=1' t.py"),
        ("torchrun t.py --sampler srun x", "torchrun t.py --sampler srun x"),
        ("python sbatch_helper.py salloc", "python sbatch_helper.py salloc"),
        ("sbatch --wrap='srun t | tee log' -J 'a b'", "sbatch --exclude=node-1 '--wrap=srun t | tee log' -J 'a b'"),
        ('python -c "print(\'a\')" a\\ b "c\\$d"', """python -c 'print('"'"'a'"'"')' 'a b' 'c$d'"""),
    ],
)
def test_the_nodes_at_fault_are_left_out_besides_those_that_were(told: str, line: str) -> None:
    assert restart("j", JobFacts(command=told), FAULT).lines == (line,)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("srun --nodelist=node-1,node-2 t.py", "It asks for node-1 itself (--nodelist=node-1,node-2)"),
        ("srun --nodelist node-[0-7] t.py", "It asks for node-1 itself"),
        ("srun -wnode-1 t.py", "It asks for node-1 itself"),
        ("sbatch -w node-1.cluster.example run.sh", "It asks for node-1 itself"),
        ("sbatch -w ./hosts run.sh", "the file ./hosts. Take node-1 out"),
        ("sbatch -F hosts run.sh", "the file hosts. Take node-1 out"),
        ("sbatch --nodefile=hosts run.sh", "the file hosts. Take node-1 out"),
        ("sbatch --exclude=./bad run.sh", "the file ./bad. Add node-1 there"),
        ("sbatch --exclude= run.sh", "cannot be read. Add node-1 to it"),
        ("sbatch --future-option 7 run.sh", "its option --future-option is not known"),
        ("sbatch --excl=a run.sh", "its option --excl=a is not known"),
        ("srun -lx a t.py", "its option -lx is not known"),
        ("srun -n 1 a : -n 2 b", "for each part of the job"),
        ("srun t.py --master node-1", "names node-1 itself (node-1)"),
        ("MASTER_ADDR=node-1 srun t.py", "names node-1 itself (MASTER_ADDR=node-1)"),
        ("mpirun -H node-1:8,node-2:8 t", "names node-1 itself (node-1:8,node-2:8)"),
        ("deepspeed --include node-2:0 t.py", "chooses its nodes itself (--include)"),
        ("deepspeed --num_nodes=2 t.py", "chooses its nodes itself (--num_nodes=2)"),
    ],
)
def test_a_command_that_cannot_leave_a_node_out_is_not_given(told: str, why: str) -> None:
    found = restart("j", JobFacts(command=told), FAULT)
    assert found.lines == () and why in found.why_not and found.untold


@pytest.mark.parametrize(
    ("told", "signs"),
    [
        ("cd /work && sbatch run.sh", "&&"),
        ("python t.py; reboot", ";"),
        ("torchrun $WORK/t.py", "$WORK/t.py"),
        ('torchrun "$WORK/t.py"', "$"),
        ("torchrun t.py ~/d", "~/d"),
        ("torchrun --data=~/d t.py", "~"),
        ("torchrun t.py d/*.bin", "*"),
        ("torchrun t.py d/?.bin", "?"),
        ("torchrun t.py d/[ab].bin", "["),
        ("torchrun t.py {a,b}", "{"),
        ("torchrun t.py > log", ">"),
        ("torchrun t.py 2>&1", ">"),
        ("torchrun t.py < in", "<"),
        ("torchrun `which t`", "`"),
        ('torchrun "`which t`"', "`"),
        ("torchrun t.py | tee log", "|"),
        ("torchrun t.py &", "&"),
        ("(torchrun t.py)", "("),
        ("torchrun t.py # again", "#"),
        ("srun t.py -x data[0-9]/a", "["),
    ],
)
def test_what_only_a_shell_understands_is_named_and_no_command_is_made(told: str, signs: str) -> None:
    found = restart("j", JobFacts(command=told), changed(recovery="restart"))
    assert found.lines == () and found.untold
    assert "shell syntax (" in found.why_not and signs in found.why_not
    assert found.why_not.endswith("Run it as it was recorded.")


def test_what_is_added_by_hand_to_a_command_for_a_shell_is_said() -> None:
    by_slurm = restart("j", JobFacts(command="cd /work && sbatch run.sh"), FAULT).why_not
    assert by_slurm.endswith("with --exclude=node-1 among the options of sbatch; it must not ask for them.")
    assert restart("j", JobFacts(command="torchrun $T"), FAULT).why_not.endswith("as it was recorded, without node-1.")


def test_what_a_sender_told_runs_nothing_else() -> None:
    evil = "python t.py; rm -rf ~ && $(reboot) `id` | sh > /etc/passwd"
    assert restart("j", JobFacts(command=evil), changed(recovery="restart")).lines == ()
    quoted = f"python t.py {shlex.quote(evil)}"
    (line,) = restart("j", JobFacts(command=quoted), changed(recovery="restart")).lines
    assert shlex.split(line) == ["python", "t.py", evil] and line == quoted
    assert command_of("x" * 5000).words == ()


def test_who_requeues_is_told_that_the_nodes_left_out_before_are_not_known() -> None:
    found = restart("4711", JobFacts(launcher="slurm"), FAULT)
    assert "replaces the nodes that the job excluded before" in found.notes[1]
    assert "squeue -h -j 4711 -o %x" in found.notes[1] and "ReqNodeList must not name node-1" in found.notes[1]


def test_a_script_may_leave_nodes_out_that_are_not_known() -> None:
    assert "#SBATCH --exclude" in restart("j", JobFacts(command="sbatch run.sh"), FAULT).notes[1]
    assert len(restart("j", JobFacts(command="sbatch --wrap=t"), FAULT).notes) == 1


def test_deepspeed_parts_nodes_in_its_own_way() -> None:
    found = restart("j", JobFacts(command="deepspeed t.py --exclude x"), FAULT, ("gpu-2",))
    assert found.lines == ("deepspeed --exclude=node-1@gpu-2 t.py --exclude x",)


@pytest.mark.parametrize("starts", ["sbatch {} run.sh", "srun {} hostname"])
@pytest.mark.parametrize(
    "options",
    [
        "",
        "-N 2",
        "-x gpu-99",
        "-xgpu-99",
        "--exclude gpu-99",
        "--exclude=gpu-99 -J a",
        "-J x -x gpu-9,gpu-99 -H -vv",
        "--exclude=gpu-31 --exclude=gpu-99",
        "--mem 3G --exclusive --nice -k -x gpu-[98-99]",
        "-n2 -x gpu-9 -t 5 --reboot",
    ],
)
def test_slurm_itself_leaves_them_all_out(tmp_path: Path, starts: str, options: str) -> None:
    if shutil.which("sbatch") is None:
        pytest.fail("sbatch not found: run `apt-get install slurm-wlm`")
    (line,) = restart("j", JobFacts(command=starts.format(options)), FAULT).lines
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    nodes = "NodeName=gpu-31,gpu-99 CPUs=1 State=UNKNOWN\nPartitionName=p Nodes=ALL Default=YES\n"
    (tmp_path / "slurm.conf").write_text(f"ClusterName=x\nSlurmctldHost=localhost\nSlurmctldPort=1\n{nodes}")
    program, *words = shlex.split(line)
    kept = {"PATH": os.environ["PATH"], "SLURM_CONF": str(tmp_path / "slurm.conf")}
    # it tells its options at once, and then tries for long to reach a controller
    asked = [program, "-vv", "--test-only", *words]
    with subprocess.Popen(asked, stderr=subprocess.PIPE, text=True, env=kept, cwd=tmp_path) as ran:
        assert ran.stderr is not None
        told = list(takewhile(lambda text: "end of defined options" not in text, ran.stderr))
        ran.kill()
    (said,) = [text for text in told if ": exclude " in text]
    wanted = [one for one in ("gpu-31", "gpu-99", "gpu-9,", "gpu-9 ", "gpu-[98-99]") if one in f"{options} "]
    assert all(one.strip(" ,") in said for one in (*wanted, "node-1")), said
