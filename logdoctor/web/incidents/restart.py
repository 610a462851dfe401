"""How to restart a job, as lines to copy, if a restart helps.

A reported command is as hostile as a log, and is never rewritten: a single simple command is shown as it is, one of
Slurm with `--exclude=` after its program; for any other the page says what to do by hand.
"""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

import regex

from logdoctor.store.jobs.records import JobFacts
from logdoctor.taxonomy import advice
from logdoctor.types import Verdict, names_node
from logdoctor.types.nodes import NAME

_MOST_NODES = 200
_LONGEST = 3000  # characters of a command
_SUBMITS = ("sbatch", "srun", "salloc")
_CHOOSES = regex.compile(r"-[A-Za-z]*[xwF].*|--excl(u|ud|ude)?(=.*)?|--node[lf].*|:", regex.DOTALL)
"""Options of Slurm that choose or exclude nodes, and the separator of a heterogeneous job."""
_SCRIPT = (
    "What its script asks for is not known here: --exclude replaces an #SBATCH --exclude, whose nodes have to be "
    "added, and an #SBATCH --nodelist must not name the nodes that are left out."
)
_SLURM = ("slurm", "srun", "sbatch", "salloc")
_KUBERNETES = ("kubernetes", "k8s", "kubectl", "kubeflow", "pytorchjob", "mpijob", "rayjob")
_REQUEUED = "Slurm requeues only jobs that were submitted with --requeue."
_ASSIGNED = ("slurm_job_id", "slurm_jobid", "SLURM_JOB_ID")
_KINDS = ("pytorchjob", "mpijob", "rayjob")


class Restart(NamedTuple):
    """The lines that restart a job, with notes to read first; or `why_not`, without any. `unsure` means that a restart
    helps, but the start of the job is unknown."""

    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    why_not: str = ""
    unsure: bool = False


def restart(job: str, facts: JobFacts | None, verdict: Verdict, faulty: Sequence[str] | None = None) -> Restart:
    """Return how to restart a failed job without suspected and `faulty` nodes. `faulty` are those that a test found;
    None without a test."""
    if verdict.outcome != "failed":
        return Restart(why_not="The job did not fail.")
    if verdict.reason == "Unknown" and verdict.recovery != "restart":
        return Restart(why_not="The cause is unknown, so it is not known whether a restart helps.")
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


def _unknown_start(facts: JobFacts) -> str:
    """Return what must be reported about a job before it can be started again."""
    launcher = (facts.launcher or "").strip()[:40]
    if facts.command:
        return "The command on record cannot be read as one command. Report it again, on one line."
    if launcher.lower() in _KUBERNETES:
        return f"It was started with {launcher}, where it has another name. Report that as the name of the job."
    if launcher:
        return f"It was started with {launcher}, but its command was not reported. Report it with the job."
    return "It is not known how the job was started. Report its launcher and its command."


def nodes_to_leave_out(verdict: Verdict) -> list[str]:
    """Return the suspected nodes with valid names, if the verdict asks to cordon nodes."""
    if verdict.recovery != "isolate_and_restart":
        return []
    named = [one.node for one in verdict.suspects if one.node and NAME.fullmatch(one.node)]
    return list(dict.fromkeys(named))[:_MOST_NODES]


def _made(job: str, facts: JobFacts, nodes: Sequence[str]) -> Restart:
    """Return the lines that start it again without some nodes, or why there are none."""
    launcher = (facts.launcher or "").strip().lower()
    words = _words(facts.command or "")
    submits = _program(words) in _SUBMITS
    number = _slurm_number(job, facts)
    if launcher in _SLURM and number and not submits:
        return _requeued(number, nodes)
    if launcher in _KUBERNETES and not submits:
        return _in_kubernetes(job, facts, launcher, nodes)
    if not words:
        return Restart(
            why_not=_not_simple(nodes) if _is_readable(facts.command) else _unknown_start(facts), unsure=True
        )
    if nodes and _asks_for(words, nodes, submits):
        return Restart(why_not=_by_hand("The command on record chooses its nodes itself.", nodes), unsure=True)
    if submits:
        return _submitted_again(words, nodes)
    if nodes and _submits_inside(words):
        return Restart(why_not=_by_hand("The command on record submits its job itself.", nodes), unsure=True)
    if launcher in _SLURM:
        return _wrapped(words, facts, nodes)
    note = f"Run it on other nodes than {some(nodes)}: the command itself does not leave them out."
    return Restart((shlex.join(words),), (note,) if nodes else ())


def _words(command: str) -> list[str]:
    """Return the words of a command that shells read as one simple command, else []. Quoting what a shell would expand,
    join or redirect would change its meaning."""
    if not _is_readable(command):
        return []
    try:
        words = shlex.split(command)
    except ValueError:  # unclosed quote
        return []
    is_simple = shlex.join(words) == " ".join(command.split()) and _program(words) != ""
    return words if is_simple else []


def _is_readable(command: str | None) -> bool:
    return bool(command) and len(command or "") <= _LONGEST and (command or "").isprintable()


