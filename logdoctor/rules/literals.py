"""Literals that every line matched by a pattern must contain, found without compiling the pattern.

Of thousands of patterns only a few can match a given line. One search for all their literals finds them, so only these
patterns are run, and only those that some line needs are ever compiled.

Literals are written as `outline` writes a line, and in lower case: each digit is `0`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import regex

from logdoctor.errors import RuleError
from logdoctor.rules.match import expand
from logdoctor.rules.pattern_size import WRITTEN_OUT, repeat_of, require_small, tokens
from logdoctor.safe import cache_files

_DIGITS = frozenset(b"0123456789")
_UPPER, _LOWER = frozenset(range(ord("A"), ord("Z") + 1)), frozenset(range(ord("a"), ord("z") + 1))
_WORD = _UPPER | _LOWER | _DIGITS | {ord("_")}
_BLANK = frozenset(b" \t\r\f\x0b")
_LINE = frozenset(range(256)) - {ord("\n")}
_ESCAPES = {
    "d": _DIGITS,
    "w": _WORD,
    "s": _BLANK,
    "h": frozenset(b" \t"),
    "v": frozenset(b"\r\f\x0b"),
    "D": _LINE - _DIGITS,
    "W": _LINE - _WORD,
    "S": _LINE - _BLANK,
    "H": _LINE - frozenset(b" \t"),
}
_CONTROL = {"t": 9, "r": 13, "f": 12, "a": 7, "e": 27, "n": 10}
_MEMBER = regex.compile(r"\\x[0-9a-fA-F]{2}|\\.|.", regex.DOTALL)

_PARTED = 3  # groups of an expression whose alternatives are split
_UNCLEAR = tuple(rf"\{one}" for one in "01234567x")  # readers disagree on how many digits belong to it
_CHOICES = 24  # texts that a part may be; with more, only a part of it counts
_CLASS = 3  # characters of a class that are enumerated
_COPIES = 40  # characters of a repeated text that are written out
_MOST = 256  # alternative literals of a set
_SHORT = 2  # shorter literals say nothing
_NO_LETTERS = bytes(set(range(256)) - set(b"abcdefghijklmnopqrstuvwxyz"))
LONG = 56
"""The most points of a literal: a longer one is no rarer."""
_OUTLINE = bytes.maketrans(b"123456789", b"0" * 9)


def outline(lines: bytes) -> bytes:
    """Return lines with every digit as `0`: those that differ only in digits become equal."""
    return lines.translate(_OUTLINE)


class Expression(NamedTuple):
    """A compiled form of a pattern, or of some of its alternatives, and what a line needs to match it: one literal of
    each set, the rarest set first.

    An expression that tells digits apart may match only one of two lines with the same outline. `blind` is its form for
    outlines, which matches the outline of every line that the expression matches; None for other expressions.
    """

    source: str
    sets: tuple[tuple[bytes, ...], ...]
    blind: str | None


class _Part(NamedTuple):
    """A part of a pattern: the possible texts at its end, if few; whether it is exactly one of them; and other
    literal sets it needs."""

    texts: frozenset[bytes] | None
    is_whole: bool = False
    needs: tuple[frozenset[bytes], ...] = ()

    def all_needs(self) -> tuple[frozenset[bytes], ...]:
        """Return the sets it needs, including its own texts."""
        if self.texts is None or min(map(len, self.texts)) < _SHORT:
            return self.needs
        return (*self.needs, self.texts)

    def then(self, other: "_Part") -> "_Part":
        """Return this part followed by another one."""
        if self.texts and other.texts and other.is_whole and len(self.texts) * len(other.texts) <= _CHOICES:
            texts = frozenset(one + another for one in self.texts for another in other.texts)
            return _Part(texts, self.is_whole, self.needs)
        return _Part(other.texts, False, self.all_needs() + other.needs)

    def repeated(self, least: int, most: int | None) -> "_Part":
        """Return this part repeated; `most` None means without limit."""
        if least == 0:
            is_optional = most == 1 and self.is_whole and self.texts and len(self.texts) < _CHOICES
            return _Part((self.texts or frozenset()) | {b""}, True) if is_optional else _ANYTHING
        if self.texts is not None and self.is_whole and len(self.texts) == 1:
            (text,) = self.texts
            copies = max(min(least, _COPIES // max(len(text), 1)), 1)
            return _Part(frozenset([text * copies]), most == least == copies)
        return self._replace(is_whole=most == least == 1 and self.is_whole)


_NOTHING = _Part(frozenset([b""]), True)
_ANYTHING = _Part(None)


class _Group:
    """A group being parsed: its finished branches, and the current branch's parts before the last, and the last."""

    def __init__(self) -> None:
        self.branches: list[_Part] = []
        self.before, self.part = _NOTHING, _NOTHING

    def add(self, part: _Part) -> None:
        self.before, self.part = self.before.then(self.part), part

    def branch(self) -> None:
        self.branches.append(self.before.then(self.part))
        self.before = self.part = _NOTHING

    def whole(self) -> _Part:
        self.branch()
        return self.branches[0] if len(self.branches) == 1 else _either(self.branches)


