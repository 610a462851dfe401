"""Python tracebacks in interleaved output, read per writer as whole chains.

A traceback is a header, indented frames, and the line that names the exception. Chains ("During handling of...", "The
above exception was the direct cause...", "Original Traceback" of a worker) are one episode.
"""

from typing import NamedTuple

import regex

from logdoctor.text import LineOrigin
from logdoctor.text import origin as parsed
from logdoctor.types import Line

_HEADER = regex.compile(r"Traceback \(most recent call last\)")
_BEHIND_BAR = regex.compile(r"[\w\]](?P<marks>\[[Rr]ank ?\d{1,9}\]: ?)(?:\w+ )?Traceback \(most")
"""A header in the line of an unfinished progress bar."""
_FRAME = regex.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_GROUP_EDGE = regex.compile(r"^\s*(?:\| ?|\+[-+ ]*)")
_EXCEPTION = regex.compile(
    r"^(?P<name>[A-Za-z_][\w.]*?(?:\((?P<inner>[A-Za-z_][\w.]*)\))?)(?:: (?P<message>.*)|:?\s*)$",
    regex.DOTALL,
)
_TORN = regex.compile(
    r"^(?P<name>(?:Assertion|Attribute|FileNotFound|Import|Index|Key|ModuleNotFound|Name|NotImplemented|OS|Permission|"
    r"Runtime|Type|Value|ZeroDivision)Error)(?P<message>(?:['\"]|(?=.*(?P=name))[^\s:]).*)$",
    regex.DOTALL,
)
"""Exception lines of several writers mixed into one: a quote is glued to the name, or the name recurs."""
_BUILT_IN = regex.compile(
    r"(?:Assertion|Attribute|FileNotFound|Import|Index|Key|ModuleNotFound|Name|NotImplemented|OS|Permission|Runtime|Type"
    r"|Value|ZeroDivision)Error"
)
_LEAST_SAID = 8  # fewest letters of a message among torn names
_PLAIN_NAME = regex.compile(r"(?:^|\.)[A-Z]\w*$|^\w+\.\w+$|(?i:error|interrupt|exit|timeout)$")
_SURE_NAME = regex.compile(r"(?:Error|Exception|Interrupt|Exit|Timeout|Warning|Failure|Fault|Killed|Iteration)$")
_DIGIT, _CLOCK = regex.compile(r"\d"), regex.compile(r"\d:\d\d")
_OF_ERRORS = regex.compile(
    r"(?i)\b(?:level\w{0,5}|lvl|severity)\W{1,10}(?:err(?:or)?|crit\w{0,5}|fatal|exception)\b|^.{0,80}\b(?-i:ERROR|CRITICAL|FATAL)\b"
)
_FIELD = regex.compile(r"(?i)\b(?:exc_info|exc_text|exception|traceback|stack_?trace|stack|error)\\{0,3}\W{1,8}$")
_NAME = 60  # characters before a report in which its field is named
_ESCAPED = regex.compile(r"(?:[^\"\\]|\\.)*+", regex.DOTALL)
"""A report up to the end of the text that it is quoted in."""
_ESCAPE = regex.compile(r"\\(.)", regex.DOTALL)
_BLANKS = {"n": "\n", "t": "\t", "r": ""}
_ROWS = 2000  # lines of a report in one line
_COLUMN = 8  # blanks that are the empty columns of a table
_LENGTHS = 32  # most lengths of prefixes in a channel
_NEAR = 3  # lines after a doubtful exception in which the true one may follow
_DIRECT = "The above exception was the direct cause of the following exception"
_CONTEXT = "During handling of the above exception, another exception occurred"
_SPAWNED = regex.compile(r"^-- Process \d+ terminated with the following error")
"""What torch.multiprocessing prints between its own exception and the failed process's traceback."""
_CHAIN_LINES = 40  # longest message, in lines, before the words that chain another exception to it
_OPEN_LINES = 60  # lines without a frame after which an unfinished traceback ends


class Raised(NamedTuple):
    """One exception of a chain: the line that names it, and its link to the one before. `torn` when several writers'
    lines mix in it."""

    line: int
    name: str
    message: str
    link: str
    frames: tuple[str, ...]
    code: str
    torn: bool = False


class Traceback(NamedTuple):
    """A chain of exceptions by one writer, in the order they were printed (innermost first).

    `raised` is empty when the report breaks off before it names an exception.
    """

    first: int
    last: int
    raised: tuple[Raised, ...]


class _Open:
    """A chain that is being read; `torn` when another header directly precedes its own, as writers interleave."""

    def __init__(self, first: int, torn: bool) -> None:
        self.first = self.last = first
        self.torn = torn
        self.raised: list[Raised] = []
        self.frames: list[str] = []
        self.code = ""
        self.link = ""
        self.in_frames = True
        self.idle = 0

    def resume(self) -> None:
        """Return to the frames: the supposed exception was a line between them."""
        raised = self.raised.pop()
        self.frames, self.code, self.link, self.in_frames = list(raised.frames), raised.code, raised.link, True

    def begin_again(self, link: str) -> None:
        self.frames, self.code, self.link, self.in_frames, self.idle = [], "", link or self.link, True, 0


