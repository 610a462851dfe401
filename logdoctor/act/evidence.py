"""What the worlds of a test prove about its nodes: who is sound, who is guilty, what is still open.

The same reasoning serves twice: for nodes that work or do not (bad worlds failed), then for nodes that are fast or not
(bad worlds passed, but slowly). A bad world accuses all its members; a good one clears them. A node that was never in
a good world is guilty when it fails with enough *sound* partners, each of them alone with it. Where nodes that are all
cleared fail together, it is a link, or a fault that comes and goes: that is asked again before anything is said.

Nodes are numbers here, their places in the list of the test.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Members = tuple[int, ...]


class Ran(NamedTuple):
    """A world that ended and counts: its number and members in ascending order, and whether it was good."""

    number: int
    members: Members
    good: bool


class Link(NamedTuple):
    """Two sound ends that do not work together: the nodes of a `pair`, or, with `groups`, all that was tried between
    two groups."""

    pair: Members
    groups: tuple[str, str] | None
    worlds: tuple[int, ...]


class Case(NamedTuple):
    """Cleared nodes that failed together, without an explanation so far.

    `unconfirmed` are those that were in no good world since: they are to be tried with others, and then together again.
    `across` tells that others of their two groups are to be tried, because nothing else was between these.
    """

    members: Members
    unconfirmed: tuple[int, ...]
    across: bool


class Accused(NamedTuple):
    """A node that failed and was never cleared: the sound partners that witnessed against it, alone with it or `beside`
    others, and whether it has enough of them but for one of its own group."""

    witnesses: frozenset[int]
    beside: frozenset[int]
    wants_a_mate: bool


class Weighed(NamedTuple):
    """What the worlds prove so far.

    `sound`: cleared, and nothing speaks against them. `guilty`: with the worlds that count. `wanting`: accused, without
    enough witnesses so far. `cases`: what is to be asked again. `doubtful`:
    nodes that failed together and later did not.
    """

    sound: frozenset[int]
    guilty: dict[int, tuple[int, ...]]
    wanting: dict[int, Accused]
    cases: tuple[Case, ...]
    links: tuple[Link, ...]
    doubtful: dict[int, tuple[int, ...]]


def weigh(ran: Iterable[Ran], groups: Sequence[str], witnesses: int) -> Weighed:
    """What the worlds that ran prove. `groups` are those of the nodes, "" where unknown; `witnesses` is how many sound
    partners it takes to find a node guilty."""
    good: list[Ran] = []
    bad: list[Ran] = []
    for world in ran:
        (good if world.good else bad).append(world)
    cleared = {node for world in good for node in world.members}
    if not bad:
        return Weighed(frozenset(cleared), {}, {}, (), (), {})
    strange = [world for world in bad if cleared.issuperset(world.members)]
    unsteady = _unsteady(strange, good, groups, witnesses) if strange else {}
    rest = [world for world in strange if not unsteady.keys() & set(world.members)]
    links, cases, doubtful = _explained(rest, good, groups) if rest else ((), (), {})
    asked = {node for case in cases for node in case.members}
    sound = cleared - unsteady.keys() - asked - doubtful.keys()
    guilty, wanting = _accused(bad, cleared, sound, groups, witnesses)
    return Weighed(frozenset(sound), guilty | unsteady, wanting, cases, links, doubtful)


def _accused(
    bad: list[Ran], cleared: set[int], sound: set[int], groups: Sequence[str], witnesses: int
) -> tuple[dict[int, tuple[int, ...]], dict[int, Accused]]:
    """Of those never cleared: the guilty with the worlds that count, and those that want more witnesses."""
    alone: dict[int, set[int]] = {}
    beside: dict[int, set[int]] = {}
    counted: dict[int, list[int]] = {}
    for world in sorted(bad, key=lambda world: len(world.members)):  # who is alone with a node says more
        for node in world.members:
            if node in cleared:
                continue
            partners = alone.setdefault(node, set())
            others = {other for other in world.members if other != node}
            known = partners | beside.get(node, set())
            if others and sound.issuperset(others) and known.isdisjoint(others):
                (partners if len(others) == 1 else beside.setdefault(node, set())).update(others)
                counted.setdefault(node, []).append(world.number)
    near = {groups[node] for node in sound} - {""}
    guilty: dict[int, tuple[int, ...]] = {}
    wanting: dict[int, Accused] = {}
    for node, partners in alone.items():
        others = beside.get(node, set())
        mates = groups[node] not in near or any(groups[partner] == groups[node] for partner in partners | others)
        enough = len(counted.get(node, ())) >= witnesses
        if enough and mates:
            guilty[node] = tuple(counted[node])
        else:
            wanting[node] = Accused(frozenset(partners), frozenset(others), enough)
    return guilty, wanting


def _unsteady(strange: list[Ran], good: list[Ran], groups: Sequence[str], witnesses: int) -> dict[int, tuple[int, ...]]:
    """Cleared nodes that failed with several partners that failed with nobody else: a fault that comes and goes.

    Those that fail only across groups, and work within their own, are not at fault: that is a link.
    """
    near = {node for world in good if len({groups[m] for m in world.members}) == 1 for node in world.members}
    partners: dict[int, dict[int, int]] = {}
    for world in strange:
        if len(world.members) == 2:
            a, b = world.members
            partners.setdefault(a, {}).setdefault(b, world.number)
            partners.setdefault(b, {}).setdefault(a, world.number)
    found: dict[int, tuple[int, ...]] = {}
    for node, others in partners.items():
        own = groups[node]
        count = [
            number
            for other, number in others.items()
            if len(partners[other]) == 1 and (own == groups[other] or not own or node not in near)
        ]
        if len(count) >= witnesses:
            found[node] = tuple(count)
    return found


def _explained(
    strange: list[Ran], good: list[Ran], groups: Sequence[str]
) -> tuple[tuple[Link, ...], tuple[Case, ...], dict[int, tuple[int, ...]]]:
    """Links, open cases and doubtful nodes among cleared nodes that failed together."""
    last_good: dict[int, int] = {}
    together: set[Members] = set()
    joined: set[tuple[str, str]] = set()
    for world in good:
        together.add(world.members)
        for node in world.members:
            last_good[node] = max(world.number, last_good.get(node, 0))
        if len(world.members) == 2:
            joined.add(_sides(world.members, groups))
    failed: dict[Members, list[int]] = {}
    across: dict[tuple[str, str], dict[Members, list[int]]] = {}
    for world in strange:
        failed.setdefault(world.members, []).append(world.number)
        sides = _sides(world.members, groups)
        if len(world.members) == 2 and sides[0] != sides[1] and "" not in sides:
            across.setdefault(sides, {})[world.members] = failed[world.members]
    links: list[Link] = []
    cases: list[Case] = []
    doubtful: dict[int, tuple[int, ...]] = {}
    cut = {sides for sides, pairs in across.items() if sides not in joined and _apart(pairs)}
    for sides in sorted(cut):
        pairs = across[sides]
        worlds = tuple(sorted(number for numbers in pairs.values() for number in numbers))
        links.append(Link(next(iter(pairs)), sides, worlds))
    for members, numbers in failed.items():
        sides = _sides(members, groups)
        if len(members) > 2:
            inner = [(a, b) for place, a in enumerate(members) for b in members[place + 1 :]]
            untried = [pair for pair in inner if pair not in together]
            if not untried or members in together:
                doubtful |= {node: tuple(numbers) for node in members}
            elif not any(pair in failed for pair in inner):
                cases.append(Case(untried[0], (), False))
        elif sides in cut and members in across.get(sides, {}):
            continue
        elif members in together:
            doubtful |= {node: tuple(numbers) for node in members}
        else:
            unconfirmed = tuple(node for node in members if last_good[node] < numbers[-1])
            if len(numbers) > 1 and not unconfirmed:
                links.append(Link(members, None, tuple(numbers)))
            else:
                lone = members in across.get(sides, {}) and sides not in joined and len(across[sides]) == 1
                cases.append(Case(members, unconfirmed, lone))
    return tuple(links), tuple(cases), doubtful


def _sides(members: Members, groups: Sequence[str]) -> tuple[str, str]:
    """The groups of the first and the last member, in order."""
    a, b = groups[members[0]], groups[members[-1]]
    return (a, b) if a <= b else (b, a)


def _apart(pairs: Iterable[Members]) -> bool:
    """Whether two of the pairs share no node."""
    found = list(pairs)
    return any(set(one).isdisjoint(other) for place, one in enumerate(found) for other in found[:place])
