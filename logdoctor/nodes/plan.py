"""Plans the next round of a node test: worlds that share no node.

The first round pairs all nodes, within their groups, and each suspect with a node that is not one; an odd node makes a
world of three. Then every accused node is tried alone with sound nodes that have not witnessed against it yet, in as
many rounds as needed, and every sound node with a second partner, from another group where groups are known. Several
accused nodes are tried with each other, too; sound nodes that failed together are tried again. Last, the same is done
for slow nodes. Two-round scheme: section 6.1, part 3, of the NSDI '24 paper.
"""

from collections.abc import Callable, Iterable, Iterator

from logdoctor.nodes.board import Board
from logdoctor.nodes.evidence import Accused, JointFailure, Members, WorldProof
from logdoctor.types.nodes import World

FIRST, ANEW, OTHERS = "first round", "paired again, because nothing has passed", "good nodes, with another partner"
_Planned = tuple[Members, str]
_MANY = 4  # partners in all for an accused node, although some may not count


def next_round(board: Board) -> tuple[World, ...]:
    """Return the worlds of the next round; () when the test is over. Equal boards give equal rounds."""
    if not board.nodes or board.round >= (board.terms.rounds or len(board.nodes) + 8):
        return ()
    planned = _planned(board)
    number, names = board.last_number, [node.name for node in board.nodes]
    return tuple(
        World(
            number + place, board.round + 1, tuple(names[node] for node in members), purpose, _repeats(board, purpose)
        )
        for place, (members, purpose) in enumerate(planned, 1)
    )


def _repeats(board: Board, purpose: str) -> int:
    """Return how often the gather is repeated: more often in retries."""
    return board.terms.repeats * (1 if purpose in (FIRST, ANEW, OTHERS) else board.terms.longer)


def _planned(board: Board) -> list[_Planned]:
    if not board.results:
        return [(members, FIRST) for members in first_pairs(board, range(len(board.nodes)))]
    free = _Partners(board, board.works)
    settling, others = list(_settling(board, board.works, free, _untested(board))), list(_others(board, free))
    if settling or (
        others and (board.round == 1 or not all(board.was_paired(node) for pair, _ in others for node in pair))
    ):
        return settling + others
    if not board.has_passed:
        return _without_sound(board)
    if not board.slow_worlds:
        return []
    return list(_settling(board, board.fast, _Partners(board, board.fast), ()))


def first_pairs(board: Board, nodes: Iterable[int]) -> list[Members]:
    """Return pairs of nodes within groups, suspects with others; an odd node joins its group's last pair, and single
    nodes of groups are paired with each other."""
    by_group: dict[str, tuple[list[int], list[int]]] = {}
    for node in sorted(nodes, key=lambda node: board.nodes[node].gpu):
        by_group.setdefault(board.groups[node], ([], []))[node not in board.suspected].append(node)
    pairs: list[Members] = []
    alone: list[int] = []
    for suspects, others in by_group.values():
        matched = min(len(suspects), len(others))
        mine: list[Members] = list(zip(suspects[:matched], others[:matched], strict=True))
        rest = suspects[matched:] + others[matched:]
        mine += zip(rest[::2], rest[1::2], strict=False)
        if len(rest) % 2 and mine:
            mine[-1] = (*mine[-1], rest[-1])
        elif len(rest) % 2:
            alone.append(rest[-1])
        pairs += mine
    mine = list(zip(alone[::2], alone[1::2], strict=False))
    if len(alone) % 2:
        last = mine or pairs
        last.append((*(last.pop() if last else ()), alone[-1]))
    return pairs if mine is pairs else pairs + mine


