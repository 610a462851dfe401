"""OTLP requests as the OpenTelemetry SDK encodes them are read; everything else is a clear error."""

import base64
import json
import logging
from typing import Any

import pytest
from google.protobuf import json_format  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry._logs import LogRecord as ApiRecord
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource

from logdoctor.text import origin
from logdoctor.web.push.labels import label_map
from logdoctor.web.push.otlp import JSON, PROTOBUF, answer, decode, failure
from logdoctor.web.push.pushes import Batch, PushLimits, PushRefused

NOW = 1_790_000_000_123_456_789


def value(given: Any) -> AnyValue:
    match given:
        case bool():
            return AnyValue(bool_value=given)
        case str():
            return AnyValue(string_value=given)
        case int():
            return AnyValue(int_value=given)
        case float():
            return AnyValue(double_value=given)
        case bytes():
            return AnyValue(bytes_value=given)
        case list():
            found = AnyValue()
            found.array_value.values.extend(value(item) for item in given)
            found.array_value.SetInParent()
            return found
        case dict():
            found = AnyValue()
            found.kvlist_value.values.extend(KeyValue(key=k, value=value(v)) for k, v in given.items())
            found.kvlist_value.SetInParent()
            return found
    return AnyValue()


def pairs(attributes: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=name, value=value(given)) for name, given in attributes.items()]


def record(body: Any = "x", severity: int = 0, attributes: dict[str, Any] | None = None, **fields: Any) -> LogRecord:
    return LogRecord(
        body=value(body),
        severity_number=severity,  # type: ignore[arg-type]
        attributes=pairs(attributes or {}),
        **({"time_unix_nano": NOW} | fields),
    )


def request(*records: LogRecord, scope: str = "", **resource: Any) -> ExportLogsServiceRequest:
    found = ExportLogsServiceRequest()
    logs = found.resource_logs.add()
    logs.resource.attributes.extend(pairs({"service.name": "j"} | resource))
    scope_logs = logs.scope_logs.add()
    scope_logs.scope.name = scope
    scope_logs.log_records.extend(records)
    return found


def in_json(message: ExportLogsServiceRequest) -> bytes:
    """As OTLP/JSON has it: trace and span ids in hexadecimal, enumerations as numbers."""
    for resource_logs in message.resource_logs:
        for scope_logs in resource_logs.scope_logs:
            for one in scope_logs.log_records:
                one.trace_id, one.span_id = b"", b""
    tree = json.loads(json_format.MessageToJson(message, use_integers_for_enums=True))
    for resource_logs in tree["resourceLogs"]:
        for scope_logs in resource_logs["scopeLogs"]:
            for one in scope_logs.get("logRecords", []):
                one["traceId"] = "5B8EFFF798038103D269B633813FC60C"
    return json.dumps(tree).encode()


def both(message: ExportLogsServiceRequest) -> list[Batch]:
    """The batches of a request, which are the same for both encodings."""
    found = decode(message.SerializeToString(), PROTOBUF)
    assert decode(in_json(message), "application/json; charset=utf-8") == found
    return found


def lines(*records: LogRecord) -> str:
    return b"".join(batch.lines for batch in both(request(*records))).decode()


# a real exporter


def test_what_the_sdk_sends_of_a_failing_trainer() -> None:
    memory = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider(resource=Resource.create({"service.name": "llama", "slurm.job.id": 4711, "rank": 3}))
    provider.add_log_record_processor(SimpleLogRecordProcessor(memory))
    logger = logging.Logger("trainer")
    with pytest.warns(DeprecationWarning):
        logger.addHandler(LoggingHandler(logger_provider=provider))
    logger.info("iteration %d", 7, extra={"_moment_ns": 1_700_000_000_000_000_001})
    try:
        raise RuntimeError("CUDA error: out of memory")
    except RuntimeError:
        logger.exception("step failed")
    logger.critical("giving up")
    body = encode_logs(memory.get_finished_logs()).SerializeToString()
    (batch,) = decode(body, PROTOBUF)  # where in the code a line stands does not split a batch
    text = batch.lines.decode().splitlines()
    assert text[:3] == ["iteration 7", "ERROR: step failed", "Traceback (most recent call last):"]
    assert text[-2:] == ["RuntimeError: CUDA error: out of memory", "FATAL: giving up"]
    assert batch.labels["rank"] == "3"
    assert batch.labels["otel.scope.name"] == "trainer"
    assert batch.first_ns <= batch.last_ns and batch.first_ns > 1_700_000_000_000_000_000
    assert tuple(label_map().place(batch.labels)) == ("4711", 1, "3")


