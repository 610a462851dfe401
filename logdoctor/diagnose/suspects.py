"""Suspects: the nodes and ranks that the evidence names as possibly at fault, and no others."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
import regex

from logdoctor.diagnose.findings import LogFinding, StreamReading
from logdoctor.rules.once import once
from logdoctor.types import Suspect, Verdict

__all__ = [
    "LONGEST_NAME",
    "REPORTED",
    "Places",
    "Suspect",
    "divergence",
    "name",
    "named_rank",
    "of_job",
    "own_host",
    "rank_of",
    "rank_of_stream",
    "tasks_are_ranks",
]

_ADDRESS = regex.compile(r"[0-9a-fA-F]*[:.][0-9a-fA-F:.]+")
LONGEST_NAME = 253
"""The longest host name in characters, a DNS limit; anything longer is not a host name, whatever the line claims."""

_HARDWARE = ("CUDA Error", "ECC Error", "NVLink Error", "Node Failure", "Network Error", "NCCL Remote Error")
_LOCAL = ("CUDA Error", "ECC Error", "NVLink Error")
_OWN_HOST = regex.compile(r"^(?P<host>[A-Za-z][\w.-]*)(?: (?:kern(?:el)?|nvidia-smi|rocm-smi): |:\d+:\d+ \[\d+\] )")
"""How syslog and NCCL name the writing host."""
_SPOKEN = regex.compile(r"^(?P<host>[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] ")
_OFFICIAL = regex.compile(r"(?:srun|slurmstepd|slurmctld|salloc|sbatch|kubelet|mpirun|mpiexec|prted?|orted)\b")
"""Programs that start and end jobs, and therefore know their hosts."""
_SRUN = regex.compile(
    r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*):"
)
_OWN_EXIT = regex.compile(r"srun: error: (?P<node>[\w.-]+): tasks? [\d,-]{1,200}: Exited with exit code")
_SECTION = regex.compile(
    r"(?i)\b(?:dmesg|kern(?:el)?(?:[ .]log)?|console|ring buffer|journal(?:ctl)?|syslog)\b.{0,60}?"
    r"\b(?:node|host|on|of|from)[ :=]{1,3}(?P<node>[a-z][\w.-]*\d[\w.-]*)"
)
"""Headings of parts of a log that were gathered on one host."""
_SECTION_LINES = 40
_MOST_TASKS = 1 << 20  # most tasks that are read
_CODE = regex.compile(r"[A-Z]{1,4}\d{3,6}")
"""An error code before a colon, which looks like a host name."""
_POD = regex.compile(r"\[(?:pod/)[\w.-]+")
_WORK = regex.compile(
    r"\[(?:PG (?:ID )?(?P<group>[\w]+)[^\]]*?)?Rank (?P<rank>\d{1,9})\].{0,200}?"
    r"WorkNCCL\(SeqNum=(?P<sequence>\d{1,18}), OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?"
)


def name(readings: list[StreamReading], found: list[LogFinding], cause: LogFinding) -> list[Suspect]:
    """Return the suspects of a hardware cause: nodes named by it or by findings that agree. Without any, the node that
    its peers accuse, else the rank that reports the cause."""
    if cause.reason not in _HARDWARE:
        return []
    agreeing = [cause] + [
        f for f in found if f.reason == cause.reason and f.role in ("cause", "proximate") and f is not cause
    ]
    places = Places(readings)
    suspects: dict[str | int, Suspect] = {}
    for finding in agreeing:
        node = _node(places, finding)
        if node is not None and not places.bears_out(node, finding):
            continue
        gpu = finding.captures.get("gpu") or finding.captures.get("pci")
        if node is not None and node not in suspects and (finding is cause or finding.role == "cause"):
            rank = finding.rank if finding is cause else None
            suspects[node] = Suspect(node, rank, gpu, _why(finding))
    if not suspects and (accused := _accused(places, found, cause)):
        suspects[accused.node or ""] = accused
    if not suspects and cause.rank is not None and cause.reason != "NCCL Remote Error":  # there, a peer is gone
        suspects[cause.rank] = Suspect(None, cause.rank, cause.captures.get("gpu"), _why(cause))
    return list(suspects.values())


_PEERS = ("NCCL Remote Error", "Network Error")
_ACCUSERS = 3  # peers that must name the same node before it is suspected
_MANY_HOSTS = 2  # hosts in a log from which on they are taken to be those of its job
_OF_ALL = 2 / 3  # share of the peers that must name it


def _accused(places: "Places", found: list[LogFinding], cause: LogFinding) -> Suspect | None:
    """Return the node that most peers lost, if it does not blame another itself."""
    if cause.reason not in _PEERS:
        return None
    accusers: dict[str, set[tuple[str, str]]] = {}
    blaming: set[str] = set()
    for finding in found:
        peer = finding.captures.get("peer", "").split("<")[0].rstrip(".:,")
        if finding.reason not in _PEERS or not peer or len(peer) > LONGEST_NAME:
            continue
        peer = places.aliases.get(peer, peer)
        writer = _writing_node(places, finding) or ""
        if writer and is_among(peer, (writer,)):
            continue
        blaming.add(writer)
        accusers.setdefault(peer, set()).add((writer, finding.origin.channel))
    if not accusers:
        return None
    node, some = max(accusers.items(), key=lambda pair: len(pair[1]))
    if len(some) < _ACCUSERS or len(some) < _OF_ALL * sum(map(len, accusers.values())) or is_among(node, blaming):
        return None
    return Suspect(node, None, None, f"{len(some)} of its peers lost their connection to it")


def of_job(verdict: Verdict, nodes: Collection[str]) -> Verdict:
    """Return the verdict without suspects that are not nodes of its job.

    A log can name any host; `why` lists the names removed. An address is kept when the job's nodes are known only by
    name.
    """
    named = [suspect.node for suspect in verdict.suspects if suspect.node]
    known = Nodes(nodes)
    strangers = {node: None for node in named if not known.may_have(node)} if nodes else {}
    if not strangers:
        return verdict
    kept = tuple(suspect for suspect in verdict.suspects if suspect.node not in strangers)
    said = f"Named in the log, but not part of this job: {', '.join(list(strangers)[:5])}."
    return msgspec.structs.replace(verdict, suspects=kept, why=f"{verdict.why} {said}".strip())


def is_among(node: str, nodes: Collection[str]) -> bool:
    """Return whether a name or address may be one of these nodes."""
    return Nodes(nodes).may_have(node)


class Nodes:
    """Nodes by name or address; read once for many lookups."""

    def __init__(self, nodes: Collection[str]) -> None:
        self._addresses = {node for node in nodes if _ADDRESS.fullmatch(node)}
        self._names = {_short(node) for node in nodes if node not in self._addresses}

    def may_have(self, node: str) -> bool:
        """Return whether a name or address may be one of these nodes."""
        if _ADDRESS.fullmatch(node):
            return node in self._addresses or not self._addresses
        return _short(node) in self._names


def _short(name: str) -> str:
    """Return a host name in lower case, without its domain."""
    return name.lower().split(".")[0]


def _why(finding: LogFinding) -> str:
    what = finding.rule.title if finding.rule else finding.name
    return f"{what} (line {finding.line})"


class Places:
    """Where ranks and tasks ran, according to all streams; read once for many lookups.

    `aliases` map addresses and pods to nodes, `nodes` map ranks to nodes; `only` is the node of all ranks when there is
    just one.
    """

    def __init__(self, readings: Sequence[StreamReading]) -> None:
        self._readings = readings
        self.aliases = {alias: node for reading in readings for alias, node in reading.record.aliases.items()}
        self.nodes: dict[int, str] = {}
        for reading in readings:
            self.nodes |= _reported_hosts(reading, self.aliases) | reading.record.placements
        names = set(self.nodes.values())
        self.only = names.pop() if len(self.nodes) > 1 and len(names) == 1 else None

    def headed(self, finding: LogFinding) -> str | None:
        """Return the host in a heading less than 40 lines above, all of them known, else None."""
        reading = self._readings[finding.stream]
        for number in range(finding.line - 1, max(finding.line - _SECTION_LINES, 0), -1):
            text = reading.text(number)
            if text is None:
                return None
            if heading := _SECTION.search(text[:300]):
                return heading["node"]
        return None

    def bears_out(self, node: str, finding: LogFinding) -> bool:
        """Return whether more than one line's word supports a node. A program can print any host name: where the log
        shows the job's hosts, the node must be among them; else a kernel line must begin with it."""
        message = finding.origin.message
        of_machine = finding.reason in _LOCAL or "kernel" in finding.text
        if not of_machine or _OFFICIAL.match(message):
            return True
        if len(self._roster) < _MANY_HOSTS:
            return f"{node} kernel" not in message or message.startswith(node)
        return self._job.may_have(node)

    @once
    def _job(self) -> "Nodes":
        """The nodes of the job: those that lines and ranks name, and those whose tasks Slurm reports."""
        reported = {report["node"] for report in self._reports}
        return Nodes(self._roster | reported | set(self.nodes.values()))

    @once
    def _reports(self) -> list[regex.Match[str]]:
        """Slurm's reports that tasks ended."""
        messages = (where.message for reading in self._readings for _, where in reading.lines)
        return [report for message in messages if (report := _SRUN.match(message))]

    @once
    def _roster(self) -> frozenset[str]:
        """The hosts of the job, as line prefixes, placements and NCCL name them."""
        spoken = (_SPOKEN.match(where.message) for reading in self._readings for _, where in reading.lines)
        named = {match["host"] for match in spoken if match}
        lines = (where for reading in self._readings for _, where in reading.lines)
        named |= {where.node for where in lines if where.node is not None and not _POD.search(where.channel)}
        placed = {node for reading in self._readings for node in reading.record.placements.values()}
        return frozenset(named | placed | set(self.aliases.values()))

    @once
    def only_exit(self) -> str | None:
        """The only node on which, according to Slurm, a task exited by itself."""
        reports = (_OWN_EXIT.match(where.message) for reading in self._readings for _, where in reading.lines)
        nodes = {report["node"] for report in reports if report}
        return nodes.pop() if len(nodes) == 1 else None

    @once
    def tasks(self) -> dict[int, str]:
        """The nodes on which tasks ended, by Slurm's first report of each."""
        placed = ((task, report["node"]) for report in self._reports for task in _listed(report["tasks"]))
        found: dict[int, str] = {}
        for task, node in islice(placed, _MOST_TASKS):
            found.setdefault(task, node)
        return found


