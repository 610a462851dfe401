"""Follows files that grow, rotate and are truncated, each as one stream of bytes.

A stream is the concatenation of the generations of its file: the file, then the file that took its name after a
rotation, and so on. A generation is identified by its inode and a digest of its first bytes, so it is found again under
another name, even after a restart.
"""

import hashlib
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

HEAD_BYTES = 256
SETTLE_SECONDS = 1.0
_ROTATED = re.compile(r"[.-](?:\d+(?:-\d+)?|old|bak)")
_NOWHERE = (-1, -1)
"""The device and inode of a generation that is gone."""
_PACKED = re.compile(r"\.(?:gz|zst|xz|bz2|lz4)$")


class FileHead(NamedTuple):
    """A digest of a file's first bytes, which later appends do not change."""

    size: int
    digest: str


class Generation:
    """One file of a stream: its first byte is at `start` of the stream; `size` bytes of it are known."""

    def __init__(self, device: int, inode: int, start: int, size: int = 0, head: FileHead = FileHead(0, "")) -> None:  # noqa: B008  a tuple cannot change
        self.device = device
        self.inode = inode
        self.start = start
        self.size = size
        self.head = head
        self.changed_at = -1

    @property
    def key(self) -> tuple[int, int]:
        return self.device, self.inode

    @property
    def end(self) -> int:
        return self.start + self.size


