"""Grafana Loki's push protocol, as of Promtail, Alloy, Fluent Bit, Vector, pino-loki and Docker's driver.

For the route: success is 204 with an empty body; an error is plain text with the status of `PushRefused`. Shippers
retry 429 and 5xx and drop the batch for any other 4xx. The tenant header X-Scope-OrgID is ignored, the token says who
sends. `POST /api/prom/push`, the protocol before 2019, and Loki's gRPC, which syslog-ng's `loki()` wants, are not
supported.
"""

import re
from collections.abc import Iterator
from typing import Any, NoReturn

import cramjam
import msgspec

from logdoctor.text import decode as text_of
from logdoctor.web.push.pushes import (
    Batch,
    Labels,
    LogEntry,
    PushLimits,
    PushRefused,
    batches,
    checked_density,
    checked_labels,
    checked_size,
    joined,
    known_time,
    refuse_labels,
    refuse_size,
)
from logdoctor.web.push.wire import Walk, file_of, tolerant

_JSON = {"application/json", "text/json"}
_PROTOBUF = {"", "application/x-protobuf", "application/protobuf"}
_ENCODINGS = {"", "identity", "gzip", "x-gzip", "zstd"}
"""Encodings that the route has already removed, or none."""


def decode(body: bytes, content_type: str, content_encoding: str = "", limits: PushLimits | None = None) -> list[Batch]:
    """Return the batches of a push, in order.

    The body comes without gzip or zstd, which the route removes; the Snappy block of Protocol Buffers is removed here,
    because it is part of the protocol and no header announces it. Structured metadata counts as labels, before those of
    the stream. `PushRefused` when the body is not a push, or larger than `limits` allows.
    """
    limits = limits or PushLimits()
    kind = content_type.partition(";")[0].strip().lower()
    encoding = content_encoding.strip().lower()
    if kind not in _JSON | _PROTOBUF:
        _refuse_type(f"the content type {kind[:60]!r} is not known", "Send application/json or application/x-protobuf.")
    if encoding not in _ENCODINGS and not (encoding == "snappy" and kind in _PROTOBUF):
        _refuse_type(f"the content encoding {encoding[:60]!r} is not known", "Send gzip, or none.")
    checked_size(body, limits)
    entries = _json_entries(body, limits) if kind in _JSON else _protobuf_entries(body, limits)
    return batches(entries, limits)


def _refuse_type(cause: str, next_step: str) -> NoReturn:
    raise PushRefused("push", cause, next_step, "unsupported_type", 415)


# JSON


class _Value(msgspec.Struct, array_like=True, gc=False):
    time: str | int
    line: str
    metadata: dict[str, str] | None = None


class _Stream(msgspec.Struct, gc=False):
    stream: dict[str, str]
    values: tuple[_Value, ...] = ()


class _Push(msgspec.Struct):
    streams: tuple[_Stream, ...]


_PUSH = msgspec.json.Decoder(_Push)


def _json_entries(body: bytes, limits: PushLimits) -> Iterator[LogEntry]:
    for stream in _json_push(body).streams:
        labels = checked_labels(stream.stream, limits)
        for value in stream.values:
            yield LogEntry(joined(labels, value.metadata or {}, limits), _nanoseconds(value.time), value.line.encode())


def _json_push(body: bytes) -> _Push:
    try:
        return _PUSH.decode(checked_density(body))
    except UnicodeDecodeError:
        return _json_push(text_of(body).encode())  # a line that is not UTF-8 must not cost the whole push
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PushRefused(
            "push",
            f"it is not a Loki push in JSON: {str(error)[:300]}",
            'Send {"streams": [{"stream": {"LABEL": "VALUE"}, "values": [["NANOSECONDS", "LINE"]]}]}.',
        ) from error


def _nanoseconds(time: str | int) -> int:
    if isinstance(time, str):
        if not re.fullmatch(r"-?[0-9]{1,30}", time):
            raise PushRefused(
                "push", f"the time {time[:60]!r} is not a number", "Send nanoseconds since 1970 as a string of digits."
            )
        time = int(time)
    return known_time(time)


# Protocol Buffers

_MESSAGES = tolerant(
    [
        file_of(
            "logproto",  # PushRequest and StreamAdapter are walked by hand
            {
                "Timestamp": {"seconds": (1, "int64"), "nanos": (2, "int32")},
                "LabelPair": {"name": (1, "string"), "value": (2, "string")},
                "Entry": {
                    "timestamp": (1, "Timestamp"),
                    "line": (2, "string"),
                    "structured_metadata": (3, "*LabelPair"),
                },
            },
        )
    ]
)
_ENTRY = _MESSAGES["logproto.Entry"]
_STREAMS = 1  # of PushRequest
_LABELS, _ENTRIES = 1, 2  # of Stream


def _protobuf_entries(body: bytes, limits: PushLimits) -> Iterator[LogEntry]:
    walk = Walk(limits)
    for number, stream in walk.fields(memoryview(_unpacked(body, limits))):
        if number == _STREAMS:
            yield from _stream_entries(walk, stream, limits)


