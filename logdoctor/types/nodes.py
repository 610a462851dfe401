"""The types of node tests and cordons: what is run, what it returns, what is known about nodes and done to them.

A test runs in rounds. A round is a set of worlds that share no node; the members of a world run an all-gather together.
Two-round scheme: section 6.1, part 3, of the NSDI '24 paper.
"""

from typing import Literal

import msgspec
import regex

from logdoctor.errors import InputError

NAME = regex.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""Valid node names: names go into command lines, and some come from logs."""

Standing = Literal["healthy", "faulty", "slow", "indeterminate"]
Ended = Literal["passed", "failed", "void"]


class Node(msgspec.Struct, frozen=True):
    """A node to test. `address` is where its peers reach it (default: its name), `group` its switch, rack or block (""
    when unknown), and `gpu` its GPU type when the cluster reports it."""

    name: str
    address: str = ""
    group: str = ""
    gpu: str = ""


class World(msgspec.Struct, frozen=True):
    """Nodes that run an all-gather together, in rank order. `number` counts the worlds of a test from 1, `purpose` says
    what the world should find out, `repeats` is how often the gather is repeated."""

    number: int
    round: int
    nodes: tuple[str, ...]
    purpose: str
    repeats: int = 1


class Reading(msgspec.Struct, frozen=True):
    """The probe's report on one node of a world: its JSON line.

    `stage` is how far it came: start, connect, gather, bandwidth, compute, done. `bandwidth` maps bytes gathered (as a
    decimal string, the whole result of a gather) to the bus bandwidth in GB/s (10^9); `tflops` is the slowest GPU's.
    `state` are driver warnings: Xid, ECC, NVLink, heat. `boot` is the kernel's boot id, `tool` what ran the gather:
    `torch/nccl`, `torch/gloo` or `nccl-tests`.
    """

    node: str
    ok: bool
    stage: str = ""
    why: str = ""
    tool: str = ""
    gpus: int = 0
    gpu: str = ""
    bandwidth: dict[str, float] = {}
    tflops: float | None = None
    state: tuple[str, ...] = ()
    boot: str = ""
    seconds: float = 0.0


class Result(msgspec.Struct, frozen=True):
    """How a world ended.

    `passed`: every node reported that all it gathered was right. `failed`: it began, and did not pass. `void`: it
    proves nothing, because it could not be launched; `unreached` are the nodes where the launch failed (none, when the
    launcher itself failed). `why` explains in one line, `seconds` is the duration.
    """

    world: World
    ended: Ended
    why: str = ""
    unreached: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()
    seconds: float = 0.0


class Finding(msgspec.Struct, frozen=True):
    """A test's finding about one node, with the numbers of the worlds that prove it.

    `fault` names the kind of fault, always the same for the same fault of a node. `partners` are the proven-good nodes
    it was tested with.
    """

    node: str
    standing: Standing
    why: str
    worlds: tuple[int, ...] = ()
    partners: tuple[str, ...] = ()
    fault: str = ""
    warnings: tuple[str, ...] = ()


class LinkFault(msgspec.Struct, frozen=True):
    """Two good ends that cannot work together: two nodes, or two groups of nodes (switches, racks)."""

    ends: tuple[str, str]
    between: Literal["nodes", "groups"]
    why: str
    worlds: tuple[int, ...]


class Conclusion(msgspec.Struct, frozen=True):
    """The result of a test: one finding per node, in the order asked, link faults, the number of rounds, and `open`:
    what it could not decide and what to do about that ("" when everything is decided)."""

    findings: tuple[Finding, ...]
    links: tuple[LinkFault, ...] = ()
    rounds: int = 0
    open: str = ""

    def named(self, standing: Standing) -> tuple[str, ...]:
        """Return the nodes of one standing."""
        return tuple(finding.node for finding in self.findings if finding.standing == standing)


class Mark(msgspec.Struct, frozen=True):
    """What logdoctor writes on a node that it cordons: it shows who did it and why, and lets logdoctor undo only its
    own cordons. `cordon` is the number of the cordon in the records of `owner`."""

    owner: str
    cordon: int
    verdict: int | None
    reason: str


class NodeState(msgspec.Struct, frozen=True):
    """A node as the cluster knows it. `mark` is set when the cordon is ours; `reason` is the cluster's text, whoever
    wrote it; `raw` is the state in the cluster's own words."""

    name: str
    cordoned: bool
    mark: Mark | None = None
    reason: str = ""
    raw: str = ""


ActionKind = Literal["test_nodes", "cordon", "reboot", "inspect_hardware", "restart", "rollback_and_skip"]
Mode = Literal["auto", "ask", "never"]
PERFORMED = ("test_nodes", "cordon")
"""The kinds that logdoctor can perform itself; the others are advice for a person."""
RESTARTS = ("restart", "rollback_and_skip")
"""The kinds that restart a job."""


class Action(msgspec.Struct, frozen=True):
    """What to do, to which nodes, and why. `mode` says whether it is done at once (`auto`), waits for a person (`ask`)
    or is left out (`never`); `verdict` and `test` are what it follows from."""

    kind: ActionKind
    nodes: tuple[str, ...]
    mode: Mode
    why: str
    verdict: int | None = None
    test: int | None = None


class PastFinding(msgspec.Struct, frozen=True):
    """What an earlier test found about a node. `boot` is the kernel's boot id at that time ("" when unknown)."""

    test: int
    at: float
    standing: Standing
    fault: str
    why: str
    boot: str = ""


class PastFailure(msgspec.Struct, frozen=True):
    """A current verdict that suspects a node."""

    verdict: int
    job: str
    attempt: int
    at: float
    reason: str


class PastCordon(msgspec.Struct, frozen=True):
    """A cordon of ours. `state`: wanted (about to be made), standing, refused, failed, undone. `how` is the cordoner:
    slurm, kubernetes, file, dry-run; `owner` is our name on the node."""

    id: int
    node: str
    how: str
    state: Literal["wanted", "standing", "refused", "failed", "undone"]
    by: str
    at: float
    reason: str
    verdict: int | None = None
    test: int | None = None
    changed: float = 0.0
    why: str = ""
    owner: str = ""


class NodeHistory(msgspec.Struct, frozen=True):
    """The records of a node, newest first."""

    node: str
    failures: tuple[PastFailure, ...] = ()
    findings: tuple[PastFinding, ...] = ()
    cordons: tuple[PastCordon, ...] = ()


def checked_name(name: str) -> str:
    """Return a valid node name unchanged; `InputError` otherwise."""
    if not NAME.fullmatch(name):
        raise InputError(f"node {name[:80]!r}", "is not a valid node name", "Use letters, digits, '.', '_' and '-'.")
    return name
