"""What was acknowledged, whatever happens next: bytes of all streams in one file, made durable in groups.

Appending returns at once; a thread writes all that has come since its last write as one frame, and syncs it.
So a thousand streams share one sync, and each answer waits for little more than that.
"""

import errno
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from logdoctor.errors import StorageFull, StoreError
from logdoctor.store.frames import MAX_RAW, Packer, find, sync_folder, unpack, walk
from logdoctor.store.names import Key

log = structlog.get_logger()

_SUFFIX = ".zst"
MAX_ENTRY = MAX_RAW // 2
"""Bytes of an entry."""
_GROUP = MAX_RAW // 8  # bytes after which a group is written although more has come
_NOTE_COST = 2000  # bytes that the note of an entry counts for: more than names can make of it


class JournalEntry(NamedTuple):
    """Bytes of a stream, from `offset` on. `mark` tells a push that has no offset from its repetition."""

    key: Key
    offset: int
    data: bytes
    mark: str = ""


class Note(NamedTuple):
    """An entry without its bytes, which stand in the frame."""

    key: Key
    offset: int
    length: int
    mark: str


_decoder = msgspec.msgpack.Decoder(list[Note])


class Journal:
    """A folder of journal files. `append` is for any thread; `committed` and `failed` are called by its own.

    `committed` gets each group once it is durable; `failed` gets one that could not be written, with the
    cause, and gives up what came behind it, too (see `withdraw`). Neither may raise.
    """

    def __init__(
        self,
        folder: Path,
        committed: Callable[[Sequence[JournalEntry]], None],
        failed: Callable[[Sequence[JournalEntry], StorageFull], None],
        min_free: int = 0,
    ) -> None:
        self._folder, self._committed, self._failed, self._min_free = folder, committed, failed, min_free
        folder.mkdir(parents=True, exist_ok=True)
        self._number = max((number for number, _ in self._files()), default=0) + 1
        self._path = self._new_path()
        self._kept = folder / "kept"
        self._descriptor: int | None = None
        self._size = 0
        self._packer = Packer()
        self._waiting: list[JournalEntry] = []
        self._changed = threading.Condition()
        self._rotating = self._closing = self._running = False
        self.held = 0
        """Bytes of streams that the current file holds."""
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        """Begin to write; after the old files were replayed."""
        self._running = True
        self._thread.start()

    def append(self, entry: JournalEntry) -> None:
        """Queue bytes; `committed` or `failed` will be called with them."""
        with self._changed:
            self._waiting.append(entry)
            self._changed.notify()

    def withdraw(self) -> list[JournalEntry]:
        """Take back all that waits to be written."""
        with self._changed:
            waiting, self._waiting = self._waiting, []
            return waiting

    def close(self) -> None:
        """Write what waits, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._close_file()

    def rotate(self) -> int:
        """Go on in a new file; the number of the last file that is complete, for `release`."""
        with self._changed:
            self._rotating = True
            self._changed.notify()
            if not self._running:
                self._next_file()
            self._changed.wait_for(lambda: not self._rotating)
            return self._number - 1

    def _next_file(self) -> None:
        self._close_file()
        self._number += 1
        self._path = self._new_path()
        self.held = 0
        self._rotating = False

    def release(self, number: int) -> None:
        """Delete the files up to `number`: all that they hold is safe elsewhere."""
        for old, path in self._files():
            if old <= number:
                path.unlink(missing_ok=True)

    def set_aside(self) -> None:
        """Keep the old files for the next start, because something in them could not be archived."""
        self._kept.mkdir(exist_ok=True)
        for number, path in self._files():
            if number < self._number:
                os.replace(path, self._kept / path.name)

    def replay(self) -> Iterator[JournalEntry]:
        """All entries that were committed, in order; what is damaged is left out, and logged."""
        for _, path in sorted([*self._files(self._kept), *self._files()]):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield from self._entries(descriptor, path)
            finally:
                os.close(descriptor)

    def drop_kept(self) -> None:
        """Delete the files that were set aside: all is archived now."""
        shutil.rmtree(self._kept, ignore_errors=True)

    def _entries(self, descriptor: int, path: Path) -> Iterator[JournalEntry]:
        begin: int | None = 0
        secret = _secret(path)
        while begin is not None:
            for frame in walk(descriptor, begin, secret):
                begin = frame.end
                try:
                    data = unpack(descriptor, frame, str(path))
                except StoreError as error:  # torn by a loss of power, most likely before it was acknowledged
                    log.error("journal damaged", cause=str(error))
                    continue
                at = 0
                for note in _decoder.decode(frame.note):
                    yield JournalEntry(note.key, note.offset, data[at : at + note.length], note.mark)
                    at += note.length
            if (found := find(descriptor, begin, secret)) is not None:
                log.error("journal damaged", file=str(path), begin=begin, end=found)
            begin = found

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._rotating or self._closing)
                if self._rotating:
                    self._next_file()
                    self._changed.notify_all()
                group = self._next_group()
                if not group and self._closing:
                    self._running = False  # under the lock, so that nobody begins to wait for this thread
                    return
            if group:
                self._commit_safely(group)

    def _next_group(self) -> list[JournalEntry]:
        """The entries that are written next, about `_GROUP` bytes of them."""
        size = 0
        for place, entry in enumerate(self._waiting):
            size += len(entry.data) + _NOTE_COST
            if size > _GROUP and place:
                group, self._waiting = self._waiting[:place], self._waiting[place:]
                return group
        group, self._waiting = self._waiting, []
        return group

    def _commit_safely(self, group: list[JournalEntry]) -> None:
        """Commit; whatever is wrong with one group, the thread goes on with the next."""
        try:
            self._commit(group)
        except Exception as error:
            log.exception("journal failed")
            self._failed(group, StorageFull(str(self._folder), f"an internal error ({error!r})", "Try again."))

    def _commit(self, group: list[JournalEntry]) -> None:
        notes = [Note(entry.key, entry.offset, len(entry.data), entry.mark) for entry in group]
        data = b"".join(entry.data for entry in group)
        frame = self._packer.pack(msgspec.msgpack.encode(notes), data, _secret(self._path))
        try:
            self._write(frame)
        except OSError as error:
            self._undo()
            cause = f"nothing can be written ({error.strerror or error})"
            self._failed(group, StorageFull(str(self._folder), cause, "Free some space; the sender will try again."))
            return
        self._size += len(frame)
        self.held += sum(len(entry.data) for entry in group)
        self._committed(group)

    def _write(self, frame: bytes) -> None:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o600)
            self._size = self.held = 0
            sync_folder(self._folder)
        room = os.fstatvfs(self._descriptor)
        if room.f_bavail * room.f_frsize < self._min_free + len(frame):
            raise OSError(errno.ENOSPC, f"less than {self._min_free} bytes are free on the disk")
        view = memoryview(frame)
        at = self._size
        while view:
            written = os.pwrite(self._descriptor, view, at)
            view, at = view[written:], at + written
        os.fdatasync(self._descriptor)

    def _undo(self) -> None:
        """Drop what a failed write has left; when that fails, too, go on in a new file."""
        if self._descriptor is None:
            return
        try:
            os.ftruncate(self._descriptor, self._size)
            os.fdatasync(self._descriptor)
        except OSError:
            self._next_file()

    def _new_path(self) -> Path:
        return self._folder / f"{self._number:08}-{secrets.token_hex(8)}{_SUFFIX}"

    def _close_file(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _files(self, folder: Path | None = None) -> list[tuple[int, Path]]:
        """Number and path of each journal file."""
        return [(int(path.name.partition("-")[0]), path) for path in (folder or self._folder).glob(f"[0-9]*{_SUFFIX}")]


def _secret(path: Path) -> bytes:
    """The random part of a journal file's name: frames with another secret are not of this file."""
    return path.name.removesuffix(_SUFFIX).partition("-")[2].encode()
