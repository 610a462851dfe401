"""Unsent bytes: segment files in a folder, bounded, deleted once acknowledged.

FOLDER/20261121T101500-host-4711-9f3c/
    lock                 held (flock) by the process that writes or sends it
    about.json           what it is and where it goes, never the token
    0000000000000000     a segment, named by the offset of its first byte in hexadecimal
    0000000000400000
"""

import fcntl
import json
import os
import re
import threading
import time
from contextlib import suppress
from typing import Any

from logdoctor.safe.lasting_files import Folder

SEGMENT_BYTES = 4 << 20
_NEWLINE = 10
_SEGMENT = re.compile(r"[0-9a-f]{16}")


def gap_note(missing: int) -> bytes:
    """Return the line put into the stream where bytes are missing."""
    return b"[logdoctor] %d bytes were not sent: the spool was full\n" % missing


class Spool:
    """The bytes of one stream. When full, it keeps the oldest, drops new ones and adds a line with their number.

    `append` and `finish` belong to one thread at a time, `read` and `release` to another.
    """

    def __init__(self, folder: str, limit: int, lock: int) -> None:
        self.folder = folder
        self._folder = Folder(folder, private=True)
        self._lock_descriptor = lock
        self._limit = limit
        self._segment_bytes = min(SEGMENT_BYTES, max(limit // 8, 4096))
        self._room_again = min(1 << 20, limit // 4)
        self._guard = threading.Lock()
        self._starts = [int(name, 16) for name in self._folder.names() if _SEGMENT.fullmatch(name)]
        self.start = self._starts[0] if self._starts else 0
        self.end = self._starts[-1] + self._size(self._starts[-1]) if self._starts else 0
        self.missing = 0
        self._line_open = False
        self._written: int | None = None
        self._reading: tuple[int, int] | None = None

    def append(self, data: bytes) -> None:
        """Append bytes, or drop them when there is no room; never fails, never waits for the network."""
        if self.missing and (self._room() < self._room_again or not self._note()):
            self.missing += len(data)
            return
        room = self._room()
        fitting = data if len(data) <= room else data[: data.rfind(b"\n", 0, max(room, 0)) + 1]
        self.missing += len(data) - (self._write(fitting) if fitting else 0)

    def drop(self, count: int) -> None:
        """Count bytes that were lost earlier as missing."""
        self.missing += count

    def finish(self) -> None:
        """Finish the stream: write the number of bytes dropped last."""
        if self.missing:
            self._note()

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer at the end of a segment, none at the end of the spool."""
        with self._guard:
            index = _last_at_or_before(self._starts, offset)
            if index is None:
                return b""
            first = self._starts[index]
            bound = self._starts[index + 1] if index + 1 < len(self._starts) else self.end
        return os.pread(self._descriptor(first), min(size, bound - offset), offset - first)

    def release(self, offset: int) -> None:
        """Delete segments before `offset`, up to which everything is acknowledged."""
        with self._guard:
            index = _last_at_or_before(self._starts, offset) or 0
            gone, self._starts = self._starts[:index], self._starts[index:]
        for first in gone:
            with suppress(OSError):
                self._folder.remove(_segment(first))
        if gone:
            self.start = self._starts[0]

    def remove(self) -> None:
        """Remove the folder: everything is sent."""
        above, name = os.path.split(self.folder)
        with suppress(OSError):
            Folder(above).remove_all(name)

    def close(self) -> None:
        """Release the lock, so that another process can send what is left."""
        for descriptor in (self._written, self._reading[1] if self._reading else None, self._lock_descriptor):
            if descriptor is not None:
                os.close(descriptor)
        self._written = self._reading = None

    def save_about(self, about: dict[str, Any]) -> None:
        """Store what is needed to send the rest later; `OSError` when it cannot be written."""
        self._folder.write("about.json", json.dumps(about).encode(), lasting=False)

    def _room(self) -> int:
        return self._limit - (self.end - self.start)

    def _note(self) -> bool:
        """Write the line about missing bytes, which may exceed the limit; return whether that worked."""
        note = (b"\n" if self._line_open else b"") + gap_note(self.missing)
        before = self.missing
        self.missing = 0
        if self._write(note) == len(note):
            return True
        self.missing = before
        return False

    def _write(self, data: bytes) -> int:
        """Return how many of the bytes were stored; fewer when the disk is full."""
        kept = 0
        try:
            while kept < len(data):
                if self._written is None or self.end - self._starts[-1] >= self._segment_bytes:
                    self._next_segment()
                assert self._written is not None
                room = self._segment_bytes - (self.end - self._starts[-1])
                written = os.write(self._written, data[kept : kept + room])
                kept += written
                self.end += written
        except OSError:
            pass
        if kept:
            self._line_open = data[kept - 1] != _NEWLINE
        return kept

    def _next_segment(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        if self._starts and self._starts[-1] == self.end:  # the disk was full before the first byte
            flags &= ~os.O_EXCL
        descriptor = self._folder.open(_segment(self.end), flags)
        if self._written is not None:
            os.close(self._written)
        self._written = descriptor
        with self._guard:
            if not self._starts or self._starts[-1] != self.end:
                self._starts.append(self.end)

    def _size(self, first: int) -> int:
        return os.lstat(self._folder.path_of(_segment(first))).st_size

    def _descriptor(self, first: int) -> int:
        if self._reading and self._reading[0] == first:
            return self._reading[1]
        if self._reading:
            os.close(self._reading[1])
            self._reading = None
        self._reading = first, self._folder.open(_segment(first))
        return self._reading[1]


def new_spool(folders: tuple[str, ...], limit: int) -> Spool:
    """Create an empty spool in the first writable folder; the last `OSError` when none is."""
    name = f"{time.strftime('%Y%m%dT%H%M%S')}-{os.uname().nodename}-{os.getpid()}-{os.urandom(8).hex()}"
    failure = OSError("there is no spool folder")
    for folder in folders:
        try:
            Folder(folder, private=folder == folders[-1]).make(name, 0o700)
            return Spool(os.path.join(folder, name), limit, _locked(os.path.join(folder, name)))
        except OSError as error:
            failure = error
    raise failure


def left_spools(folder: str) -> list[str]:
    """Return the spools in a spool folder, oldest first."""
    try:
        names = Folder(folder, private=True).names()
    except OSError:
        return []
    return [path for name in names if os.path.isfile(os.path.join(path := os.path.join(folder, name), "about.json"))]


def reopened(folder: str) -> Spool:
    """Reopen a spool left behind; `BlockingIOError` while its process lives, `PermissionError` for another user's. That
    user could redirect our token."""
    return Spool(folder, 0, _locked(folder))


def read_about(folder: str) -> dict[str, Any]:
    """Return what was stored with a spool; `OSError` or `ValueError` when it cannot be read."""
    about = json.loads(Folder(folder, private=True).read("about.json", 1 << 20))
    if not isinstance(about, dict):
        raise ValueError("about.json does not hold a JSON object")
    return about


def _segment(first: int) -> str:
    return f"{first:016x}"


def _locked(folder: str) -> int:
    descriptor = Folder(folder, private=True).open("lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # a file system without locks: the unique name makes it ours
        pass
    return descriptor


def _last_at_or_before(starts: list[int], offset: int) -> int | None:
    for index in range(len(starts) - 1, -1, -1):
        if starts[index] <= offset:
            return index
    return None
