"""Node sets as people write them: `gpu-[01-08]`, separated by commas or blanks (ClusterShell)."""

from collections.abc import Iterable, Sequence

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

from logdoctor.nodes.slurm import expanded as hostlist
from logdoctor.types.nodes import checked_name


def expanded(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the names in node sets, each once, in order. `InputError` for an invalid node set."""
    names = (name for text in texts for word in text.split() for name in hostlist(word))
    return tuple(dict.fromkeys(checked_name(name) for name in names))


def folded(names: Sequence[str]) -> str:
    """Return names as a node set, as short as possible."""
    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