def _stream_entries(walk: Walk, stream: memoryview, limits: PushLimits) -> Iterator[LogEntry]:
    text = b""
    entries = []
    for number, content in walk.fields(stream):
        if number == _LABELS:
            text = bytes(content)
        elif number == _ENTRIES:
            entries.append(content)
    labels = checked_labels(parse_labels(text_of(text), limits), limits)
    for content in entries:
        entry = walk.parsed(_ENTRY, content)
        time = entry.timestamp.seconds * 1_000_000_000 + entry.timestamp.nanos
        yield LogEntry(joined(labels, _metadata(entry, limits), limits), known_time(time), entry.line)


def _metadata(entry: Any, limits: PushLimits) -> Labels:
    pairs = entry.structured_metadata
    if len(pairs) > limits.labels:
        refuse_labels(len(pairs), limits)
    return {text_of(pair.name): text_of(pair.value) for pair in pairs}


def _unpacked(body: bytes, limits: PushLimits) -> bytes:
    """Return the body without its Snappy block. The claimed size is checked before memory is allocated."""
    try:
        size = cramjam.snappy.decompress_raw_len(body)
        if size > limits.bytes:
            refuse_size(f"it unpacks to {size} bytes, more than {limits.bytes}")
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise PushRefused(
            "push", f"its Snappy block is damaged ({error})", "Send application/x-protobuf as one Snappy block."
        ) from error


# labels as text: {name="value", other=`value`}

_BLANK = re.compile(r"[ \t\r\n]*+")
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:.-]*+")
_QUOTED = re.compile(r'"([^"\\\n]*+(?:\\.[^"\\\n]*+)*+)"|`([^`]*+)`')
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.S)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'"}


def parse_labels(text: str, limits: PushLimits | None = None) -> dict[str, str]:
    """Parse the labels of a text like `{job="train", host="n1"}`, in time linear in its length.

    Values are Go strings: in double quotes with escapes, or raw in back quotes. `PushRefused` names the place of an
    error (characters, from 0).
    """
    limits = limits or PushLimits()
    if len(text) > (most := 2 * limits.labels * limits.label_chars):
        raise PushRefused("labels", f"they have {len(text)} characters, more than {most}", "Drop some.", "bad_labels")
    labels: dict[str, str] = {}
    at = _after(text, _skip(text, 0), "{")
    while (at := _skip(text, at)) < len(text) and text[at] != "}":
        name, at = _name(text, at)
        at = _after(text, _skip(text, at), "=")
        value, behind = _string(text, _skip(text, at))
        if name in labels:
            _refuse_label(text, at, f"the label {name[:60]!r} comes twice")
        labels[name] = value
        at = _skip(text, behind)
        if text[at : at + 1] != "}":
            at = _after(text, at, ",")
    at = _skip(text, _after(text, at, "}"))
    if at < len(text):
        _refuse_label(text, at, "there is text after the last brace")
    return labels


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _after(text: str, at: int, sign: str) -> int:
    if not text.startswith(sign, at):
        _refuse_label(text, at, f"there is no {sign!r}")
    return at + len(sign)


def _name(text: str, at: int) -> tuple[str, int]:
    if match := _NAME.match(text, at):
        return match.group(), match.end()
    if text[at : at + 1] in ('"', "`"):  # names with other characters are quoted
        return _string(text, at)
    _refuse_label(text, at, "there is no label name")


def _string(text: str, at: int) -> tuple[str, int]:
    match = _QUOTED.match(text, at)
    if not match:
        _refuse_label(text, at, "there is no complete string in quotes")
    raw = match.group(2)
    if raw is not None:
        return raw.replace("\r", ""), match.end()  # as Go reads raw strings
    return _unescaped(text, at + 1, match.group(1)), match.end()


def _unescaped(text: str, start: int, value: str) -> str:
    """Unescape the text between double quotes. `start` is its place in the whole text, for errors."""
    if "\\" not in value:
        return value
    parts: list[bytes] = []
    at = 0
    for match in _ESCAPE.finditer(value):
        parts.append(value[at : match.start()].encode())
        hexadecimal, octal, short, long, letter = match.groups()
        if letter is not None:
            if letter not in _LETTERS:
                _refuse_label(text, start + match.start(), f"the escape {match.group()!r} is not known")
            parts.append(_LETTERS[letter].encode())
        elif short or long:
            code = int(short or long, 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                _refuse_label(text, start + match.start(), f"{match.group()!r} is not a character")
            parts.append(chr(code).encode())
        else:
            code = int(hexadecimal, 16) if hexadecimal else int(octal, 8)
            if code > 0xFF:
                _refuse_label(text, start + match.start(), f"{match.group()!r} is not a byte")
            parts.append(bytes([code]))
        at = match.end()
    parts.append(value[at:].encode())
    return text_of(b"".join(parts))


def _refuse_label(text: str, at: int, cause: str) -> NoReturn:
    raise PushRefused(
        f"labels {text[max(0, at - 20) : at + 20]!r}",
        f"at character {at} {cause}",
        'Write {name="value", other="value"}.',
        "bad_labels",
    )
