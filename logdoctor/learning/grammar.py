"""The small language of learned patterns, and what a pattern can match.

Patterns come from language models, miners and users, so they are hostile until shown otherwise. Of regular expressions
only the part is allowed that means the same to Hyperscan, `regex` and `re` on ASCII, runs in linear time and can be
judged by its form:

    pattern  := '^' sequence '$' | '^(?:\\r*' sequence ')+\\r*$'
    sequence := (atom | group)+
    atom     := (character | escape | class) ('*' | '+' | '?' | '{m}' | '{m,}' | '{m,n}')?
    group    := '(?:' sequence ('|' sequence)* ')' '?'?

The second form is for redrawn bars: each state is a `sequence` without carriage returns, so that it is judged by one
state and means the same however many there are.

Escapes are `\\d \\w \\s \\D \\W \\S \\t` and escaped punctuation; in classes the negative ones are excluded. The
parser is our own: `re` allows far more, and its tree is private to each release of Python.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

import regex

from logdoctor.errors import PatternRefused
from logdoctor.rules.pattern_size import Bounds, size_of

_STATES = (r"(?:\r*", r")+\r*")
_ALL = frozenset(range(256)) - {10}  # bytes of a line
_DIGITS = frozenset(b"0123456789")
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_WORD = _LETTERS | _DIGITS | frozenset(b"_")
_SPELLING = _LETTERS - frozenset(b"eE")  # those of 1e-05 spell nothing
_BLANK = frozenset(b" \t\r\f\v")
_HIGH = frozenset(range(0xC3, 0xF5)) - {0xE2}
"""Lead bytes of non-ASCII letters in UTF-8; 0xC2 and 0xE2 begin marks, arrows, bars and blocks."""
_ESCAPES = {
    "d": _DIGITS,
    "w": _WORD,
    "s": _BLANK,
    "t": frozenset(b"\t"),
    "D": _ALL - _DIGITS,
    "W": _ALL - _WORD,
    "S": _ALL - _BLANK,
}
_NEGATIVE = "DWS"
_REPEAT = regex.compile(r"[*+?]|\{(?P<least>\d{1,4})(?P<comma>,(?P<most>\d{1,4})?)?\}")
_ALNUM_RANGES = (b"09", b"az", b"AZ")
_OPENINGS = (
    ("(?#", "a comment"),
    ("(?=", "look-ahead"),
    ("(?!", "look-ahead"),
    ("(?<=", "look-behind"),
    ("(?<!", "look-behind"),
    ("(?>", "an atomic group"),
    ("(?P=", "a back-reference"),
    ("(?P<", "a named group"),
    ("(?<", "a named group"),
    ("(?|", "a branch reset"),
    ("(?(", "a condition"),
    ("(*", "a verb"),
    ("(?", "a flag or a recursion"),
    ("(", "a capturing group"),
)
_DEEPEST = 5
_MOST = Bounds(repeat=64, positions=1200, steps=8000)
_SPANS = 128  # the sum of (most - least) over bounded repeats
"""Limits that keep compiling well below a second: Hyperscan needs 19 s for `x?` 450 times in a row."""


class Chars(NamedTuple):
    """One of some bytes, `least` to `most` times (`None`: no limit)."""

    members: frozenset[int]
    least: int = 1
    most: int | None = 1

    @property
    def literal(self) -> bool:
        """Return whether it is a single character, however often repeated."""
        return len(self.members) == 1

    @property
    def free(self) -> bool:
        """Return whether it may hold words with blanks between them: free text, in which a sentence can hide."""
        repeated = self.most is None or self.most > 1
        blank = not self.members.isdisjoint(b" \t")
        return repeated and blank and not self.members.isdisjoint(_SPELLING | _HIGH)


class Choice(NamedTuple):
    """One of several sequences, or none when it is optional."""

    branches: tuple[tuple["Node", ...], ...]
    optional: bool


Node = Chars | Choice


class Pattern(NamedTuple):
    """A parsed pattern of the language."""

    source: str
    nodes: tuple[Node, ...]  # of one state, for redrawn lines

    @property
    def letters(self) -> int:
        """Return the letters that every matching line holds in literal words of two or more."""
        return _letters(self.nodes)

    @property
    def characters(self) -> int:
        """Return the least number of literal non-blank characters that every matching line holds."""
        return _characters(self.nodes)

    @property
    def literals(self) -> tuple[str, ...]:
        """Return the literal text between fields and group borders, in the order of the pattern."""
        return tuple(run.decode("utf-8", "replace") for run in _runs(self.nodes))

    @property
    def fields(self) -> tuple[Chars, ...]:
        """Return the parts that may differ from line to line."""
        return tuple(chars for chars in _all_chars(self.nodes) if not chars.literal)


def parse(source: str) -> Pattern:
    """Parse a pattern; `PatternRefused` names the guard that it fails ('anchor', 'grammar', 'compile')."""
    if not source.startswith("^"):
        raise PatternRefused(source, "anchor", "it does not start with ^")
    body = source[1:-1]
    if not source.endswith("$") or len(source) < 2 or (len(body) - len(body.rstrip("\\"))) % 2:
        raise PatternRefused(source, "anchor", "it does not end with $")
    redrawn = body.startswith(_STATES[0]) and body.endswith(_STATES[1])
    if redrawn:
        body = body[len(_STATES[0]) : -len(_STATES[1])]
    pattern = Pattern(source, _Parser(source, body).whole())
    _require_sound(pattern, body)
    if redrawn and any(13 in chars.members for chars in _all_chars(pattern.nodes)):
        raise PatternRefused(source, "grammar", "a state of a redrawn bar may hold a carriage return")
    return pattern


class _Parser:
    """Reads a pattern from left to right; every method leaves `_at` behind what it read."""

    def __init__(self, source: str, body: str) -> None:
        self._source, self._body, self._at = source, body, 0

    def whole(self) -> tuple[Node, ...]:
        nodes = self._sequence(0)
        match self._next():
            case "|":
                self._refuse("an alternative outside of a group is not anchored at both ends", "anchor")
            case ")":
                self._refuse("a closing bracket without its opening one")
        return nodes

    def _refuse(self, cause: str, guard: str = "grammar") -> NoReturn:
        raise PatternRefused(self._source, guard, f"{cause} (at character {self._at + 1})")

    def _next(self) -> str:
        return self._body[self._at : self._at + 1]

    def _sequence(self, depth: int) -> tuple[Node, ...]:
        nodes: list[Node] = []
        while (char := self._next()) and char not in "|)":
            nodes += self._group(depth) if char == "(" else self._atom(char)
        if not nodes:
            self._refuse("an empty alternative or an empty pattern")
        return tuple(nodes)

    def _group(self, depth: int) -> list[Node]:
        if not self._body.startswith("(?:", self._at):
            self._refuse(next(name for start, name in _OPENINGS if self._body.startswith(start, self._at)))
        if depth == _DEEPEST:
            self._refuse(f"groups more than {_DEEPEST} deep")
        self._at += 3
        branches = [self._sequence(depth + 1)]
        while self._next() == "|":
            self._at += 1
            branches.append(self._sequence(depth + 1))
        if self._next() != ")":
            self._refuse("a group that is not closed")
        self._at += 1
        repeat = self._repeat()
        if repeat not in ((1, 1), (0, 1)):
            self._refuse("a repeated group")
        return [Choice(tuple(branches), repeat == (0, 1))]

    def _atom(self, char: str) -> list[Node]:
        if char == "\\":
            members = self._escape(inside=False)
        elif char == "[":
            members = self._class()
        elif char in "^$":
            self._refuse("an anchor inside of the pattern", "anchor")
        elif char == ".":
            self._refuse("the wildcard . for any character")
        elif char in "*+?{":
            self._refuse("a repeat of nothing, or a brace that is not escaped")
        else:
            self._at += 1
            if not char.isascii():
                return self._beyond_ascii(char)
            members = frozenset(char.encode())
        least, most = self._repeat()
        return [Chars(members, least, most)]

    def _beyond_ascii(self, char: str) -> list[Node]:
        if self._next() and self._next() in "*+?{":
            self._refuse(f"a repeat of {char!r}, which is more than one byte; put it into a class")
        return [Chars(frozenset([byte])) for byte in char.encode()]

    def _escape(self, inside: bool) -> frozenset[int]:
        letter = self._body[self._at + 1 : self._at + 2]
        if letter in _ESCAPES and letter and not (inside and letter in _NEGATIVE):
            members = _ESCAPES[letter]
        elif letter and letter.isascii() and not letter.isalnum() and letter.isprintable() and letter != "_":
            members = frozenset(letter.encode())
        else:
            self._refuse(f"the escape \\{letter}{' in a class' if inside else ''}")
        self._at += 2
        return members

    def _class(self) -> frozenset[int]:
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        members: frozenset[int] = frozenset()
        start = self._at
        while (char := self._next()) != "]":
            if not char:
                self._refuse("a class that is not closed")
            members |= self._member(char, start, negated)
        if not members:
            self._refuse("an empty class, or a ] that is not escaped")
        self._at += 1
        return _ALL - members if negated else members

    def _member(self, char: str, start: int, negated: bool) -> frozenset[int]:
        """Return the members that one item of a class adds: an escape, a character or a range."""
        if char == "\\":
            members = self._escape(inside=True)
        elif char == "[" or self._body[self._at : self._at + 2] in ("--", "&&", "||", "~~"):
            self._refuse("a class inside of a class, or an operation on classes")
        elif char == "-" and self._at != start and self._body[self._at + 1 : self._at + 2] != "]":
            self._refuse("a - in a class that is neither first, last nor escaped")
        elif not char.isascii() and negated:
            self._refuse(f"{char!r} in a negated class")
        else:
            self._at += 1
            members = frozenset(char.encode())
        if self._next() == "-" and self._body[self._at + 1 : self._at + 2] not in ("]", "") and len(members) == 1:
            return self._range(char)
        return members

    def _range(self, first: str) -> frozenset[int]:
        last = self._body[self._at + 1]
        ends = f"{first}{last}".encode()
        within = any(low <= ends[0] <= ends[-1] <= high for low, high in _ALNUM_RANGES)
        if len(ends) != 2 or not (within or ends == b" ~"):
            self._refuse(f"the range {first}-{last}")
        self._at += 2
        return frozenset(range(ends[0], ends[1] + 1))

    def _repeat(self) -> tuple[int, int | None]:
        """Return (least, most) of the repeat at this point, (1, 1) without one."""
        found = _REPEAT.match(self._body, self._at)
        if not found:
            return 1, 1
        self._at = found.end()
        if self._next() and self._next() in "*+?{":
            self._refuse("a lazy, possessive or doubled repeat")
        if found.group() in ("*", "+", "?"):
            return int(found.group() == "+"), 1 if found.group() == "?" else None
        least = int(found["least"])
        most = int(found["most"]) if found["most"] else None if found["comma"] else least
        if most is not None and (most == 0 or most < least):
            self._refuse(f"the repeat {found.group()}")
        if max(least, most or 0) > _MOST.repeat:
            self._refuse(f"the repeat {found.group()} goes beyond {_MOST.repeat}", "compile")
        return least, most


def _require_sound(pattern: Pattern, body: str) -> None:
    size, chars = size_of(body, _MOST.repeat), _all_chars(pattern.nodes)
    if size.empty:
        raise PatternRefused(pattern.source, "grammar", "it matches the empty line")
    for count, bound, what in (
        (size.positions, _MOST.positions, "characters when written out"),
        (sum(c.most - c.least for c in chars if c.most is not None), _SPANS, "characters of play in bounded repeats"),
        (size.steps, _MOST.steps, "ways from one character to the next"),
    ):
        if count > bound:
            raise PatternRefused(pattern.source, "compile", f"it has {count} {what}, more than {bound}")


def _all_chars(nodes: Sequence[Node]) -> Iterator[Chars]:
    for node in nodes:
        if isinstance(node, Chars):
            yield node
        else:
            for branch in node.branches:
                yield from _all_chars(branch)


def _letters(nodes: Sequence[Node]) -> int:
    least = word = 0
    for node in (*nodes, None):
        if isinstance(node, Chars) and node.members <= _LETTERS and node.literal and (node.least, node.most) == (1, 1):
            word += 1
            continue
        least += word if word > 1 else 0
        word = 0
        if isinstance(node, Choice) and not node.optional:
            least += min(map(_letters, node.branches))
    return least


def _characters(nodes: Sequence[Node]) -> int:
    least = 0
    for node in nodes:
        if isinstance(node, Choice):
            least += 0 if node.optional else min(map(_characters, node.branches))
        elif node.literal and node.members.isdisjoint(_BLANK):
            least += node.least
    return least


def _runs(nodes: Sequence[Node]) -> Iterator[bytes]:
    run = b""
    for node in nodes:
        if isinstance(node, Chars) and node.literal and node.least:
            run += bytes(node.members) * node.least
            continue
        if run:
            yield run
        run = b""
        if isinstance(node, Choice):
            for branch in node.branches:
                yield from _runs(branch)
    if run:
        yield run
