"""Patterns for the line that names a failure, without a model: constant text stays, the rest becomes fields.

Words stay as they are. Numbers, sizes, addresses, paths, hosts and quoted values become fields, so that a failure is
recognised on other hosts and ranks, in another size or with another library. Which words are specific is a guess, so
there are several patterns, the widest first, and the guards take the first one that does no harm.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import regex

from logdoctor.llm.masking import mask
from logdoctor.text import harmless, origin, shown

_LONGEST = 400  # characters of a message that a pattern covers
_MOST_PATTERN = 900  # characters
_MOST_TITLE = 120
_LONGEST_WORD = 60  # characters; anything longer is a value
_WORDS = 5  # words of the first sentences that are enough for a pattern

NUMBER = r"[-+]?\d[\d.,_]*"
SIZE = r"[\d.,]+ ?(?:[KMGTPkmgtp]?i?[Bb]|[Bb]ytes?)"
LIST = r"[\[(][-\d., ]*[\])]"
ITEMS = r"\[[^\]]*\]"
VALUE = r"""[^\s,;'"()]+"""
PATH = r"""[^\s'",;)]+"""
QUOTED = r"""(?:'[^']*'|"[^"]*"|`[^`]*`|[^\s'"`]+)"""
HIDDEN = r"\S+"
"""Fields for what differs between failures; linear in any engine."""

_TOKEN = regex.compile(
    r"(?P<space>\s+)"
    r"|(?P<hidden>[\w.:/+@-]*<[a-z]+(?:-\d+)?>[\w.:/+@-]*)"
    r"|(?P<quoted>(?<!\w)(?:'[^'\n]{1,200}'|\"[^\"\n]{1,200}\"|`[^`\n]{1,200}`)(?!\w))"
    r"|(?P<path>[A-Za-z][A-Za-z0-9+.-]{1,12}://[^\s'\"<>,;)\]]+|(?<!\w)(?:~|\.{1,2})?/[\w@%+=.~-][\w@%+=.,~/-]*"
    r"|[A-Za-z]:\\[^\s'\",;)]+|[\w.@+-]*[.\d][\w.@+-]*/[\w.@+/-]+|[\w.@+-]+/[\w.@+-]*[.\d][\w.@+/-]*"
    r"|[\w.@+-]+(?:/[\w.@+-]+){2,})"
    r"|(?P<list>[\[(]\s*-?\d[\d.]*(?:\s*,\s*-?\d[\d.]*)*\s*,?[\])])"
    r"|(?P<items>\[(?:'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|[\w.+-]{1,60}(?=\s*,))"
    r"(?:\s*,\s*(?:'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|[\w.+-]{1,60}))*\s*,?\])"
    r"|(?P<size>(?<![\w.])\d+(?:[.,]\d+)*\s?(?:[KMGTPkmgtp]?i?B|bytes?)\b)"
    r"|(?P<address>\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?|0x[0-9a-fA-F]+|[0-9a-fA-F]{2,4}(?::[0-9a-fA-F]{2,4})+(?:\.\d)?)"
    r"|(?P<timed>(?<!\w)[-+]?\d+(?:\.\d+)?(?=(?:ms|us|s|sec|secs|min|h|x|%)\b))"
    r"|(?P<number>(?<![\w.])[-+]?\d+(?:[.,_]\d+)*(?:[eE][-+]?\d+)?(?![\w-]))"
    r"|(?P<library>lib\w+\.so(?:\.[\d.]*\d)?)"
    r"|(?P<name>[A-Za-z_][\w.-]*\d[\w.+-]*\w|[A-Za-z_][\w-]*\d\b|\d[\w.+-]*\w|\d)"
    r"|(?P<word>[^\W\d_][^\W\d]*(?:\.[^\W\d]\w*(?=\W|$))*)"
    r"|(?P<mark>.)",
    regex.DOTALL,
)
_CLASS = regex.compile(
    r"(?:[A-Za-z_]\w*\.)*(?P<name>[A-Z]\w*(?:Error|Exception|Failure|Fault|Interrupt|Timeout|Killed|Exit))(?=[:(\s]|$)"
)
_CODE = regex.compile(
    r"(?i)(?<![a-z])(?:errno|error|err|code|exit_?code|status|s?xid|signal|rc|ret)(?: code)?"
    r"\s?[=:(#]{0,2}\s?(?:PCI:\S+ )?$"
)
_FIXED = regex.compile(
    r"(?i)s3|[bt]?fp?\d{1,2}|u?int\d{1,2}|utf-?\d+|ipv[46]|k8s|sha\d+|md5|zero[123]|nccl2|e2e|h5|hdf5"
)
"""Words that contain a digit."""
_PLAIN = regex.compile(r"[^\W\d][^\W\d]*(?:[ ._-][^\W\d]+){0,3}")
_SENTENCE = regex.compile(r"(?<=[^\W\d]{2,}|\W)[.;!](?=\s)|\s(?=\()")
_DIGITS = regex.compile(r"\d+")
_QUOTE = """['"`]?"""
_SPECIAL = set("\\^$.|?*+()[]{}")


class Task(NamedTuple):
    """A request for a pattern: a raw line that names a failure, lines of other attempts with the same failure
    (`examples`), lines `around` it, `others` that mean something else, and the reason. `marked`: the line looks like
    trouble by itself; otherwise only its values tell it from routine, and they stay as they are."""

    job: str
    attempt: int
    line: str
    examples: tuple[str, ...]
    around: tuple[str, ...]
    others: tuple[str, ...]
    reason: str
    marked: bool = True


class Written(NamedTuple):
    """A pattern, a title for its rule, and its author."""

    pattern: str
    title: str
    by: str


class Writer(Protocol):
    """Writes patterns for a failure, the first to try in front; never raises `ModelError`."""

    name: str

    def write(self, task: Task) -> list[Written]:
        """Return the patterns; [] when the line says too little."""
        ...


class OfflineWriter:
    """Writes patterns from the structure of the line alone."""

    name = "structure"

    def write(self, task: Task) -> list[Written]:
        """Return the patterns for the line, the widest first."""
        title = title_of(task.line)
        return [Written(one, title, self.name) for one in patterns(task.line, task.examples, not task.marked)]


def pattern(line: str, examples: Sequence[str] = ()) -> str:
    """Return the widest pattern for a raw line that names a failure; "" when none of it is text."""
    return next(iter(patterns(line, examples)), "")


def patterns(line: str, examples: Sequence[str] = (), exact: bool = False) -> list[str]:
    """Return patterns for a raw line, the widest first; where an example of the same form differs, there is a field.

    Secrets in the line are in none of them. An `exact` one keeps short numbers and names.
    """
    message = message_of(line)
    others = [message_of(example) for example in examples]
    found: list[str] = []
    for level in (_EXACT,) if exact else _LEVELS:
        parts = _merged(list(_parts(message, level)), [list(_parts(other, level)) for other in others])
        found.append(_joined(message, parts, level))
        hidden = next((place for place, part in enumerate(parts) if part.text == HIDDEN), None)
        if hidden is not None:  # the secret may have contained blanks, which its mask does not
            found.append(_joined(message, parts[:hidden], level))
    return [one for one in dict.fromkeys(found) if one]


def message_of(line: str) -> str:
    """Return the beginning of the line's message as used for patterns, masked."""
    return mask(origin(shown(line)).message[: 4 * _LONGEST]).rstrip()[:_LONGEST]


def title_of(line: str) -> str:
    """Return the line's message as a title for a rule."""
    return harmless(message_of(line).strip(), _MOST_TITLE)


class _Level(NamedTuple):
    """How wide a pattern is: whether it ends with the first sentence, and whether it keeps plain quoted words, names
    and numbers."""

    sentence: bool
    words: bool
    names: bool
    numbers: bool = False


_LEVELS = (
    _Level(True, False, False),
    _Level(False, False, False),
    _Level(False, True, False),
    _Level(False, True, True),
)


_EXACT = _Level(False, True, True, True)


class _Part(NamedTuple):
    """A piece of a pattern: text when `own`, else a field or blanks. `end` is its end in the message."""

    text: str
    own: bool
    end: int


def _parts(message: str, level: _Level) -> Iterator[_Part]:
    at = len(message) - len(message.lstrip())
    if at:
        yield _Part(r"\s*", False, at)
    if named := _CLASS.match(message, at):
        yield _Part(rf"(?:[\w.]+\.)?{escaped(named['name'])}", True, named.end())
        at = named.end()
    end = len(message) if not level.sentence else _first_sentences(message, at)
    for token in _TOKEN.finditer(message, at):
        if token.start() >= end:
            return
        yield from _of_token(message, token, level)


def _first_sentences(message: str, start: int) -> int:
    """Return the end of the first sentences that have enough words."""
    for stop in _SENTENCE.finditer(message, start):
        if len(regex.findall(r"[^\W\d_]{3,}", message[start : stop.start()])) >= _WORDS:
            return stop.start()
    return len(message)


def _of_token(message: str, token: regex.Match[str], level: _Level) -> Iterator[_Part]:
    kind, text, end = str(token.lastgroup), token.group(), token.end()
    behind = message[max(token.start() - 30, 0) : token.start()]
    if kind == "space":
        yield _Part(r"\s+", False, end)
    elif kind in ("word", "name") and (len(text) > _LONGEST_WORD or (behind.endswith("=") and not level.words)):
        yield _Part(VALUE, False, end)
    elif kind == "mark" and not (text.isprintable() and text != "\N{REPLACEMENT CHARACTER}"):
        yield _Part(r"\S+", False, end)
    elif kind in ("word", "mark"):
        yield _Part(escaped(text), True, end)
    elif kind == "quoted":
        inner = text[1:-1]
        if level.words and len(inner) <= 60 and _PLAIN.fullmatch(inner):
            yield _Part(f"{_QUOTE}{_spaced(inner)}{_QUOTE}", True, end)
        else:
            yield _Part(QUOTED, False, end)
    elif kind in ("number", "timed") and len(text) <= 5 and (level.numbers or _CODE.search(behind)):
        yield _Part(escaped(text), True, end)
    elif kind in ("name", "library"):
        yield _named(text, level, end)
    elif kind == "path":
        stem = _DIGITS.split(text.rsplit("/", 1)[-1])[0] if level.names else ""
        keeps = len(stem) > 3 and stem.isprintable()
        yield _Part(rf"\S*{escaped(stem)}\S*" if keeps else PATH, keeps, end)
    else:
        fields = {
            "hidden": HIDDEN,
            "list": LIST,
            "items": ITEMS,
            "size": SIZE,
            "address": VALUE,
            "number": NUMBER,
            "timed": NUMBER,
        }
        yield _Part(fields[kind], False, end)


def _named(text: str, level: _Level, end: int) -> _Part:
    """Return the part for a name with digits: a host, file, device or format."""
    if _FIXED.fullmatch(text):
        return _Part(escaped(text), True, end)
    if text.startswith("lib") and ".so" in text:
        return _Part(rf"{escaped(text.split('.so', 1)[0])}\.so\S*", True, end)
    if not level.names or text[0].isdigit():
        return _Part(VALUE, False, end)
    pieces = _DIGITS.split(text)
    return _Part(r"\d+".join(map(escaped, pieces)), any(len(piece) > 2 for piece in pieces), end)


def _merged(parts: list[_Part], others: Sequence[list[_Part]]) -> list[_Part]:
    """Return the parts, with fields where those of another line of the same form differ."""
    for other in others:
        if len(other) != len(parts):
            continue
        parts = [
            mine if mine.text == theirs.text else _Part(VALUE, False, mine.end)
            for mine, theirs in zip(parts, other, strict=True)
        ]
    return parts


def _joined(message: str, parts: Sequence[_Part], level: _Level) -> str:
    """Return the pattern of the parts, up to the last text that fits; "" without any."""
    text, whole = "^", ""
    for part in parts:
        if len(text) + len(part.text) > _MOST_PATTERN:
            break
        if text.endswith(part.text) and not part.own:
            continue  # consecutive fields are one
        text += part.text
        if part.own and any(char.isalnum() for char in message[max(part.end - 40, 0) : part.end]):
            whole = text
    return whole


def _spaced(text: str) -> str:
    return r"\s+".join(map(escaped, text.split()))


def escaped(text: str) -> str:
    """Return a pattern that matches just this text."""
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in text)
