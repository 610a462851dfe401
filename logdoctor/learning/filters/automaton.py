"""A learned pattern as an automaton without empty moves (Glushkov), for asking what it could match.

Hyperscan tells what a pattern matches in given lines. The guards also ask what it could match in unseen lines: whether
any of them may hold a sentence, and what may stand in place of a number. Both are answered exactly and in time linear
in the question. Sets of positions are the bits of an int.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from logdoctor.learning.grammar import Chars, Node, Pattern

_START = 1


class _Part(NamedTuple):
    """Where a part of a pattern may begin and end, and whether it may be empty."""

    first: int
    last: int
    empty: bool


class Automaton:
    """The pattern without its anchors; position 0 is the start, every other one has read a byte."""

    def __init__(self, pattern: Pattern) -> None:
        self._follow: list[int] = [0]
        self._before: list[int] = [0]
        self._readers = [0] * 256
        whole = self._sequence(pattern.nodes)
        self._link(_START, whole.first)
        self._accepting = whole.last | (_START if whole.empty else 0)

    def holds(self, phrase: bytes) -> bool:
        """Return whether some line that the pattern matches holds the phrase."""
        state = self._readers[phrase[0]]
        return bool(state and self._after(state, phrase[1:]))

    def forward(self, line: bytes) -> list[int]:
        """Return, for each place in the line, the positions reached there from its beginning."""
        states = [_START]
        for byte in line:
            states.append(self._after(states[-1], bytes([byte])))
        return states

    def backward(self, line: bytes) -> list[int]:
        """Return, for each place in the line, the positions from which the rest is accepted."""
        states = [self._accepting]
        for byte in reversed(line):
            state = states[-1] & self._readers[byte]
            states.append(_union(self._before, state))
        return states[::-1]

    def message(self, line: bytes) -> int | None:
        """Return the first place from which the line matches to its end; None without one."""
        return next((place for place, state in enumerate(self.backward(line)) if state & _START), None)

    def reached(self, line: bytes) -> int | None:
        """Return the first place up to which the line's beginning is accepted; None without one."""
        return next((place for place, state in enumerate(self.forward(line)) if state & self._accepting), None)

    def goes_on(self, state: int, text: bytes, wanted: int) -> int:
        """Return the positions in `wanted` that are reached by reading `text` from `state`."""
        return self._after(state, text) & wanted

    def _after(self, state: int, text: bytes) -> int:
        for byte in text:
            state = _union(self._follow, state) & self._readers[byte]
            if not state:
                break
        return state

    def _position(self, members: frozenset[int]) -> int:
        bit = 1 << len(self._follow)
        self._follow.append(0)
        self._before.append(0)
        for byte in members:
            self._readers[byte] |= bit
        return bit

    def _link(self, sources: int, targets: int) -> None:
        for source in _places(sources):
            self._follow[source] |= targets
        for target in _places(targets):
            self._before[target] |= sources

    def _sequence(self, nodes: Sequence[Node]) -> _Part:
        whole = _Part(0, 0, True)
        for node in nodes:
            part = self._chars(node) if isinstance(node, Chars) else self._choice(node.branches, node.optional)
            whole = self._then(whole, part)
        return whole

    def _then(self, left: _Part, right: _Part) -> _Part:
        self._link(left.last, right.first)
        return _Part(
            left.first | (right.first if left.empty else 0),
            right.last | (left.last if right.empty else 0),
            left.empty and right.empty,
        )

    def _choice(self, branches: Sequence[Sequence[Node]], optional: bool) -> _Part:
        first = last = 0
        for branch in branches:
            part = self._sequence(branch)
            first, last, optional = first | part.first, last | part.last, optional or part.empty
        return _Part(first, last, optional)

    def _chars(self, chars: Chars) -> _Part:
        bits = [self._position(chars.members) for _ in range(max(chars.least, 1) if chars.most is None else chars.most)]
        for bit, following in itertools.pairwise(bits):
            self._link(bit, following)
        if chars.most is None:
            self._link(bits[-1], bits[-1])
        return _Part(bits[0], sum(bits[max(chars.least, 1) - 1 :]), chars.least == 0)


def _places(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _union(table: list[int], bits: int) -> int:
    union = 0
    while bits:
        low = bits & -bits
        union |= table[low.bit_length() - 1]
        bits ^= low
    return union
