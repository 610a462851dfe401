"""A stream's compression state as bytes, so that a restarted service continues where it was killed."""

import zlib

import msgspec

from logdoctor.compress.cut import Cutter
from logdoctor.compress.excerpt import Recorder, RecorderState
from logdoctor.rules.scanner import Scanner

_VERSION = 4


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """A cutter and a recorder at byte `offset` of their stream, with the shipped rules, the kind and the number of
    learned rules in use."""

    version: int
    rulebook: str
    kind: str
    learned: int
    offset: int
    line: int
    piece: int
    state: RecorderState


_decoder = msgspec.msgpack.Decoder(Snapshot)


def take(cutter: Cutter, recorder: Recorder, scanner: Scanner) -> bytes:
    """Return a stream's state up to `cutter.offset`, without the cutter's held-back bytes."""
    book = scanner.book
    place = (cutter.offset, cutter.line, cutter.piece)
    kept = Snapshot(_VERSION, book.shipped_digest, book.kind, len(book.learned), *place, recorder.state())
    packed = msgspec.msgpack.encode(kept)
    return zlib.crc32(packed).to_bytes(4, "little") + packed


def resume(stream: str, file: str, snapshot: bytes, scanner: Scanner) -> tuple[Cutter, Recorder] | None:
    """Return the cutter and recorder in `snapshot`, or None.

    None means that the stream must be read again: the snapshot is damaged, of another version, or of a rule book that
    this one does not extend.
    """
    if zlib.crc32(snapshot[4:]).to_bytes(4, "little") != snapshot[:4]:
        return None
    try:
        kept = _decoder.decode(snapshot[4:])
    except msgspec.DecodeError:
        return None
    book = scanner.book
    if (kept.version, kept.rulebook) != (_VERSION, book.shipped_digest):
        return None
    if kept.learned and (kept.kind != book.kind or kept.learned > len(book.learned)):
        return None
    recorder = Recorder(stream, file, scanner)
    recorder.restore(kept.state)
    return Cutter(stream, kept.offset, kept.line, kept.piece), recorder
