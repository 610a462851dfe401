"""The nodes to choose as suspects when a verdict is corrected."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import regex

from logdoctor.errors import InputError, RequestRefused
from logdoctor.nodes.slurm import expanded
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.text import natural, origin, shown
from logdoctor.types.nodes import NAME

MOST = 200
"""Most nodes that may be named."""

_OFFERED = 12  # to choose from; others are typed
_WORD = regex.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]")


class Candidate(NamedTuple):
    """A node to choose, and `why` it is offered."""

    node: str
    why: str


def suspected(stored: StoredVerdict) -> tuple[str, ...]:
    """Return the nodes that a verdict suspects, each once."""
    return tuple(dict.fromkeys(one.node for one in stored.verdict.suspects if one.node and NAME.fullmatch(one.node)))


def candidates(
    service: Service, stored: StoredVerdict, cited: Iterable[str], chosen: Sequence[str]
) -> tuple[list[Candidate], int]:
    """Return nodes to choose from, and how many others the job has. First come the suspects of the verdict, then those
    `chosen`, those named by `cited` lines, and others of the job."""
    nodes = service.watch.nodes_of(stored.job)
    known = set(nodes) | set(stored.verdict.nodes) | set(suspected(stored))
    named = [node for text in cited for node in hosts(text, known)]
    every: dict[str, str] = {}
    for some, why in (
        (suspected(stored), "suspected so far"),
        (chosen, "chosen"),
        (named, "named in a cited line"),
        (sorted(known, key=natural), "ran the job"),
    ):
        for node in some:
            if NAME.fullmatch(node):
                every.setdefault(node, why)
    found = [Candidate(node, why) for node, why in every.items()]
    shown = max(_OFFERED, len({*suspected(stored), *chosen}))
    return found[:shown], max(len(found) - shown, 0)


def hosts(text: str, known: Iterable[str]) -> list[str]:
    """Return the nodes of a line: its printer, and named ones of the job."""
    found, of_job = origin(shown(text)), set(known)
    short = {node.partition(".")[0]: node for node in of_job}
    named = [found.node] if found.node else []
    named += [of for word in _WORD.findall(text[:4000]) if (of := word if word in of_job else short.get(word))]
    return list(dict.fromkeys(named))


def nodes_in(checked: Sequence[str], typed: str) -> tuple[str, ...]:
    """Return the nodes that were checked and typed, each once; `RequestRefused` for invalid names."""
    try:
        more = [name for part in typed.split() for name in expanded(part)]
    except InputError as error:
        raise RequestRefused(422, "bad_nodes", error.thing, error.cause, error.next_step) from error
    names = tuple(dict.fromkeys((*checked, *more)))
    if len(names) > MOST:
        cause = f"there are {len(names):,}, more than {MOST}"
        raise RequestRefused(422, "bad_nodes", "the nodes", cause, "Name those that are at fault.")
    if odd := next((name for name in names if not NAME.fullmatch(name)), None):
        cause = "is not a name that a node can have"
        raise RequestRefused(422, "bad_nodes", f"{odd[:80]!a}", cause, "Name nodes as the cluster does.")
    return names
