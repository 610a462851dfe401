"""A bounded reader of untrusted Protocol Buffers: small bodies cannot become huge trees.

A message of two bytes takes more than a hundred when the library has parsed it. So the outer levels of a push are
walked here with a count, and the library parses only one entry at a time.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from logdoctor.web.push.pushes import PushLimits, PushRefused, refuse_size

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_STEPS_PER_ENTRY = 4
_FIELD = descriptor_pb2.FieldDescriptorProto


class Walk:
    """The walk through one push, with the number of fields that may still be read."""

    def __init__(self, limits: PushLimits) -> None:
        self._left = limits.entries * _STEPS_PER_ENTRY
        self._limits = limits

    def fields(self, message: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield the number and content of each message, string or bytes field, in order.

        `PushRefused` when the message is damaged, or the push has too many fields.
        """
        at = 0
        while at < len(message):
            self._left -= 1
            if self._left < 0:
                refuse_size(f"it has more than {self._limits.entries} entries")
            tag, at = _varint(message, at)
            kind = tag & 7
            if kind == _BYTES:
                size, at = _varint(message, at)
                if size > len(message) - at:
                    refuse_message("it ends in the middle of a field")
                yield tag >> 3, message[at : at + size]
                at += size
            elif kind == _VARINT:
                _, at = _varint(message, at)
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                refuse_message(f"there is a field of the unknown wire type {kind}")
        if at > len(message):
            refuse_message("it ends in the middle of a field")

    def parsed(self, kind: Any, message: memoryview) -> Any:
        """Return a message of the class `kind`; `PushRefused` when it is too large or damaged."""
        if len(message) > self._limits.entry_bytes:
            refuse_size(f"an entry has {len(message)} bytes, more than {self._limits.entry_bytes}")
        try:
            return kind.FromString(bytes(message))
        except DecodeError:
            refuse_message("an entry is damaged")


def refuse_message(cause: str) -> NoReturn:
    """Raise `PushRefused` (400)."""
    raise PushRefused("push", f"it is not the Protocol Buffers message it should be: {cause}", "Check the shipper.")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number that starts at a place, and the place after it."""
    value = shift = 0
    for place in range(at, min(at + 10, len(message))):
        value |= (message[place] & 0x7F) << shift
        if message[place] < 0x80:
            return value, place + 1
        shift += 7
    refuse_message("it ends in the middle of a number")


def tolerant(files: Iterable[Any]) -> dict[str, Any]:
    """Return the message classes of file descriptors by full name, with `bytes` for `string`.

    On the wire both are the same. Shippers written in Go send log lines that are not UTF-8 as strings, for which the
    library would refuse the whole message.
    """
    pool = descriptor_pool.DescriptorPool()
    found: dict[str, Any] = {}
    for file in files:
        copy = descriptor_pb2.FileDescriptorProto()
        copy.CopyFrom(file)
        for message in copy.message_type:
            for field in message.field:
                if field.type == _FIELD.TYPE_STRING:
                    field.type = _FIELD.TYPE_BYTES
        pool.Add(copy)
        found |= message_factory.GetMessageClassesForFiles([copy.name], pool)
    return found


def described(module: Any) -> Any:
    """Return the file descriptor of a generated module, as a message."""
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file


def file_of(package: str, messages: dict[str, dict[str, tuple[int, str]]]) -> Any:
    """Return a file descriptor of messages written as `{message: {field: (number, type)}}`.

    A type is a scalar type or a message of the same package; `*` before it means repeated.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = _FIELD.LABEL_REPEATED if kind.startswith("*") else _FIELD.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            if kind in messages:
                typed = {"type": _FIELD.TYPE_MESSAGE, "type_name": f".{package}.{kind}"}
            else:
                typed = {"type": getattr(_FIELD, f"TYPE_{kind.upper()}")}
            message.field.add(name=field, number=number, label=label, **typed)
    return file
