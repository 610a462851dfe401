"""JSON lines of logging libraries, converted to the text that a person would have logged.

Pino, bunyan, winston, zerolog, zap, structlog and python-json-logger write each record as a JSON object, and shippers
wrap lines in one. Rules and tracebacks are about text, so such a record becomes

    2026-11-24T10:48:40.857Z ERROR: worker died {"rank": 3}
    TypeError: x is not a function
        at Object.<anonymous> (train.cjs:8:16)

its time and level as a prefix, its message, its other fields as JSON as Python prints it (in which metrics are read),
and its stack trace. Other JSON, such as metrics, stays as it is: nothing is lost.
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from logdoctor.text import CARRIED_KEY, MESSAGE_KEYS, origin, seconds_of

_CARRIERS = frozenset(("date", "time", "timestamp", "@timestamp", "stream", "logtag", "_p", "_time"))
"""Keys that a carrier adds to a line, which say nothing about the job."""
_LEVELS = ("level", "levelname", "severity", "lvl", "log.level", "loglevel")
_TIMES = ("time", "timestamp", "ts", "@timestamp", "asctime", "date")
_OF_THE_WRITER = ("pid", "hostname", "v")
"""Keys that pino and bunyan add to each record; the labels have the same facts."""
_STACKS = ("stack", "exception", "exc_info", "stack_trace", "stacktrace", "error.stack_trace", "stack_info")
_ERRORS = ("err", "error", "exception")
_NUMBERED = {10: "TRACE", 20: "DEBUG", 30: "INFO", 40: "WARN", 50: "ERROR", 60: "FATAL"}
"""Levels of pino and bunyan."""
_NAMED = {
    **dict.fromkeys(("trace", "silly", "verbose", "debug"), "DEBUG"),
    **dict.fromkeys(("info", "information", "http", "notice"), "INFO"),
    **dict.fromkeys(("warn", "warning"), "WARN"),
    **dict.fromkeys(("error", "err", "severe", "dpanic"), "ERROR"),
    **dict.fromkeys(("critical", "crit", "alert", "emerg", "emergency", "fatal", "panic"), "FATAL"),
}
_LONGEST = 1 << 20  # bytes of a record: nothing but brackets takes twenty times as much memory
_STAMP = re.compile(r"[0-9T:.,/ Z+-]{10,40}")
_LINKS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_SECONDS = (1e9, 1e10)
"""Bounds of seconds since the epoch in this century."""


def whole_lines(body: bytes, as_text: bool) -> bytes:
    """Return a body as complete lines; with `as_text`, JSON records as text."""
    lines = body.removesuffix(b"\n").split(b"\n") if body else []
    return b"".join((text_of_record(line) if as_text else line) + b"\n" for line in lines)


def text_of_record(line: bytes) -> bytes:
    """Convert a line to text if it is a JSON record. Records are of logging libraries, or carried by shippers; other
    lines are returned as they are."""
    stripped = line.strip() if len(line) <= _LONGEST else b""
    if not (stripped.startswith(b"{") and stripped.endswith(b"}")):
        return line
    try:
        record = msgspec.json.decode(stripped)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return line
    text = _carried(record) if isinstance(record.get(CARRIED_KEY), str) else _logged(record)
    return line if text is None else text.encode("utf-8", "replace")


def _carried(record: dict[str, Any]) -> str | None:
    """Return the line that a shipper carries, without the shipper's own fields."""
    if not _CARRIERS & record.keys():
        return None
    rest = {name: value for name, value in record.items() if name not in _CARRIERS and name != CARRIED_KEY}
    return _with_rest(record[CARRIED_KEY].rstrip("\r\n"), rest)


def _logged(record: dict[str, Any]) -> str | None:
    """Return the text of a logging library's record; None for other JSON."""
    key = next((name for name in MESSAGE_KEYS if isinstance(record.get(name), str)), None)
    level = _level(record)
    if key is None or not level:
        return None
    rest = dict(record)
    message = rest.pop(key).rstrip("\r\n")
    for name in (*_LEVELS, *_OF_THE_WRITER):
        rest.pop(name, None)
    stack = _taken_stack(rest)
    prefix = [] if origin(message).level else [f"{level}:"]
    if stamp := _taken_time(rest):
        prefix.insert(0, stamp)
    first = _with_rest(" ".join((*prefix, message)), rest)
    return f"{first}\n{stack}" if stack and stack not in message else first


def _with_rest(text: str, rest: Mapping[str, Any]) -> str:
    """Return text, followed by the remaining fields."""
    return f"{text} {json.dumps(rest, ensure_ascii=False)}" if rest else text


def _level(record: Mapping[str, Any]) -> str:
    """Return the level of a record as people write it; "" without a known one."""
    for name in _LEVELS:
        value = record.get(name)
        if isinstance(value, str) and value.lower() in _NAMED:
            return _NAMED[value.lower()]
        if name == "level" and isinstance(value, int) and value in _NUMBERED:
            return _NUMBERED[value]
    return ""


def _taken_time(rest: dict[str, Any]) -> str:
    """Remove the time from a record, and return it as a stamp; "" without one."""
    for name in _TIMES:
        if stamp := _stamp(rest.get(name)):
            del rest[name]
            return stamp
    return ""


def _stamp(value: Any) -> str:
    if isinstance(value, str):
        return value if _STAMP.fullmatch(value) and seconds_of(value) is not None else ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    for unit in (1, 1e3, 1e6, 1e9):  # seconds, and down to nanoseconds
        if _SECONDS[0] <= value / unit < _SECONDS[1]:
            moment = datetime.datetime.fromtimestamp(value / unit, datetime.UTC)
            return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return ""


def _taken_stack(rest: dict[str, Any]) -> str:
    """Remove the stack trace from a record and return it; "" without one."""
    for name in _STACKS:
        if isinstance(stack := rest.get(name), str) and "\n" in stack.strip():
            del rest[name]
            return stack.strip("\n")
    for name in _ERRORS:
        error = rest.get(name)
        if isinstance(error, dict) and isinstance(stack := error.get("stack"), str) and stack.strip():
            more = {key: value for key, value in error.items() if key != "stack" and not _is_told(value, stack)}
            rest |= {name: more}
            if not more:
                del rest[name]
            return stack.strip("\n")
        if isinstance(error, list | tuple) and (text := _structured(error)):
            del rest[name]
            return text
    return ""


def _is_told(value: Any, stack: str) -> bool:
    return isinstance(value, str) and value in stack


def _structured(chain: Sequence[Any]) -> str:
    """Return the exceptions of structlog's `dict_tracebacks` as Python prints them, or "". The values of locals are
    left out."""
    parts: list[str] = []
    try:
        for error in reversed(chain):  # the first is the last that was raised
            frames = [f'  File "{at["filename"]}", line {at["lineno"]}, in {at["name"]}' for at in error["frames"]]
            named = f"{error['exc_type']}: {error['exc_value']}"
            parts += [
                "\n".join(("Traceback (most recent call last):", *frames, named)),
                _LINKS[bool(error["is_cause"])],
            ]
    except (KeyError, TypeError):
        return ""
    return "\n\n".join(parts[:-1])
