"""What the worlds of a test prove about its nodes: which are sound or guilty, and what is still open.

The same reasoning serves twice: for nodes that work or do not (bad worlds failed), then for nodes that are fast or not
(bad worlds passed, but slowly). A good world clears all its members; a bad one accuses them.

- A node that no good world clears is guilty when it fails with enough *sound* partners, each alone with it. Partners of
  another group count only if something between the two groups works: else the link between them may be at fault.
  Several such nodes must also fail with each other: nodes that work together are parted from the rest, not faulty.
- Where cleared nodes fail together (*strange* worlds), it is a link or an intermittent fault. A pair that both passed
  and failed shows the latter; pairs that always fail show the former. While good nodes fail together here and there,
  and their groups are unknown, failing with them convicts nobody.

Nodes are numbers here: their indexes in the list of the test.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations, islice
from typing import NamedTuple

Members = tuple[int, ...]
Sides = tuple[str, str]

_FELLOWS = 3
"""Other accused nodes that an accused node must fail with, if there are that many."""


class WorldOutcome(NamedTuple):
    """A world that ran: its number, its members in ascending order, and whether it was good."""

    number: int
    members: Members
    good: bool


class Link(NamedTuple):
    """Two sound ends that do not work together: the nodes of a `pair` or, with `groups`, all pairs tried between two
    groups."""

    pair: Members
    groups: Sides | None
    worlds: tuple[int, ...]


class JointFailure(NamedTuple):
    """Cleared nodes that failed together, not explained so far.

    `unconfirmed` ones were in no good world since: they are tried with others, then together again. `across`: other
    nodes of the two groups are tried, because no others were tried between these groups. `again` are pairs to retry at
    once, to see whether the result changes.
    """

    members: Members
    unconfirmed: tuple[int, ...] = ()
    across: bool = False
    again: tuple[Members, ...] = ()


class Accused(NamedTuple):
    """A node that failed and was never cleared. `witnesses`: the sound partners it failed with alone, or `beside`
    others, whether they count or not; `enough` of them count; it `wants_a_mate`, a witness of its own group; it
    `wants_fellows`, other accused nodes to fail with, and has `met` these."""

    witnesses: frozenset[int]
    beside: frozenset[int]
    enough: bool
    wants_a_mate: bool
    wants_fellows: bool
    met: frozenset[int]


class WorldProof(NamedTuple):
    """What the worlds prove so far.

    `sound`: cleared, with nothing against them. `guilty`: with the worlds that count. `wanting`: accused, not proven
    guilty so far. `cases`: what is tried again. `doubtful`: cleared nodes that failed together and later did not.
    `parted`: cleared nodes that work with some and never with others. `joined`: groups between which something works.
    `lonely`: accused by enough partners, none in their own group. `is_parted`: good nodes fail with each other here and
    there, so failing with them proves nothing.
    """

    sound: frozenset[int]
    guilty: dict[int, tuple[int, ...]]
    wanting: dict[int, Accused]
    cases: tuple[JointFailure, ...]
    links: tuple[Link, ...]
    doubtful: dict[int, tuple[int, ...]]
    parted: dict[int, tuple[int, ...]]
    joined: frozenset[Sides]
    lonely: frozenset[int]
    is_parted: bool


class _Worlds:
    """The worlds of a test, sorted by what they show."""

    def __init__(self, ran: Iterable[WorldOutcome], groups: Sequence[str]) -> None:
        self.groups = groups
        self.good: list[WorldOutcome] = []
        self.bad: list[WorldOutcome] = []
        for world in ran:
            (self.good if world.good else self.bad).append(world)
        self.cleared = {node for world in self.good for node in world.members}
        self.together = {world.members for world in self.good}
        self.joined = {self.sides(world.members) for world in self.good if len(world.members) == 2}
        strange = [world for world in self.bad if self.cleared.issuperset(world.members)]
        self.strange: dict[Members, list[int]] = {}
        for world in strange:
            self.strange.setdefault(world.members, []).append(world.number)

    def sides(self, members: Members) -> Sides:
        """Return the groups of the first and the last member, in order."""
        a, b = self.groups[members[0]], self.groups[members[-1]]
        return (a, b) if a <= b else (b, a)

    def crosses(self, members: Members) -> bool:
        """Return whether the two ends are in different, known groups."""
        a, b = self.sides(members)
        return bool(a and b) and a != b

    def is_mixed(self, pair: Members) -> bool:
        """Return whether a pair that failed also passed."""
        return pair in self.together


def weigh(ran: Iterable[WorldOutcome], groups: Sequence[str], witnesses: int, out: Collection[int] = ()) -> WorldProof:
    """Return what the worlds that ran prove.

    `groups` are those of the nodes, "" where unknown; `witnesses` is the number of sound partners needed to find a node
    guilty; nothing can be launched on nodes that are `out`.
    """
    worlds = _Worlds(ran, groups)
    joined = frozenset(worlds.joined)
    if not worlds.bad:
        return WorldProof(frozenset(worlds.cleared), {}, {}, (), (), {}, {}, joined, frozenset(), False)
    cut = _cut(worlds)
    strange = _Strange(worlds, cut, witnesses)
    unexplained = {node for case in strange.cases for node in case.members}
    unsound = strange.unsteady.keys() | unexplained | strange.doubtful.keys() | strange.parted.keys()
    sound = worlds.cleared - unsound
    guilty, wanting, lonely = _accused(worlds, sound, witnesses, out, strange.is_parted)
    links = tuple(cut.values()) + tuple(strange.links)
    return WorldProof(
        frozenset(sound),
        guilty | strange.unsteady,
        wanting,
        tuple(strange.cases),
        links,
        strange.doubtful,
        strange.parted,
        joined,
        lonely,
        strange.is_parted,
    )


def _cut(worlds: _Worlds) -> dict[Sides, Link]:
    """Return groups between which nothing works: two pairs of different nodes failed (a group's only node may
    repeat)."""
    across: dict[Sides, dict[Members, list[int]]] = {}
    for members, numbers in worlds.strange.items():
        if len(members) == 2 and worlds.crosses(members) and worlds.sides(members) not in worlds.joined:
            across.setdefault(worlds.sides(members), {})[members] = numbers
    found: dict[Sides, Link] = {}
    for sides, pairs in sorted(across.items()):
        alone = {side for side in sides if sum(group == side for group in worlds.groups) == 1}
        for one, other in combinations(pairs, 2):
            if all(worlds.groups[node] in alone for node in set(one) & set(other)):
                found[sides] = Link(one, sides, tuple(sorted(n for numbers in pairs.values() for n in numbers)))
                break
    return found


class _Strange:
    """Explains failed worlds whose members are all cleared."""

    def __init__(self, worlds: _Worlds, cut: Collection[Sides], witnesses: int) -> None:
        self._worlds = worlds
        self.cases: list[JointFailure] = []
        self.links: list[Link] = []
        self.doubtful: dict[int, tuple[int, ...]] = {}
        self.unsteady: dict[int, tuple[int, ...]] = {}
        self.parted: dict[int, tuple[int, ...]] = {}
        self._results: dict[Members, int] = {}
        for world in (*worlds.good, *worlds.bad):
            self._results[world.members] = self._results.get(world.members, 0) + 1
        self._last_good = {node: world.number for world in worlds.good for node in world.members}
        pairs = {pair for pair in worlds.strange if len(pair) == 2 and worlds.sides(pair) not in cut}
        self._partners: dict[int, set[int]] = {}
        for a, b in pairs:
            self._partners.setdefault(a, set()).add(b)
            self._partners.setdefault(b, set()).add(a)
        stars = {node for node, partners in self._partners.items() if len(partners) > 1}
        for node in sorted(stars):
            self._star(node, witnesses)
        lone = [pair for pair in sorted(pairs) if not stars & set(pair)]
        for pair in lone:
            self._lone(pair)
        for trio in worlds.strange:
            if len(trio) > 2 and not self.unsteady.keys() & set(trio):
                self._trio(trio)
        unmixed = [pair for pair in lone if not worlds.is_mixed(pair) and not worlds.crosses(pair)]
        self.is_parted = bool(self.parted) or len(unmixed) > 1

    def _numbers(self, node: int) -> tuple[int, ...]:
        pairs = (tuple(sorted((node, partner))) for partner in self._partners[node])
        return tuple(sorted(number for pair in pairs for number in self._worlds.strange[pair]))

    def _star(self, node: int, witnesses: int) -> None:
        """Explain a node that failed with several cleared ones: its fault is intermittent, or it is parted from
        them."""
        worlds, own = self._worlds, self._worlds.groups[node]
        pairs = [tuple(sorted((node, partner))) for partner in sorted(self._partners[node])]
        near = {n for world in worlds.good if not worlds.crosses(world.members) for n in world.members}
        clean = [
            pair
            for pair in pairs
            for other in set(pair) - {node}
            if len(self._partners[other]) == 1 and (not worlds.crosses(pair) or (own and node not in near))
        ]
        passed = [world.members for world in worlds.good if node in world.members and len(world.members) == 2]
        changed = [pair for pair in (*pairs, *passed) if worlds.is_mixed(pair) and pair in worlds.strange]
        if changed and len(clean) >= witnesses:
            self.unsteady[node] = tuple(worlds.strange[pair][0] for pair in clean)
            return
        again = tuple(
            kind[-1] for kind in (pairs, passed) if kind and not any(self._results[pair] > 1 for pair in kind)
        )
        if again and not changed and len(clean) >= witnesses:
            self.cases.append(JointFailure((node,), again=again))
        else:
            self.parted[node] = self._numbers(node)

    def _lone(self, pair: Members) -> None:
        """Explain two nodes that failed only with each other: a link fault, once they failed twice and each has worked
        with others since."""
        worlds, numbers = self._worlds, self._worlds.strange[pair]
        if worlds.is_mixed(pair):
            self.doubtful |= {node: tuple(numbers) for node in pair}
            return
        unconfirmed = tuple(node for node in pair if self._last_good[node] < numbers[-1])
        if len(numbers) > 1 and not unconfirmed:
            self.links.append(Link(pair, None, tuple(numbers)))
            return
        sides = worlds.sides(pair)
        others = [other for other in worlds.strange if other != pair and worlds.sides(other) == sides]
        self.cases.append(
            JointFailure(pair, unconfirmed, worlds.crosses(pair) and sides not in worlds.joined and not others)
        )

    def _trio(self, trio: Members) -> None:
        """Explain three cleared nodes that failed together, by their pairs."""
        worlds = self._worlds
        inner = list(combinations(trio, 2))
        untried = [pair for pair in inner if pair not in worlds.together]
        if not untried or trio in worlds.together:
            for node in trio:
                self.doubtful.setdefault(node, tuple(worlds.strange[trio]))
        elif not any(pair in worlds.strange for pair in inner):
            self.cases.append(JointFailure(untried[0]))


def _accused(
    worlds: _Worlds, sound: set[int], witnesses: int, out: Collection[int], is_parted: bool
) -> tuple[dict[int, tuple[int, ...]], dict[int, Accused], frozenset[int]]:
    """Return the nodes that were never cleared: the guilty with the worlds that count, those not proven guilty, and the
    lonely."""
    groups = worlds.groups
    alone: dict[int, set[int]] = {}
    beside: dict[int, set[int]] = {}
    counted: dict[int, list[int]] = {}
    mates: set[int] = set()
    for world in sorted(worlds.bad, key=lambda world: len(world.members)):  # a pair says more about a node
        for node in world.members:
            if node in worlds.cleared:
                continue
            partners = alone.setdefault(node, set())
            others = {other for other in world.members if other != node}
            known = partners | beside.get(node, set())
            if others and sound.issuperset(others) and known.isdisjoint(others):
                (partners if len(others) == 1 else beside.setdefault(node, set())).update(others)
                if all(_counts(worlds, node, other) for other in others):
                    counted.setdefault(node, []).append(world.number)
                if groups[node] and any(groups[other] == groups[node] for other in others):
                    mates.add(node)
    near = {groups[node] for node in sound} - {""}
    enough = {node for node, numbers in counted.items() if len(numbers) >= _wanted(worlds, node, sound, witnesses)}
    wants_mate = {node for node in enough if groups[node] in near and node not in mates}
    lonely = [node for node in enough - wants_mate - mates if node not in out]
    met = _met(worlds, lonely)
    guilty: dict[int, tuple[int, ...]] = {}
    wanting: dict[int, Accused] = {}
    for node, partners in alone.items():
        fellows = met.get(node, frozenset())
        wants_fellows = node in met and len(fellows) < min(len(lonely) - 1, _FELLOWS)
        if node in enough and node not in wants_mate and not wants_fellows and (node in mates or not is_parted):
            guilty[node] = tuple(counted[node])
        else:
            is_enough = node in enough and node not in wants_mate
            wanting[node] = Accused(
                frozenset(partners),
                frozenset(beside.get(node, ())),
                is_enough,
                node in wants_mate,
                wants_fellows,
                fellows,
            )
    return guilty, wanting, frozenset(lonely)


def _wanted(worlds: _Worlds, node: int, sound: set[int], witnesses: int) -> int:
    """Return how many witnesses are needed against a node: at least two, and no more than exist."""
    there = (1 for partner in sound if _counts(worlds, node, partner))
    return max(2, sum(islice(there, witnesses)))


def _counts(worlds: _Worlds, node: int, partner: int) -> bool:
    """Return whether failing with a sound partner counts against a node; else the link may be at fault."""
    return not worlds.crosses((node, partner)) or worlds.sides((node, partner)) in worlds.joined


def _met(worlds: _Worlds, lonely: Collection[int]) -> dict[int, frozenset[int]]:
    """Return, for each lonely node, the other lonely nodes that it failed with."""
    met: dict[int, set[int]] = {node: set() for node in lonely}
    if len(met) > 1:
        for world in worlds.bad:
            here = met.keys() & set(world.members)
            for node in here if len(world.members) == 2 else ():
                met[node] |= here - {node}
    return {node: frozenset(others) for node, others in met.items()}
