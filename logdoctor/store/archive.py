"""The raw bytes of every stream, as `<folder>/<job>/<attempt>/<stream>.zst`: frames that `zstdcat` reads."""

import os
import shutil
import struct
import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np

from logdoctor.errors import StoreError
from logdoctor.store import frame_index
from logdoctor.store.frames import Frame, Packer, find, sync_folder, unpack, walk
from logdoctor.store.names import Key, file_name

FRAME = 1 << 20
"""Bytes of a stream that one frame holds at most: what must be unpacked to read one line."""
_NOTE = struct.Struct("<QQQ")  # offset in the stream and number of the line of the first byte; newlines inside
_SUFFIX, _STATE, _INDEX = ".zst", ".state", ".index"
_KEPT_MARKS = 256
_OPENED = 32  # files that are kept open to be read, so to say: what is known of their frames


class ArchivedLines(NamedTuple):
    """Raw lines of a stream from number `first` on; `complete` is False when more were asked for than are shown."""

    first: int
    lines: list[bytes]
    complete: bool


def lines_of(chunks: Iterable[bytes], number: int, first: int, last: int, limit: int) -> ArchivedLines:
    """Lines `first` to `last` of a stream whose chunks begin in line `number`, at most about `limit` bytes of them.

    When `number` is `first`, the chunks begin at its first byte.
    """
    found: list[bytes] = []
    current, taken = b"", 0
    for chunk in chunks:
        if number + (count := chunk.count(b"\n")) < first:
            number += count
            continue
        for place, part in enumerate(chunk.split(b"\n")):
            if place:
                if number >= first:
                    found.append(current)
                    taken += len(current) + 1
                if number >= last or taken > limit:
                    return ArchivedLines(first, found, number >= last)
                number += 1
                current = b""
            if number >= first and len(current) <= limit:
                current += part
        if taken + len(current) > limit:
            return ArchivedLines(first, [*found, current[:limit]], False)
    if current:
        found.append(current)
    return ArchivedLines(first, found, True)


class StreamSize(NamedTuple):
    """What one archived attempt takes: bytes on disk, and when it was last written (seconds since the epoch)."""

    job: str
    attempt: int
    bytes: int
    changed: float