def expressions_of(pattern: str) -> tuple[Expression, ...]:
    """Return the expressions compiled for a rule's pattern; `RuleError` when it is too large or matches an empty line.
    Alternatives that tell digits apart become separate expressions, so that the others do not have to."""
    if require_small(pattern, WRITTEN_OUT).empty:
        raise RuleError(f"pattern {pattern!r}", "it matches an empty line", "Say what a line must hold.")
    return tuple(map(_expression, _parted(expand(pattern, ""))))


def _expression(source: str) -> Expression:
    groups = [_Group()]
    blind: list[str] = []
    tells = False
    splits = False  # the last part is one character of several bytes; a repeat would apply to the last byte
    for found in tokens(source):
        kind, text = found.lastgroup, found.group()
        if text in _UNCLEAR or (kind == "repeat" and found["upto"]):
            raise RuleError(f"pattern {source!r}", f"has {text} in it", "Write all digits, or the least number.")
        if kind in ("text", "class", "atom"):
            splits = len(text) == 1 and not text.isascii()
            if kind == "text":
                part = _Part(frozenset([outline(text.lower().encode())]), True)
            elif (members := _members(text)) is not None:
                part = _one_of(members)
            else:
                part = _Part(frozenset([text.encode()]), True) if splits else _ANYTHING
            groups[-1].add(part)
            if tells_digits(text, kind):
                tells, text = True, _blinded(text, kind)
        elif kind == "group":
            groups.append(_Group())
        elif kind == "end":
            whole = groups.pop().whole()
            groups[-1].add(whole)
        elif kind == "bar":
            groups[-1].branch()
        elif kind in ("flags", "anchor"):
            groups[-1].add(_NOTHING)
        else:
            least, most = repeat_of(source, found, WRITTEN_OUT.repeat)
            groups[-1].part = _ANYTHING if splits else groups[-1].part.repeated(least, most)
        blind.append(text)
    needs = sorted(set(groups[0].whole().all_needs()), key=rarity, reverse=True)
    return Expression(source, tuple(tuple(sorted(need)) for need in needs), "".join(blind) if tells else None)


def tells_digits(text: str, kind: str | None) -> bool:
    """Return whether a part of an expression tells digits apart."""
    if kind == "text":
        return any(map(str.isdigit, text))
    if kind not in ("class", "atom"):
        return False
    if (members := _members(text)) is None:
        return any(map(str.isdigit, text))
    return members & _DIGITS not in (frozenset(), _DIGITS)


def _blinded(text: str, kind: str | None) -> str:
    """Return the form for outlines of a part that tells digits apart."""
    if kind == "text":
        return outline(text.encode()).decode()
    members = (_members(text) or _LINE) - _DIGITS | {ord("0")}
    return "[" + "".join(rf"\x{one:02x}" for one in sorted(members)) + "]"


def _parted(source: str, times: int = _PARTED) -> Iterator[str]:
    """Yield equivalent expressions, with alternatives that tell digits apart split from the others."""
    parts = [(found.lastgroup, found.group()) for found in tokens(source)]
    depth, begin = 0, 0
    bars: list[int] = []
    for at, (kind, _) in enumerate(parts):
        if kind == "group":
            depth += 1
            if depth == 1:
                begin, bars = at, [at]
        elif kind == "bar" and depth == 1:
            bars.append(at)
        elif kind == "end":
            depth -= 1
            if depth == 0 and len(bars) > 1 and (at + 1 == len(parts) or parts[at + 1][0] != "repeat"):
                ends = [*bars[1:], at]
                branches = [parts[bar + 1 : end] for bar, end in zip(bars, ends, strict=True)]
                telling = [any(tells_digits(text, kind) for kind, text in branch) for branch in branches]
                flags = any(kind == "flags" for kind, _ in parts[begin:at])  # they apply to later alternatives, too
                if times and any(telling) and not all(telling) and not flags:
                    for wanted in (False, True):
                        some = [branch for branch, tells in zip(branches, telling, strict=True) if tells == wanted]
                        middle = "|".join("".join(text for _, text in branch) for branch in some)
                        head, tail = ("".join(text for _, text in some) for some in (parts[: begin + 1], parts[at:]))
                        yield from _parted(f"{head}{middle}{tail}", times - 1)
                    return
    yield source