def _listed(tasks: str) -> Iterator[int]:
    """Yield the numbers of a list such as "0,2,4-7"."""
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _node(places: Places, finding: LogFinding) -> str | None:
    """Return the node that a finding names; for a local fault, else the one that printed it.

    An address or a pod stands for its node.
    """
    node = finding.captures.get("node")
    if node is None and (finding.reason in _LOCAL or (finding.rule and finding.rule.verdict.here)):
        node = _writing_node(places, finding)
    if node is None:
        return None  # whoever reports a network fault need not have it
    node = places.aliases.get(node.removesuffix(":"), node)
    node = places.aliases.get(node, node).rstrip(".:,")
    return node if len(node) <= LONGEST_NAME else None


def _writing_node(places: Places, finding: LogFinding) -> str | None:
    """Return the node on which a line was printed. The line says so, its rank or task was placed there, it stands below
    a heading, or there is only one."""
    if host := own_host(finding):
        return host
    origin = finding.origin
    if (
        origin.node is not None
        and not _CODE.fullmatch(origin.node)
        and (origin.node in places.aliases or not _POD.search(origin.channel))
    ):
        return origin.node
    if finding.rank is not None and finding.rank in places.nodes:
        return places.nodes[finding.rank]
    if origin.task is not None and (node := places.tasks.get(origin.task)):
        return node
    return places.headed(finding) or places.only or places.only_exit


