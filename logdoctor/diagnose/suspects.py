"""Who may be at fault: nodes and ranks that the evidence names, and only those."""

from typing import NamedTuple

import regex

from logdoctor.diagnose.findings import Finding, Reading
from logdoctor.types import Suspect

__all__ = ["Suspect", "divergence", "first_rank", "name"]

_HARDWARE = ("CUDA Error", "ECC Error", "NVLink Error", "Node Failure", "Network Error", "NCCL Remote Error")
_SYSLOG_HOST = regex.compile(r"^(?P<host>[A-Za-z][\w.-]*) kernel: ")
_ASSIGNED = regex.compile(r"Successfully assigned [\w.-]+/(?P<pod>[\w.-]+) to (?P<node>[\w.-]+)")
_POD = regex.compile(r"\[(?:pod/)[\w.-]+")
_WORK = regex.compile(
    r"\[(?:PG (?:ID )?(?P<group>[\w]+)[^\]]*?)?Rank (?P<rank>\d+)\].{0,200}?"
    r"WorkNCCL\(SeqNum=(?P<sequence>\d+), OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?"
)


def name(readings: list[Reading], found: list[Finding], cause: Finding) -> list[Suspect]:
    """The nodes that the cause, or a finding that agrees with it, names as culprit."""
    if cause.reason not in _HARDWARE:
        return []
    agreeing = [cause] + [f for f in found if f.reason == cause.reason and f.role in ("cause", "proximate") and f is not cause]
    pods = _pods(readings)
    suspects: dict[str | int, Suspect] = {}
    for finding in agreeing:
        node = _node(readings, finding, pods)
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


def _node(readings: list[Reading], finding: Finding, pods: dict[str, str]) -> str | None:
    """The node that a finding names, printed on, or whose rank it is; a pod stands for the node it ran on."""
    node = finding.captures.get("node")
    if node is None and (host := _SYSLOG_HOST.match(finding.origin.message)):
        node = host["host"]
    if node is None and finding.reason in ("Network Error", "NCCL Remote Error", "Node Failure"):
        return None  # who reports such a fault is not who has it
    if node is None:
        node = finding.origin.node
        if node is not None and _POD.search(finding.origin.channel) and node not in pods:
            node = None
    if node is None and finding.rank is not None:
        places = (reading.record.placements.get(finding.rank) for reading in readings)
        node = next((place for place in places if place), None)
    if node is None:
        return None
    node = pods.get(node, node)
    return node.rstrip(".:,")


def _pods(readings: list[Reading]) -> dict[str, str]:
    """Pods and the nodes they were assigned to, as far as the log tells."""
    found: dict[str, str] = {}
    for reading in readings:
        for line, _ in reading.lines:
            if match := _ASSIGNED.search(line.text):
                found[match["pod"]] = match["node"]
    return found


def first_rank(found: list[Finding], cause: Finding, readings: list[Reading]) -> int | None:
    """The rank whose own error came first: the cause's, else the first of the same reason that names one."""
    if cause.rank is not None:
        return cause.rank
    same = [finding.rank for finding in found if finding.reason == cause.reason and finding.rank is not None]
    return same[0] if same else None


class _Work(NamedTuple):
    sequence: int
    op: str
    numel: str


def divergence(readings: list[Reading]) -> str:
    """Why a collective's time-out is the program's fault, or "": ranks of one group wait in different calls."""
    groups: dict[str, dict[int, _Work]] = {}
    for reading in readings:
        for line, _ in reading.lines:
            if "WorkNCCL(SeqNum=" in line.text and "timeout" in line.text and (match := _WORK.search(line.text)):
                work = _Work(int(match["sequence"]), match["op"], match["numel"] or "")
                groups.setdefault(match["group"] or "", {}).setdefault(int(match["rank"]), work)
    for works in groups.values():
        for rank, work in works.items():
            others = [other for number, other in works.items() if number != rank]
            if len(others) >= 2 and len(set(others)) == 1 and work.op != others[0].op:
                return f"Rank {rank} waits in {work.op} #{work.sequence} while all others are in {others[0].op} #{others[0].sequence}: the ranks took different paths through the program."
    return ""
