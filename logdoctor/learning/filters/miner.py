"""The Log Agent without a model: templates mined by Drain3, turned into anchored patterns with typed fields.

Drain (He et al., ICWS '17) groups lines by their number of words and their common words. The depth of its tree, the
required similarity and the order of the lines change what it finds: runs that differ in these vote.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import regex
from drain3.drain import Drain

from logdoctor.learning.filters.heads import TAIL, TEXTS, label_cause
from logdoctor.learning.filters.proposal import Answer, FilterCandidate, Judgement, Proposal, Sample
from logdoctor.learning.filters.sample import REPEATS, order
from logdoctor.rules import marks
from logdoctor.text import origin

_LOOKS = ((4, 8), (4, 10), (5, 7), (4, 12), (6, 9))
"""Depth of the tree, and the number of words per word that may differ, run by run."""
_FAMILY = 20
"""Groups that together make a fixed form although each hardly repeats, such as configuration lines."""
_STATES = 8  # last states of a bar that are examined
_EDGE = "\x00"  # around a field's name; in a log it counts as a blank
_ALIKE = {"hex": "number"}  # some words in a hexadecimal column consist of digits alone
_FEW = 6  # words that are enumerated rather than described
_BLOCKS = "\u2588\u2589\u258a\u258b\u258c\u258d\u258e\u258f\u2591\u2592\u2593\u2501\u2578\u257a"
"""Characters of progress bars."""
_NUMBER = r"(?<![\w.)\]])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w*\d)|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_HOST_NAME = (
    r"(?:[A-Za-z0-9](?:[\w-]*[A-Za-z0-9])?\.)+"
    r"(?:com|net|org|edu|gov|mil|local|internal|intranet|lan|corp|svc|cluster|home|arpa"
    r"|[A-Za-z0-9](?:[\w-]*[A-Za-z0-9])?\.(?:cn|hk|tw|jp|kr|sg|au|nz|ru|de|nl|fr|pl|cz|uk|se|fi|dk|br|ca|eu))"
)
_IP = r"\d{1,3}(?:\.\d{1,3}){3}"
_PIECE = regex.compile(
    r"(?P<blank>[ \t\x00]+)"
    rf"|(?P<bar>\|[ #=>{_BLOCKS}]*\|)"
    r"|(?P<url>[a-z][a-z0-9+]*://[^\s\"'<>|,;)\]}]+)"
    r"|(?P<path>(?<![^\s='\"(\[:,])/[\w.+@~%-][\w.+@~%/-]*)"
    rf"|(?P<host>(?<![\w.@/-])(?:{_HOST_NAME}|{_IP})(?![\w-]|\.\w))"
    r"|(?P<clock>(?<![\w.])(?:\d+(?::\d\d(?!\d))+(?:\.\d+)?|\d+(?:\.\d+){2,}))"
    r"|(?P<address>0[xX][0-9a-fA-F]+)"
    r"|(?P<hex>(?<![^\W_])(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{3,}(?![\w-]))"
    r"|(?P<name>(?<![\w-])[A-Za-z_][A-Za-z_-]*\d[\w-]*)"
    rf"|(?P<number>{_NUMBER})"
    r"|(?P<dots>\.{4,}|-{4,}|={4,}|\*{4,})"
    r"|(?P<word>[A-Za-z_]+|.)",
    regex.ASCII | regex.DOTALL,
)
_FIELDS = {
    "bar": f"\\|[ #=>{_BLOCKS}]*\\|",
    "url": r"[a-z][a-z0-9+]*://[^\t \"'<>|,;)\]}]+",
    "path": r"/[A-Za-z0-9_.+@~%/-]+",
    "clock": r"[0-9:.]+",
    "name": r"[A-Za-z0-9_-]+",
    "address": "0[xX][0-9a-fA-F]+",
    "hex": "[0-9a-fA-F]+",
}
"""Fields whose pattern does not depend on their values."""


class Piece(NamedTuple):
    """A part of a line: its kind of field, or `word`, and its text."""

    kind: str
    text: str


Token = tuple[Piece, ...]
"""What stands between two blanks."""


class Miner:
    """An `Agent` of code alone. `judge` keeps everything."""

    name = "miner"
    room = 400_000
    free = True
    groups = 400  # Drain compares all that begin alike with each other

    def propose(self, sample: Sample, run: int) -> Answer:
        """Return patterns for each cluster of repeating lines, and each large family of others."""
        places = order(sample, run)
        often = [place for place in places if sample.counts[sample.groups[place]] >= REPEATS]
        seldom = [place for place in places if sample.counts[sample.groups[place]] < REPEATS]
        found = list(_clusters(sample, often, run))
        found += [forms for forms in _clusters(sample, seldom, run) if len({form.group for form in forms}) >= _FAMILY]
        wide, narrow = ([_proposal(forms, narrow) for forms in found] for narrow in (False, True))
        return Answer(tuple(dict.fromkeys(wide + narrow)))

    def singly(self, sample: Sample, places: Collection[int]) -> list[Proposal]:
        """Return patterns for single forms of repeating groups, and for heads with any text behind. Where Drain
        clusters lines with too little in common, such as assignments of many names, each may still be matched
        separately."""
        forms: dict[tuple[object, ...], list[_Form]] = defaultdict(list)
        every: list[_Form] = []
        for place in sorted(places):
            group = sample.groups[place]
            message = origin(sample.lines[place]).message.rstrip("\r")
            for state in _states(message)[-_STATES:]:
                form = _Form(state, _tokens(state), "\r" in message, group)
                every += [] if form.redrawn else [form]
                if form.tokens and sample.counts[group] >= REPEATS:
                    forms[group, form.kinds()].append(form)
        heads = list(_heads(every))
        single = [_proposal(some, narrow) for narrow in (False, True) for some in forms.values()]
        return list(dict.fromkeys([*heads, *single]))

    def judge(self, sample: Sample, candidates: Sequence[FilterCandidate], runs: int) -> list[Judgement]:
        """Keep all: agreement is the miner's only judge, and code has counted it already."""
        return [Judgement(True, f"{len(one.runs)} of {runs} runs found it") for one in candidates]


