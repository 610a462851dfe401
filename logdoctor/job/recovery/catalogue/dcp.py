"""torch.distributed.checkpoint: `.metadata` is renamed into place when all `__R_N.distcp` files are there.

Source: `torch/distributed/checkpoint/filesystem.py`, `_FileSystemWriter.finish`.
"""

import re
from pathlib import Path
from typing import NamedTuple

from logdoctor.job.recovery.catalogue.checkpoint import Found
from logdoctor.job.recovery.catalogue.files import Tree, content, whole_number
from logdoctor.job.recovery.catalogue.pickled import MOST_BYTES, NotRead, TooLarge, got, number, unpickled
from logdoctor.job.recovery.catalogue.place import Place
from logdoctor.safe.budget import Overspent

METADATA = ".metadata"
_PART = re.compile(r"__(\d+)_(\d+)\.distcp")
_OF_RANK = re.compile(r"__(\d+)\.metadata")  # one per rank, when saved without collectives
_STEP = re.compile(r"(\d+)\D*\Z")  # the last number of a name


class Item(NamedTuple):
    """Where a part of the state lies; `plain` when it was stored untransformed."""

    file: str
    begin: int
    length: int
    plain: bool


def is_one(names: frozenset[str]) -> bool:
    """Return whether these file names belong to such a checkpoint."""
    return bool({METADATA, f"{METADATA}.tmp"} & names) or any(
        _PART.fullmatch(name) or _OF_RANK.fullmatch(name) for name in names
    )


def look(place: Place) -> Found | None:
    """Return a checkpoint that torch wrote itself; None for anything else."""
    if not place.is_folder or not is_one(place.names):
        return None
    torn, notes = examine(place.tree)
    ranks = [rank for match in place.tree.matching(_PART).values() if (rank := whole_number(match[1])) is not None]
    size = max(ranks) + 1 if ranks else None
    return Found(place.checkpoint("torch-dcp", step_of(place.name), world_size=size, torn=torn, notes=notes))


def step_of(name: str) -> int | None:
    """Return the last number in a name; None without one."""
    found = _STEP.search(name)
    return whole_number(found[1]) if found else None


def examine(tree: Tree) -> tuple[str, tuple[str, ...]]:
    """Return why a folder cannot be loaded, "" when it can; and what was not checked."""
    files = [METADATA] if METADATA in tree.files else list(tree.matching(_OF_RANK))
    if not files:
        return _why_none(tree), ()
    try:
        wanted = _ends([item for file in files for item in items(tree.root / file)])
    except TooLarge as error:
        return "", (f"{METADATA} {error}: sizes were not checked",)
    except NotRead as error:
        return f"{METADATA} {error}", ()
    return _missing_or_short(tree, wanted), _written_later(tree, files, wanted)


def items(path: Path) -> list[Item]:
    """Return where metadata places the parts of the state; `NotRead` when it is truncated or invalid."""
    try:
        stored = got(unpickled(content(path, MOST_BYTES)), "storage_data")
    except Overspent as error:
        raise NotRead(str(error)) from error
    found = []
    for _, place in getattr(stored, "pairs", ()):
        file, begin, length = (got(place, name) for name in ("relative_path", "offset", "length"))
        if not isinstance(file, str) or number(begin) is None or number(length) is None:
            raise NotRead("says of a part of the state not where it lies")
        found.append(Item(file, begin, length, not got(place, "transform_descriptors")))
    if not found:
        raise NotRead("names no part of the state")
    return found


def _ends(found: list[Item]) -> dict[str, int]:
    ends: dict[str, int] = {}
    for one in found:
        ends[one.file] = max(ends.get(one.file, 0), one.begin + one.length)
    return ends


def _why_none(tree: Tree) -> str:
    if f"{METADATA}.tmp" in tree.files:
        return f"{METADATA} was never renamed into place: the save did not end"
    return f"{METADATA} is missing, which is written last: the save did not end"


def _missing_or_short(tree: Tree, wanted: dict[str, int]) -> str:
    for name, end in sorted(wanted.items()):
        found = tree.files.get(name)
        if found is None:
            return f"{name[:200]} is missing"
        if found.bytes < end:
            return f"{name[:200]} has {found.bytes:,} bytes, {METADATA} names {end:,}: it was cut off"
    return ""


def _written_later(tree: Tree, files: list[str], wanted: dict[str, int]) -> tuple[str, ...]:
    """Return a note when data is younger than the metadata: a copy, or a later save into the same folder."""
    written = max(tree.files[file].written for file in files)
    later = sum(tree.files[name].written > written + 1 for name in wanted if name in tree.files)
    if not later:
        return ()
    what = "1 file is" if later == 1 else f"{later:,} files are"
    return (f"{what} younger than {METADATA}: it was copied, or a later save into the same folder did not end",)
