"""OpenTelemetry's protocol for logs over HTTP (OTLP 1.x), as sent by its SDKs and the Collector.

The text of a record is composed here, and this text is what the archive keeps and verdicts quote:

* a body that is text stays as it is; one of another type becomes compact JSON;
* the stack trace of an exception (or its type and message) follows, if the body does not hold it;
* a body without a level of its own gets the prefix `ERROR: ` or `FATAL: ` if that is its severity, because diagnosis
  looks at levels, and logging SDKs send them beside the message.

For the route: a success is `answer(content_type)`, some records refused is `answer(content_type, rejected, message)`
with status 200, an error is `failure(content_type, error)` with its status. Clients retry 429, 502, 503 and 504.
"""

import base64
import binascii
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import msgspec
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsPartialSuccess, ExportLogsServiceResponse
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.resource.v1 import resource_pb2

from logdoctor.errors import LogdoctorError
from logdoctor.text import decode as text_of
from logdoctor.text import origin
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
)
from logdoctor.web.push.wire import Walk, described, file_of, tolerant

JSON = "application/json"
PROTOBUF = "application/x-protobuf"
SCOPE = "otel.scope.name"
"""The label with the name of the logger."""

_PROTOBUF_NAMES = {"", PROTOBUF, "application/protobuf"}
_ERROR, _FATAL = 17, 21  # severity numbers of the data model; the last is 24
_EXCEPTION = "exception."
_NO_LABELS = (_EXCEPTION, "code.", "log.record.", "_")
"""Attributes that describe one record, never its source; those of libraries for themselves begin with `_`, as the time
that Ray adds to each."""
_DEEPEST = 64
_LEVEL_WORD = re.compile(r"\b(?:ERROR|FATAL|CRITICAL|PANIC|SEVERE)\b|^\[?[IWEF]\d{3,4} \d\d:\d\d:", re.I)
_LEVEL_NEAR = 200  # characters from the start of a line in which its level is searched


class _Record(NamedTuple):
    """A log record in plain Python values."""

    ns: int
    severity: int
    severity_text: str
    body: Any
    event: str
    attributes: dict[str, Any]


def decode(body: bytes, content_type: str, limits: PushLimits | None = None) -> list[Batch]:
    """Return the batches of an export request, in order; the body comes decompressed.

    Attributes of the resource, the name of the scope and attributes of the record are labels; for duplicate names the
    record's counts. `PushRefused` when the body is not such a request, or larger than `limits` allows.
    """
    limits = limits or PushLimits()
    kind = _media_type(content_type)
    if kind != JSON and kind not in _PROTOBUF_NAMES:
        raise PushRefused(
            "push",
            f"the content type {kind[:60]!r} is not known",
            f"Send {PROTOBUF} or {JSON}.",
            "unsupported_type",
            415,
        )
    checked_size(body, limits)
    return batches((_json_entries if kind == JSON else _protobuf_entries)(body, limits), limits)


def answer(content_type: str, rejected: int = 0, message: str = "") -> tuple[bytes, str]:
    """Return the body and content type of a success, in the form of the request. `rejected` counts log records."""
    if _media_type(content_type) == JSON:
        partial = {"rejectedLogRecords": str(rejected), "errorMessage": message}
        return msgspec.json.encode({"partialSuccess": partial} if rejected or message else {}), JSON
    response = ExportLogsServiceResponse()
    if rejected or message:
        partial_success = ExportLogsPartialSuccess(rejected_log_records=rejected, error_message=message)
        response.partial_success.CopyFrom(partial_success)
    return response.SerializeToString(), PROTOBUF


def failure(content_type: str, error: LogdoctorError) -> tuple[bytes, str]:
    """Return the body and content type of an error, a google.rpc.Status in the request's form."""
    if _media_type(content_type) == JSON:
        return msgspec.json.encode({"message": str(error)}), JSON
    return _STATUS(message=str(error).encode()).SerializeToString(), PROTOBUF


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


# from record to entry


def _entry(shared: Labels, scope: str, record: _Record, limits: PushLimits) -> LogEntry:
    own = {name: _label(value, limits) for name, value in record.attributes.items() if not name.startswith(_NO_LABELS)}
    named = {SCOPE: scope[: limits.label_chars]} if scope else {}
    return LogEntry(joined(shared, named | own, limits), record.ns, _composed(record).encode("utf-8", "replace"))


def _shared(attributes: dict[str, Any], limits: PushLimits) -> Labels:
    return checked_labels({name: _label(value, limits) for name, value in attributes.items()}, limits)


def _label(value: Any, limits: PushLimits) -> str:
    """Return an attribute as a label. A long one (a command line, a request) is cut; it is no reason to refuse the
    log."""
    return _text(value)[: limits.label_chars]