def test_what_the_sdk_encodes_of_any_body() -> None:
    memory = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider(resource=Resource({"service.name": "j"}))
    provider.add_log_record_processor(SimpleLogRecordProcessor(memory))
    body = {"msg": "caf\xe9", "n": [1, 2.5, True, None], "raw": b"x"}
    provider.get_logger("s").emit(ApiRecord(timestamp=NOW, severity_number=SeverityNumber.INFO, body=body))
    (batch,) = decode(encode_logs(memory.get_finished_logs()).SerializeToString(), PROTOBUF)
    assert json.loads(batch.lines) == body | {"raw": base64.b64encode(b"x").decode()}


# labels and order


def test_labels_of_the_record_count_before_those_of_the_scope_and_the_resource() -> None:
    message = request(
        record("a", attributes={"rank": 1, "otel.scope.name": "mine"}),
        record("b", attributes={"rank": 2, "code.line.number": 4, "flag": True, "list": ["x", 1]}),
        record("c"),
        scope="s",
        **{"host.name": "n1", "rank": 0},
    )
    found = both(message)
    assert [batch.labels for batch in found] == [
        {"service.name": "j", "host.name": "n1", "rank": "1", "otel.scope.name": "mine"},
        {
            "service.name": "j",
            "host.name": "n1",
            "rank": "2",
            "otel.scope.name": "s",
            "flag": "true",
            "list": '["x",1]',
        },
        {"service.name": "j", "host.name": "n1", "rank": "0", "otel.scope.name": "s"},
    ]
    assert [batch.lines for batch in found] == [b"a\n", b"b\n", b"c\n"]


def test_streams_are_gathered_in_order_of_arrival() -> None:
    records = [record(f"{i}", attributes={"rank": i % 2, "step": i}) for i in range(6)]
    gathered = label_map().gather(both(request(*records)))
    assert [(p.key.stream, p.batch.lines) for p in gathered.placed] == [("0", b"0\n2\n4\n"), ("1", b"1\n3\n5\n")]


def test_times() -> None:
    records = [record("a", time_unix_nano=0, observed_time_unix_nano=5), record("b", time_unix_nano=3)]
    records.append(record("c", time_unix_nano=1 << 63))
    (batch,) = both(request(*records))
    assert (batch.first_ns, batch.last_ns, batch.entries) == (3, 5, 3)


def test_a_message_may_come_in_pieces() -> None:
    """Protocol Buffers allow a field after the ones that need it, and in parts that are merged."""
    whole = request(record("a"))
    resource = whole.resource_logs[0].resource.SerializeToString()
    whole.resource_logs[0].ClearField("resource")
    more = field(1, KeyValue(key="host", value=value("n")).SerializeToString())
    inner = whole.resource_logs[0].SerializeToString() + field(1, resource) + field(1, more)
    (batch,) = decode(field(1, inner), PROTOBUF)
    assert batch.labels == {"service.name": "j", "host": "n"}
    assert batch.lines == b"a\n"