class _Form(NamedTuple):
    """A message, or one state of a redrawn bar; its words, and the group of the line."""

    text: str
    tokens: tuple[Token, ...]
    redrawn: bool
    group: int

    def shown(self) -> str:
        """Return it as Drain sees it: fields of one kind look alike, bars differ from other lines."""
        return " ".join(map(_shown, self.tokens)) + (f" {_EDGE}redrawn" if self.redrawn else "")

    def kinds(self) -> tuple[tuple[str, ...], ...]:
        """Return the kinds of its pieces: lines that differ in them have different forms, however similar."""
        return tuple(tuple(_ALIKE.get(piece.kind, piece.kind) for piece in token) for token in self.tokens)


def _clusters(sample: Sample, places: Sequence[int], run: int) -> Iterable[list[_Form]]:
    """Return the lines at these places, clustered by Drain and by their kinds of fields."""
    depth, stride = _LOOKS[run % len(_LOOKS)]
    drains: dict[int, Drain] = {}
    clusters: dict[str, int] = {}
    members: dict[tuple[object, ...], list[_Form]] = defaultdict(list)
    for place in places:
        message = origin(sample.lines[place]).message.rstrip("\r")
        for state in _states(message)[-_STATES:]:
            form = _Form(state, _tokens(state), "\r" in message, sample.groups[place])
            if words := len(form.tokens):
                shown = form.shown()
                if shown not in clusters:  # lines of a group hardly differ there, and Drain is slow
                    drain = drains.setdefault(words, Drain(depth=depth, sim_th=_similarity(words, stride)))
                    clusters[shown] = drain.add_log_message(shown)[0].cluster_id
                members[words, clusters[shown], form.kinds()].append(form)
    return members.values()


def _similarity(words: int, stride: int) -> float:
    """Return the least share of equal words in lines of this length: one may differ, in long lines more."""
    differ = 1 + words // stride if words > 1 else 0
    return (words - differ) / words - 1e-9