def rarity(need: Iterable[bytes]) -> tuple[int, int, list[bytes]]:
    """Return a sort key: the fewer lines are likely to contain one of the literals, the larger. It begins with the
    points of the worst literal: four per letter, two per other mark, one per digit, at most `LONG`."""
    texts = sorted(need)
    letters = [text.translate(None, delete=_NO_LETTERS) for text in texts]
    points = (2 * len(text) + 2 * len(some) - text.count(b"0") for text, some in zip(texts, letters, strict=True))
    return min(LONG, *points), -len(texts), texts


def _either(parts: Sequence[_Part]) -> _Part:
    """Return the choice between parts."""
    if all(part.is_whole for part in parts):
        texts = frozenset[bytes]().union(*(part.texts or () for part in parts))
        if len(texts) <= _CHOICES:
            return _Part(texts, True)
    needs = [max(part.all_needs(), key=rarity, default=frozenset[bytes]()) for part in parts]
    either = frozenset[bytes]().union(*needs)
    return _Part(None, False, (either,)) if all(needs) and len(either) <= _MOST else _ANYTHING


def _one_of(members: frozenset[int]) -> _Part:
    """Return a part that is one of some bytes."""
    blind = {ord("0") if one in _DIGITS else one + 32 if one in _UPPER else one for one in members}
    return _Part(frozenset(bytes([one]) for one in blind), True) if len(blind) <= _CLASS else _ANYTHING


def _members(text: str) -> frozenset[int] | None:
    """Return the bytes that a class or an atom matches; None when unknown, or when it matches several in a row."""
    return _class(text) if text.startswith("[") else _atom(text)


def _atom(text: str) -> frozenset[int] | None:
    if text == ".":
        return _LINE
    if len(text) == 1:
        return frozenset(text.encode()) if text.isascii() else None
    return _escape(text)


def _escape(text: str) -> frozenset[int] | None:
    name = text[1]
    if name in _ESCAPES:
        return _ESCAPES[name]
    if name in _CONTROL:
        return frozenset([_CONTROL[name]])
    if name == "x" and len(text) == 4:
        return frozenset([int(text[2:], 16)])
    return frozenset(name.encode()) if name.isascii() and not name.isalnum() else None


def _class(text: str) -> frozenset[int] | None:
    """Return the bytes in a class; None when it is not understood."""
    body = text[1:-1].removeprefix("^")
    if "[:" in body or not body.isascii():
        return None
    parts = _MEMBER.findall(body)
    members = [frozenset(b"\b") if part == r"\b" else _atom(part) if part != "." else frozenset(b".") for part in parts]
    found: set[int] = set()
    at = 0
    while at < len(parts):
        here = members[at]
        if here is None:
            return None
        if at + 2 < len(parts) and parts[at + 1] == "-" and len(here) == 1:
            end = members[at + 2]
            if end is None or len(end) != 1:
                return None
            found |= set(range(min(here), max(end) + 1))
            at += 3
        else:
            found |= here
            at += 1
    return _LINE - found if text.startswith("[^") else frozenset(found)


_FORM = 2  # file format; raise when analysing a pattern gives another result
_MOST_KEPT = 20_000  # patterns in the file
_files: dict[Path, dict[str, tuple[Expression, ...]]] = {}  # patterns read or analysed, by file


@contextmanager
def known_expressions(cache: Path | None) -> Iterator[Callable[[str], tuple[Expression, ...]]]:
    """Yield `expressions_of` with a cache file: analysing thousands of patterns takes a second."""
    path = cache / f"expressions-{_FORM}" if cache else None
    known = _read(path) if path else {}
    before = len(known)

    def remembered(pattern: str) -> tuple[Expression, ...]:
        if (found := known.get(pattern)) is None:
            found = known[pattern] = expressions_of(pattern)
        return found

    yield remembered
    if path and len(known) > before:
        cache_files.write(path, msgspec.msgpack.encode(dict(list(known.items())[-_MOST_KEPT:])))


def _read(path: Path) -> dict[str, tuple[Expression, ...]]:
    if path not in _files:
        try:
            _files[path] = msgspec.msgpack.decode(cache_files.read(path) or b"", type=dict[str, tuple[Expression, ...]])
        except (msgspec.MsgspecError, ValueError):
            _files[path] = {}
    return _files[path]