_HOST = regex.compile(r"^\s*host +: (?P<host>[\w.-]+)")


def _reported_hosts(reading: StreamReading, aliases: dict[str, str]) -> dict[int, str]:
    """Return the hosts of failed ranks in torchrun's reports; pods need a known node."""
    pods = any(_POD.search(where.channel) for _, where in reading.lines)
    hosts: dict[int, str] = {}
    host: str | None = None
    for _, where in reading.lines:
        if named := _HOST.match(where.message):
            host = named["host"]
        elif host and (ranked := REPORTED.match(where.message)):
            if not pods or host in aliases:
                hosts[int(ranked["rank"])] = host
            host = None
    return hosts


def own_host(finding: LogFinding) -> str | None:
    """Return the host that a line names as its writer, as syslog and NCCL do."""
    found = _OWN_HOST.match(finding.origin.message)
    return found["host"] if found else None


_NAMED = regex.compile(r"\b[Rr]ank[ :]{1,2}(?P<rank>\d{1,9})\b|\[(?:PG [^\]]*)?Rank (?P<bracket>\d{1,9})\]")
_STREAM = regex.compile(r"rank[._-]?(?P<rank>\d{1,7})(?=\D*$)|(?:^|/)(?P<folder>\d{1,7})/(?:stdout|stderr)\.log$")
REPORTED = regex.compile(r"^\s*rank +: (?P<rank>\d{1,9}) \(local_rank: \d+\)")
"""How torchrun's report names a rank."""


