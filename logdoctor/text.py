"""The prefix of log lines: ranks, nodes, time stamps, levels, colours.

Launchers, schedulers and shippers put marks before what a process printed. Rules must not depend on them and diagnosis
must understand them, so the grammar is defined here once, for Hyperscan (`PREFIX`) and for `origin` (`regex`).
"""

import datetime
import json
import re
from typing import NamedTuple

import regex

from logdoctor.safe import colours

_CLOCK = r"\d\d?:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d|Z)?(?: [AP]M)?"
_DATE = (
    r"(?:\d{4}[-/.]\d\d[-/.]\d\d|\d\d[-/]\d\d[-/]\d{2,4}|\d\d-\d\d"
    r"|[A-Z][a-z][a-z] [A-Z][a-z][a-z] [ \d]\d|[A-Z][a-z][a-z] [ \d]\d)"
)
_TIME = rf"[\[(<]?(?:{_DATE}[ T_-]?[ ]?)?{_CLOCK}(?: \d{{4}})?[\])>]?"
_LEVEL = r"[\[(]?(?:DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|SEVERE)[\])]?"
_NODE = r"[A-Za-z][A-Za-z0-9_.-]*\d[A-Za-z0-9_.-]*"
_NO_CODE = r"(?![EW][A-Z]\d{4}:|[\w.]{1,80}\.[A-Z]\w{2,60}:)"  # neither CANN error numbers nor exception classes
_IP = r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}"

_TOKENS = {
    "rank": r"\[[Rr]ank[ :_]?(?P<rank>\d{1,9})\]:?|[Rr]ank ?(?P<rank_bare>\d{1,9})\[\d+\]\[[\w-]+\]:"
    r"|\[default(?P<local>\d{1,9})\]:",
    "mpi": r"\[(?:\d+,)?(?P<mpi>\d{1,9})\]<(?:stdout|stderr|stddiag)>:",
    "ray": rf"\((?P<actor>(?:\w+ )?pid=\d+)(?:, ip=(?P<ray>{_IP}))?\)",
    "task": r"(?P<task>\d{1,6}):[ \t]",
    "pod": rf"\[(?:[a-z-]+/)*(?P<pod>{_NODE})(?:/[a-z0-9-]+)?\]",
    "host": rf"{_NO_CODE}(?P<host>{_NODE}|{_IP})(?:/\d+)?(?::\d+\t|:[ \t]|:(?=\[rank)| \|[ \t])",
    "glog": r"\[?[IWEF]\d{3,4} \d\d:\d\d:\d\d\.\d+ +(?:\d+ )?(?:[\w./-]+:\d+\])?",
    "time": _TIME,
    "level": rf"(?P<level>{_LEVEL})[ \t:|]",
}


def _for_hyperscan(token: str) -> str:
    """Return the token without named groups and look-ahead, which Hyperscan does not support."""
    plain = regex.sub(r"\(\?P<\w+>", "(?:", token)
    return plain.replace(r"|:(?=\[rank)", "|:").replace(_NO_CODE, "")


_PADDED = r" {1,6}\d{1,6}:[ \t]"  # srun pads its labels to one width
_MARK = "(?:" + "|".join(_for_hyperscan(token) for token in _TOKENS.values()) + r")[ \t:|,>-]*"
PREFIX = f"(?:{_PADDED})?(?:{_MARK})*"
"""Hyperscan source of any sequence of prefixes, including none. A padded label may also be a number in a table: a rule
may skip it, but it does not name a task."""
SOME_PREFIX = f"(?:{_PADDED}|{_MARK})(?:{_MARK})*"
"""The same, but at least one prefix."""

_INDENTED = regex.compile(r"(?P<indent>[ \t]{1,40})\[[Rr]ank")
_GAP = regex.compile(r"[ \t:|,>-]?[ \t|]*")
_TOKEN = regex.compile("|".join(f"(?:{token})" for token in _TOKENS.values()))
_WIDEST = 256  # characters of a prefix token; keeps time linear in the line (law 9)
ANSI = regex.compile(colours.ANSI)
"""An ANSI escape sequence in raw bytes."""
_ANSI_TEXT = regex.compile(colours.ANSI.decode())


class LineOrigin(NamedTuple):
    """The origin of a line by its prefix, and the message after it."""

    channel: str
    node: str | None
    rank: int | None
    local_rank: int | None
    task: int | None
    time: str | None
    level: str | None
    message: str


MESSAGE_KEYS = ("msg", "message", "event")
"""Keys under which logging libraries put the message into a JSON record."""
CARRIED_KEY = "log"
"""The key under which Docker or Fluent Bit puts the line."""
_MESSAGE = regex.compile(rf'"(?:{"|".join((*MESSAGE_KEYS, CARRIED_KEY))})"\s*:\s*"((?:[^"\\]++|\\.)++)')
"""Matches the messages in a JSON record, including those of nested records."""


_LOGFMT = regex.compile(r'\w+=\S.{0,200}?\b(?:msg|message)="(?P<said>(?:[^"\\]|\\.)*+)"')


def decode(raw: bytes) -> str:
    """Return the text of a raw line: UTF-8, with U+FFFD for invalid bytes; never fails."""
    return raw.decode("utf-8", "replace")


def shown(line: str) -> str:
    """Return a line as a terminal shows it: no colours, progress bars in their last state."""
    return last_state(_ANSI_TEXT.sub("", line) if "\x1b" in line else line).replace("\x00", "")


