"""One attempt is listed anew: its objects in order, with others in the place of what is lost.

Bytes that are nowhere are replaced by as many others, which say so, with as many newlines, so that every offset and
line number behind them stays what it was.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from logdoctor.store import frames
from logdoctor.store.archive import FRAME, Note
from logdoctor.store.frames import Packer
from logdoctor.store.log import StreamBytes
from logdoctor.store.survey import FramePlace, Held, Part, place_of, sound

_OBJECT = 32 << 20  # bytes of streams in one object, about
_noted = msgspec.msgpack.Decoder(Note)


class Item(NamedTuple):
    """An object among those of an attempt, and its frames that are listed."""

    name: str
    bytes: int
    frames: list[FramePlace]

    @property
    def starts(self) -> dict[str, int]:
        """Where the bytes of each of its streams begin."""
        found: dict[str, int] = {}
        for frame in self.frames:
            found.setdefault(frame.stream, frame.offset)
        return found

    def continues(self, ends: Mapping[str, "End"]) -> bool:
        """Whether its streams begin where they end so far."""
        return all(ends.get(stream, End()).offset == offset for stream, offset in self.starts.items())


class End(NamedTuple):
    """Up to where a stream goes: bytes and newlines."""

    offset: int = 0
    newlines: int = 0


class Mending:
    """The objects of one attempt. `read` gives what is there of an object, `put` writes one of a number and
    returns its name,
    `chunks` what the log has of each stream."""

    def __init__(
        self,
        read: Callable[[str], bytes],
        put: Callable[[int, bytes], str],
        chunks: Callable[[], dict[str, list[StreamBytes]]],
    ) -> None:
        self._read, self._put, self._chunks = read, put, chunks
        self._log: dict[str, list[StreamBytes]] | None = None
        self._packer = Packer()
        self.items: list[Item] = []
        self.ends: dict[str, End] = {}
        self.said: list[str] = []
        """What was found, and is done about it."""
        self.lost: dict[str, list[str]] = {}
        """What is lost of each stream."""
        self.kept: set[str] = set()
        """Objects that hold bytes of their own and continue nothing."""

    def take_listed(self, part: Part, spoiled: bool) -> None:
        """Take an object that is listed; what is `spoiled` of it is replaced."""
        item = Item(part.name, part.bytes, part.frames)
        self._enter(self._salvaged(item) if spoiled else item)

    def take_newer(self, names: Sequence[str]) -> None:
        """Take those of some objects that nobody lists, in the order of their numbers, that continue the streams. Of
        several with one number, one was listed before the database was lost; the others hold bytes that are elsewhere,
        too."""
        groups = [
            [item for name in some if (item := self._found(name)).frames]
            for _, some in groupby(sorted(names, key=number_of), key=number_of)
        ]
        for place, found in enumerate(groups):
            group = found
            behind = groups[place + 1] if place + 1 < len(groups) else []
            while chosen := self._chosen(group, behind):
                self.said.append(f"list the object {chosen.name}")
                self._enter(chosen)
                group = [item for item in group if item is not chosen and item.continues(self.ends)]
            for item in found:
                if any(frame.offset + frame.length > self._end(frame.stream).offset for frame in item.frames):
                    self.said.append(f"leave the object {item.name}, which continues nothing")
                    self.kept.add(item.name)

    def _chosen(self, group: Sequence[Item], behind: Sequence[Item]) -> Item | None:
        """Prefer what leaves no gap, then what the next objects continue, then what holds most."""
        fit = [
            item for item in group if all(offset >= self._end(stream).offset for stream, offset in item.starts.items())
        ]

        def worth(item: Item) -> tuple[bool, bool, int]:
            after = self.ends | _ends(item)
            return item.continues(self.ends), any(one.continues(after) for one in behind), item.bytes

        return max(fit, key=worth, default=None)

    def fill_up(self, stream: str, held: Held) -> None:
        """Bring a stream up to where the database says that it goes, with what the log has of it."""
        if self._end(stream).offset < held.next:
            self._fill(stream, held.next, held.lines - self._end(stream).newlines, "the log of the service is damaged")

    def _end(self, stream: str) -> End:
        return self.ends.get(stream, End())

    def _enter(self, item: Item) -> None:
        fresh = []
        for frame in item.frames:
            end = self._end(frame.stream)
            if frame.offset < end.offset:
                continue  # it is in an object before
            if frame.offset > end.offset:
                newlines = frame.line - 1 - end.newlines
                self._fill(frame.stream, frame.offset, newlines, "an object of the archive is missing")
            fresh.append(frame)
            self.ends[frame.stream] = _behind(frame)
        if fresh:
            self.items.append(item._replace(frames=fresh))

    def _fill(self, stream: str, upto: int, newlines: int, why: str) -> None:
        """Make objects of the bytes of a stream up to `upto`, out of the log, and of others where it has none."""
        if self._log is None:
            self._log = self._chunks()
        spans = list(_spans(self._log.get(stream, []), self._end(stream).offset, upto))
        missing = newlines - sum(data.count(b"\n") for _, _, data in spans if data is not None)
        parts: list[tuple[int, bytes]] = []
        size = 0
        for begin, end, data in spans:
            if data is None:
                count = min(max(missing, 0), end - begin)
                missing -= count
                problem = self._lose(stream, begin, end, why)
                pieces = _filler(end - begin, count, problem)
            else:
                pieces = (data[at : at + FRAME] for at in range(0, len(data), FRAME))
            for piece in pieces:
                parts.append((self._end(stream).offset + size, piece))
                size += len(piece)
                if size >= _OBJECT:
                    self._write(stream, parts)
                    parts, size = [], 0
        self._write(stream, parts)

    def _write(self, stream: str, parts: Sequence[tuple[int, bytes]]) -> None:
        if not parts:
            return
        packed, places, line = [], [], self._end(stream).newlines + 1
        at = 0
        for offset, data in parts:
            newlines = data.count(b"\n")
            packed.append(self._packer.pack(_note(stream, offset, line, newlines), data))
            places.append(FramePlace(stream, offset, line, len(data), newlines, at, at + len(packed[-1])))
            at, line = places[-1].end, line + newlines
        whole, number = b"".join(packed), number_of(self.items[-1].name) if self.items else 0
        self.items.append(Item(self._put(number, whole), len(whole), places))
        self.ends[stream] = _behind(places[-1])

    def _lose(self, stream: str, begin: int, end: int, why: str) -> str:
        problem = f"{end - begin} bytes of stream {stream} from byte {begin} on are lost: {why}"
        self.said.append(f"replace {problem}")
        self.lost.setdefault(stream, []).append(problem)
        return problem

    def _salvaged(self, item: Item) -> Item:
        """An object with the sound frames of a damaged one, and others in the place of the rest."""
        data, packed, places, at = self._read(item.name), [], [], 0
        for frame in item.frames:
            piece = data[frame.begin : frame.end]
            if not sound(data, frame, item.name):
                why = f"the object {item.name} is {'damaged' if data else 'missing'}"
                problem = self._lose(frame.stream, frame.offset, frame.offset + frame.length, why)
                filler = b"".join(_filler(frame.length, frame.newlines, problem))
                note = _note(frame.stream, frame.offset, frame.line, frame.newlines)
                piece = self._packer.pack(note, filler)
            packed.append(piece)
            places.append(frame._replace(begin=at, end=at + len(piece)))
            at += len(piece)
        whole, number = b"".join(packed), number_of(item.name)
        return Item(self._put(number, whole), len(whole), places)

    def _found(self, name: str) -> Item:
        """An object that nobody lists, with those of its frames that are sound."""
        data, places = self._read(name), []
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            begin: int | None = 0
            while begin is not None:
                for frame in frames.walk(file.fileno(), begin):
                    begin = frame.end
                    try:
                        note = _noted.decode(frame.note)
                        place = FramePlace(*note[:3], frame.raw, note.newlines, frame.begin, frame.end)
                    except msgspec.DecodeError:
                        continue
                    if sound(data, place, name):
                        places.append(place)
                begin = frames.find(file.fileno(), begin + 1) if begin < len(data) else None
        return Item(name, len(data), places)


def number_of(name: str) -> int:
    """Return the number of an object; 0 for one without."""
    place = place_of(name)
    return place[2] if place else 0


def _behind(frame: FramePlace) -> End:
    return End(frame.offset + frame.length, frame.line - 1 + frame.newlines)


def _ends(item: Item) -> dict[str, End]:
    return {frame.stream: _behind(frame) for frame in item.frames}


def _note(stream: str, offset: int, line: int, newlines: int) -> bytes:
    return msgspec.msgpack.encode(Note(stream, offset, line, newlines))


def _spans(chunks: Sequence[StreamBytes], begin: int, end: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield what there is of the bytes [begin, end) of a stream, in order; None for those that are missing."""
    for chunk in sorted(chunks, key=lambda chunk: chunk.offset):
        if chunk.offset + len(chunk.data) <= begin or chunk.offset >= end:
            continue
        if chunk.offset > begin:
            yield begin, chunk.offset, None
            begin = chunk.offset
        data = chunk.data[begin - chunk.offset : end - chunk.offset]
        yield begin, begin + len(data), data
        begin += len(data)
    if begin < end:
        yield begin, end, None


def _filler(size: int, newlines: int, problem: str) -> Iterator[bytes]:
    """Yield so many bytes, with so many newlines, that say what is lost, in pieces of a frame at most."""
    head = b"\n" if newlines > 1 else b""
    room = size - newlines
    said = f"[logdoctor: {problem}]".encode()[:room]
    at = 0
    while at < size:
        piece = min(FRAME, size - at)
        data = bytearray((head + said)[at : at + piece].ljust(piece))
        first = max(size - (newlines - len(head)) - at, 0)  # the newlines that are left stand at the end
        if first < piece:
            data[first:] = b"\n" * (piece - first)
        yield bytes(data)
        at += piece
