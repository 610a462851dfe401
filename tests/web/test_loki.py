"""Loki pushes as real clients encode them are read; everything else is a clear error."""

import json
from typing import Any

import cramjam
import pytest
from google.protobuf import message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor_pb2 import FileDescriptorProto  # type: ignore[import-untyped]
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]
from google.protobuf.text_format import Parse  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.web.push.loki import decode, parse_labels
from logdoctor.web.push.pushes import PushLimits, PushRefused

JSON = "application/json"
PROTOBUF = "application/x-protobuf"

# grafana/loki pkg/push/push.proto, written independently of the code
LOGPROTO = """
name: "push.proto" package: "logproto" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
message_type { name: "PushRequest"
  field { name: "streams" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".logproto.StreamAdapter" }
  field { name: "format" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING } }
message_type { name: "StreamAdapter"
  field { name: "labels" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "entries" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".logproto.EntryAdapter" }
  field { name: "hash" number: 3 label: LABEL_OPTIONAL type: TYPE_UINT64 } }
message_type { name: "LabelPairAdapter"
  field { name: "name" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING } }
message_type { name: "EntryAdapter"
  field { name: "timestamp" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" }
  field { name: "line" number: 2 label: LABEL_OPTIONAL type: TYPE_BYTES }
  field { name: "structuredMetadata" number: 3 label: LABEL_REPEATED type: TYPE_MESSAGE
          type_name: ".logproto.LabelPairAdapter" } }
"""


def _push_class() -> Any:
    from google.protobuf import timestamp_pb2

    pool = DescriptorPool()
    timestamp = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    pool.Add(timestamp)
    pool.Add(Parse(LOGPROTO, FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("logproto.PushRequest"))


PUSH = _push_class()


def unpacked_protobuf(*streams: tuple[str, list[tuple[int, bytes, dict[str, str]]]]) -> bytes:
    push = PUSH()
    for labels, entries in streams:
        stream = push.streams.add(labels=labels, hash=0xDEADBEEF)
        for ns, line, metadata in entries:
            entry = stream.entries.add(line=line)
            entry.timestamp.seconds, entry.timestamp.nanos = divmod(ns, 1_000_000_000)
            for name, value in metadata.items():
                entry.structuredMetadata.add(name=name, value=value)
    return bytes(push.SerializeToString())


def snappy(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


def as_json(*streams: tuple[dict[str, str], list[list[Any]]]) -> bytes:
    return json.dumps({"streams": [{"stream": labels, "values": values} for labels, values in streams]}).encode()


NOW = 1_790_000_000_123_456_789


def test_json_and_protobuf_say_the_same() -> None:
    trace = {"trace_id": "abc", "host": "entry"}
    text = 'Traceback (most recent call last):\n  File "a.py", line 1\nRuntimeError: \u4e2d\r\n'
    in_json = as_json(
        ({"job": "j", "host": "n1"}, [[str(NOW), "one"], [str(NOW + 1), text], [str(NOW + 2), "three", trace]]),
        ({"job": "k"}, [[str(NOW), "other"]]),
    )
    in_protobuf = unpacked_protobuf(
        ('{host="n1", job="j"}', [(NOW, b"one", {}), (NOW + 1, text.encode(), {}), (NOW + 2, b"three", trace)]),
        ('{job="k"}', [(NOW, b"other", {})]),
    )
    found = decode(in_json, "application/json; charset=utf-8")
    assert found == decode(snappy(in_protobuf), PROTOBUF)
    assert [batch.labels for batch in found] == [
        {"job": "j", "host": "n1"},
        {"job": "j", "host": "entry", "trace_id": "abc"},  # the entry's label counts
        {"job": "k"},
    ]
    assert found[0].lines == b"one\n" + text.encode()
    assert (found[0].first_ns, found[0].last_ns, found[0].entries) == (NOW, NOW + 1, 2)


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [
        ("", ""),
        (PROTOBUF, ""),
        (PROTOBUF, "snappy"),
        ("application/x-protobuf; proto=x", ""),
        (PROTOBUF, "gzip"),
        (PROTOBUF, "x-gzip"),
    ],
)
def test_headers_of_protobuf_clients(content_type: str, encoding: str) -> None:
    body = snappy(unpacked_protobuf(('{job="j"}', [(NOW, b"x", {})])))
    assert decode(body, content_type, encoding)[0].lines == b"x\n"


@pytest.mark.parametrize(
    ("content_type", "encoding"), [("text/plain", ""), (JSON, "br"), (JSON, "snappy"), (PROTOBUF, "deflate")]
)
def test_headers_that_are_not_known(content_type: str, encoding: str) -> None:
    with pytest.raises(PushRefused) as caught:
        decode(b"{}", content_type, encoding)
    assert (caught.value.status, caught.value.code) == (415, "unsupported_type")


def test_lines_that_are_not_utf8_do_not_cost_the_push() -> None:
    found = decode(snappy(unpacked_protobuf(('{job="j"}', [(NOW, b"\xff\x00ok", {})]))), PROTOBUF)
    assert found[0].lines == b"\xff\x00ok\n"
    body = as_json(({"job": "j"}, [[str(NOW), "?ok"], [str(NOW), "more"]])).replace(b"?", b"\xff")
    assert decode(body, JSON)[0].lines == "\ufffdok\nmore\n".encode()


@pytest.mark.parametrize("time", ["0", "-5", str(1 << 63), "9" * 30, 7, -7, 1 << 80])
def test_times_that_cannot_be_do_not_cost_the_line(time: str | int) -> None:
    (batch,) = decode(as_json(({"job": "j"}, [[time, "x"]])), JSON)
    assert batch.lines == b"x\n"
    assert batch.first_ns == (7 if time == 7 else 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"streams": 1}',
        b'{"streams": [{"values": []}]}',
        b'{"streams": [{"labels": "{}", "entries": []}]}',
        b'{"streams": [{"stream": {"a": 1}, "values": []}]}',
        b'{"streams": [{"stream": {}, "values": [["1"]]}]}',
        b'{"streams": [{"stream": {}, "values": [["1", 2]]}]}',
        b'{"streams": [{"stream": {}, "values": [["soon", "x"]]}]}',
        b'{"streams": [{"stream": {}, "values": [["", "x"]]}]}',
        b'{"streams": [{"stream": {}, "values": [["1", "x", ["y"]]]}]}',
        b'{"streams": [{"stream": {}, "values": [["1", "\\ud800"]]}]}',
        b'{"x": ' + b"[" * 90_000,
        b'{"x": ' + b'{"x":' * 90_000,
    ],
)
def test_json_that_is_no_push_is_an_error(body: bytes) -> None:
    with pytest.raises(PushRefused) as caught:
        decode(body, JSON)
    assert caught.value.status == 400
    assert len(str(caught.value)) < 800


