"""Who may be at fault: nodes and ranks that the evidence names, and only those."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import regex

from logdoctor import taxonomy
from logdoctor.diagnose.findings import Finding, Reading
from logdoctor.types import Suspect

__all__ = [
    "LONGEST_NAME",
    "Places",
    "Suspect",
    "divergence",
    "first_rank",
    "name",
    "named_rank",
    "own_host",
    "rank_of",
    "rank_of_stream",
    "tasks_are_ranks",
]

LONGEST_NAME = 253
"""Characters of a host's name, as DNS limits it: what is longer is none, whatever line says so."""

_HARDWARE = ("CUDA Error", "ECC Error", "NVLink Error", "Node Failure", "Network Error", "NCCL Remote Error")
_LOCAL = ("CUDA Error", "ECC Error", "NVLink Error")
_OWN_HOST = regex.compile(r"^(?P<host>[A-Za-z][\w.-]*)(?: kern(?:el)?: |:\d+:\d+ \[\d+\] )")
"""How syslog and NCCL name the host that speaks."""
_SRUN = regex.compile(
    r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*):"
)
_MOST_TASKS = 1 << 20  # that are looked at
_POD = regex.compile(r"\[(?:pod/)[\w.-]+")
_WORK = regex.compile(
    r"\[(?:PG (?:ID )?(?P<group>[\w]+)[^\]]*?)?Rank (?P<rank>\d{1,9})\].{0,200}?"
    r"WorkNCCL\(SeqNum=(?P<sequence>\d{1,18}), OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?"
)


def name(readings: list[Reading], found: list[Finding], cause: Finding) -> list[Suspect]:
    """The nodes that the cause, or a finding that agrees with it, names as culprit."""
    if cause.reason not in _HARDWARE:
        return []
    agreeing = [cause] + [
        f for f in found if f.reason == cause.reason and f.role in ("cause", "proximate") and f is not cause
    ]
    places = Places(readings)
    suspects: dict[str | int, Suspect] = {}
    for finding in agreeing:
        node = _node(places, finding)
        gpu = finding.captures.get("gpu") or finding.captures.get("pci")
        if node is not None and node not in suspects and (finding is cause or finding.role == "cause"):
            rank = finding.rank if finding is cause else None
            suspects[node] = Suspect(node, rank, gpu, _why(finding))
    if not suspects and cause.rank is not None:
        suspects[cause.rank] = Suspect(None, cause.rank, cause.captures.get("gpu"), _why(cause))
    return list(suspects.values())


def _why(finding: Finding) -> str:
    what = finding.rule.title if finding.rule else finding.name
    return f"{what} (line {finding.line})"


class Places:
    """Where ranks and tasks ran, as all streams tell it: read once, however many findings are asked about.

    `aliases` map addresses and pods to nodes, `nodes` ranks; `only` is the node of all ranks when it is one.
    """

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._readings = readings
        self.aliases = {alias: node for reading in readings for alias, node in reading.record.aliases.items()}
        self.nodes: dict[int, str] = {}
        for reading in readings:
            self.nodes |= _reported_hosts(reading, self.aliases) | reading.record.placements
        names = set(self.nodes.values())
        self.only = names.pop() if len(self.nodes) > 1 and len(names) == 1 else None

    @cached_property
    def tasks(self) -> dict[int, str]:
        """The nodes that Slurm reports tasks on when they end; the first report counts."""
        reports = (_SRUN.search(line.text) for reading in self._readings for line, _ in reading.lines)
        told = ((task, report["node"]) for report in reports if report for task in _listed(report["tasks"]))
        found: dict[int, str] = {}
        for task, node in islice(told, _MOST_TASKS):
            found.setdefault(task, node)
        return found


def _listed(tasks: str) -> Iterator[int]:
    """The numbers of a list such as "0,2,4-7"."""
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _node(places: Places, finding: Finding) -> str | None:
    """The node that a finding names; for a fault of the machine also the one it was printed on.

    An address or a pod stands for the node that has it; a pod without a known node is no node.
    """
    node = finding.captures.get("node")
    if node is None and (finding.reason in _LOCAL or (finding.rule and finding.rule.verdict.here)):
        node = _speaker(places, finding)
    if node is None:
        return None  # who reports a fault of the network need not be who has it
    node = places.aliases.get(node.removesuffix(":"), node)
    node = places.aliases.get(node, node).rstrip(".:,")
    return node if len(node) <= LONGEST_NAME else None


def _speaker(places: Places, finding: Finding) -> str | None:
    """The node on which a line was printed: as the line says, by its rank, by its task, or because there is one."""
    if host := own_host(finding):
        return host
    origin = finding.origin
    if origin.node is not None and (origin.node in places.aliases or not _POD.search(origin.channel)):
        return origin.node
    if finding.rank is not None and finding.rank in places.nodes:
        return places.nodes[finding.rank]
    if origin.task is not None and (node := places.tasks.get(origin.task)):
        return node
    return places.only


_HOST = regex.compile(r"^\s*host +: (?P<host>[\w.-]+)")


def _reported_hosts(reading: Reading, aliases: dict[str, str]) -> dict[int, str]:
    """The hosts of failed ranks in torchrun's reports; a pod counts when its node is known."""
    pods = any(_POD.search(where.channel) for _, where in reading.lines)
    hosts: dict[int, str] = {}
    host: str | None = None
    for _, where in reading.lines:
        if named := _HOST.match(where.message):
            host = named["host"]
        elif host and (ranked := _REPORTED.match(where.message)):
            if not pods or host in aliases:
                hosts[int(ranked["rank"])] = host
            host = None
    return hosts