def _without_sound(board: Board) -> list[_Planned]:
    """Return the worlds while nothing has passed: failed launches are retried, then all nodes are paired again a few
    times."""
    untested = _untested(board)
    if untested:
        return [(members, FIRST) for members in first_pairs(board, untested)]
    made = len({result.world.round for result in board.results.values() if result.world.purpose == ANEW})
    usable = [node for node in range(len(board.nodes)) if not board.is_out(node)]
    if made >= board.terms.regroups or len(usable) < 3:
        return []
    turns = (_rotated(usable, turn) for turn in range(len(usable)))
    return [(members, ANEW) for members in next((pairs for pairs in turns if board.pairs.isdisjoint(pairs)), [])]


def _rotated(nodes: list[int], turn: int) -> list[Members]:
    """Return pairs as in a round-robin tournament; of an odd number one node rests."""
    seats: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    turn %= len(seats) - 1
    seats = [seats[0], *seats[1 + turn :], *seats[1 : 1 + turn]]
    half = len(seats) // 2
    pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
    return [(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None]


def _untested(board: Board) -> list[int]:
    """Return the nodes without any result that may still be tried."""
    return [node for node, tried in enumerate(board.tried) if not tried and not board.is_out(node)]


def _settling(board: Board, weighed: WorldProof, free: "_Partners", untested: Iterable[int]) -> Iterator[_Planned]:
    """Yield worlds that settle what is open: a sound partner for accused and untested nodes, and retries for joint
    failures."""
    names = [node.name for node in board.nodes]
    for node, accused in weighed.wanting.items():
        if board.is_out(node) or (accused.enough and not accused.wants_a_mate):
            continue
        partner = free.witness(node, accused)
        if partner is not None:
            yield (node, partner), f"{names[node]}, accused, with proven-good {names[partner]}"
    for node, accused in weighed.wanting.items():
        if accused.wants_fellows and not board.is_out(node):
            fellow = free.fellow(node, sorted(weighed.lonely), accused.met)
            if fellow is not None:
                yield (node, fellow), f"{names[node]} and {names[fellow]}, both accused: do they work together?"
    for node in untested:
        if (partner := free.take(node, frozenset())) is not None:
            yield (node, partner), f"{names[node]}, not tested yet, with proven-good {names[partner]}"
    for case in weighed.cases:
        yield from _again(board, case, free)


def _again(board: Board, case: JointFailure, free: "_Partners") -> Iterator[_Planned]:
    """Yield worlds that distinguish a bad link from a node with an intermittent fault."""
    if any(board.is_out(node) for node in case.members):
        return
    names = [board.nodes[node].name for node in case.members]
    for pair in case.again:
        if free.hold(pair):
            both = " and ".join(board.nodes[node].name for node in pair)
            yield pair, f"{both} once more: does the result change?"
    for node, name in zip(case.members, names, strict=True):
        if node in case.unconfirmed and (partner := free.take(node, frozenset(case.members))) is not None:
            yield (
                (node, partner),
                f"{name}, which failed with a good node, with proven-good {board.nodes[partner].name}",
            )
    others = free.take_across(case.members) if case.across else None
    if others is not None:
        yield others, f"others of the groups of {' and '.join(names)}, which failed together"
    elif not case.unconfirmed and not case.again and free.hold(case.members):
        yield case.members, f"{' and '.join(names)} again, which work with others"


def _others(board: Board, free: "_Partners") -> Iterator[_Planned]:
    """Yield free sound nodes with new partners, from another group if groups are known.

    Otherwise nothing would test the links between groups, and only one path through the network per node.
    """
    known = len({group for group in board.groups if group}) > 1
    waiting = [node for node in free.sound if not board.met_others(node, known) and free.is_free(node)]
    waiting.sort(key=lambda node: (board.groups[node], node))
    half = len(waiting) // 2
    for a, b in zip(waiting[:half], waiting[half:], strict=False):
        pair = (min(a, b), max(a, b))
        if pair not in board.pairs and (not known or board.groups[a] != board.groups[b]) and free.hold(pair):
            yield pair, OTHERS
    for node in waiting:
        if free.is_free(node) and (partner := free.other(node, known)) is not None:
            yield (node, partner), OTHERS


class _Partners:
    """The sound nodes that are free in the planned round; near ones come first."""

    def __init__(self, board: Board, weighed: WorldProof) -> None:
        self._board, self._groups, self._used = board, board.groups, set[int]()
        self._joined = weighed.joined
        self.sound = sorted(node for node in weighed.sound if not board.is_out(node))
        self._near: dict[str, list[int]] = {}
        for node in self.sound:
            self._near.setdefault(board.groups[node], []).append(node)
        self._from: dict[str | None, int] = {}

    def is_free(self, node: int) -> bool:
        """Return whether a node is in no world of the round yet."""
        return node not in self._used

    def take(self, node: int, known: frozenset[int]) -> int | None:
        """Return a free sound node not in `known`, preferably of its group; both are then used."""
        return self._held(node, self._mate(node, known), known)

    def witness(self, node: int, accused: Accused) -> int | None:
        """Return a partner whose testimony counts against an accused node; a few others as well, because they may clear
        it."""
        for known in (accused.witnesses | accused.beside, accused.witnesses):
            partner = self._mate(node, known)
            if partner is None and not accused.wants_a_mate:
                few = len(accused.witnesses) < _MANY
                partner = self._first(None, self.sound, node, known, None if few else self._counts)
            if partner is not None:
                return self._held(node, partner, known)
        return None

    def fellow(self, node: int, others: Iterable[int], met: frozenset[int]) -> int | None:
        """Return a free accused node that it has not failed with yet; both are then used."""
        if not self.is_free(node):
            return None
        usable = (n for n in others if n != node and n not in met and self.is_free(n) and not self._board.is_out(n))
        fellow = next(usable, None)
        return fellow if fellow is not None and self.hold((node, fellow)) else None

    def other(self, node: int, across: bool) -> int | None:
        """Return a free sound node that is a new partner, with `across` of another group; both are then used."""

        def fits(one: int, other: int) -> bool:
            new = (min(one, other), max(one, other)) not in self._board.pairs
            return new and (not across or self._groups[one] != self._groups[other])

        partner = self._first("", self.sound, node, frozenset(), fits)
        return partner if partner is not None and self.hold((node, partner)) else None

    def take_across(self, members: Members) -> Members | None:
        """Return a free sound pair from the groups of two nodes, without these two."""
        pair: list[int] = []
        for member in members:
            known = {*members, *pair, *self._used}
            found = next((n for n in self._near.get(self._groups[member], []) if n not in known), None)
            if found is None:
                return None
            pair.append(found)
        self._used |= set(pair)
        return tuple(pair)

    def hold(self, members: Members) -> bool:
        """Reserve nodes if all are free; return whether they were."""
        if self._used & set(members):
            return False
        self._used |= set(members)
        return True

    def _mate(self, node: int, known: frozenset[int]) -> int | None:
        group = self._groups[node]
        return self._first(group, self._near.get(group, []), node, known, None) if group else None

    def _held(self, node: int, partner: int | None, known: frozenset[int]) -> int | None:
        """Reserve and return the partner, else the first that fits, if both are free."""
        if not self.is_free(node):
            return None
        if partner is None:
            partner = self._first(None, self.sound, node, known, None)
        return partner if partner is not None and self.hold((node, partner)) else None

    def _counts(self, node: int, partner: int) -> bool:
        a, b = sorted((self._groups[node], self._groups[partner]))
        return not a or a == b or (a, b) in self._joined

    def _first(
        self,
        key: str | None,
        nodes: list[int],
        node: int,
        known: frozenset[int],
        fits: Callable[[int, int], bool] | None,
    ) -> int | None:
        """Return the first fit; used nodes at the front are never visited again."""
        begin = self._from.get(key, 0)
        while begin < len(nodes) and nodes[begin] in self._used:
            begin += 1
        self._from[key] = begin
        for place in range(begin, len(nodes)):
            found = nodes[place]
            if found not in self._used and found not in known and found != node and (not fits or fits(node, found)):
                return found
        return None
