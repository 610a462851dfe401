"""How a job is restarted, as lines to copy: made of what was told about it, and only where the verdict says that a
restart helps.

What a sender told of its command is hostile like a log: it comes out as the words of one simple command. One that only
a shell understands, or that asks for the nodes to be left out, is not made into a line: what is to be done by hand is
said.
"""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from logdoctor.node_types import NAME
from logdoctor.store.records import JobFacts
from logdoctor.taxonomy import advice
from logdoctor.types import Verdict, names_node
from logdoctor.web.incidents import leaving_out
from logdoctor.web.incidents.shell_words import Command, command_of

_MOST_NODES = 200
_SLURM = ("slurm", "srun", "sbatch", "salloc")
_KUBERNETES = ("kubernetes", "k8s", "kubectl", "kubeflow", "pytorchjob", "mpijob", "rayjob")
_REQUEUED = "Slurm requeues only jobs that were submitted with --requeue."
_ASSIGNED = ("slurm_job_id", "slurm_jobid", "SLURM_JOB_ID")
_KINDS = ("pytorchjob", "mpijob", "rayjob")


class Restart(NamedTuple):
    """The lines that restart a job, and what to know before they are run; or `why_not`, where there are none. With
    `untold` a restart helps, and it is not known how the job is started."""

    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    why_not: str = ""
    untold: bool = False


def restart(job: str, facts: JobFacts | None, verdict: Verdict, faulty: Sequence[str] | None = None) -> Restart:
    """How to restart a failed job without the nodes that the verdict takes out, and those that a test of its nodes
    found `faulty` (None when there was no test)."""
    if verdict.outcome != "failed":
        return Restart(why_not="The job did not fail.")
    if verdict.reason == "Unknown":
        return Restart(why_not="It is not known why it failed, so it is not known whether a restart helps.")
    if verdict.recovery not in ("restart", "isolate_and_restart", "rollback_and_skip"):
        return Restart(why_not=f"The verdict says: {advice(verdict.recovery, names_node(verdict))}.")
    nodes = list(dict.fromkeys((*nodes_to_leave_out(verdict), *(faulty or ()))))[:_MOST_NODES]
    if verdict.recovery == "isolate_and_restart" and not nodes and faulty is None:
        return Restart(why_not="A node has to be left out, and none is known to be at fault. Test the nodes first.")
    known = facts or JobFacts()
    made = _made(job, known, nodes)
    if made.why_not:
        return made
    return made._replace(notes=(*_before(known, verdict), *made.notes))


def _not_told(facts: JobFacts) -> str:
    """What has to be known of a job before it can be started again."""
    launcher = (facts.launcher or "").strip()[:40]
    if facts.command:
        return "The command on record cannot be read as one command. Report it again, on one line."
    if launcher.lower() in _KUBERNETES:
        return f"It was started with {launcher}, where it has another name. Report that as the name of the job."
    if launcher:
        return f"It was started with {launcher}, but its command was not reported. Report it with the job."
    return "It is not known how the job was started. Report its launcher and its command."


def nodes_to_leave_out(verdict: Verdict) -> list[str]:
    """The suspected nodes of a verdict that takes nodes out, those with a name that a node can have."""
    if verdict.recovery != "isolate_and_restart":
        return []
    named = [one.node for one in verdict.suspects if one.node and NAME.fullmatch(one.node)]
    return list(dict.fromkeys(named))[:_MOST_NODES]


