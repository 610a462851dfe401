"""The size of a pattern's automaton, without building it.

Compiling a pattern of thirty characters can take minutes, because nested counted repeats multiply, and it cannot be
interrupted. So every pattern is measured before it is compiled (law 9): `rules.match` holds all to `WRITTEN_OUT`;
patterns that a person types into a search or a model asks for are held to `TYPED`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import regex

from logdoctor.errors import RuleError

_MAX_DEPTH = 20
_FEW, _ANY = 3, 10**9


class Bounds(NamedTuple):
    """Limits: the largest counted repeat, the characters of a pattern with its repeats written out, and the pairs of
    these that may follow each other."""

    repeat: int
    positions: int
    steps: int


TYPED = Bounds(64, 600, 6000)
"""For patterns compiled while somebody waits: about a second at most."""
WRITTEN_OUT = Bounds(4000, 5000, 20_000)
"""For the patterns of rule books; the shipped ones need half."""

_QUOTES = (r"\Q", r"\E")
_ESCAPES = regex.compile(r"\\.", regex.DOTALL)
_CLASS = r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]"
_OTHER = (
    r"(?P<flags>\(\?[-ims]+\))"
    r"|(?P<group>\((?:\?(?:[-ims]*:|P?<\w+>)|(?![?*])))"
    r"|(?P<special>\((?:\?<?.?|\*))"
    r"|(?P<end>\))"
    r"|(?P<bar>\|)"
    r"|(?P<repeat>(?:[*+?]|\{(?:(?P<least>\d+)(?P<open>,(?P<most>\d+)?)?|,(?P<upto>\d+))\})[?+]?)"
    r"|(?P<anchor>[\^$]|\\[AbBGzZ])"
    r"|(?P<text>[\w \"'!#%&,/:;<=>@~`-]{2,})(?![*+?{])"
    r"|(?P<atom>\\(?:x[0-9a-fA-F]{2}|x\{\w+\}|[0-7]{3}|c.|[pP](?:\{\^?\w+\}|\w)|.)"
    r"|.)"
)
_TOKEN = regex.compile(f"(?P<class>{_CLASS})|{_OTHER}", regex.DOTALL | regex.ASCII)
_BEHIND_AN_OPEN_CLASS = regex.compile(_OTHER, regex.DOTALL | regex.ASCII)


class Size(NamedTuple):
    """The size of a part of a pattern with repeats written out: its characters, how many of them it may begin and end
    with, how many pairs of them may follow each other, and whether it may be empty."""

    positions: int = 0
    first: int = 0
    last: int = 0
    steps: int = 0
    empty: bool = True

    def then(self, other: "Size") -> "Size":
        """Return the size of this part followed by another one."""
        return Size(
            self.positions + other.positions,
            self.first + (other.first if self.empty else 0),
            other.last + (self.last if other.empty else 0),
            self.steps + other.steps + self.last * other.first,
            self.empty and other.empty,
        )

    def beside(self, other: "Size") -> "Size":
        """Return the size of a choice between this part and another one."""
        positions, first, last, steps = (mine + its for mine, its in zip(self[:4], other[:4], strict=True))
        return Size(positions, first, last, steps, self.empty or other.empty)

    def repeated(self, least: int, most: int | None) -> "Size":
        """Return the size of this part repeated; `most` None means without limit."""
        if most is None:
            last = self._replace(steps=self.steps + self.last * self.first, empty=least == 0 or self.empty)
            return self._copies(least - 1).then(last)
        return self._copies(least).then(self._copies(most - least, optional=True))

    def _copies(self, count: int, optional: bool = False) -> "Size":
        """Return the size of copies of this part in a row. `optional` ones may end after each: `(?:a(?:a)?)?`."""
        if count < 1:
            return Size()
        starts = count if self.empty else 1
        ends = count if self.empty or optional else 1
        pairs = count * (count - 1) // 2 if self.empty else count - 1  # of copies that may follow each other
        steps = count * self.steps + pairs * self.last * self.first
        return Size(count * self.positions, starts * self.first, ends * self.last, steps, self.empty or optional)


class _Group:
    """A group being parsed: its finished branches, and the current branch's parts before the last, and the last."""

    def __init__(self) -> None:
        self.branches: list[Size] = []
        self.before, self.part = Size(), Size()

    def add(self, part: Size) -> None:
        self.before, self.part = self.before.then(self.part), part

    def branch(self) -> None:
        self.branches.append(self.before.then(self.part))
        self.before = self.part = Size()

    def whole(self) -> Size:
        self.branch()
        found = self.branches[0]
        for other in self.branches[1:]:
            found = found.beside(other)
        return found