class Descriptors:
    """Open files, at most `most`; the least recently used one is closed for another."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[tuple[int, int], int] = OrderedDict()

    def find(self, key: tuple[int, int], path: str) -> int | None:
        """Return a descriptor of a file by device and inode: kept open, at its path, or renamed beside it."""
        if key == _NOWHERE:
            return None
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        for candidate in _beside(path, key[1]):
            with suppress(OSError):
                descriptor = os.open(candidate, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                if _key(os.fstat(descriptor)) == key:
                    self._open[key] = descriptor
                    while len(self._open) > self._most:
                        os.close(self._open.popitem(last=False)[1])
                    return descriptor
                os.close(descriptor)
        return None

    def drop(self, key: tuple[int, int]) -> None:
        """Close a file that is no longer needed."""
        if key in self._open:
            os.close(self._open.pop(key))

    def close(self) -> None:
        """Close all files."""
        for key in list(self._open):
            self.drop(key)


class FollowedFile:
    """The source of one stream. `poll` examines the file; `read` and `release` are for the sender."""

    def __init__(self, path: str, descriptors: Descriptors, say: Callable[[str], object]) -> None:
        self.path = path
        self.generations: list[Generation] = []
        self.changed = False
        """Whether the restart state has changed since it was saved."""
        self.lost: Generation | None = None
        """A generation whose unsent bytes are gone; `cut` continues without them."""
        self._descriptors = descriptors
        self._say = say
        self._rotated_at: float | None = None

    @property
    def start(self) -> int:
        return self.generations[0].start if self.generations else 0

    @property
    def end(self) -> int:
        if self.lost:
            return self.lost.end
        return self.generations[-1].end if self.generations else 0

    def poll(self, now: float, settle: float = SETTLE_SECONDS) -> None:
        """Look for new bytes, a rotation or a truncation. After a rotation the old file may grow for `settle`
        seconds."""
        if self.lost:
            return
        about = _regular(self.path)
        if not (about and self.knows(_key(about))) and not os.access(self.path, os.R_OK):
            about = None
        if not self.generations:
            if about:
                self._begin(about)
            return
        last = self.generations[-1]
        if about and _key(about) == last.key:
            self._rotated_at = None
            self._look(last, about)
            return
        descriptor = self._descriptors.find(last.key, self.path)
        if descriptor is not None and self._look(last, os.fstat(descriptor)):
            self._rotated_at = now
        if not about or self.lost:
            return
        if self._rotated_at is None:
            self._rotated_at = now
        if descriptor is None or now - self._rotated_at >= settle:
            self._rotated_at = None
            self._turn_over(last, about)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; none when unavailable now."""
        for generation in self.generations:
            if offset < generation.end:
                return self._read(generation, offset - generation.start, min(size, generation.end - offset))
        return b""

    def release(self, offset: int) -> None:
        """Forget generations that are completely sent, except the last."""
        while len(self.generations) > 1 and self.generations[0].end <= offset:
            self._descriptors.drop(self.generations.pop(0).key)
            self.changed = True

    def cut(self, offset: int) -> None:
        """Continue without the lost generation's unsent bytes; `offset` is what the service has."""
        if not self.lost:
            return
        lost, index = self.lost, self.generations.index(self.lost)
        self.lost = None
        kept = min(max(offset - lost.start, 0), lost.size)
        if kept < lost.size:
            self._say(f"{lost.size - kept} bytes of {self.path} were lost before they could be sent.")
        for later in self.generations[index + 1 :]:
            later.start -= lost.size - kept
        was_last = lost is self.generations[-1]
        self.generations[: index + 1] = [Generation(*_NOWHERE, start=lost.start + kept)]
        self.changed = True
        about = _readable(self.path)
        if was_last and about:
            if lost.key not in (_NOWHERE, _key(about)):
                self._begin_between(lost, about)
            self._begin(about)

    def knows(self, key: tuple[int, int]) -> bool:
        """Return whether a file belongs to this stream."""
        return any(generation.key == key for generation in self.generations)

    def _look(self, generation: Generation, about: os.stat_result) -> bool:
        """Record what is new in a file; return whether anything was."""
        if about.st_size == generation.size and about.st_mtime_ns == generation.changed_at:
            return False
        head = self._content(generation.key, 0, generation.head.size)
        if head is None:
            return False
        if about.st_size < generation.size or not _is_head(head, generation.head):
            self._was_cut(generation)
            return True
        grew = about.st_size > generation.size
        generation.size, generation.changed_at = about.st_size, about.st_mtime_ns
        if generation.head.size < HEAD_BYTES and generation.size > generation.head.size:
            self._take_head(generation)
        return grew

    def _was_cut(self, generation: Generation) -> None:
        """Handle a truncation. A copy made before it (copytruncate) has everything; otherwise bytes may be lost."""
        for about in self._rotations(generation.changed_at):
            head = self._content(_key(about), 0, generation.head.size)
            if about.st_size >= generation.size > 0 and head and _is_head(head, generation.head):
                generation.device, generation.inode = _key(about)
                generation.size, generation.changed_at = about.st_size, about.st_mtime_ns
                now = _regular(self.path)
                if now:
                    self._begin(now)
                return
        self.lost = generation

    def _turn_over(self, last: Generation, about: os.stat_result) -> None:
        """Switch to the file that now has the name; first those in between."""
        if self._descriptors.find(last.key, self.path) is None:
            self.lost = last
            return
        self._begin_between(last, about)
        self._begin(about)

    def _begin_between(self, last: Generation, about: os.stat_result) -> None:
        for between in self._rotations(last.changed_at):
            if _key(between) not in (_key(about), last.key):
                self._begin(between)

    def _begin(self, about: os.stat_result) -> None:
        generation = Generation(*_key(about), start=self.generations[-1].end if self.generations else 0)
        generation.size, generation.changed_at = about.st_size, about.st_mtime_ns
        self.generations.append(generation)
        self._take_head(generation)
        self.changed = True

    def _rotations(self, since: int) -> list[os.stat_result]:
        """Return unknown rotated copies of our file changed since `since`, oldest first."""
        folder, name = os.path.split(self.path)
        found = []
        with suppress(OSError):
            for other in os.listdir(folder or "."):
                if other.startswith(name) and is_rotated(other, name) and not _PACKED.search(other):
                    about = _regular(os.path.join(folder, other))
                    if about and about.st_mtime_ns >= since and not self.knows(_key(about)):
                        found.append(about)
        return sorted(found, key=lambda about: about.st_mtime_ns)

    def _take_head(self, generation: Generation) -> None:
        content = self._content(generation.key, 0, min(HEAD_BYTES, generation.size))
        if content is not None:
            generation.head = FileHead(len(content), _digest(content))
            self.changed = True

    def _read(self, generation: Generation, offset: int, size: int) -> bytes:
        content = self._content(generation.key, offset, size)
        if content is None:
            self.lost = generation
            return b""
        descriptor = self._descriptors.find(generation.key, self.path)
        if descriptor is None or os.fstat(descriptor).st_size < offset + len(content) or not content:
            return b""  # truncated while we read: the next poll notices
        return content

    def _content(self, key: tuple[int, int], offset: int, size: int) -> bytes | None:
        descriptor = self._descriptors.find(key, self.path)
        if descriptor is None:
            return None
        try:
            return os.pread(descriptor, size, offset)
        except OSError:  # a stale handle of a network file system
            self._descriptors.drop(key)
            return None

    def state(self) -> list[dict[str, Any]]:
        """Return the generations as saved for a restart."""
        return [
            {
                "device": generation.device,
                "inode": generation.inode,
                "start": generation.start,
                "size": generation.size,
                "head": list(generation.head),
                "changed_at": generation.changed_at,
            }
            for generation in self.generations
        ]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Restore the generations of an earlier process; `KeyError`, `TypeError` or `ValueError` when damaged."""
        for kept in state:
            generation = Generation(
                int(kept["device"]), int(kept["inode"]), int(kept["start"]), int(kept["size"]),
                FileHead(int(kept["head"][0]), str(kept["head"][1])),
            )  # fmt: skip
            generation.changed_at = int(kept["changed_at"])
            self.generations.append(generation)


def is_rotated(name: str, original: str) -> bool:
    """Return whether rotation produces this name from the original: `train.log.1`, `train.log-20260101.gz`."""
    rest = _PACKED.sub("", name)
    if name == original or not rest.startswith(original):
        return False
    return rest == original or bool(_ROTATED.fullmatch(rest[len(original) :]))


def _beside(path: str, inode: int) -> Iterator[str]:
    """Yield the path, then all files in its folder that have this inode."""
    yield path
    folder = os.path.dirname(path) or "."
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.inode() == inode:
                yield entry.path


def _regular(path: str) -> os.stat_result | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about if stat.S_ISREG(about.st_mode) else None


def _readable(path: str) -> os.stat_result | None:
    return _regular(path) if os.access(path, os.R_OK) else None


def _is_head(content: bytes, head: FileHead) -> bool:
    return len(content) == head.size and (not content or _digest(content) == head.digest)


def _key(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
