"""Our own folder: `step-N.attempt-K/` with `manifest.json`, which is written last. Needs no torch."""

import re
from typing import Any

import msgspec

from logdoctor.job.recovery.catalogue.checkpoint import Found
from logdoctor.job.recovery.catalogue.files import Tree, json_in, real, whole_number
from logdoctor.job.recovery.catalogue.pickled import NotRead
from logdoctor.job.recovery.catalogue.place import Place
from logdoctor.job.recovery.catalogue.times import seconds_of

MANIFEST = "manifest.json"
DAMAGED = "manifest.damaged.json"
"""The manifest's name once a loader found the files damaged."""
FORMAT = "logdoctor-checkpoint/1"
UNFINISHED = ".unfinished-"
"""The prefix of what is being deleted or fetched."""
_NAME = re.compile(r"step-(\d+)\.attempt-(\d+)")
_LONGEST = 1e7  # seconds that a save may take
_DID_NOT_END = f"{MANIFEST} is missing, which is written last: the save did not end"


class ListedFile(msgspec.Struct, frozen=True):
    """A file listed in a manifest."""

    name: str
    bytes: int
    xxh3_128: str


class Manifest(msgspec.Struct, frozen=True):
    """The content of a manifest. `loss` may be NaN, also as text; a later run of the job has a higher `epoch`."""

    format: str
    step: int
    attempt: int
    saved_at: str
    seconds: float
    world_size: int
    files: tuple[ListedFile, ...]
    data_position: int | None = None
    loss: Any = None
    epoch: int = 0


def named(name: str) -> tuple[int, int] | None:
    """Return step and attempt from the name of our checkpoint; None for other names."""
    found = _NAME.fullmatch(name)
    step, attempt = (whole_number(found[1]), whole_number(found[2])) if found else (None, None)
    return None if step is None or attempt is None else (step, attempt)


def look(place: Place) -> Found | None:
    """Return our own checkpoint; None for anything else."""
    name = _NAME.fullmatch(place.name)
    if name is None or not place.is_folder:
        return None
    step, attempt = whole_number(name[1]), whole_number(name[2])
    try:
        manifest = read_manifest(place.tree)
    except NotRead as error:
        return Found(place.checkpoint("logdoctor", step, attempt=attempt, torn=str(error)))
    torn = _other_name(manifest, step, attempt) or missing_or_short(place.tree, manifest)
    loss = real(manifest.loss)
    known: dict[str, Any] = {
        "attempt": attempt,
        "run": manifest.epoch,
        "data_position": manifest.data_position,
        "world_size": manifest.world_size,
        "loss": loss,
        "saved_at": seconds_of(manifest.saved_at),
        "seconds": manifest.seconds if 0 < manifest.seconds < _LONGEST else None,
        "torn": torn,
        "suspect": "" if MANIFEST in place.tree.files else "its files were found to be damaged when it was loaded",
    }
    losses = () if loss is None or step is None else ((step, loss),)
    return Found(place.checkpoint("logdoctor", step, **known), losses)


def read_manifest(tree: Tree) -> Manifest:
    """Return the manifest of a checkpoint; `NotRead` says why it is torn."""
    name = next((name for name in (MANIFEST, DAMAGED) if name in tree.files), None)
    if name is None:
        raise NotRead(_DID_NOT_END)
    try:
        manifest = msgspec.convert(json_in(tree.root / name), Manifest)
    except NotRead as error:
        raise NotRead(f"{MANIFEST} {error}") from error
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError) as error:
        raise NotRead(f"{MANIFEST} has another form than ours ({str(error)[:200]})") from error
    if manifest.format != FORMAT:
        raise NotRead(f"{MANIFEST} has the format {manifest.format[:60]!r}, not {FORMAT!r}")
    return manifest


def _other_name(manifest: Manifest, step: int | None, attempt: int | None) -> str:
    if (manifest.step, manifest.attempt) == (step, attempt):
        return ""
    return f"{MANIFEST} is of step {manifest.step}, attempt {manifest.attempt}: it was moved here"


def missing_or_short(tree: Tree, manifest: Manifest) -> str:
    """Return which listed file is missing or has another size; "" when none."""
    if not manifest.files:
        return f"{MANIFEST} lists no files"
    if len({file.name for file in manifest.files}) < len(manifest.files):
        return f"{MANIFEST} lists a file twice"
    for file in manifest.files:
        found = tree.files.get(file.name) if "/" not in file.name else None
        if found is None:
            return f"{file.name[:200]} is missing"
        if found.bytes != file.bytes:
            return f"{file.name[:200]} has {found.bytes:,} bytes, {MANIFEST} lists {file.bytes:,}"
    return ""