def require_small(pattern: str, bounds: Bounds = TYPED) -> Size:
    """Return a pattern's size; `RuleError` when it would take long to compile, or contains something unsupported."""
    size = size_of(pattern, bounds.repeat)
    for count, bound, what in (
        (size.positions, bounds.positions, "characters"),
        (size.steps, bounds.steps, "ways from one character to the next"),
    ):
        if count > bound:
            raise _refusal(pattern, f"is too large: with its repeats written out it has more than {bound} {what}")
    return size


def size_of(pattern: str, most_repeats: int = TYPED.repeat) -> Size:
    """Return a pattern's size; `RuleError` when it contains something unsupported."""
    if any(escape in _QUOTES for escape in _ESCAPES.findall(pattern)):
        raise _refusal(pattern, r"has \Q or \E in it", "Write a backslash before each character instead.")
    groups = [_Group()]
    for found in tokens(pattern):
        match found.lastgroup:
            case "group":
                groups.append(_Group())
                if len(groups) > _MAX_DEPTH:
                    raise _refusal(pattern, f"has groups more than {_MAX_DEPTH} deep")
            case "end":
                if len(groups) == 1:
                    raise _refusal(pattern, "has a closing bracket without its opening one")
                part = groups.pop().whole()
                groups[-1].add(part)
            case "bar":
                groups[-1].branch()
            case "special":
                raise _refusal(pattern, f"has {found.group()} in it, which is not supported")
            case "text":
                count = len(found.group())
                groups[-1].add(Size(count, 1, 1, 2 * count - 1, empty=False))
            case "class" | "atom":
                count = len(found.group().encode(errors="replace")) if len(found.group()) == 1 else 1
                groups[-1].add(Size(count, 1, 1, count, empty=False))
            case "flags" | "anchor":
                groups[-1].add(Size())
            case _:
                least, most = repeat_of(pattern, found, most_repeats)
                groups[-1].part = groups[-1].part.repeated(least, most)
    if len(groups) > 1:
        raise _refusal(pattern, "has a group that is not closed")
    return groups[0].whole()


def tokens(pattern: str) -> Iterator[regex.Match[str]]:
    """Yield the parts of a pattern; consecutive unrepeated characters are one `text`. After an unclosed class no
    further class is looked for, as none is closed."""
    token, at = _TOKEN, 0
    while found := token.match(pattern, at):
        if found.group() == "[":
            token = _BEHIND_AN_OPEN_CLASS
        at = found.end()
        yield found


def may_explode(pattern: str) -> bool:
    """Return whether a backtracking search with a pattern may try exponentially many ways: a group that holds a choice
    or a repeat is itself repeated more than three times."""
    holds = [False]
    closed = False  # whether the group that was closed just before holds any
    for found in tokens(pattern):
        before, closed = closed, False
        match found.lastgroup:
            case "group" | "special":
                holds.append(False)
            case "end" if len(holds) > 1:
                closed = holds.pop()
                holds[-1] |= closed
            case "bar":
                holds[-1] = True
            case "repeat":
                _, most = repeat_of(pattern, found, _ANY)
                if before and (most is None or most > _FEW):
                    return True
                holds[-1] = True
    return False


def repeat_of(pattern: str, found: regex.Match[str], most_repeats: int) -> tuple[int, int | None]:
    """Return the least and most counts of a repeat; None means without limit."""
    sign = found.group()[0]
    if sign != "{":
        return int(sign == "+"), 1 if sign == "?" else None
    least, most = found["least"] or "0", found["most"] or found["upto"]
    if any(len(number) > 9 or int(number) > most_repeats for number in (least, most or "0")):
        raise _refusal(pattern, f"repeats something more than {most_repeats} times")
    if most is None:
        return int(least), None if found["open"] else int(least)
    return int(least), int(most)


def _refusal(pattern: str, cause: str, next_step: str = "Simplify it.") -> RuleError:
    return RuleError(f"pattern {pattern!r}", cause, next_step)