def _states(message: str) -> list[str]:
    """Return the successive states of a redrawn bar, or the whole message."""
    return [state for state in message.split("\r") if state.strip()]


@lru_cache(maxsize=10_000)
def _tokens(message: str) -> tuple[Token, ...]:
    """Return the words of a message, split into fixed text and fields; zero counts of trouble are fixed. Cached,
    because each run needs the same."""
    fixed = [match.span() for match in marks.zero_counts(message)]
    tokens: list[list[Piece]] = [[]]
    for match in _PIECE.finditer(message):
        kind = match.lastgroup or "word"
        if kind == "blank":
            tokens.append([])
            continue
        if any(begin < match.end() and match.start() < end for begin, end in fixed):
            kind = "word"
        last = tokens[-1]
        if kind == "word" and last and last[-1].kind == "word":
            last[-1] = Piece("word", last[-1].text + match.group())
        else:
            last.append(Piece(kind, match.group()))
    return tuple(tuple(token) for token in tokens if token)


def _shown(token: Token) -> str:
    """Return a token with its fields named; no log can contain such a name."""
    return "".join(piece.text if piece.kind == "word" else _named(piece) for piece in token)


def _named(piece: Piece) -> str:
    return f"{_EDGE}{piece.kind}{piece.text[0] if piece.kind == 'dots' else ''}{_EDGE}"


def _proposal(forms: list[_Form], narrow: bool = False) -> Proposal:
    """Return the pattern that fits a whole cluster, and its text with `…` for fields.

    A `narrow` one enumerates names that count only a few things (`(?:eth\\d+|DP\\d+)`): it matches less of other jobs,
    but may pass where any name is too much.
    """
    words, titles = [], []
    for column in zip(*(form.tokens for form in forms), strict=True):
        looks = _looks(column)
        words.append(_expression(column, looks, narrow))
        titles.append(regex.sub(f"{_EDGE}[^{_EDGE}]*{_EDGE}", "…", min(looks)) if len(looks) == 1 else "…")
    blank = r"[ \t]+" if any("\t" in form.text for form in forms) else " +"
    lead = r"[ \t]*" if any(form.text[:1] in (" ", "\t") for form in forms) else ""
    trail = r"[ \t]*" if any(form.text[-1:] in (" ", "\t") for form in forms) else ""
    body = f"{lead}{blank.join(words)}{trail}"
    return Proposal(rf"^(?:\r*{body})+\r*$" if forms[0].redrawn else f"^{body}$", " ".join(titles)[:120])


def _heads(forms: Sequence[_Form]) -> Iterable[Proposal]:
    """Yield the shortest pattern for each shared beginning that continues in many ways. Insufficient ones are included,
    so that the guards say why."""
    left = [(forms, 0)]  # forms with the same first words, and the number of these
    while left:
        forms, depth = left.pop()
        nexts: dict[str, list[_Form]] = {}
        for form in forms:
            if len(form.tokens) > depth:
                nexts.setdefault(_shown(form.tokens[depth]), []).append(form)
        if depth and len(nexts) >= TEXTS:
            some = [form._replace(tokens=form.tokens[:depth]) for one in nexts.values() for form in one]
            head, title = _proposal(some)
            head = head.removesuffix("$").removesuffix(r"[ \t]*")
            yield Proposal(rf"{head}[ \t]+{TAIL}$", f"{title} …")
            literal = " ".join(piece.text for token in some[0].tokens for piece in token if piece.kind == "word")
            if label_cause(f"{literal} ") is None:
                continue
        left += [(some, depth + 1) for some in reversed(nexts.values()) if len(some) >= TEXTS]


def _looks(column: Sequence[Token]) -> dict[str, list[Token]]:
    """Return the tokens of a column by what Drain sees of them."""
    looks: dict[str, list[Token]] = {}
    for token in column:
        looks.setdefault(_shown(token), []).append(token)
    return looks


def _come_again(values: list[str]) -> bool:
    """Return whether values are few, and each repeats."""
    counts = Counter(values)
    return len(counts) <= _FEW and min(counts.values()) > 1