def _text(value: Any) -> str:
    """Return a value as text: strings as they are, bytes decoded, others as compact JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return text_of(value)
    return "" if value is None else msgspec.json.encode(value).decode()


def _composed(record: _Record) -> str:
    """Compose the text of a record, as the module docstring says."""
    body = _text(record.body) or record.event
    text = "\n".join(part for part in (body.rstrip("\n"), _exception(body, record.attributes)) if part)
    level = _missing_level(text, record)
    return f"{level}: {text}" if level else text


def _exception(body: str, attributes: dict[str, Any]) -> str:
    """Return the exception in the attributes that the body lacks; "" without one."""
    kind, message, stack = (
        _text(attributes.get(_EXCEPTION + name)).strip("\n") for name in ("type", "message", "stacktrace")
    )
    summary = ": ".join(part for part in (kind, message) if part)
    if stack:
        given = stack.strip() in body
        # some SDKs send frames alone: then add the exception itself
        whole = stack if (message or kind.rpartition(".")[2]) in stack else f"{stack}\n{summary}"
        return "" if given else whole
    return "" if not summary or (message or kind) in body else summary


def _missing_level(text: str, record: _Record) -> str:
    """Return "ERROR" or "FATAL" for such a severity whose text has no level, else ""."""
    named = record.severity_text.upper()
    if record.severity >= _FATAL or (not record.severity and named in ("FATAL", "CRITICAL", "PANIC", "EMERGENCY")):
        level = "FATAL"
    elif record.severity >= _ERROR or (not record.severity and named in ("ERROR", "SEVERE")):
        level = "ERROR"
    else:
        return ""
    first = text.partition("\n")[0][:_LEVEL_NEAR]
    return "" if not first.strip() or origin(first).level or _LEVEL_WORD.search(first) else level


def _double(number: float) -> float | str:
    """Return the number, or its word where JSON lacks it: a loss may be NaN."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


# Protocol Buffers

_MESSAGES = tolerant(described(module) for module in (common_pb2, resource_pb2, logs_pb2))
_RESOURCE = _MESSAGES["opentelemetry.proto.resource.v1.Resource"]
_INSTRUMENTATION_SCOPE = _MESSAGES["opentelemetry.proto.common.v1.InstrumentationScope"]
_LOG_RECORD = _MESSAGES["opentelemetry.proto.logs.v1.LogRecord"]
_STATUS = tolerant([file_of("google.rpc", {"Status": {"code": (1, "int32"), "message": (2, "string")}})])[
    "google.rpc.Status"
]
_RESOURCE_LOGS = 1  # of ExportLogsServiceRequest; like the next, walked by hand
_OF_RESOURCE, _SCOPE_LOGS = 1, 2  # of ResourceLogs
_OF_SCOPE, _LOG_RECORDS = 1, 2  # of ScopeLogs


def _protobuf_entries(body: bytes, limits: PushLimits) -> Iterator[LogEntry]:
    walk = Walk(limits)
    for number, resource_logs in walk.fields(memoryview(body)):
        if number != _RESOURCE_LOGS:
            continue
        resource, scopes = _head_and_rest(walk, _RESOURCE, resource_logs, (_OF_RESOURCE, _SCOPE_LOGS))
        shared = _shared(_attributes(resource.attributes, limits), limits)
        for scope_logs in scopes:
            scope, records = _head_and_rest(walk, _INSTRUMENTATION_SCOPE, scope_logs, (_OF_SCOPE, _LOG_RECORDS))
            name = text_of(scope.name)
            for record in records:
                yield _entry(shared, name, _protobuf_record(walk.parsed(_LOG_RECORD, record), limits), limits)


def _head_and_rest(
    walk: Walk, kind: Any, message: memoryview, numbers: tuple[int, int]
) -> tuple[Any, list[memoryview]]:
    """Return the message of the first number, or an empty one, and the second's pieces.

    Repeated fields are joined before parsing, which merges them as the format requires.
    """
    head = []
    rest = []
    for number, content in walk.fields(message):
        if number == numbers[0]:
            head.append(content)
        elif number == numbers[1]:
            rest.append(content)
    return walk.parsed(kind, memoryview(b"".join(head))), rest


def _protobuf_record(record: Any, limits: PushLimits) -> _Record:
    return _Record(
        known_time(record.time_unix_nano) or known_time(record.observed_time_unix_nano),
        record.severity_number,
        text_of(record.severity_text),
        _protobuf_value(record.body),
        text_of(record.event_name),
        _attributes(record.attributes, limits),
    )


def _attributes(pairs: Any, limits: PushLimits) -> dict[str, Any]:
    if len(pairs) > limits.labels:
        refuse_labels(len(pairs), limits)
    return {text_of(pair.key): _protobuf_value(pair.value) for pair in pairs}


