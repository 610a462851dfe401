"""Reads every byte of a checkpoint that has a checksum."""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from logdoctor.job.recovery.catalogue import dcp, ours
from logdoctor.job.recovery.catalogue.archives import Part, damaged_entry
from logdoctor.job.recovery.catalogue.checkpoint import Checkpoint
from logdoctor.job.recovery.catalogue.files import Stat, Tree, opened, stat_of, tree
from logdoctor.job.recovery.catalogue.pickled import NotRead, TooLarge

_BLOCK = 4 << 20
_MOST_HOLES = 64 << 30  # bytes of holes that are read: a file of one disk page can claim any number
_ZIPS = (".pt", ".pth", ".bin", ".ckpt")


class Verified(NamedTuple):
    """Why a checkpoint is torn or was changed ("" when intact); files compared with a checksum, and files in all;
    notes."""

    torn: str
    compared: int
    files: int
    notes: tuple[str, ...] = ()


def verify(checkpoint: Checkpoint) -> Verified:
    """Read a checkpoint whole and return the result: our manifests have hashes, torch's files have checksums (those
    inside `*.distcp` are located by `.metadata`), safetensors have none."""
    path = Path(checkpoint.path)
    files = tree(path) if path.is_dir() else _alone(path)
    if checkpoint.torn:
        return Verified(checkpoint.torn, 0, len(files.files))
    if files.holes > _MOST_HOLES:
        why = f"{files.holes:,} of its {files.bytes:,} bytes lie nowhere on the disk: it was not read whole"
        return Verified("", 0, len(files.files), (why,))
    try:
        if checkpoint.framework == "logdoctor":
            return compared(files, lambda name: opened(files.root / name))
        return _by_checksum(files)
    except NotRead as error:
        return Verified(f"{checkpoint.name} {error}", 0, len(files.files))
    except OSError as error:
        return Verified(f"a file of it cannot be read ({error.strerror})", 0, len(files.files))


def _alone(path: Path) -> Tree:
    found = stat_of(path)
    return Tree(path.parent, {path.name: found or Stat(0, 0.0)})


def compared(files: Tree, open_file: Callable[[str], Any]) -> Verified:
    """Compare all files, opened by name with `open_file`, with the hashes in our manifest."""
    manifest = ours.read_manifest(files)
    if torn := ours.missing_or_short(files, manifest):
        return Verified(torn, 0, len(manifest.files))
    try:
        xxhash = import_module("xxhash")  # part of no extra: whoever saves has it
    except ImportError:
        step = "xxhash is not installed, so sizes were compared and hashes were not: pip install xxhash"
        return Verified("", 0, len(manifest.files), (step,))
    for number, file in enumerate(manifest.files):
        digest, left = xxhash.xxh3_128(), file.bytes + 1  # reading one byte more shows whether it has grown
        with open_file(file.name) as stream:
            while left and (block := stream.read(min(_BLOCK, left))):
                digest.update(block)
                left -= len(block)
        if digest.hexdigest() != file.xxh3_128.lower():
            return Verified(f"{file.name} has changed since it was saved", number, len(manifest.files))
    return Verified("", len(manifest.files), len(manifest.files))


def _by_checksum(files: Tree) -> Verified:
    """Compare all that torch wrote with its checksums."""
    compared, notes = 0, []
    places = _places(files)
    for name in files.files:
        try:
            if name in places:
                torn, counted = _parts_damaged(files.root / name, places[name])
            else:
                torn, counted = _file_damaged(files.root / name)
        except TooLarge as error:
            notes.append(f"{name} {error}")
            continue
        if torn:
            return Verified(f"{name} {torn}", compared, len(files.files), tuple(notes))
        compared += counted
    return Verified("", compared, len(files.files), tuple(notes))


def _places(files: Tree) -> dict[str, list[tuple[int, int]]]:
    """Return where the parts of the state lie, by file, in all torch.distributed.checkpoint folders."""
    found: dict[str, set[tuple[int, int]]] = {}
    for name in files.files:
        folder, base = os.path.split(name)
        if base != dcp.METADATA:
            continue
        try:
            items = dcp.items(files.root / name)
        except TooLarge:
            continue
        for one in items:
            if one.plain:
                found.setdefault(os.path.join(folder, one.file), set()).add((one.begin, one.length))
    return {name: sorted(places) for name, places in found.items()}


def _parts_damaged(path: Path, places: list[tuple[int, int]]) -> tuple[str, bool]:
    """Return which part of a file is damaged, and whether all parts have checksums."""
    with opened(path) as file:
        if sum(length for _, length in places) > file.seek(0, os.SEEK_END):
            return "has parts that overlap", False
        every = True
        for begin, length in places:
            part = Part(file, begin, length)
            if part.read(2) != b"PK":  # safetensors, or a plain object
                every = False
            elif why := damaged_entry(part):
                return why, False
    return "", every


def _file_damaged(path: Path) -> tuple[str, bool]:
    if not path.name.endswith(_ZIPS):
        return "", False
    with opened(path) as file:
        if file.read(2) != b"PK":
            return "", False
        return damaged_entry(file), True