def _expression(column: Sequence[Token], looks: dict[str, list[Token]], narrow: bool) -> str:
    """Return the expression for a column of tokens, given by look."""
    if len(looks) > 1 and not _come_again([_shown(token) for token in column]):
        return _described([_text(token) for token in column])
    return _either(_fields(tokens, narrow) for tokens in looks.values())


def _either(expressions: Iterable[str]) -> str:
    distinct = sorted(set(expressions))
    return distinct[0] if len(distinct) == 1 else f"(?:{'|'.join(distinct)})"


def _text(token: Token) -> str:
    return "".join(piece.text for piece in token)


def _fields(column: Sequence[Token], narrow: bool) -> str:
    """Return the expression for tokens of one form: their fixed text, and a class for each field."""
    parts = []
    for pieces in zip(*column, strict=True):
        values = [piece.text for piece in pieces]
        match pieces[0].kind:
            case "number":
                parts.append(_number(values))
            case "host":
                parts.append("[0-9.]+" if all(map(_DIGITAL.fullmatch, values)) else "[A-Za-z0-9_.-]+")
            case "dots":
                parts.append(f"{regex.escape(values[0][0])}{{4,}}")
            case "word":
                parts.append(regex.escape(values[0], literal_spaces=True))
            case "name" if narrow and len(stems := set(map(_stem, values))) <= _FEW:
                parts.append(_either(stems))
            case kind:
                parts.append(_FIELDS[kind])
    return "".join(parts)


def _stem(name: str) -> str:
    """Return the expression for names that count the same things, such as `DP0` and `DP7`."""
    return r"\d+".join(map(regex.escape, regex.split(r"\d+", name)))


def _number(values: Iterable[str]) -> str:
    """Return the class of printed numbers: integers stay integers, and one that is always 0 is text."""
    values = list(values)
    if len(values) >= REPEATS and set(values) == {"0"}:
        return "0"
    if all(value.isdigit() for value in values):
        return r"\d+"
    return r"[-+]?\d+" if all(value.lstrip("-+").isdigit() for value in values) else r"[-+\d.,eE]+"


def _described(values: list[str]) -> str:
    """Return the expression for words that differ: their common text, and the character class of the rest."""
    distinct = sorted(set(values))
    if all(map(_HEX.fullmatch, distinct)):
        return "[0-9a-fA-F]+"
    if all(map(_HEX_LIST.fullmatch, distinct)):
        return "[0-9a-fA-F,.:-]+"
    start = _common(distinct)
    rests = [value[len(start) :] for value in distinct]
    end = _common([rest[::-1] for rest in rests])[::-1]
    middles = [rest[: len(rest) - len(end)] for rest in rests]
    if len(set(middles)) <= _FEW and all(middle.isascii() and middle.isalpha() for middle in middles):
        return f"{regex.escape(start)}{_either(middles)}{regex.escape(end)}"
    some = "*" if "" in middles else "+"
    return f"{regex.escape(start)}{_class(''.join(middles))}{some}{regex.escape(end)}"


def _common(values: list[str]) -> str:
    """Return the common prefix of all values, up to the last mark between words."""
    first, last = min(values), max(values)
    length = next(
        (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    while length and first[length - 1].isalnum():
        length -= 1
    return first[:length]


_DIGITAL = regex.compile(r"[\d.]+")
_HEX = regex.compile(r"(?=.*\d)[0-9a-fA-F]+")
_HEX_LIST = regex.compile(r"(?=.*\d)[0-9a-fA-F]{2,}(?:[,.:-][0-9a-fA-F]{2,})+")
_RANGES = (("0-9", regex.compile("[0-9]")), ("a-z", regex.compile("[a-z]")), ("A-Z", regex.compile("[A-Z]")))


def _class(text: str) -> str:
    """Return the class of a text's characters; letters and digits as whole ranges."""
    ranges = [name for name, expression in _RANGES if expression.search(text)]
    marks_ = sorted({c for c in text if c.isascii() and not c.isalnum() and c.isprintable()})
    if any(not c.isascii() for c in text):
        return r"\S"
    return f"[{''.join(ranges)}{''.join(regex.escape(c) for c in marks_)}]"
