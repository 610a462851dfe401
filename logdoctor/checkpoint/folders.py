"""A folder of checkpoints: names, manifests, pins.

    step-N.attempt-K/      a checkpoint; written once, never again
        *.distcp .metadata files of torch.distributed.checkpoint
        manifest.json      renamed into place when all others are durable: without it the checkpoint is torn
        manifest.damaged.json  its name once a loader found the files damaged
    pins/step-N.attempt-K  keeps this checkpoint from being deleted
    writer.lease           who may write (lease.py)

The latest one is determined from the content, and stored nowhere.
"""

import functools
import json
import logging
import math
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from logdoctor.checkpoint.hashing import File, hash_file
from logdoctor.errors import CheckpointDamaged, CheckpointError
from logdoctor.safe.lasting_files import Folder

FORMAT = "logdoctor-checkpoint/1"
MANIFEST = "manifest.json"
DAMAGED = "manifest.damaged.json"
"""The manifest of a checkpoint whose files were found to differ from it: it is never loaded."""
_NAME = re.compile(r"step-(0|[1-9]\d{0,17})\.attempt-([1-9]\d{0,17})")
MOST_STEPS = 10**18
_LAST = 10**18 - 1  # of attempts and writers: their numbers are names, too
_HASH = re.compile(r"[0-9a-f]{32}")
_UNFINISHED = ".unfinished-"
LARGEST = 256 << 20
"""Bytes of a manifest: a million files."""
_LONGEST_NAME = 255  # bytes
_log = logging.getLogger("logdoctor.checkpoint")
_AGAIN = "Load another one, or restore it from a copy."