def harmless(text: str, width: int) -> str:
    """Return untrusted text as a terminal shows it, safe, and at most `width` characters long.

    Characters that do not print, or change the writing direction, are replaced visibly.
    """
    plain = "".join(c if c.isprintable() else " " if c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in shown(text))
    return plain if len(plain) <= width else f"{plain[:width]}…"


def last_state(line: str) -> str:
    """Return a line's text after its last carriage return, ignoring trailing ones."""
    return line.rstrip("\r").rsplit("\r", 1)[-1] if "\r" in line else line


def message_in(line: str) -> str:
    """Return the message of a line: the longest one of a JSON record, else all. The record may be cut off."""
    if not origin(line).message.lstrip().startswith("{"):
        return line
    message = _unescaped(max(_MESSAGE.findall(line), key=len, default=""))
    return message if message.strip() else line


def said_in(message: str) -> str:
    """Return what a record says in JSON or logfmt, of the message behind a line's prefix; else the whole message."""
    begin = message.lstrip()[:1]
    said = max(_MESSAGE.findall(message), key=len, default="") if begin == "{" else ""
    if found := _LOGFMT.match(message):
        said = found["said"]
    if not said.strip():
        return message
    return _unescaped(said) if "\\" in said else said


def _unescaped(text: str) -> str:
    """Return a text of JSON without its escapes; as it is where it has others."""
    try:
        return str(json.loads(f'"{text}"', strict=False)).encode("utf-8", "replace").decode()
    except ValueError:
        return text


def origin(line: str) -> LineOrigin:
    """Return the parsed prefix of a line, and its message.

    `channel` is the same for all lines that one writer printed with the same marks: the marks without times and levels.
    The message keeps its indentation.
    """
    marks: list[str] = []
    node: str | None = None
    rank: int | None = None
    local: int | None = None
    task: int | None = None
    time: str | None = None
    level: str | None = None
    indent = _INDENTED.match(line)
    at = indent.end("indent") if indent else 0
    while (match := _TOKEN.match(line, at, at + _WIDEST)) and match.end() > at:
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        level = groups.pop("level", level)
        if groups:
            marks.append(match.group())
            node = groups.get("pod") or groups.get("host") or groups.get("ray") or node
            if (number := groups.get("rank") or groups.get("rank_bare") or groups.get("mpi")) is not None:
                rank = int(number)
            local = int(groups["local"]) if "local" in groups else local
            task = int(groups["task"]) if "task" in groups else task
        elif time is None and regex.search(r"\d:\d\d:\d\d", match.group()):
            time = match.group()
        at = match.end()
        # one separator, and blanks only where another prefix follows: indentation is structure
        gap = _GAP.match(line, at)
        behind = gap.end() if gap else at
        if _TOKEN.match(line, behind, behind + _WIDEST):
            at = behind
        else:
            break
    rest = line[at:]
    if at and rest[:1] in (" ", "\t"):
        rest = rest[1:]
    return LineOrigin("".join(marks), node, rank, local, task, time, level, rest)


_STAMP = regex.compile(
    r"(?:(?P<year>\d{4})[-/.](?P<month>\d\d)[-/.](?P<day>\d\d)[ T_-]"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"|(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{2,4}) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"|[IWEF](?P<month>\d{1,2}?)(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?=\.)"
    r"|\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<month>\d\d)-(?P<day>\d\d) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"|\b(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<day>\d{1,2}) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d))"
    r"(?:\.(?P<fraction>\d{1,9})|,(?P<fraction>(?:\d{3}){1,3})(?!\d))?"
)
_PARTS = ("year", "name", "month", "day", "hour", "minute", "second", "fraction")
_CLOCK_ENDS = re.compile(r":\d\d:\d\d")  # `re` is quick in finding the first character
_MONTHS = {name: i for i, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}


def seconds_of(line: str, year: int = 2000) -> float | None:
    """Return the first time stamp in a line as seconds since the epoch, or None.

    It is exact to a microsecond (UTC assumed). Stamps without a year get `year`; only differences between stamps of one
    log are meaningful. The time zone is ignored here (see `zone_of`): most logs mix stamps with and without a zone from
    the same clock.
    """
    line = line[:300]
    match = _STAMP.search(line) if _CLOCK_ENDS.search(line) else None  # most lines have none
    if match is None:
        return None
    given, name, month, day, hour, minute, second, fraction = match.group(*_PARTS)
    if given:
        year = int(given) + (2000 if int(given) < 100 else 0)
    try:
        date = datetime.datetime(
            year, _MONTHS[name] if name else int(month), int(day), int(hour), int(minute), int(second), 0, datetime.UTC
        )
    except ValueError:
        return None
    return date.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


_ZONE = regex.compile(
    r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?P<utc>Z\b|UTC\b|GMT\b)| ?(?P<sign>[+-])(?P<hour>\d\d):?(?P<minute>\d\d)\b)"
)


def zone_of(line: str) -> int | None:
    """Return how many seconds a line's first stamp is ahead of UTC. None without a zone."""
    match = _ZONE.search(line[:300])
    if match is None:
        return None
    if match["utc"]:
        return 0
    ahead = 3600 * int(match["hour"]) + 60 * int(match["minute"])
    return -ahead if match["sign"] == "-" else ahead


def natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key that puts rank 2 before rank 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in regex.split(r"(\d+)", text)]
