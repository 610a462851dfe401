"""What a test runs next: rounds of worlds that share no node.

The first round pairs all nodes, near ones together, and each suspect with a node that nobody suspects; an odd one makes
a world of three. Then every accused node is tried alone with sound nodes that did not witness against it yet, in as
many rounds as it takes. What sound nodes cannot do together is asked again. Where groups are known, one round goes
across them. Last, the same is done for slow nodes. Two-round scheme: section 6.1, part 3, of the NSDI '24 paper.
"""

from collections.abc import Iterable, Iterator

from logdoctor.act.board import Board
from logdoctor.act.evidence import Case, Members, Weighed
from logdoctor.nodes import World

FIRST, ANEW, ACROSS = "first round", "paired anew, because nothing has passed", "across groups"
_Planned = tuple[Members, str]


def next_round(board: Board) -> tuple[World, ...]:
    """The worlds of the next round, none when the test is over. Equal boards give equal rounds."""
    if not board.nodes or board.round >= (board.terms.rounds or len(board.nodes) + 8):
        return ()
    planned = _planned(board)
    again = planned and planned[0][1] != FIRST
    repeats = board.terms.repeats * (board.terms.longer if again else 1)
    number, names = board.last_number, [node.name for node in board.nodes]
    return tuple(
        World(number + place, board.round + 1, tuple(names[node] for node in members), purpose, repeats)
        for place, (members, purpose) in enumerate(planned, 1)
    )


def _planned(board: Board) -> list[_Planned]:
    if not board.results:
        return [(members, FIRST) for members in first_pairs(board, range(len(board.nodes)))]
    if asked := _asked_of(board, board.works, _untested(board)):
        return asked
    if not board.has_passed:
        return _without_sound(board)
    if across := _across_due(board):
        return [(members, ACROSS) for members in across]
    return _asked_of(board, board.fast, ()) if board.slow_worlds else []


def first_pairs(board: Board, nodes: Iterable[int]) -> list[Members]:
    """Pairs of nodes, of one group where that can be, a suspect with one that is none; an odd node joins the last."""
    by_group: dict[str, tuple[list[int], list[int]]] = {}
    for node in nodes:
        by_group.setdefault(board.groups[node], ([], []))[node not in board.suspected].append(node)
    pairs: list[Members] = []
    left: list[int] = []
    for suspects, others in by_group.values():
        matched = min(len(suspects), len(others))
        pairs += zip(suspects[:matched], others[:matched], strict=True)
        rest = suspects[matched:] + others[matched:]
        pairs += zip(rest[::2], rest[1::2], strict=False)
        left += rest[len(rest) & ~1 :]
    pairs += zip(left[::2], left[1::2], strict=False)
    if len(left) % 2:
        last = pairs.pop() if pairs else ()
        pairs.append((*last, left[-1]))
    return pairs


def _without_sound(board: Board) -> list[_Planned]:
    """While nothing has passed: launches that went wrong are tried again, then all are paired anew a few times."""
    untested = _untested(board)
    if untested:
        return [(members, FIRST) for members in first_pairs(board, untested)]
    made = len({result.world.round for result in board.results.values() if result.world.purpose == ANEW})
    usable = [node for node in range(len(board.nodes)) if board.voids[node] < board.terms.tries]
    if made >= board.terms.regroups or len(usable) < 3:
        return []
    known = {tuple(sorted(board.place[name] for name in result.world.nodes)) for result in board.results.values()}
    turns = (_rotated(usable, turn) for turn in range(len(usable)))
    return [(members, ANEW) for members in next((pairs for pairs in turns if known.isdisjoint(pairs)), [])]