# composing the text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("plain", "plain\n"),
        ("  two\n  lines\n", "  two\n  lines\n"),
        ("cr\r\n", "cr\r\n"),
        ("", "\n"),
        (None, "\n"),
        (7, "7\n"),
        (2.5, "2.5\n"),
        (True, "true\n"),
        (b"\xffraw", "\ufffdraw\n"),
        (["a", 1, None, b"x"], '["a",1,null,"eA=="]\n'),
        ({"msg": "a\nb", "n": {"m": []}}, '{"msg":"a\\nb","n":{"m":[]}}\n'),
        ([float("nan"), float("-inf")], '["NaN","-Infinity"]\n'),
        (float("nan"), "NaN\n"),
        ({}, "{}\n"),
    ],
)
def test_bodies(body: Any, text: str) -> None:
    assert lines(record(body)) == text


def test_an_event_without_a_body_has_its_name() -> None:
    assert lines(record(None, event_name="device.lost")) == "device.lost\n"


STACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nRuntimeError: bad\n'


@pytest.mark.parametrize(
    ("body", "exception", "text"),
    [
        ("step failed", {"type": "RuntimeError", "message": "bad", "stacktrace": STACK}, f"step failed\n{STACK}"),
        ("step failed\n", {"stacktrace": STACK}, f"step failed\n{STACK}"),
        (f"step failed\n{STACK}", {"type": "RuntimeError", "stacktrace": STACK}, f"step failed\n{STACK}"),
        ("step failed", {"type": "RuntimeError", "message": "bad"}, "step failed\nRuntimeError: bad\n"),
        ("failed: bad", {"type": "RuntimeError", "message": "bad"}, "failed: bad\n"),
        ("step failed", {"type": "torch.OutOfMemoryError"}, "step failed\ntorch.OutOfMemoryError\n"),
        ("step failed", {"type": "E", "message": "m", "stacktrace": "at f\nat g"}, "step failed\nat f\nat g\nE: m\n"),
        (None, {"type": "E", "message": "m"}, "E: m\n"),
        ("x", {"type": "", "message": ""}, "x\n"),
        ("x", {"message": 7}, "x\n7\n"),
    ],
)
def test_exceptions_follow_the_body(body: str | None, exception: dict[str, Any], text: str) -> None:
    attributes = {f"exception.{name}": given for name, given in exception.items()}
    assert lines(record(body, attributes=attributes)) == text


@pytest.mark.parametrize(
    ("body", "severity", "named", "text"),
    [
        ("link lost", 17, "", "ERROR: link lost\n"),
        ("link lost", 20, "", "ERROR: link lost\n"),
        ("link lost", 21, "", "FATAL: link lost\n"),
        ("link lost", 16, "", "link lost\n"),
        ("link lost", 0, "error", "ERROR: link lost\n"),
        ("link lost", 0, "CRITICAL", "FATAL: link lost\n"),
        ("link lost", 9, "ERROR", "link lost\n"),
        ("[ERROR] link lost", 17, "", "[ERROR] link lost\n"),
        ("2026-11-21 10:00:00,123 - t - error - lost", 17, "", "2026-11-21 10:00:00,123 - t - error - lost\n"),
        ("[rank3]: INFO link lost", 17, "", "[rank3]: INFO link lost\n"),
        ("E1121 10:00:00.123456 77 a.cc:5] lost", 17, "", "E1121 10:00:00.123456 77 a.cc:5] lost\n"),
        ("RuntimeError: lost", 17, "", "ERROR: RuntimeError: lost\n"),
        ("first\nERROR second", 17, "", "ERROR: first\nERROR second\n"),
        ("", 17, "", "\n"),
    ],
)
def test_the_level_of_a_failure_stands_in_the_line(body: str, severity: int, named: str, text: str) -> None:
    assert lines(record(body, severity, severity_text=named)) == text


@pytest.mark.parametrize("body", ['  File "a.py", line 1, in f', "Traceback (most recent call last):", "[rank3]: lost"])
def test_a_level_in_front_changes_nothing_for_diagnosis(body: str) -> None:
    with_level = origin(lines(record(body, 17)).rstrip("\n"))
    assert with_level._replace(level=None) == origin(body)


# answers