class StreamFile:
    """One stream's file, with an index of its frames. One thread appends; any may read.

    A torn end, which a killed service leaves, is not part of it. `StoreError` when bytes before the end are
    damaged, unless it is opened to be mended. One that is opened `to_read` trusts the index beside it, which spares
    it most of the headers, and has no marks; what the index says of a frame is checked when the frame is read.
    """

    def __init__(self, path: Path, to_mend: bool = False, to_read: bool = False) -> None:
        self.path = path
        self._offsets: list[int] = []
        self._lines: list[int] = []
        self._begins: list[int] = []
        self._is_new = False
        self._end = 0  # of the file, as far as it is whole
        self.offset, self.newlines = 0, 0
        """Bytes and newlines of the stream that the file holds."""
        self.marks: list[str] = []
        """The last marks that were given with appended bytes."""
        self._indexed = 0  # frames of which the index tells
        with suppress(FileNotFoundError), self._opened(os.O_RDONLY) as descriptor:
            if to_read:
                self._adopt_index(descriptor)
            for frame in walk(descriptor, self._end):
                self._enter(frame)
            if not to_mend and find(descriptor, self._end) is not None:
                cause = f"it is damaged at byte {self._end}"
                raise StoreError(str(self.path), cause, "Restore the file, or delete it to give up the stream.")

    def _enter(self, frame: Frame) -> None:
        offset, line, newlines = _NOTE.unpack_from(frame.note)
        if offset != self.offset:
            cause = f"the frame at byte {frame.begin} holds offset {offset}, not {self.offset}"
            raise StoreError(str(self.path), cause, "Restore the file, or delete it to give up the stream.")
        self.newlines = line - 1 + newlines
        self._offsets.append(offset)
        self._lines.append(line)
        self._begins.append(frame.begin)
        self._end = frame.end
        self.offset = offset + frame.raw
        if len(frame.note) > _NOTE.size:
            self.marks = [*self.marks, *frame.note[_NOTE.size :].decode().split()][-_KEPT_MARKS:]

    @property
    def _index(self) -> Path:
        return self.path.with_suffix(_INDEX)

    def _adopt_index(self, descriptor: int) -> None:
        """Take what the index says of the frames, but for the last, which proves that it is of this file."""
        rows = frame_index.load(self._index, os.fstat(descriptor).st_size)
        if not len(rows):
            return
        begin, offset, line = rows[-1].tolist()
        frame = next(walk(descriptor, begin), None)
        if frame is None or _NOTE.unpack_from(frame.note)[:2] != (offset, line):
            return
        self._begins, self._offsets, self._lines = (column.tolist() for column in rows[:-1].T)
        self._end, self.offset, self._indexed = begin, offset, len(rows)

    def keep_index(self) -> None:
        """Write down where the frames stand, when many came since that was last done."""
        count = len(self._begins)
        if count - self._indexed >= frame_index.EVERY:
            columns = (self._begins, self._offsets, self._lines)
            rows = np.array([column[self._indexed : count] for column in columns], np.int64).T
            frame_index.extend(self._index, self._indexed, rows, self.path)
            self._indexed = count

    def append(self, data: bytes, packer: Packer, marks: Sequence[str] = ()) -> None:
        """Write the bytes that come next; all or nothing unless the machine dies. `sync` makes them last."""
        parts, notes = [], []
        offset, newlines = self.offset, self.newlines
        for begin in range(0, len(data), FRAME):
            part = data[begin : begin + FRAME]
            inside = part.count(b"\n")
            note = _NOTE.pack(offset, newlines + 1, inside)
            if not begin:
                note += " ".join(marks[-_KEPT_MARKS:]).encode()
            parts.append(packer.pack(note, part))
            notes.append((offset, newlines + 1, len(parts[-1])))
            offset += len(part)
            newlines += inside
        if not self._begins:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._is_new = True
        with self._opened(os.O_WRONLY | os.O_CREAT) as descriptor:
            os.ftruncate(descriptor, self._end)  # what an append that failed has left
            _write(descriptor, b"".join(parts), self._end)
        for at, line, length in notes:
            self._offsets.append(at)
            self._lines.append(line)
            self._begins.append(self._end)
            self._end += length
        self.offset, self.newlines = offset, newlines
        self.marks = [*self.marks, *marks][-_KEPT_MARKS:]

    def sync(self) -> None:
        """Make all that was appended outlive a loss of power."""
        with self._opened(os.O_RDONLY) as descriptor:
            os.fdatasync(descriptor)
        if self._is_new:  # its name, and those of the folders of its attempt and job
            for folder in self.path.parents[:3]:
                sync_folder(folder)
            self._is_new = False

    def mend(self, offset: int) -> None:
        """Drop a damaged end: frames that hold bytes from `offset` on are verified, the first bad one ends the file."""
        first = max(bisect_right(self._offsets, offset) - 1, 0)
        with suppress(FileNotFoundError), self._opened(os.O_RDONLY) as descriptor:
            for number in range(first, len(self._begins)):
                frame = next(walk(descriptor, self._begins[number]), None)
                try:
                    if frame is None:
                        raise StoreError(str(self.path), "a frame is truncated", "It will be written again.")
                    unpack(descriptor, frame, str(self.path))
                except StoreError:
                    self._cut(number)
                    return

    def _cut(self, number: int) -> None:
        """Forget the frames from `number` on."""
        self.offset, self._end = self._offsets[number], self._begins[number]
        self.newlines = self._lines[number] - 1
        self._index.unlink(missing_ok=True)  # it may tell of what is written anew
        self._indexed = 0
        del self._offsets[number:], self._lines[number:], self._begins[number:]

    def read(self, begin: int, end: int) -> bytes:
        """Bytes [begin, end) of the stream, as far as the file has them."""
        parts = []
        for offset, data in self._frames(max(bisect_right(self._offsets, begin) - 1, 0)):
            if offset >= end:
                break
            parts.append(data[max(begin - offset, 0) : end - offset])
        return b"".join(parts)

    def from_line(self, line: int, end: int) -> tuple[int, Iterator[bytes]]:
        """(number of the line of the first byte, chunks) from a place at or before the start of `line` to byte `end`.

        `end` is where something once ended that was appended.
        """
        start = max(bisect_left(self._lines, line) - 1, 0)
        number = self._lines[start] if self._lines else 1
        return number, (data for offset, data in self._frames(start) if offset < end)

    def places(self, end: int) -> tuple[list[int], list[int]]:
        """(offset, number of the line) of the first byte of each frame that begins before byte `end`."""
        count = bisect_left(self._offsets, end)
        return self._offsets[:count], self._lines[:count]

    def frames(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes of the frames from number `start` to before `stop`; `StoreError` when one is damaged or missing."""
        count = 0
        for _, data in self._frames(start, stop):
            count += 1
            yield data
        if count < stop - start:
            raise StoreError(str(self.path), "it was deleted or cut off", "Reload the page.")

    def _frames(self, start: int, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of the frames from number `start` on."""
        count = len(self._begins) if stop is None else stop
        with suppress(FileNotFoundError), self._opened(os.O_RDONLY) as descriptor:
            for number in range(start, count):
                frame = next(walk(descriptor, self._begins[number]), None)
                if frame is None:
                    return
                if not self._is_known(number, frame):
                    cause = f"the frame at byte {frame.begin} differs from {self._index.name}"
                    raise StoreError(str(self.path), cause, f"Delete {self._index.name}; it is rebuilt.")
                yield self._offsets[number], unpack(descriptor, frame, str(self.path))

    def _is_known(self, number: int, frame: Frame) -> bool:
        """Whether a frame is the one that is known by this number, which the next one follows."""
        place = (self._offsets[number], self._lines[number])
        end = self._offsets[number + 1] if number + 1 < len(self._begins) else place[0] + frame.raw
        return _NOTE.unpack_from(frame.note)[:2] == place and place[0] + frame.raw == end

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        descriptor = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _write(descriptor: int, data: bytes, at: int) -> None:
    """Write all bytes at a place; `OSError` when there is no room."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


class Archive:
    """The folder with the streams of all jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: OrderedDict[Path, tuple[tuple[int, int, int], StreamFile]] = OrderedDict()
        self._reading = threading.Lock()

    def open(self, key: Key, to_mend: bool = False) -> StreamFile:
        """The file of a stream, which need not exist yet; `StoreError` when it is damaged and not to be mended."""
        return StreamFile(self._path(key), to_mend)

    def open_to_read(self, key: Key) -> StreamFile:
        """The file of a stream as it is now, at once when it was read before; `StoreError` when it is damaged."""
        path = self._path(key)
        try:
            facts = path.stat()
        except FileNotFoundError:
            return StreamFile(path)
        state = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
        with self._reading:
            if (known := self._read.get(path)) is not None and known[0] == state:
                self._read.move_to_end(path)
                return known[1]
        file = StreamFile(path, to_read=True)
        file.keep_index()
        with self._reading:
            self._read[path] = (state, file)
            while len(self._read) > _OPENED:
                self._read.popitem(last=False)
        return file

    def size(self, key: Key) -> int:
        """Bytes that a stream takes on disk."""
        try:
            return self._path(key).stat().st_size
        except FileNotFoundError:
            return 0

    def streams(self, job: str, attempt: int) -> list[str]:
        """The names of the streams of an attempt that have a file."""
        with suppress(FileNotFoundError):
            names = os.listdir(self._attempt(job, attempt))
            return [unquote(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX)]
        return []

    def age(self, job: str, attempt: int) -> float:
        """Seconds since something was last written of an attempt; 0 when nothing was."""
        with suppress(FileNotFoundError):
            times = [entry.stat().st_mtime for entry in os.scandir(self._attempt(job, attempt))]
            return max(time.time() - max(times, default=time.time()), 0.0)
        return 0.0

    def sizes(self) -> Iterator[StreamSize]:
        """What every attempt takes."""
        for folder in self._folder.glob("*/*"):
            with suppress(FileNotFoundError, ValueError):
                facts = [entry.stat() for entry in os.scandir(folder)]
                changed = max((fact.st_mtime for fact in facts), default=folder.stat().st_mtime)
                yield StreamSize(
                    unquote(folder.parent.name), int(folder.name), sum(f.st_blocks * 512 for f in facts), changed
                )

    def delete(self, job: str, attempt: int) -> None:
        """Remove the streams of an attempt."""
        folder = self._attempt(job, attempt)
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()  # when it was the last attempt

    def keep_state(self, key: Key, state: bytes) -> None:
        """Put a snapshot beside the stream; a torn one is found out when it is read."""
        path = self._state(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._fresh_state(key)
        fresh.write_bytes(state)
        os.replace(fresh, path)

    def state(self, key: Key) -> bytes | None:
        """The last snapshot of a stream."""
        try:
            return self._state(key).read_bytes()
        except FileNotFoundError:
            return None

    def drop_state(self, key: Key) -> None:
        """Remove the snapshot of a stream that has ended."""
        for path in (self._state(key), self._fresh_state(key)):
            path.unlink(missing_ok=True)

    def _attempt(self, job: str, attempt: int) -> Path:
        return self._folder / file_name(job) / str(attempt)

    def _path(self, key: Key) -> Path:
        return self._attempt(key.job, key.attempt) / (file_name(key.stream) + _SUFFIX)

    def _fresh_state(self, key: Key) -> Path:
        return self._state(key).with_suffix(f"{_STATE}.new")

    def _state(self, key: Key) -> Path:
        return self._attempt(key.job, key.attempt) / (file_name(key.stream) + _STATE)