def own_host(finding: Finding) -> str | None:
    """The host that a line names as its speaker, as syslog and NCCL do."""
    found = _OWN_HOST.match(finding.origin.message)
    return found["host"] if found else None


def first_rank(found: list[Finding], cause: Finding, readings: list[Reading]) -> int | None:
    """The rank whose own error came first, None when none can be named.

    A mistake in the program that most ranks make alike has no first rank, nor has a fault of a node or
    of the network. A rank is named by the line, by what the line says ("[Rank 3]"), by Slurm's task label when
    each task is a rank, or by torchrun's report when the error stands in the log once.
    """
    if cause.reason in ("Node Failure", "Network Error", "Hang"):
        return None
    if cause.reason == "NCCL Timeout Error" and (diverged := divergence(readings)):
        return diverged.rank
    same = [finding for finding in found if finding.key == cause.key]
    alike = {rank for finding in same if (rank := rank_of(finding, readings)) is not None}
    if len(alike) > 1 and taxonomy.REASONS[cause.reason].category in ("Script", "Framework"):
        speaking = {where.rank for reading in readings for _, where in reading.lines if where.rank is not None}
        if len(alike) >= _MOST * len(speaking | alike):
            return None
    rank = rank_of(cause, readings)
    if rank is None and len(same) == 1:
        rank = _reported(readings)
    if rank is None:
        others = (rank_of(f, readings) for f in found if f.reason == cause.reason or f.role in ("cause", "proximate"))
        rank = next((other for other in others if other is not None), None)
    return rank


_MOST = 0.5
_NAMED = regex.compile(r"\b[Rr]ank[ :]{1,2}(?P<rank>\d{1,9})\b|\[(?:PG [^\]]*)?Rank (?P<bracket>\d{1,9})\]")
_STREAM = regex.compile(r"rank[._-]?(?P<rank>\d{1,7})(?=\D*$)|(?:^|/)(?P<folder>\d{1,7})/(?:stdout|stderr)\.log$")
_REPORTED = regex.compile(r"^\s*rank +: (?P<rank>\d{1,9}) \(local_rank: \d+\)")


def rank_of(finding: Finding, readings: list[Reading], labelled: Sequence[bool] | None = None) -> int | None:
    """The rank that a finding speaks of or that printed it: as the line says, by its task, or by its stream's name.

    `labelled` tells for each stream whether tasks are ranks, for who asks of many findings.
    """
    if finding.rank is not None:
        return finding.rank
    if (named := named_rank(finding.origin.message)) is not None:
        return named
    reading = readings[finding.stream]
    task = finding.origin.task
    if task is not None and (labelled[finding.stream] if labelled else tasks_are_ranks(reading)):
        return task
    return rank_of_stream(reading.record.stream)


def named_rank(message: str) -> int | None:
    """The rank that a message speaks of near its beginning, such as "[Rank 3]"."""
    named = _NAMED.search(message[:300])
    return int(named["rank"] or named["bracket"]) if named else None


def rank_of_stream(name: str) -> int | None:
    """The rank that the name of a stream gives, for lines that say nothing themselves."""
    found = _STREAM.search(name)
    return int(found["rank"] or found["folder"]) if found else None


def tasks_are_ranks(reading: Reading) -> bool:
    """Whether `srun --label` numbers ranks: no torchrun below it, no line with another rank behind the label."""
    return not any(
        (where.task is not None and where.rank not in (None, where.task)) or "torch/distributed/elastic" in line.text
        for line, where in reading.lines
    )


def _reported(readings: list[Reading]) -> int | None:
    """The rank that torchrun's last report calls the first to fail."""
    rank: int | None = None
    for reading in readings:
        root = False
        for _, where in reading.lines:
            root = root or "Root Cause (first observed failure)" in where.message
            if root and (match := _REPORTED.match(where.message)):
                rank, root = int(match["rank"]), False
    return rank


class _Work(NamedTuple):
    sequence: int
    op: str
    numel: str


class Divergence(NamedTuple):
    """The rank that took another path through the program than all others, in words."""

    rank: int
    why: str


def divergence(readings: list[Reading]) -> Divergence | None:
    """Whether a collective's time-out is the program's fault: one rank of a group waits in another call."""
    groups: dict[str, dict[int, _Work]] = {}
    for reading in readings:
        for line, _ in reading.lines:
            if "WorkNCCL(SeqNum=" in line.text and "timeout" in line.text and (match := _WORK.search(line.text)):
                work = _Work(int(match["sequence"]), match["op"], match["numel"] or "")
                groups.setdefault(match["group"] or "", {}).setdefault(int(match["rank"]), work)
    for works in groups.values():
        common, count = Counter(works.values()).most_common(1)[0]
        if count == len(works) - 1 >= 2:
            rank, work = next((rank, work) for rank, work in works.items() if work != common)
            if work.op != common.op:
                waits = f"Rank {rank} waits in {work.op} #{work.sequence} while all others are in {common.op}"
                why = f"{waits} #{common.sequence}: the ranks took different paths through the program."
                return Divergence(rank, why)
    return None