def _rotated(nodes: list[int], turn: int) -> list[Members]:
    """Pairs as in a tournament where everybody meets everybody; of an odd number one rests."""
    seats: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    turn %= len(seats) - 1
    seats = [seats[0], *seats[1 + turn :], *seats[1 : 1 + turn]]
    half = len(seats) // 2
    pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
    return [(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None]


def _untested(board: Board) -> list[int]:
    """Nodes of which no world says anything yet, though they may be tried again."""
    return [node for node, tried in enumerate(board.tried) if not tried and board.voids[node] < board.terms.tries]


def _asked_of(board: Board, weighed: Weighed, untested: Iterable[int]) -> list[_Planned]:
    """Worlds that answer what is open: for the accused and untested a sound partner, for strange pairs both."""
    free = _Partners(board, weighed.sound)
    planned: list[_Planned] = []
    names = [node.name for node in board.nodes]
    for node, accused in weighed.wanting.items():
        if board.voids[node] >= board.terms.tries:
            continue
        partner = free.take(node, accused.witnesses | accused.beside, accused.wants_a_mate)
        if partner is None and accused.beside:
            partner = free.take(node, accused.witnesses, accused.wants_a_mate)
        if partner is not None:
            planned.append(((node, partner), f"{names[node]}, accused, with proven-good {names[partner]}"))
    for node in untested:
        if (partner := free.take(node, frozenset())) is not None:
            planned.append(((node, partner), f"{names[node]}, not tested yet, with proven-good {names[partner]}"))
    for case in weighed.cases:
        planned += _again(board, case, free)
    return planned


def _again(board: Board, case: Case, free: "_Partners") -> Iterator[_Planned]:
    """What tells a bad link from a node whose fault comes and goes."""
    if any(board.voids[node] >= board.terms.tries for node in case.members):
        return
    names = [board.nodes[node].name for node in case.members]
    for node, name in zip(case.members, names, strict=True):
        if node in case.unconfirmed and (partner := free.take(node, frozenset(case.members))) is not None:
            yield (
                (node, partner),
                f"{name}, which failed with a good node, with proven-good {board.nodes[partner].name}",
            )
    others = free.take_across(case.members) if case.across else None
    if others is not None:
        yield others, f"others of the groups of {' and '.join(names)}, which failed together"
    elif not case.unconfirmed and free.hold(case.members):
        yield case.members, f"{' and '.join(names)} again, which work with others"


class _Partners:
    """Sound nodes that are free in the round that is being planned; near ones are given first."""

    def __init__(self, board: Board, sound: frozenset[int]) -> None:
        self._groups, self._used = board.groups, set[int]()
        usable = sorted(node for node in sound if board.voids[node] < board.terms.tries)
        self._all = usable
        self._near: dict[str, list[int]] = {}
        for node in usable:
            self._near.setdefault(board.groups[node], []).append(node)
        self._from: dict[str | None, int] = {}

    def take(self, node: int, known: frozenset[int], only_near: bool = False) -> int | None:
        """A free sound node that is none of those known to it, of its group if there is one; both are used now."""
        if node in self._used:
            return None
        group = self._groups[node]
        partner = self._first(group, self._near.get(group, []), node, known) if group else None
        if partner is None and not only_near:
            partner = self._first(None, self._all, node, known)
        if partner is not None:
            self._used |= {node, partner}
        return partner

    def take_across(self, members: Members) -> Members | None:
        """A free sound pair of the groups of two nodes, without these."""
        pair: list[int] = []
        for member in members:
            known = frozenset((*members, *pair))
            found = next((n for n in self._near.get(self._groups[member], []) if n not in known | self._used), None)
            if found is None:
                return None
            pair.append(found)
        self._used |= set(pair)
        return tuple(pair)

    def hold(self, members: Members) -> bool:
        """Whether all of some nodes are free; they are used now."""
        if self._used & set(members):
            return False
        self._used |= set(members)
        return True

    def _first(self, key: str | None, nodes: list[int], node: int, known: frozenset[int]) -> int | None:
        """The first fit; those at the front that are used are never looked at again."""
        begin = self._from.get(key, 0)
        while begin < len(nodes) and nodes[begin] in self._used:
            begin += 1
        self._from[key] = begin
        for place in range(begin, len(nodes)):
            found = nodes[place]
            if found not in self._used and found not in known and found != node:
                return found
        return None


def _across_due(board: Board) -> list[Members]:
    """Pairs of sound nodes across groups, once, when there are groups: else no world would try what joins them."""
    if any(result.world.purpose == ACROSS for result in board.results.values()):
        return []
    sound = [node for node in board.works.sound if board.groups[node] and board.voids[node] < board.terms.tries]
    order = sorted(sound, key=lambda node: (board.groups[node], node))
    half = len(order) // 2
    pairs = zip(order[:half], order[half : 2 * half], strict=True)
    return [(a, b) for a, b in pairs if board.groups[a] != board.groups[b]]