def tracebacks(lines: list[tuple[Line, LineOrigin]]) -> list[Traceback]:
    """Return the traceback chains of one stream; each writer's lines are read separately."""
    done: list[Traceback] = []
    open_chains: dict[str, _Open] = {}
    margins = _margins(lines)
    for line, origin in lines:
        if (report := _in_one_line(line)) is not None:
            done.append(report)
            continue
        message, channel = _without_edge(origin.message), origin.channel
        if channel in margins and (margin := margins[channel].of(message)) is not None:
            message, channel = message[len(margin) :], f"{channel}{margin}"
        if _HEADER.search(message):
            behind = _BEHIND_BAR.search(message)
            channel += parsed(behind["marks"]).channel if behind else ""
            chain = open_chains.get(channel)
            if chain is None or not _continues(chain, message, line.number):
                torn = chain is not None and not chain.frames and chain.first == line.number - 1
                _close(open_chains, channel, done)
                open_chains[channel] = _Open(line.number, torn)
            else:
                chain.begin_again("" if chain.link else "direct")
            continue
        chain = open_chains.get(channel)
        if chain is not None and not _read(chain, line, message):
            _close(open_chains, channel, done)
    for channel in list(open_chains):
        _close(open_chains, channel, done)
    return sorted(done)


def _in_one_line(line: Line) -> Traceback | None:
    """Return the chain of exceptions that a structured logger wrote into one line, with its line ends escaped."""
    found = _HEADER.search(line.text) if "\\n" in line.text else None
    if found is None or not _reports_an_error(line.text[: found.start()]):
        return None
    if not (escaped := _ESCAPED.match(line.text, found.start())):
        return None
    plain = _ESCAPE.sub(_unescaped, escaped.group())
    if "\n" not in plain or "\\n" in plain:  # a record within a record
        plain = _ESCAPE.sub(_unescaped, plain)
    rows = [(Line(line.number, row), parsed(row)) for row in plain.split("\n")[:_ROWS]]
    chains = tracebacks(rows) if len(rows) > 1 else []
    return (
        Traceback(line.number, line.number, tuple(one for chain in chains for one in chain.raised)) if chains else None
    )


def _reports_an_error(before: str) -> bool:
    """Return whether a record, by what stands before a report in it, tells of an error of its own: by its level, or by
    the name of the field. Other reports are data."""
    return _OF_ERRORS.search(before) is not None or _FIELD.search(before[-_NAME:]) is not None


def _unescaped(found: regex.Match[str]) -> str:
    return _BLANKS.get(found[1], found[1])


class _Margins:
    """Prefixes of report lines, found by their length; at most 32 lengths are kept. Digits may differ in a prefix with
    a clock."""

    def __init__(self) -> None:
        self._by_length: dict[int, dict[str, str]] = {}

    def add(self, margin: str) -> None:
        """Add a prefix, in place of those of the oldest length when there are too many."""
        if len(margin) not in self._by_length and len(self._by_length) == _LENGTHS:
            del self._by_length[next(iter(self._by_length))]
        self._by_length.setdefault(len(margin), {}).setdefault(_without_numbers(margin), margin)

    def of(self, message: str, end: int | None = None) -> str | None:
        """Return the known prefix of a message; only blanks may follow it up to `end`."""
        for length, known in self._by_length.items():
            if end is None or message[length:end].isspace():
                begin = message[:length]
                margin = known.get(begin) or known.get(_without_numbers(begin))
                if margin is not None:
                    return margin
        return None


def _without_numbers(margin: str) -> str:
    """Return a prefix with a clock, whose numbers change by line, with each digit as 0."""
    return _DIGIT.sub("0", margin) if _CLOCK.search(margin) else margin


def _margins(lines: list[tuple[Line, LineOrigin]]) -> dict[str, _Margins]:
    """Return for each channel the prefixes that precede both headers and frames. They are unknown log prefixes, indents
    of reports, or quoting marks. A wide indent is the column of a table, in which frames are wrapped."""
    found: dict[str, _Margins] = {}
    headed: dict[str, _Margins] = {}
    for _, origin in lines:
        message = _without_edge(origin.message)
        if header := _HEADER.search(message):
            if before := message[: header.start()]:
                kind = found if len(before) >= _COLUMN and before.isspace() else headed
                kind.setdefault(origin.channel, _Margins()).add(before)
        elif origin.channel in headed and (at := message.find('File "')) > 0:
            margin = headed[origin.channel].of(message, at)
            if margin is not None and _FRAME.match(message[len(margin) :]):
                found.setdefault(origin.channel, _Margins()).add(margin)
    return found


def _without_edge(message: str) -> str:
    """Return a line without the border of an exception group."""
    return _GROUP_EDGE.sub("", message) if message.lstrip()[:1] in ("|", "+") else message