def test_every_cut_of_a_protobuf_push_is_an_error() -> None:
    whole = unpacked_protobuf(('{job="j"}', [(NOW, b"one", {"a": "b"}), (NOW, b"two", {})]))
    for end in range(1, len(whole)):
        with pytest.raises(PushRefused, match="Protocol Buffers"):
            decode(snappy(whole[:end]), PROTOBUF)
    packed = snappy(whole)
    for end in range(len(packed)):
        with pytest.raises(PushRefused, match="Snappy"):
            decode(packed[:end], PROTOBUF)
    assert decode(snappy(b""), PROTOBUF) == []


def test_a_snappy_bomb_is_refused_by_its_claim() -> None:
    for body in (b"\xff\xff\xff\xff\x0f" + b"x" * 20, snappy(bytes(9 << 20))):
        with pytest.raises(PushRefused, match="unpacks to") as caught:
            decode(body, PROTOBUF)
        assert caught.value.status == 413


@pytest.mark.parametrize("piece", [b"{}", b"[]", b'{"values":[[],[],[],[]]}'])
def test_a_body_of_brackets_is_refused(piece: bytes) -> None:
    with pytest.raises(PushRefused, match="brackets in") as caught:
        decode(b'{"streams": [' + b",".join([piece] * 110_000) + b"]}", JSON)
    assert caught.value.status == 413


def test_short_lines_are_no_reason_to_refuse() -> None:
    (batch,) = decode(as_json(({"job": "j"}, [[str(NOW), "[{"]] * 99_000)), JSON)
    assert batch.entries == 99_000


