"""Finds the latest checkpoint, and loads one after verifying every file of it."""

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from logdoctor.checkpoint import folders
from logdoctor.checkpoint.folders import MANIFEST, Manifest
from logdoctor.checkpoint.rank_names import RankNames
from logdoctor.checkpoint.reports import sentence_of
from logdoctor.checkpoint.team import Team
from logdoctor.errors import CheckpointDamaged, CheckpointError
from logdoctor.safe.lasting_files import Folder

_METADATA = {
    *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
    *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
}
_KNOWN = {("torch.distributed.checkpoint.metadata", name) for name in _METADATA} | {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
}


class Loaded(NamedTuple):
    """What was loaded. `refused` has a sentence for each newer checkpoint that was skipped; `left` are names of this
    rank that nobody had saved, because there were fewer ranks: they keep their values."""

    step: int
    data_position: int | None
    loss: float | None
    path: Path
    refused: tuple[str, ...]
    left: tuple[str, ...] = ()


class Fault(NamedTuple):
    """What is wrong with a checkpoint, as a sentence, and whether its bytes differ from what was written, which is
    permanent."""

    sentence: str
    is_damage: bool = False


Restore = Callable[[str, Fault], bool]
"""Called on the first rank with a bad checkpoint's name and fault; returns whether to check it again."""


class _Unpickler(pickle.Unpickler):
    """Creates only the types of `.metadata`: a pickle can name any function."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f".metadata names {module}.{name}")


class _Files(FileSystem):  # type: ignore[misc]
    """Opens only regular files inside the checkpoint: its metadata can name any path, even a pipe."""

    def __init__(self, place: Path) -> None:
        self._place = place

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with os.fdopen(Folder(self._place).open(os.path.relpath(path, self._place)), mode) as file:
            yield file


class _Reader(dcp.FileSystemReader):  # type: ignore[misc]
    """Torch's reader, without its trust in pickles."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fs = _Files(path)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        with self.fs.create_stream(Path(self.path) / ".metadata", "rb") as file:
            metadata = _Unpickler(file).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Careful:
    """Refuses objects that run code."""

    def load_bytes(self, read_item: Any, value: Any) -> None:
        torch.load(value, weights_only=True)
        value.seek(0)
        super().load_bytes(read_item, value)  # type: ignore[misc]


class _Planner(_Careful, dcp.DefaultLoadPlanner):  # type: ignore[misc]
    """If strict, refuses a state that would leave a part of the checkpoint unloaded, except other ranks' own names."""

    def __init__(self, strict: bool, team: Team, manifest: Manifest) -> None:
        super().__init__()
        self._strict, self._team, self._manifest = strict, team, manifest
        self.left: tuple[str, ...] = ()

    def create_local_plan(self) -> Any:
        saved, mine = set(self.metadata.state_dict_metadata), set(self.state_dict)
        team, manifest = self._team, self._manifest
        ranks = RankNames(team.rank, team.size, manifest.world_size, manifest.rank_forms, saved)
        self.left = tuple(sorted(name for name in mine - saved if ranks.is_new(name)))
        for name in self.left:
            del self.state_dict[name]
        left = sorted(name for name in saved - mine if not ranks.is_of_another(name))
        if self._strict and left:
            cause = f"has no place for {left[0]} and {len(left) - 1} more of the checkpoint"
            todo = "Give a state of the same form (TrainingState makes it of an optimizer), or load with strict=False."
            raise CheckpointError("the state", cause, todo)
        return super().create_local_plan()


class _WholePlanner(_Careful, _EmptyStateDictLoadPlanner):  # type: ignore[misc]
    """Fills an empty state with everything in the checkpoint."""


def latest(folder: str | Path) -> Manifest | None:
    """Return the newest complete checkpoint, None without one. Only `load` reads its bytes."""
    return next(iter(folders.complete(Path(folder))), None)


def load(
    folder: str | Path, state: dict[str, Any], step: int | None = None, *, path: str = "", strict: bool = True
) -> Loaded | None:
    """Load the newest good checkpoint into `state`, as `Checkpointer.load`, without becoming a writer. With
    `torch.distributed` it is a collective operation of all ranks."""
    team = Team()
    try:
        return load_with(team, Path(folder), state, step, path, strict)
    finally:
        team.end()


def read(
    folder: str | Path,
    step: int | None = None,
    *,
    path: str = "",
    or_before: bool = False,
    restore: Restore = lambda _name, _fault: False,
) -> tuple[Loaded, dict[str, Any]] | None:
    """Return the newest good checkpoint, or that of a step or path, with its state. The whole state is loaded into this
    process's memory, for callers that do not know its form. None without one; everything else as in `load_with`."""
    state: dict[str, Any] = {}
    team = Team(alone=True)
    loaded = load_with(team, Path(folder), state, step, path, None, or_before=or_before, restore=restore)
    return None if loaded is None else (loaded, state)


