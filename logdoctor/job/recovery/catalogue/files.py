"""Reads files that anybody may have written: bounded, regular files only, without following cycles."""

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from logdoctor.errors import CheckpointError
from logdoctor.job.recovery.catalogue.pickled import NotRead, TooLarge
from logdoctor.safe.budget import Overspent, json_of

MOST_ENTRIES = 20_000
"""Most entries of a checkpoint folder; more means that it is something else."""
MOST_FILES = 200_000
"""Most files examined in a checkpoint."""
MOST_LINKED = 1_000_000
"""Most files examined behind all links of a folder together: a few links can lead to any number."""
_DEEPEST = 8  # levels of folders inside a checkpoint
_SMALL = 64 << 20  # bytes of a small file that is read whole


class Stat(NamedTuple):
    """A file's bytes, its last write (seconds since the epoch), and how many of its bytes are holes (not on disk)."""

    bytes: int
    written: float
    holes: int = 0


class Tree:
    """The regular files below a folder by relative path, found among `seen` entries. Links to folders are skipped."""

    def __init__(self, root: Path, files: dict[str, Stat], whole: bool = True, seen: int = 0) -> None:
        self.root, self.files, self.whole, self.seen = root, files, whole, seen

    @property
    def bytes(self) -> int:
        """Return their total bytes."""
        return sum(file.bytes for file in self.files.values())

    @property
    def holes(self) -> int:
        """Return how many of these bytes are holes."""
        return sum(file.holes for file in self.files.values())

    @property
    def written(self) -> float | None:
        """Return when the last of them was written; None without files."""
        return max((file.written for file in self.files.values()), default=None)

    def below(self, folder: str) -> "Tree":
        """Return the subtree of a folder."""
        start = f"{folder}/"
        mine = {name.removeprefix(start): file for name, file in self.files.items() if name.startswith(start)}
        return Tree(self.root / folder, mine, self.whole)

    @property
    def folders(self) -> list[str]:
        """Return its direct folders that hold files."""
        return sorted({name.partition("/")[0] for name in self.files if "/" in name})

    def matching(self, pattern: "re.Pattern[str]") -> dict[str, "re.Match[str]"]:
        """Return the files directly in it whose names match, sorted."""
        found = ((name, pattern.fullmatch(name)) for name in sorted(self.files) if "/" not in name)
        return {name: match for name, match in found if match}


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a checkpoint folder, sorted by name; `CheckpointError` when it cannot be read or has too
    many."""
    found: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as listing:
            for entry in listing:
                found.append(entry)
                if len(found) > MOST_ENTRIES:
                    cause = f"holds more than {MOST_ENTRIES:,} entries, more than a folder of checkpoints has"
                    raise CheckpointError(str(folder), cause, "Name the folder in which the checkpoints are.")
    except OSError as error:
        cause = f"cannot be read ({error.strerror})"
        raise CheckpointError(str(folder), cause, "Name the folder in which the checkpoints are.") from error
    return sorted(found, key=lambda entry: entry.name)


def tree(root: Path, most: int = MOST_FILES) -> Tree:
    """Return the files below a folder, without what vanishes meanwhile; beyond `most` entries it is not whole."""
    files: dict[str, Stat] = {}
    todo = [("", 0)]
    seen = 0
    whole = True
    while todo:
        inside, depth = todo.pop()
        for entry in _listed(root / inside):
            seen += 1
            if seen > most:
                return Tree(root, files, False, seen)
            if entry.is_dir(follow_symlinks=False):
                whole = whole and depth < _DEEPEST
                if depth < _DEEPEST:
                    todo.append((f"{inside}{entry.name}/", depth + 1))
            elif (found := stat_of(Path(entry.path))) is not None:
                files[f"{inside}{entry.name}"] = found
    return Tree(root, files, whole, seen)


def _listed(folder: Path) -> Iterable[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listing:
            yield from listing
    except OSError:
        return


def stat_of(path: Path) -> Stat | None:
    """Return the size and times of a regular file, also through a link; None for anything else."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Stat(found.st_size, found.st_mtime, max(0, found.st_size - 512 * found.st_blocks))


def opened(path: Path) -> Any:
    """Open a regular file for reading, never waiting for a pipe or device; `NotRead` when it cannot be opened."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise NotRead(f"cannot be read ({getattr(error, 'strerror', None) or 'its name'})") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotRead("is no regular file")
    return os.fdopen(handle, "rb")


def content(path: Path, most: int = _SMALL) -> bytes:
    """Return the content of a small file; `TooLarge` when it is larger, `NotRead` when it cannot be read."""
    with opened(path) as file:
        try:
            data: bytes = file.read(most + 1)
        except OSError as error:
            raise NotRead(f"cannot be read ({error.strerror})") from error
    if len(data) > most:
        raise TooLarge(f"has more than {most:,} bytes")
    return data


def word(path: Path) -> str | None:
    """Return the text of a small file, such as one that names the latest checkpoint; None when empty or unreadable."""
    try:
        text = content(path, 4096).decode("utf-8", "replace").strip()
    except NotRead:
        return None
    return text or None


def json_in(path: Path) -> Any:
    """Parse the JSON in a file, NaN allowed as frameworks write it; `NotRead` when it is truncated or invalid."""
    data = content(path)
    if not data.strip():
        raise NotRead("is empty")
    try:
        return json_of(data)
    except Overspent as error:
        raise NotRead(str(error)) from error
    except ValueError as error:
        raise NotRead("is cut off, or is no JSON") from error


def real(value: Any) -> float | None:
    """Return a number, maybe NaN, also when written as text; None for anything else."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def whole_number(text: str) -> int | None:
    """Parse a whole number of at most 18 digits; None for anything else."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdecimal() else None