def parsed(name: str) -> tuple[int, int] | None:
    """Return step and attempt from a checkpoint's name; None for other names."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def following(numbers: Iterable[int]) -> int:
    """Return the next attempt or writer number after all of these."""
    return 1 + max(countable(numbers), default=0)


def countable(numbers: Iterable[int]) -> list[int]:
    """Return the numbers that have a valid successor. Larger ones, which no real run reaches, are logged once and
    ignored, because every save would fail."""
    every = list(numbers)
    if any(number >= _LAST for number in every):
        _say_ignored()
    return [number for number in every if number < _LAST]


@functools.cache
def _say_ignored() -> None:
    _log.warning("a folder of checkpoints names an attempt or a writer of number %d or more: it is not counted", _LAST)


def name_of(step: int, attempt: int) -> str:
    """Return the name of a checkpoint."""
    return f"step-{step}.attempt-{attempt}"


@dataclass(frozen=True)
class Manifest:
    """The manifest of a complete checkpoint. `saved_at` is when the state was copied, `seconds` the time from then
    until it was durable, `epoch` its writer's: later runs of the job have higher ones. `rank_forms` are the forms of
    rank-specific names (`rank_names.forms_of`), None for one rank or when unknown."""

    step: int
    attempt: int
    data_position: int | None
    loss: float | None
    saved_at: str
    seconds: float
    world_size: int
    epoch: int
    files: tuple[File, ...]
    rank_forms: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return name_of(self.step, self.attempt)

    @property
    def is_finite(self) -> bool:
        """Return whether the loss, if known, is finite."""
        return self.loss is None or math.isfinite(self.loss)

    @property
    def order(self) -> tuple[int, int, int]:
        """Return its sort key, oldest first. A run that rolled back counts as newer than what it left behind."""
        return self.epoch, self.step, self.attempt

    def as_json(self) -> bytes:
        """Return the text of `manifest.json`. JSON has no NaN, so such a loss is text: nobody should resume from it
        unawares."""
        loss = self.loss if self.is_finite else str(self.loss)
        whole = {"format": FORMAT} | asdict(self) | {"loss": loss, "files": [file._asdict() for file in self.files]}
        return json.dumps(whole, indent=1, allow_nan=False).encode() + b"\n"


def timestamp(seconds: float) -> str:
    """Format seconds since the epoch as in manifests."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def names(folder: Path) -> list[str]:
    """Return the names of all checkpoints in a folder, complete or not; [] without the folder. `CheckpointError` when
    it cannot be read."""
    try:
        return [each.name for each in os.scandir(folder) if parsed(each.name) and each.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        todo = "Name a folder that this user may read."
        raise CheckpointError(str(folder), f"cannot be read ({error.strerror})", todo) from error


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest of a checkpoint; None for an incomplete one without. `CheckpointDamaged` when it is invalid
    or another's."""
    try:
        text = Folder(path).read(MANIFEST, LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(path.name, f"cannot be read ({error.strerror})") from error
    return as_manifest(path.name, text)


def as_manifest(name: str, text: bytes) -> Manifest:
    """Parse the manifest of the checkpoint `name`; `CheckpointDamaged` when it is invalid or another's."""
    try:
        if len(text) > LARGEST:
            raise ValueError("too long")
        found = _manifest(json.loads(text))
        if found.name != name:
            raise ValueError(f"it is that of {found.name}")
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise _damaged(name, f"has an invalid {MANIFEST}: {error}") from error
    return found


def _damaged(name: str, cause: str) -> CheckpointDamaged:
    return CheckpointDamaged(f"checkpoint {name}", cause, _AGAIN)


def _manifest(given: Any) -> Manifest:
    if given["format"] != FORMAT:
        raise ValueError(f"format {given['format']!r:.40}")
    numbers = {name: _number(given, name) for name in ("step", "attempt", "world_size")}
    files = tuple(_file(each) for each in given["files"])
    forms = given.get("rank_forms")
    if len({file.name for file in files}) != len(files):
        raise ValueError("a file is listed twice")
    position, loss, seconds = given.get("data_position"), given.get("loss"), float(given["seconds"])
    if not math.isfinite(seconds):
        raise ValueError("seconds is no number")
    return Manifest(
        **numbers,
        data_position=None if position is None else int(position),
        loss=None if loss is None else float(loss),
        saved_at=str(given["saved_at"]),
        seconds=seconds,
        epoch=next(iter(countable([int(given.get("epoch", 0))])), 0),
        files=files,
        rank_forms=None if forms is None else tuple(str(form) for form in forms),
    )


def _number(given: Any, name: str) -> int:
    if type(given[name]) is not int or given[name] < 0:
        raise ValueError(f"{name} is no number")
    return int(given[name])


def _file(given: Any) -> File:
    file = File(given["name"], _number(given, "bytes"), given["xxh3_128"])
    if not isinstance(file.name, str) or file.name in ("", ".", "..") or set(file.name) & {"/", "\0"}:
        raise ValueError(f"{file.name!r:.40} is no name of a file")
    if len(os.fsencode(file.name)) > _LONGEST_NAME:
        raise ValueError(f"the name {file.name:.40} is too long")
    if not isinstance(file.xxh3_128, str) or not _HASH.fullmatch(file.xxh3_128):
        raise ValueError(f"the hash of {file.name:.40} is none")
    return file


def complete(folder: Path) -> list[Manifest]:
    """Return the manifests of all complete checkpoints, newest first, without unreadable ones."""
    found = []
    for name in names(folder):
        with suppress(CheckpointDamaged):
            if manifest := read_manifest(folder / name):
                found.append(manifest)
    return sorted(found, key=lambda each: each.order, reverse=True)


def difference(path: Path, file: File, *, from_disk: bool = False) -> str | None:
    """Return a file's difference from its manifest as a sentence's end, or None; `OSError` when it cannot be read."""
    place = path / file.name
    if place.is_symlink() or not place.is_file():
        return f"has no file {file.name}"
    if (size := place.stat().st_size) != file.bytes:
        return f"is torn: {file.name} has {size} bytes, not {file.bytes}"
    if hash_file(place, from_disk=from_disk) != file:
        return f"was changed: {file.name} has not the bytes that were written"
    return None


def fault(path: Path, file: File) -> str | None:
    """Return why a checkpoint's file is not loaded, as a sentence's end, or None."""
    try:
        return difference(path, file)
    except OSError as error:
        return f"cannot be read: {file.name} ({error.strerror})"


def pinned(folder: Path, name: str, now: float) -> bool:
    """Return whether a checkpoint must not be deleted; an unreadable pin holds, too."""
    try:
        until = json.loads(Folder(folder).read(f"pins/{name}")).get("until")
        return until is None or datetime.fromisoformat(until).timestamp() > now
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        return True


def retire(folder: Path, name: str) -> None:
    """Remove a checkpoint's manifest first, so that a half-deleted checkpoint is torn, never complete."""
    Folder(folder).remove(f"{name}/{MANIFEST}", lasting=True)


def delete(folder: Path, name: str) -> None:
    """Delete a checkpoint. It is renamed first, so whoever still writes into it can neither refill nor finish it."""
    retire(folder, name)
    place, gone = Folder(folder), unfinished()
    try:
        place.move(name, gone)
    except FileNotFoundError:
        return
    except OSError:  # a full disk may have no room for another name
        gone = name
    place.remove_all(gone)


def unfinished() -> str:
    """Return a new, unique name for what is being deleted or fetched."""
    return f"{_UNFINISHED}{uuid.uuid4().hex}"


def sweep(folder: Path) -> None:
    """Delete what killed processes left half-deleted or half-fetched."""
    place = Folder(folder)
    for gone in place.names():
        if gone.startswith(_UNFINISHED):
            with suppress(OSError):
                place.remove_all(gone)


def torn(folder: Path) -> Iterator[str]:
    """Yield the names of checkpoints without a manifest."""
    for name in names(folder):
        if not any(os.path.lexists(folder / name / each) for each in (MANIFEST, DAMAGED)):
            yield name


def damaged(folder: Path) -> list[str]:
    """Return the names of checkpoints marked as damaged."""
    return [name for name in names(folder) if is_damaged(folder / name)]


def is_damaged(path: Path) -> bool:
    """Return whether a checkpoint is marked as damaged."""
    return os.path.lexists(path / DAMAGED) and not os.path.lexists(path / MANIFEST)


def mark_damaged(folder: Path, name: str) -> None:
    """Mark a checkpoint as damaged, so that no reader takes it as complete; its files stay for inspection."""
    place = Folder(folder)
    place.move(f"{name}/{MANIFEST}", f"{name}/{DAMAGED}")
    place.sync(name)