def _protobuf_value(value: Any) -> Any:
    """Return an AnyValue as a Python value; the library bounds its depth."""
    match value.WhichOneof("value"):
        case "string_value":
            return text_of(value.string_value)
        case "double_value":
            return _double(value.double_value)
        case "bool_value" | "int_value" | "bytes_value" as name:
            return getattr(value, name)
        case "array_value":
            return [_protobuf_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return {text_of(pair.key): _protobuf_value(pair.value) for pair in value.kvlist_value.values}
    return None


# JSON: field names in lowerCamelCase, 64-bit integers as strings; trace ids are ignored


class _Json(msgspec.Struct, rename="camel", gc=False):
    """Base of the messages; null is the same as absent, unknown fields are ignored."""


class _AnyValue(_Json):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: str | int | None = None
    double_value: str | float | None = None
    bytes_value: str | None = None
    array_value: "_Array | None" = None
    kvlist_value: "_KeyValues | None" = None


class _KeyValue(_Json):
    key: str = ""
    value: _AnyValue | None = None


class _Array(_Json):
    values: tuple[_AnyValue, ...] | None = None


class _KeyValues(_Json):
    values: tuple[_KeyValue, ...] | None = None


class _LogRecord(_Json):
    time_unix_nano: str | int | None = None
    observed_time_unix_nano: str | int | None = None
    severity_number: str | int | None = None
    severity_text: str | None = None
    body: _AnyValue | None = None
    event_name: str | None = None
    attributes: tuple[_KeyValue, ...] | None = None


class _Resource(_Json):
    attributes: tuple[_KeyValue, ...] | None = None


class _Scope(_Json):
    name: str | None = None


class _ScopeLogs(_Json):
    scope: _Scope | None = None
    log_records: tuple[_LogRecord, ...] | None = None


class _ResourceLogs(_Json):
    resource: _Resource | None = None
    scope_logs: tuple[_ScopeLogs, ...] | None = None


class _Request(_Json):
    resource_logs: tuple[_ResourceLogs, ...] | None


_REQUEST = msgspec.json.Decoder(_Request)


def _json_entries(body: bytes, limits: PushLimits) -> Iterator[LogEntry]:
    for resource_logs in _json_request(body).resource_logs or ():
        attributes = resource_logs.resource.attributes if resource_logs.resource else ()
        shared = _shared(_json_attributes(attributes, limits), limits)
        for scope_logs in resource_logs.scope_logs or ():
            name = (scope_logs.scope.name if scope_logs.scope else None) or ""
            for record in scope_logs.log_records or ():
                yield _entry(shared, name, _json_record(record, limits), limits)


def _json_request(body: bytes) -> _Request:
    try:
        return _REQUEST.decode(checked_density(body))
    except UnicodeDecodeError:
        return _json_request(text_of(body).encode())  # a line that is not UTF-8 must not cost the whole push
    except (msgspec.MsgspecError, RecursionError) as error:
        _refuse_json(str(error)[:300], error)


def _refuse_json(cause: str, error: Exception | None = None) -> NoReturn:
    raise PushRefused(
        "push", f"it is not an OTLP request in JSON: {cause}", "Check the exporter: OTLP 1.x, logs, lowerCamelCase."
    ) from error


def _json_record(record: _LogRecord, limits: PushLimits) -> _Record:
    return _Record(
        known_time(_integer(record.time_unix_nano)) or known_time(_integer(record.observed_time_unix_nano)),
        _severity(record.severity_number),
        record.severity_text or "",
        _json_value(record.body),
        record.event_name or "",
        _json_attributes(record.attributes, limits),
    )


def _json_attributes(pairs: tuple[_KeyValue, ...] | None, limits: PushLimits) -> dict[str, Any]:
    pairs = pairs or ()
    if len(pairs) > limits.labels:
        refuse_labels(len(pairs), limits)
    return {pair.key: _json_value(pair.value) for pair in pairs}


def _integer(value: str | int | None) -> int:
    if isinstance(value, str):
        if not re.fullmatch(r"-?[0-9]{1,30}", value):
            _refuse_json(f"{value[:60]!r} is not an integer")
        return int(value)
    return value or 0


def _severity(value: str | int | None) -> int:
    """Return the severity number, also by its name, as JSON of Protocol Buffers allows (SEVERITY_NUMBER_ERROR)."""
    if isinstance(value, str) and not value.isdecimal():
        return int(logs_pb2.SeverityNumber.Value(value)) if value in logs_pb2.SeverityNumber.keys() else 0
    return _integer(value)


def _json_value(value: _AnyValue | None, depth: int = 0) -> Any:
    """Return an AnyValue as a Python value; `PushRefused` when it is nested too deep."""
    if depth > _DEEPEST:
        _refuse_json("a value is nested too deep")
    if value is None:
        return None
    if value.array_value is not None:
        return [_json_value(item, depth + 1) for item in value.array_value.values or ()]
    if value.kvlist_value is not None:
        return {pair.key: _json_value(pair.value, depth + 1) for pair in value.kvlist_value.values or ()}
    if value.int_value is not None:
        return _integer(value.int_value)
    if value.bytes_value is not None:
        return _bytes(value.bytes_value)
    if value.double_value is not None:
        return _json_double(value.double_value)
    return value.string_value if value.string_value is not None else value.bool_value


def _json_double(value: str | float) -> float | str:
    try:
        return _double(float(value))
    except ValueError as error:
        _refuse_json("a double value is not a number", error)


def _bytes(value: str) -> bytes:
    try:
        return base64.b64decode(value)
    except binascii.Error as error:
        _refuse_json("a bytes value is not base64", error)
