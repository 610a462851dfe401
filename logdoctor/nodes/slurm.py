"""Runs Slurm's commands and parses their output: nodes and hostlists.

Commands run without a shell. Variables that would silently steer them (`SLURM_JOB_ID`, `SLURM_HOSTFILE` and others,
which are set inside a job) are removed from their environment, as are logdoctor's secrets.
"""

import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import regex
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from logdoctor.errors import InputError
from logdoctor.text import harmless

MAX_NODES = 65_536
"""Most nodes in a hostlist, Slurm's own limit."""

_COMMAND_SECONDS = 20.0
_KEPT = {"SLURM_CONF", "SLURM_JWT"}
_STEERING = ("SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "SBATCH_", "SQUEUE_", "SCANCEL_", "PMI", "LOGDOCTOR_")
_BRACKETS = regex.compile(r"\[([0-9,-]*)\]")
_RANGE = regex.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")
_PART = rf"(?:[A-Za-z0-9._-]++|\[{_RANGE.pattern}(?:,{_RANGE.pattern})*+\])++"
_HOSTLIST = regex.compile(rf"(?:{_PART})?+(?:,(?:{_PART})?+)*+")
_COMMA_OUTSIDE = regex.compile(r",(?![^\[]*\])")
_FIELD = regex.compile(r"(?:^| )([A-Za-z]+)=(\S*)")
_WRITTEN_BY = regex.compile(r" \[[^\[\]@]*@[0-9T:-]+\]$")
_TYPED_GPU = regex.compile(r"(?:^|,)gpu:([A-Za-z_][A-Za-z0-9_.-]*)")
_SIGNS = "*~#!%$@^-+"


class SlurmNode(NamedTuple):
    """A node as `scontrol show node` describes it: `states` are the words of its state, such as IDLE and DRAIN, `raw`
    the state as Slurm writes it, `reason` without its author and time, `gpu` its GPU type, if set."""

    name: str
    address: str
    states: frozenset[str]
    raw: str
    reason: str
    gpu: str


class CommandResult(NamedTuple):
    """How a command ended: its status (None: killed after its time-out), its output, and its error message."""

    status: int | None
    output: str
    complaint: str


def run(command: Sequence[str], env: Mapping[str, str]) -> CommandResult:
    """Run a Slurm command for 20 seconds at most. It never raises for what the command does: a missing one has status
    127."""
    try:
        done = subprocess.run(
            command, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_SECONDS
        )
    except subprocess.TimeoutExpired:
        return CommandResult(None, "", f"no answer for {_COMMAND_SECONDS:g} seconds")
    except OSError as error:
        return CommandResult(127, "", error.strerror or str(error))
    complaint = done.stderr.decode(errors="replace").strip() or f"it ended with status {done.returncode}"
    return CommandResult(
        done.returncode, done.stdout.decode(errors="replace"), harmless(complaint.replace("\n", "; "), 300)
    )


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that Slurm's commands inherit."""
    kept = {name: value for name, value in given.items() if name in _KEPT or not name.startswith(_STEERING)}
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def nodes_in(text: str) -> list[SlurmNode]:
    """Parse the nodes in the output of `scontrol show node`; none in any other text.

    Fields are indented by three blanks. Slurm indents continuation lines of a reason more, so that a reason cannot
    pretend to be another field or node.
    """
    return [_node(record) for record in regex.split(r"(?m)^(?=NodeName=)", text) if record.startswith("NodeName=")]


def words(raw: str) -> frozenset[str]:
    """Return the words of a state as Slurm writes it, without their flags: `DOWN*+DRAIN` is DOWN and DRAIN."""
    return frozenset(word.strip(_SIGNS) for word in raw.upper().split("+") if word.strip(_SIGNS))


def expanded(hostlist: str) -> list[str]:
    """Return the names in a hostlist such as `gpu[01-16,20],login`, in order; `InputError` when it is invalid, or has
    more than 65,536 names."""
    thing = f"hostlist {hostlist[:80]!r}"
    if not _HOSTLIST.fullmatch(hostlist):
        raise InputError(thing, "is not in Slurm's notation", "Write it as gpu[01-16],login.")
    if _size(hostlist) > MAX_NODES:
        raise InputError(thing, f"stands for more than {MAX_NODES:,} nodes", "Check its ranges.")
    try:
        return [
            str(name)
            for part in _COMMA_OUTSIDE.split(hostlist)
            if part
            for name in NodeSet(part, resolver=RESOLVER_NOGROUP)
        ]
    except NodeSetException as error:
        cause = f"cannot be read ({harmless(str(error), 120)})"
        raise InputError(thing, cause, "Write it as gpu[01-16],login.") from error


def _node(record: str) -> SlurmNode:
    lines = [line.removeprefix("   ") for line in record.split("\n") if not line.startswith("    ")]
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(("Reason=", "Comment=", "Extra=", "OS=")):
            name, _, value = line.partition("=")
            fields.setdefault(name, value)
        else:
            for name, value in _FIELD.findall(line):
                fields.setdefault(name, value)
    name, raw = fields.get("NodeName", ""), fields.get("State", "")
    typed = _TYPED_GPU.search(fields.get("Gres", ""))
    return SlurmNode(
        name=name,
        address=fields.get("NodeAddr", "") or fields.get("NodeHostName", "") or name,
        states=words(raw),
        raw=raw,
        reason=_WRITTEN_BY.sub("", fields.get("Reason", "")),
        gpu=typed[1] if typed else "",
    )


def _size(hostlist: str) -> int:
    """Return an upper limit of a hostlist's names, without expanding it."""
    return sum(_size_of_part(part) for part in _COMMA_OUTSIDE.split(hostlist))


def _size_of_part(part: str) -> int:
    size = 1
    for inside in _BRACKETS.findall(part):
        size = min(size * sum(_span(piece) for piece in inside.split(",")), MAX_NODES + 1)
    return size


def _span(piece: str) -> int:
    found = _RANGE.fullmatch(piece)
    return max(1, int(found[2]) - int(found[1]) + 1) if found and found[2] else 1