def test_answers_in_protobuf() -> None:
    assert answer(PROTOBUF) == (b"", PROTOBUF)
    body, kind = answer("application/x-protobuf", 3, "no job")
    assert kind == PROTOBUF
    partial = ExportLogsServiceResponse.FromString(body).partial_success
    assert (partial.rejected_log_records, partial.error_message) == (3, "no job")
    body, kind = failure("", PushRefused("push", "bad", "Look."))
    assert (Status.FromString(body).message, kind) == ("push: bad. Look.", PROTOBUF)


def test_answers_in_json() -> None:
    assert answer("application/json; charset=utf-8") == (b"{}", JSON)
    body, kind = answer(JSON, 3, "no job")
    assert kind == JSON
    partial = json_format.Parse(body, ExportLogsServiceResponse()).partial_success
    assert (partial.rejected_log_records, partial.error_message) == (3, "no job")
    body, kind = failure(JSON, PushRefused("push", "bad", "Look."))
    assert (json_format.Parse(body, Status()).message, kind) == ("push: bad. Look.", JSON)


# what is no request


def field(number: int, content: bytes) -> bytes:
    """A field as it stands on the wire."""
    size, head = len(content), b""
    while size > 127:
        head += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + head + bytes([size]) + content


def test_content_types() -> None:
    body = request(record()).SerializeToString()
    assert decode(body, "") == decode(body, "Application/X-Protobuf; a=b")
    with pytest.raises(PushRefused) as caught:
        decode(body, "text/plain")
    assert (caught.value.status, caught.value.code) == (415, "unsupported_type")


def test_text_that_is_not_utf8_does_not_cost_the_request() -> None:
    body = request(record("?ok"), record("more"), host="?").SerializeToString().replace(b"?", b"\xff")
    (batch,) = decode(body, PROTOBUF)
    assert batch.lines == "\ufffdok\nmore\n".encode()
    assert batch.labels["host"] == "\ufffd"
    assert decode(in_json(request(record("?ok"))).replace(b"?", b"\xff"), JSON)[0].lines == "\ufffdok\n".encode()


def test_every_cut_of_a_request_is_an_error() -> None:
    message = request(record("a", 9, {"k": [1, "x"]}), scope="s")
    for body, kind in ((message.SerializeToString(), PROTOBUF), (in_json(message), JSON)):
        for end in range(1, len(body)):
            with pytest.raises(PushRefused):
                decode(body[:end], kind)
    assert decode(b"", PROTOBUF) == []


def log(record: str) -> bytes:
    return f'{{"resourceLogs": [{{"scopeLogs": [{{"logRecords": [{record}]}}]}}]}}'.encode()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            log('{"timeUnixNano": 5, "severityNumber": "SEVERITY_NUMBER_ERROR", "body": {"stringValue": "x"}}'),
            "ERROR: x",
        ),
        (log('{"timeUnixNano": null, "severityNumber": "17", "body": {"stringValue": "x"}}'), "ERROR: x"),
        (log('{"severityNumber": "WHAT", "body": {"intValue": "12"}}'), "12"),
        (log('{"body": {"doubleValue": "2.50"}, "attributes": null, "new": {"a": [1]}}'), "2.5"),
        (log('{"body": {"arrayValue": {"values": null}}}'), "[]"),
        (log("{}"), ""),
    ],
)
def test_json_as_other_exporters_write_it(body: bytes, text: str) -> None:
    assert decode(body, JSON)[0].lines.decode() == text + "\n"