def _program(words: Sequence[str]) -> str:
    """Return a command's program, without its folder and the variables set before it."""
    return next((word for word in words if "=" not in word), "").rpartition("/")[2]


def _asks_for(words: Sequence[str], nodes: Sequence[str], submits: bool) -> bool:
    """Return whether a command names one of the nodes, or chooses nodes by Slurm's options."""
    names = "|".join(regex.escape(node.partition(".")[0]) for node in nodes)
    named = regex.compile(rf"(?<![\w-])({names})(?![\w-])", regex.IGNORECASE)
    chosen = any(word.startswith("SLURM_HOSTFILE=") for word in words)
    return chosen or any(named.search(word) or (submits and _CHOOSES.fullmatch(word)) for word in words)


def _submits_inside(words: Sequence[str]) -> bool:
    """Return whether a command runs one that submits to Slurm, such as `nohup sbatch train.sh`."""
    parts = (part for word in words for part in word.split())
    return any(part.rpartition("/")[2] in ("sbatch", "salloc") for part in parts)


def _submitted_again(words: Sequence[str], nodes: Sequence[str]) -> Restart:
    """Return how to repeat a command that submits a job to Slurm, without some nodes."""
    if not nodes:
        return Restart((shlex.join(words),))
    program = _program(words)
    place = next(at for at, word in enumerate(words) if "=" not in word) + 1
    line = shlex.join((*words[:place], exclude(nodes), *words[place:]))
    return Restart((line,), (_SCRIPT,) if program == "sbatch" else ())


def _wrapped(words: Sequence[str], facts: JobFacts, nodes: Sequence[str]) -> Restart:
    """Return how to submit a program that ran under Slurm again."""
    size = (f"--nodes={facts.nodes}",) if facts.nodes and facts.nodes > 0 else ()
    excluded = (exclude(nodes),) if nodes else ()
    line = shlex.join(("sbatch", *size, *excluded, f"--wrap={shlex.join(words)}"))
    return Restart((line,), ("Add the options that it was submitted with.",))


def _not_simple(nodes: Sequence[str]) -> str:
    """Return how to run a command again that only a shell understands."""
    return _by_hand("The command on record is not one simple command, so it is not changed here.", nodes)


def _by_hand(why: str, nodes: Sequence[str]) -> str:
    """Return what a person has to do with a command to exclude nodes."""
    if not nodes:
        return f"{why} Run it as it was sent."
    return f"{why} Run it without {some(nodes)}; with sbatch, srun or salloc add {exclude(nodes)}."


def exclude(nodes: Sequence[str]) -> str:
    """Return the option with which Slurm excludes nodes."""
    return f"--exclude={','.join(nodes)}"


def some(nodes: Sequence[str]) -> str:
    """Return the names of the first five nodes, and how many more there are."""
    return ", ".join(nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")


def _requeued(number: str, nodes: Sequence[str]) -> Restart:
    """Return how to requeue a Slurm job under its number."""
    if not nodes:
        return Restart((f"scontrol requeue {number}",), (_REQUEUED,))
    replaced = (
        f"ExcNodeList takes the place of the nodes that the job left out before, which are not known here: add those "
        f"that `squeue -h -j {number} -o %x` prints. Its ReqNodeList must not name {some(nodes)}."
    )
    lines = (
        f"scontrol requeuehold {number}",
        f"scontrol update JobId={number} ExcNodeList={','.join(nodes)}",
        f"scontrol release {number}",
    )
    return Restart(lines, (replaced, _REQUEUED))


def _in_kubernetes(job: str, facts: JobFacts, launcher: str, nodes: Sequence[str]) -> Restart:
    """Return how to restart a job on Kubernetes. Pods do not name the nodes they avoid, so these are cordoned first."""
    kind = launcher if launcher in _KINDS else "job"
    name = facts.name or job
    if not NAME.fullmatch(name):
        return Restart(why_not=_unknown_start(facts), unsure=True)
    first = tuple(f"kubectl cordon {shlex.quote(node)}" for node in nodes)
    gone = f"kubectl delete {kind} {shlex.quote(name)} --ignore-not-found"
    return Restart((*first, gone, "kubectl apply -f MANIFEST.yaml"), ("MANIFEST.yaml is the manifest of the job.",))


def _before(facts: JobFacts, verdict: Verdict) -> tuple[str, ...]:
    """Return the note about the checkpoint to resume from."""
    folder = f" in {facts.checkpoint_dir[:300]}" if facts.checkpoint_dir else ""
    step = "" if verdict.progress.step is None else f" (it came to step {verdict.progress.step:,})"
    if verdict.recovery == "rollback_and_skip":
        return (f"First choose a checkpoint before the spike{folder}{step}, and skip the data after it.",)
    if not folder:
        return (f"No checkpoint of it is known: where it does not load one itself, it begins anew{step}.",)
    return (f"See that it loads its last complete checkpoint{folder}{step}.",)


def _slurm_number(job: str, facts: JobFacts) -> str:
    """Return the number of the Slurm job; "" if it is unknown."""
    for said in (*(facts.labels.get(name, "") for name in _ASSIGNED), job):
        if said.isascii() and said.isdecimal() and len(said) < 12:
            return said
    return ""