def load_with(
    team: Team,
    folder: Path,
    state: dict[str, Any],
    step: int | None,
    path: str,
    strict: bool | None,
    refused_before: tuple[str, ...] = (),
    restore: Restore = lambda _name, _fault: False,
    or_before: bool = False,
) -> Loaded | None:
    """Load the newest good checkpoint of a folder, a step's, or the one at `path`. None without any. With `or_before`,
    a damaged one at `path` is replaced by the newest good one of an earlier step. With `strict` None the state is
    empty, and gets everything."""
    refused = list(refused_before)
    for name in team.leader(lambda: _named(folder, path, or_before) if path else _candidates(folder, step)):
        fault = _fault_of_all(team, folder / name)
        if fault and team.leader(lambda name=name, fault=fault: restore(name, fault)):  # type: ignore[misc]
            fault = _fault_of_all(team, folder / name)
        if not fault:
            return _load(team, folder / name, state, strict, tuple(refused))
        refused.append(fault.sentence)
    if refused or step is not None:
        of_step = "" if path or step is None else f" of step {step}"
        cause = f"has no good checkpoint{f' {Path(path).name}' if path else of_step}"
        raise CheckpointDamaged(f"{folder}", f"{cause}{': ' if refused else ''}{' '.join(refused)}".rstrip("."), _TODO)
    return None


_TODO = "Restore one from a copy, or begin anew in another folder."


def _named(folder: Path, path: str, or_before: bool) -> list[str]:
    """Return the name at `path` and, if wanted, those of earlier steps, newest first; `CheckpointError` when it is in
    another folder."""
    name = Path(path).name
    if Path(path).absolute().parent != folder.absolute():
        raise CheckpointError(f"checkpoint {path}", f"is not in {folder}", "Give a checkpoint of this folder.")
    named = folders.parsed(name)
    earlier = _finite_first(folder) if or_before and named else ()
    return [name, *(each.name for each in earlier if named and each.step < named[0])]


def _candidates(folder: Path, step: int | None) -> list[str]:
    """Return the names of checkpoints to try: unreadable manifests first, then the newest first, non-finite losses
    last, and finally those marked as damaged, so that they are named."""
    found = [each.name for each in _finite_first(folder)]
    rest = [name for name in folders.names(folder) if name not in found and (folder / name / MANIFEST).exists()]
    behind = folders.damaged(folder) if step is None else folders.names(folder)
    every = dict.fromkeys(rest + found + behind)
    return [name for name in every if step in (None, (folders.parsed(name) or (None,))[0])]


def _finite_first(folder: Path) -> list[Manifest]:
    return sorted(folders.complete(folder), key=lambda each: not each.is_finite)


def _fault_of_all(team: Team, path: Path) -> Fault | None:
    """Verify all files of a checkpoint on all ranks; return the first fault, or None."""
    return next((each for each in team.tell(next(_faults(team, path), None)) if each), None)


def _faults(team: Team, path: Path) -> Iterator[Fault]:
    """Verify this rank's part of the files; yield each fault of the checkpoint."""
    try:
        manifest = folders.read_manifest(path)
    except CheckpointDamaged as error:
        yield Fault(f"{error.thing} {error.cause}.")  # a later version may have written it
        return
    if manifest is None:
        known = folders.is_damaged(path)
        yield Fault(
            f"checkpoint {path.name} {'was found to be damaged' if known else f'is torn: it has no {MANIFEST}'}."
        )
        return
    if ".metadata" not in {file.name for file in manifest.files}:
        yield Fault(f"checkpoint {path.name} lists no .metadata.", is_damage=True)
    for file in manifest.files[team.rank :: team.size]:
        try:
            if difference := folders.difference(path, file):
                yield Fault(f"checkpoint {path.name} {difference}.", is_damage=True)
        except OSError as error:
            yield Fault(f"checkpoint {path.name} cannot be read: {file.name} ({error.strerror}).")


def _load(team: Team, path: Path, state: dict[str, Any], strict: bool | None, refused: tuple[str, ...]) -> Loaded:
    """Load a checkpoint whose files are verified."""
    manifest = team.leader(lambda: folders.read_manifest(path))
    if manifest is None:
        raise CheckpointDamaged(f"checkpoint {path.name}", "was deleted meanwhile", _TODO)
    planner = None if strict is None else _Planner(strict, team, manifest)
    try:
        whole = {"storage_reader": _Reader(path), "process_group": team.group, "no_dist": team.group is None}
        if planner is None:
            _load_state_dict(state, planner=_WholePlanner(), **whole)
        else:
            dcp.load(state, planner=planner, **whole)
    except (Exception, CheckpointException) as error:  # torch's is not an Exception
        cause = f"cannot be loaded into this state: {sentence_of(error).rstrip('.')}"
        raise CheckpointError(f"checkpoint {path.name}", cause, "Load it into a state of the same form.") from error
    left = planner.left if planner else ()
    return Loaded(manifest.step, manifest.data_position, manifest.loss, path, refused, left)