def _made(job: str, facts: JobFacts, nodes: Sequence[str]) -> Restart:
    """The lines that start it again without some nodes, and notes on them; or why there are none."""
    launcher = (facts.launcher or "").strip().lower()
    command = command_of(facts.command or "")
    number = _slurm_number(job, facts)
    slurm = launcher in _SLURM
    if slurm and number and command.program not in leaving_out.SLURM:
        return _requeued(number, nodes)
    if launcher in _KUBERNETES and command.program not in leaving_out.SLURM:
        return _in_kubernetes(job, facts, launcher, nodes)
    if not command.words:
        return Restart(why_not=_not_told(facts), untold=True)
    if command.shell:
        return Restart(why_not=_for_a_shell(command, nodes), untold=True)
    left = leaving_out.without(command, nodes)
    if left.command is None:
        return Restart(why_not=left.why_not, untold=True)
    if slurm and command.program not in leaving_out.SLURM:
        return _submitted(command, facts, nodes)
    return Restart((str(left.command),), left.notes)


def _requeued(number: str, nodes: Sequence[str]) -> Restart:
    """How a job of Slurm that has a number is run again, under that."""
    if not nodes:
        return Restart((f"scontrol requeue {number}",), (_REQUEUED,))
    replaced = (
        f"ExcNodeList replaces the nodes that the job excluded before, which are not known here: add those "
        f"that `squeue -h -j {number} -o %x` prints. Its ReqNodeList must not name {leaving_out.some(nodes)}."
    )
    lines = (
        f"scontrol requeuehold {number}",
        f"scontrol update JobId={number} ExcNodeList={','.join(nodes)}",
        f"scontrol release {number}",
    )
    return Restart(lines, (replaced, _REQUEUED))


def _submitted(command: Command, facts: JobFacts, nodes: Sequence[str]) -> Restart:
    """How a program that ran under Slurm is submitted anew."""
    size = (f"--nodes={facts.nodes}",) if facts.nodes and facts.nodes > 0 else ()
    excluded = (leaving_out.exclude(nodes),) if nodes else ()
    line = shlex.join(("sbatch", *size, *excluded, f"--wrap={command}"))
    return Restart((line,), ("Add the options that it was submitted with.",))


def _for_a_shell(command: Command, nodes: Sequence[str]) -> str:
    """Why a command that needs a shell is not given, and how it is run."""
    signs = " ".join(command.shell[:5])
    starts = next((word for word in command.words if word in leaving_out.SLURM), "")
    how = "Run it as it was recorded"
    if nodes and starts:
        how += f", with {leaving_out.exclude(nodes)} among the options of {starts}; it must not ask for them"
    elif nodes:
        how += f", without {leaving_out.some(nodes)}"
    return f"The command on record has shell syntax ({signs}), so it is not changed here. {how}."


def _in_kubernetes(job: str, facts: JobFacts, launcher: str, nodes: Sequence[str]) -> Restart:
    """Pods do not name the nodes they avoid, so these are cordoned first."""
    kind = launcher if launcher in _KINDS else "job"
    name = facts.name or job
    if not NAME.fullmatch(name):
        return Restart(why_not=_not_told(facts), untold=True)
    first = tuple(f"kubectl cordon {shlex.quote(node)}" for node in nodes)
    gone = f"kubectl delete {kind} {shlex.quote(name)} --ignore-not-found"
    return Restart((*first, gone, "kubectl apply -f MANIFEST.yaml"), ("MANIFEST.yaml is the manifest of the job.",))


def _before(facts: JobFacts, verdict: Verdict) -> tuple[str, ...]:
    """What has to be so before it goes on."""
    folder = f" in {facts.checkpoint_dir[:300]}" if facts.checkpoint_dir else ""
    step = "" if verdict.progress.step is None else f" (it came to step {verdict.progress.step:,})"
    if verdict.recovery == "rollback_and_skip":
        return (f"First choose a checkpoint before the spike{folder}{step}, and skip the data after it.",)
    return (f"It resumes from its last checkpoint{folder}{step}.",)


def _slurm_number(job: str, facts: JobFacts) -> str:
    """The number of the Slurm job, "" when it is not known."""
    for said in (*(facts.labels.get(name, "") for name in _ASSIGNED), job):
        if said.isascii() and said.isdecimal() and len(said) < 12:
            return said
    return ""
