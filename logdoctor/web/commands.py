"""How a job is restarted, as lines to copy: made of what was told about it, and only where the verdict says that a
restart helps.

What a sender told of its command is hostile like a log: it comes out as the words of one simple command, whatever it
holds.
"""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from logdoctor.nodes import NAME
from logdoctor.store.records import JobFacts
from logdoctor.taxonomy import ADVICE
from logdoctor.types import Verdict

_LONGEST = 3000  # characters of a command
_MOST_NODES = 200
_SLURM = ("slurm", "srun", "sbatch", "salloc")
_KUBERNETES = ("kubernetes", "k8s", "kubectl", "kubeflow", "pytorchjob", "mpijob", "rayjob")
_EXCLUDING = ("sbatch", "srun", "salloc", "deepspeed")
"""Programs that leave nodes out with `--exclude=`."""
_ASSIGNED = ("slurm_job_id", "slurm_jobid", "SLURM_JOB_ID")
_KINDS = ("pytorchjob", "mpijob", "rayjob")


class Restart(NamedTuple):
    """The lines that restart a job, and what to know before they are run; or `why_not`, where there are none."""

    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    why_not: str = ""


def restart(job: str, facts: JobFacts | None, verdict: Verdict, faulty: Sequence[str] | None = None) -> Restart:
    """How to restart a failed job without the nodes that the verdict takes out, and those that a test of its nodes
    found `faulty` (None when there was no test)."""
    if verdict.outcome != "failed":
        return Restart(why_not="The job did not fail.")
    if verdict.reason == "Unknown":
        return Restart(why_not="Nobody knows why it failed, so nobody knows whether a restart helps.")
    if verdict.recovery not in ("restart", "isolate_and_restart", "rollback_and_skip"):
        return Restart(why_not=f"The verdict says: {ADVICE[verdict.recovery]}.")
    nodes = list(dict.fromkeys((*nodes_to_leave_out(verdict), *(faulty or ()))))[:_MOST_NODES]
    if verdict.recovery == "isolate_and_restart" and not nodes and faulty is None:
        return Restart(why_not="A node has to be left out, and none is known to be at fault. Test the nodes first.")
    known = facts or JobFacts()
    lines, notes = _lines(job, known, nodes)
    if not lines:
        return Restart(why_not=_not_told(known))
    return Restart(lines, (*_before(known, verdict), *notes))


def _not_told(facts: JobFacts) -> str:
    """What has to be known of a job before it can be started again."""
    launcher = (facts.launcher or "").strip()[:40]
    if facts.command:
        return "The command on record cannot be read as one command. Send it again, on one line."
    if launcher.lower() in _KUBERNETES:
        return f"It was started with {launcher}, where it has another name. Send that as the name of the job."
    if launcher:
        return f"It was started with {launcher}, but its command is not on record. Send it with the job."
    return "Nobody told how the job was started. Send its launcher and its command."


def nodes_to_leave_out(verdict: Verdict) -> list[str]:
    """The suspected nodes of a verdict that takes nodes out, those with a name that a node can have."""
    if verdict.recovery != "isolate_and_restart":
        return []
    named = [one.node for one in verdict.suspects if one.node and NAME.fullmatch(one.node)]
    return list(dict.fromkeys(named))[:_MOST_NODES]


def _lines(job: str, facts: JobFacts, nodes: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines that start it again without some nodes, and notes on them; no lines when nothing is known."""
    launcher = (facts.launcher or "").strip().lower()
    words = command_words(facts.command or "")
    if launcher in _SLURM or (words and words[0] in ("sbatch", "srun", "salloc")):
        return _slurm(job, facts, words, nodes)
    if launcher in _KUBERNETES:
        return _kubernetes(job, facts, launcher, nodes)
    if not words:
        return (), ()
    line, excluded = _without(words, nodes)
    return (line,), () if excluded else _elsewhere(nodes)


def _slurm(
    job: str, facts: JobFacts, words: Sequence[str], nodes: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    number = _slurm_number(job, facts)
    if words and words[0] in _EXCLUDING:
        return (_without(words, nodes)[0],), ()
    if number and nodes:
        names = f"ExcNodeList={','.join(nodes)}"
        held = (f"scontrol requeuehold {number}", f"scontrol update JobId={number} {names}")
        return (*held, f"scontrol release {number}"), ("Slurm requeues only jobs that were submitted with --requeue.",)
    if number:
        return (f"scontrol requeue {number}",), ("Slurm requeues only jobs that were submitted with --requeue.",)
    if not words:
        return (), ()
    size = (f"--nodes={facts.nodes}",) if facts.nodes and facts.nodes > 0 else ()
    line = shlex.join(("sbatch", *size, *_exclude(nodes), f"--wrap={shlex.join(words)}"))
    return (line,), ("Add the options that it was submitted with.",)


def _kubernetes(
    job: str, facts: JobFacts, launcher: str, nodes: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Pods do not name the nodes they avoid, so these are cordoned first."""
    kind = launcher if launcher in _KINDS else "job"
    name = facts.name or job
    if not NAME.fullmatch(name):
        return (), ()
    first = tuple(f"kubectl cordon {shlex.quote(node)}" for node in nodes)
    gone = f"kubectl delete {kind} {shlex.quote(name)} --ignore-not-found"
    return (*first, gone, "kubectl apply -f MANIFEST.yaml"), ("MANIFEST.yaml is what the job was made from.",)


def _without(words: Sequence[str], nodes: Sequence[str]) -> tuple[str, bool]:
    """A command that leaves nodes out, and whether it does."""
    for place, word in enumerate(words[:5]):
        if word in _EXCLUDING:
            return shlex.join((*words[: place + 1], *_exclude(nodes), *words[place + 1 :])), True
    return shlex.join(words), not nodes


def _exclude(nodes: Sequence[str]) -> tuple[str, ...]:
    return (f"--exclude={','.join(nodes)}",) if nodes else ()


def _elsewhere(nodes: Sequence[str]) -> tuple[str, ...]:
    some = ", ".join(nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")
    return (f"Run it without {some}: the command does not name its nodes.",)


def _before(facts: JobFacts, verdict: Verdict) -> tuple[str, ...]:
    """What has to be so before it goes on."""
    folder = f" in {facts.checkpoint_dir[:300]}" if facts.checkpoint_dir else ""
    step = "" if verdict.progress.step is None else f" (it came to step {verdict.progress.step:,})"
    if verdict.recovery == "rollback_and_skip":
        return (f"First choose a checkpoint before the spike{folder}{step}, and skip the data behind it.",)
    return (f"It goes on from its last checkpoint{folder}{step}.",)


def command_words(command: str) -> list[str]:
    """The words of a command as it was told; none for one that cannot be read, prints oddly or has no end."""
    if not command.isprintable() or len(command) > _LONGEST:
        return []
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _slurm_number(job: str, facts: JobFacts) -> str:
    """The number of the Slurm job, "" when it is not known."""
    for said in (*(facts.labels.get(name, "") for name in _ASSIGNED), job):
        if said.isascii() and said.isdecimal() and len(said) < 12:
            return said
    return ""