def test_an_empty_stream_and_an_empty_push_give_nothing() -> None:
    assert decode(as_json(({"job": "j"}, [])), JSON) == []
    assert decode(b'{"streams": []}', JSON) == []


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (as_json(({"job": "j"}, [["1", "x"]] * 11)), JSON, 413),
        (snappy(unpacked_protobuf(('{job="j"}', [(1, b"x", {})] * 11))), PROTOBUF, 413),
        (snappy(unpacked_protobuf(*[('{job="j"}', [])] * 41)), PROTOBUF, 413),  # many streams without entries
        (as_json(({"job": "j"}, [["1", "x" * 101]])), JSON, 413),
        (snappy(unpacked_protobuf(('{job="j"}', [(1, b"x" * 101, {})]))), PROTOBUF, 413),
        (as_json(({str(i): "" for i in range(6)}, [["1", "x"]])), JSON, 400),
        (as_json(({"job": "j"}, [["1", "x", {str(i): "" for i in range(5)}]])), JSON, 400),
        (snappy(unpacked_protobuf(('{job="j"}', [(1, b"x", {str(i): "" for i in range(5)})]))), PROTOBUF, 400),
        (snappy(unpacked_protobuf(('{a="",b="",c="",d="",e="",f=""}', [(1, b"x", {})]))), PROTOBUF, 400),
        (as_json(({"job": "j" * 21}, [["1", "x"]])), JSON, 400),
        (as_json(({"j" * 21: "j"}, [["1", "x"]])), JSON, 400),
        (b" " * 2001, JSON, 413),
        (snappy(b"\x10\x01" * 1001), PROTOBUF, 413),
    ],
)
def test_limits(body: bytes, content_type: str, status: int) -> None:
    with pytest.raises(PushRefused) as caught:
        decode(body, content_type, "", PushLimits(2000, 10, 100, 5, 20, 1000))
    assert caught.value.status == status
    assert caught.value.code in ("too_large", "bad_labels")


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("{}", {}),
        (' { a = "b" , } ', {"a": "b"}),
        ('{a="b",c="d"}', {"a": "b", "c": "d"}),
        ('{a="", b="}", c="{,="}', {"a": "", "b": "}", "c": "{,="}),
        (r'{a="\"\\\a\b\f\n\r\t\v\x41\101\u00e9\U0001F600"}', {"a": '"\\\a\b\f\n\r\t\vAA\xe9\U0001f600'}),
        (r'{a="\xc3\xa9\xff"}', {"a": "\xe9\ufffd"}),
        ('{a=`\\n"\n`}', {"a": '\\n"\n'}),
        ('{"service.name"="x", k8s.pod="y"}', {"service.name": "x", "k8s.pod": "y"}),
        ('{a="\u4e2d\u6587"}', {"a": "\u4e2d\u6587"}),
    ],
)
def test_labels_are_parsed(text: str, labels: dict[str, str]) -> None:
    assert parse_labels(text) == labels


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", 0),
        ("a", 0),
        ("{", 1),
        ("{a}", 2),
        ('{a="b"', 6),
        ('{a="b" c="d"}', 7),
        ('{a="b"}}', 7),
        ('{a="b}', 3),
        ('{a="b\n"}', 3),
        ('{a=`b"}', 3),
        ("{a='b'}", 3),
        ("{a=b}", 3),
        ('{a!="b"}', 2),
        ('{a=~"b"}', 3),
        ('{="b"}', 1),
        ("{,}", 1),
        (r'{a="\z"}', 4),
        (r'{a="b\xg0"}', 5),
        (r'{a="\400"}', 4),
        (r'{a="\ud800"}', 4),
        (r'{a="\U00110000"}', 4),
        ('{a="b", a="c"}', 10),
    ],
)
def test_an_error_in_labels_names_the_place(text: str, place: int) -> None:
    with pytest.raises(PushRefused, match=f"at character {place} ") as caught:
        parse_labels(text)
    assert caught.value.code == "bad_labels"


def go_quoted(value: str) -> str:
    """As Go's strconv.Quote does it, near enough."""
    letters = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(letters.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in value) + '"'


@given(st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,20}", fullmatch=True), st.text()))
def test_quoted_labels_come_back(labels: dict[str, str]) -> None:
    text = "{" + ", ".join(f"{name}={go_quoted(value)}" for name, value in labels.items()) + "}"
    assert parse_labels(text) == labels


@given(st.text(alphabet='{}="`\\,ab x\n\u00e9'))
def test_any_labels_are_read_or_refused(text: str) -> None:
    try:
        parse_labels(text)
    except PushRefused as error:
        assert len(str(error)) < 300


def test_hostile_labels_take_no_time() -> None:
    for text in ('{a="' + "\\x" * 900_000, '{a="' + "\\\\" * 900_000, "{" + " " * 1_800_000, "{" + "a" * 1_800_000):
        with pytest.raises(PushRefused):
            parse_labels(text)


@given(st.binary(max_size=300), st.sampled_from([JSON, PROTOBUF, ""]), st.booleans())
def test_any_body_is_read_or_refused(body: bytes, content_type: str, packed: bool) -> None:
    try:
        decode(snappy(body) if packed and content_type != JSON else body, content_type)
    except PushRefused as error:
        assert error.status in (400, 413)
        assert error.next_step


@given(st.data())
def test_a_damaged_push_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(unpacked_protobuf(('{job="j"}', [(NOW, b"one", {"a": "b"}), (NOW, b"two", {})])))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(snappy(bytes(whole)), PROTOBUF)
    except PushRefused:
        pass


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["streams", "stream", "values", "x"]), inner),
)


@given(JSON_VALUES)
def test_any_json_is_read_or_refused(value: Any) -> None:
    try:
        decode(json.dumps({"streams": value}).encode(), JSON)
    except PushRefused:
        pass


def test_facts_of_the_job_are_found() -> None:
    labels = {"job": "j", "slurm_job_user": "kim", "container_image": "nvcr.io/x:1", "job_name": "llama"}
    (batch,) = decode(as_json((labels, [["1", "x"]])), JSON)
    assert batch.facts == {"name": "llama", "user": "kim", "image": "nvcr.io/x:1"}