def _continues(chain: _Open, header: str, number: int) -> bool:
    """Return whether a header opens the next exception of a chain rather than a new report."""
    if chain.in_frames:
        return False
    return (
        bool(chain.link)
        or "Original Traceback" in header
        or (number - chain.last <= 2 and chain.raised[-1].name.endswith(("RemoteTraceback", "ExceptionGroup")))
    )


def _close(chains: dict[str, _Open], channel: str, done: list[Traceback]) -> None:
    chain = chains.pop(channel, None)
    if chain is not None and (chain.raised or chain.frames):
        done.append(Traceback(chain.first, chain.last, tuple(chain.raised)))


def _read(chain: _Open, line: Line, message: str) -> bool:
    """Add the writer's next line to the chain; return False if the chain is over."""
    chain.idle += 1
    if chain.in_frames:
        return _read_frames(chain, line, message)
    if _is_doubtful(chain.raised[-1]) and (_FRAME.match(message) or (chain.idle <= _NEAR and _names(message))):
        chain.resume()
        return _read_frames(chain, line, message)
    if _FRAME.match(message) and _is_carrier(chain.raised[-1]):
        chain.begin_again("direct")
        return _read_frames(chain, line, message)
    if _DIRECT in message or _CONTEXT in message or _SPAWNED.match(message):
        chain.link = "context" if _CONTEXT in message else "direct"
        chain.idle = 0
        return True
    return chain.idle <= (_CHAIN_LINES if not chain.link else 6)


def _read_frames(chain: _Open, line: Line, message: str) -> bool:
    if frame := _FRAME.match(message):
        function = (frame["function"] or "").strip()
        chain.frames.append(f"{frame['file'].rsplit('/', 1)[-1]}:{function}")
        chain.idle = 0
        return True
    if message[:1] in (" ", "\t") or not message.strip():
        chain.code = message.strip() or chain.code
        return chain.idle <= _OPEN_LINES
    if (named := _named(message) or (_named_among_others(message) if chain.torn else None)) is not None:
        name, text, torn = named
        chain.raised.append(Raised(line.number, name, text, chain.link, tuple(chain.frames), chain.code, torn))
        chain.last, chain.in_frames, chain.link, chain.idle = line.number, False, "", 0
        return True
    return chain.idle <= _OPEN_LINES


def _named(message: str) -> tuple[str, str, bool] | None:
    """Return (class, message, is torn) of the exception that a line names, else None."""
    if torn := _TORN.match(message):
        return torn["name"], torn["message"], True
    found = _EXCEPTION.match(message)
    if found and _is_class(found["name"].split("(")[0], found["inner"]):
        return found["inner"] or found["name"].split("(")[0], found["message"] or "", False
    return None


def _named_among_others(message: str) -> tuple[str, str, bool] | None:
    """Return the same for a line into which several writers wrote the same exception."""
    found = _BUILT_IN.search(message)
    said = found and _BUILT_IN.sub("", message).strip(": ")
    if not found or not said or sum(map(str.isalpha, said)) < _LEAST_SAID:
        return None
    return found.group(), said, True


def _is_class(name: str, inner: str | None) -> bool:
    """Return whether a line's first word may be an exception class, or wrap another one."""
    if inner is not None:
        return any(map(_SURE_NAME.search, (name, inner))) and _PLAIN_NAME.search(inner) is not None
    return _PLAIN_NAME.search(name) is not None


def _is_doubtful(raised: Raised) -> bool:
    """Return whether a supposed exception may be any capitalised word with a colon, or torn."""
    return raised.torn or ("." not in raised.name and not _SURE_NAME.search(raised.name))


def _names(message: str) -> bool:
    """Return whether a line certainly names an exception."""
    found = _EXCEPTION.match(message)
    return found is not None and _SURE_NAME.search(found["name"].split("(")[0]) is not None


_LOOKUPS = (
    "KeyError",
    "AttributeError",
    "IndexError",
    "StopIteration",
    "ImportError",
    "ModuleNotFoundError",
    "LookupError",
)


def deepest(chain: Traceback) -> int:
    """Return the index of the exception in a chain that is most likely the origin.

    `raise ... from` and re-raised worker errors point back to the first one; an error while handling a failed lookup is
    a new error; else the first one counts.
    """
    at = len(chain.raised) - 1
    while at > 0:
        link = chain.raised[at].link
        before = chain.raised[at - 1]
        if link == "context" and before.name.rsplit(".", 1)[-1] in _LOOKUPS and not _reraised(before, chain.raised[at]):
            break
        at -= 1
    while at < len(chain.raised) - 1 and _is_carrier(chain.raised[at]):
        at += 1
    return at


def _reraised(inner: Raised, outer: Raised) -> bool:
    return inner.name == outer.name or bool(inner.message and inner.message in outer.message)


def _is_carrier(raised: Raised) -> bool:
    """Return whether an exception only announces the original that follows: a worker's, or a group."""
    return (
        (raised.name.endswith("Exception") and not raised.message.strip())
        or raised.name.endswith(("RemoteTraceback", "ExceptionGroup"))
        or raised.message.startswith("ray::")
        or (raised.message.startswith("Caught ") and " in " in raised.message)
    )