def rank_of(finding: LogFinding, readings: list[StreamReading], labelled: Sequence[bool] | None = None) -> int | None:
    """Return the rank that a finding names or that printed it.

    It comes from the line, its task or process, or the stream's name. `labelled` says for each stream whether tasks are
    ranks; pass it for many lookups.
    """
    if finding.rank is not None:
        return finding.rank
    if (named := named_rank(finding.origin.message)) is not None:
        return named
    reading = readings[finding.stream]
    task = finding.origin.task
    if task is not None and (labelled[finding.stream] if labelled else tasks_are_ranks(reading)):
        return task
    if (rank := reading.rank_of(finding.origin.channel)) is not None:
        return rank
    return rank_of_stream(reading.record.stream)


def named_rank(message: str) -> int | None:
    """Return the rank that a message names near its beginning, such as "[Rank 3]"."""
    named = _NAMED.search(message[:300])
    return int(named["rank"] or named["bracket"]) if named else None


def rank_of_stream(name: str) -> int | None:
    """Return the rank in a stream's name, for lines that name none."""
    found = _STREAM.search(name)
    return int(found["rank"] or found["folder"]) if found else None


def tasks_are_ranks(reading: StreamReading) -> bool:
    """Return whether `srun --label` numbers ranks. No torchrun runs below it, and no line names another rank after the
    label."""
    return not any(
        (where.task is not None and where.rank not in (None, where.task)) or "torch/distributed/elastic" in line.text
        for line, where in reading.lines
    )


class _Work(NamedTuple):
    sequence: int
    op: str
    numel: str


class Divergence(NamedTuple):
    """The rank that took another path through the program than all others, and why."""

    rank: int
    why: str


_ALTERNATING = {"_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
"""Collectives that sharded training calls alternately, so that neighbours in the sequence may differ."""


def _in_turn(work: _Work, common: _Work) -> bool:
    """Return whether a rank is on the others' path: just behind them, or alternating."""
    return work.sequence < common.sequence or (
        work.sequence != common.sequence and {work.op, common.op} == _ALTERNATING
    )


def divergence(readings: list[StreamReading]) -> Divergence | None:
    """Return the rank that waits in another collective than the rest of its group. Then the time-out is the program's
    fault."""
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
            if work.op != common.op and not _in_turn(work, common):
                waits = f"Rank {rank} waits in {work.op} #{work.sequence} while all others are in {common.op}"
                why = f"{waits} #{common.sequence}: the ranks took different paths through the program."
                return Divergence(rank, why)
    return None
