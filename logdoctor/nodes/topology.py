"""Network groups of nodes: Slurm leaf switches, blocks, or node labels."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import regex

from logdoctor.errors import InputError
from logdoctor.nodes.slurm import MAX_NODES, expanded

MAX_TEXT = 16 << 20
"""The longest topology description, in characters."""

GROUP_LABELS = (
    "topology.kubernetes.io/rack",
    "fabric.topograph.run/tier-0",  # NVIDIA Topograph from 1.0; the next one is its older name
    "network.topology.nvidia.com/leaf",
    "topology.kubernetes.io/block",
    "cloud.google.com/gke-placement-group",
    "topology.k8s.aws/network-node-layer-3",
    "topology.kubernetes.io/zone",
)
"""Labels that name a node's rack or switch, the nearest first."""

_WORD = regex.compile(r"([A-Za-z]+)=(\S+)")
_GROUP = regex.compile(r"[!-~]{1,128}")


class Switch(NamedTuple):
    """A switch, or a block, and its attached nodes; none for one that joins other switches."""

    name: str
    nodes: tuple[str, ...]


def switches(text: str) -> list[Switch]:
    """Parse the switches and blocks in a `topology.conf` or from `scontrol show topology`.

    `InputError` names the invalid line. Other lines of Slurm's syntax are skipped.
    """
    if len(text) > MAX_TEXT:
        raise InputError("the topology", f"is longer than {MAX_TEXT >> 20} MiB", "Give the topology of one cluster.")
    found, nodes = [], 0
    for number, line in _lines(text):
        words = {name.lower(): value for name, value in _WORD.findall(line)}
        if line.split(maxsplit=1)[0].lower() == "include":
            step = "Give it the output of `scontrol show topology` instead."
            raise InputError(f"topology, line {number}", "includes another file", step)
        if not (name := words.get("switchname") or words.get("blockname")):
            continue
        own = "" if "switches" in words else words.get("nodes", "")
        switch = Switch(_checked(name, number), _nodes(own, number))
        nodes += len(switch.nodes)
        if nodes > MAX_NODES:
            raise InputError(f"topology, line {number}", "names too many nodes", "Check its ranges.")
        found.append(switch)
    return found


def groups(text: str) -> dict[str, str]:
    """Return the leaf switch or block of each node in such a text; of several, the first one named."""
    leaves: dict[str, str] = {}
    for switch in switches(text):
        for node in switch.nodes:
            leaves.setdefault(node, switch.name)
    return leaves


def label_groups(labels: Mapping[str, Mapping[str, str]], keys: Sequence[str] = GROUP_LABELS) -> dict[str, str]:
    """Return the group of each node: the value of the first label among `keys` that most nodes have.

    One key for all, because a rack on one node and a block on the next would always be two groups. Nodes without it, or
    with an unprintable value, have no group.
    """
    counts = {key: sum(1 for of_node in labels.values() if of_node.get(key)) for key in keys}
    best = next((key for key in keys if counts[key] == max(counts.values())), None)
    if best is None or not counts[best]:
        return {}
    return {node: value for node, of_node in labels.items() if _GROUP.fullmatch(value := of_node.get(best, ""))}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield non-empty lines, each with the number of its first part: a trailing backslash joins the next one."""
    held, begun = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        begun = begun or number
        line = line.partition("#")[0].rstrip()
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        if (held + line).strip():
            yield begun, held + line
        held, begun = "", 0
    if held.strip():
        yield begun, held


def _nodes(hostlist: str, number: int) -> tuple[str, ...]:
    try:
        return tuple(expanded(hostlist))
    except InputError as error:
        raise InputError(f"topology, line {number}, {error.thing}", error.cause, error.next_step) from error


def _checked(name: str, number: int) -> str:
    if not _GROUP.fullmatch(name):
        raise InputError(
            f"topology, line {number}", "names a switch that cannot be printed", "Give it a printable name."
        )
    return name