def test_json_without_records_is_empty() -> None:
    for body in (b'{"resourceLogs": null}', b'{"resourceLogs": [{"resource": null, "scopeLogs": [{"scope": null}]}]}'):
        assert decode(body, JSON) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"resource_logs": []}',
        b'{"resourceLogs": {}}',
        log('{"timeUnixNano": "soon"}'),
        log('{"timeUnixNano": 1.5}'),
        log('{"body": "x"}'),
        log('{"body": {"bytesValue": "x"}}'),
        log('{"body": {"intValue": "1e5"}}'),
        log('{"body": {"doubleValue": "much"}}'),
        log('{"body": ' + '{"arrayValue": {"values": [' * 100 + "]}}" * 100 + "}"),
        log('{"body": ' + '{"arrayValue": {"values": [' * 30_000 + "]}}" * 30_000 + "}"),
        b'{"x": ' + b"[" * 90_000,
    ],
)
def test_json_that_is_no_request_is_an_error(body: bytes) -> None:
    with pytest.raises(PushRefused) as caught:
        decode(body, JSON)
    assert caught.value.status == 400
    assert len(str(caught.value)) < 800


def test_deep_nesting_is_refused() -> None:
    body = b""
    for _ in range(5_000):
        body = field(5, field(1, body))
    with pytest.raises(PushRefused, match="damaged"):
        decode(field(1, field(2, field(2, field(5, body)))), PROTOBUF)


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (request(*[record()] * 11), 413),
        (request(record("x" * 300)), 413),
        (request(record({str(i): "" for i in range(100)})), 413),
        (request(record(attributes={str(i): "" for i in range(6)})), 400),
        (request(record(), **{str(i): "" for i in range(6)}), 400),
        (request(record(attributes={"a": 1, "b": 1, "c": 1}), d=1, e=1), 400),
        (request(record(attributes={"n" * 50: 1})), 400),
        (request(record("x" * 3000)), 413),
    ],
)
def test_limits(message: ExportLogsServiceRequest, status: int) -> None:
    for body, kind in ((message.SerializeToString(), PROTOBUF), (in_json(message), JSON)):
        with pytest.raises(PushRefused) as caught:
            decode(body, kind, PushLimits(3000, 10, 299, 5, 20, 1000))
        assert caught.value.status == status


def test_long_attributes_are_cut() -> None:
    (batch,) = both(request(record(attributes={"command": "x" * 10_000})))
    assert batch.labels["command"] == "x" * 4096


def test_a_flood_of_empty_messages_is_refused() -> None:
    for body in (b'{"resourceLogs": [' + b"{}," * 200_000 + b"{}]}", log("{}," * 200_000 + "{}")):
        with pytest.raises(PushRefused, match="brackets in"):
            decode(body, JSON)
    for body in (field(1, field(2, b"\x12\x00" * 2000)), b"\x0a\x00" * 5000, b"\x08\x00" * 5000):
        with pytest.raises(PushRefused, match="more than 1000 entries"):
            decode(body, PROTOBUF, PushLimits(entries=1000))


@given(st.binary(max_size=300), st.sampled_from([JSON, PROTOBUF, ""]))
def test_any_body_is_read_or_refused(body: bytes, content_type: str) -> None:
    try:
        decode(body, content_type)
    except PushRefused as error:
        assert error.status in (400, 413)
        assert error.next_step


@given(st.data())
def test_a_damaged_request_is_read_or_refused(data: st.DataObject) -> None:
    message = request(record({"a": [1, "x"]}, 17, {"k": "v", "exception.type": "E"}), scope="s")
    whole = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(whole), PROTOBUF)
    except PushRefused:
        pass


KEYS = ["resource", "scopeLogs", "logRecords", "body", "attributes", "key", "value", "stringValue", "arrayValue"]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*KEYS, "values", "timeUnixNano"]), inner),
)


@given(JSON_VALUES, st.sampled_from(['{"resourceLogs": %s}', log("%s").decode(), log('{"body": %s}').decode()]))
def test_any_json_is_read_or_refused(given: Any, around: str) -> None:
    try:
        decode((around % json.dumps(given)).encode(), JSON)
    except PushRefused:
        pass


BODIES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(BODIES, st.integers(0, 24), st.dictionaries(st.text(max_size=20), BODIES, max_size=4))
def test_both_encodings_say_the_same(body: Any, severity: int, attributes: dict[str, Any]) -> None:
    (batch,) = both(request(record(body, severity, attributes)))
    assert batch.lines.endswith(b"\n")
