"""Which checkpoint is the latest, and loading one after every file of it was found as it was written."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from logdoctor.checkpoint import folders
from logdoctor.checkpoint.folders import MANIFEST, Manifest
from logdoctor.checkpoint.reports import sentence_of
from logdoctor.checkpoint.team import Team
from logdoctor.errors import CheckpointDamaged, CheckpointError

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
    """What was loaded; `refused` are newer ones that were not, each as a sentence."""

    step: int
    data_position: int | None
    loss: float | None
    path: Path
    refused: tuple[str, ...]


class _Unpickler(pickle.Unpickler):
    """Makes the types of `.metadata` and no others: a pickle can name any function."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f".metadata names {module}.{name}")


class _Reader(dcp.FileSystemReader):  # type: ignore[misc]
    """The reader of torch, without its trust in pickles."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        with open(Path(self.path) / ".metadata", "rb") as file:
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
    """Refuses, if strict, a state that would leave a part of the checkpoint behind."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        self._strict = strict

    def create_local_plan(self) -> Any:
        if self._strict and (left := sorted(set(self.metadata.state_dict_metadata) - set(self.state_dict))):
            cause = f"has no place for {left[0]} and {len(left) - 1} more of the checkpoint"
            todo = "Give a state of the same form (TrainingState makes it of an optimizer), or load with strict=False."
            raise CheckpointError("the state", cause, todo)
        return super().create_local_plan()


class _WholePlanner(_Careful, _EmptyStateDictLoadPlanner):  # type: ignore[misc]
    """Fills an empty state with all that the checkpoint has."""


def latest(folder: str | Path) -> Manifest | None:
    """Return the newest complete checkpoint, None when there is none. Its bytes are not read: `load` does that."""
    return next(iter(folders.complete(Path(folder))), None)


def load(
    folder: str | Path, state: dict[str, Any], step: int | None = None, *, path: str = "", strict: bool = True
) -> Loaded | None:
    """Load the newest good checkpoint into `state`, as `Checkpointer.load` does, without becoming a writer. With
    `torch.distributed` it is a collective operation of all ranks."""
    team = Team()
    try:
        return load_with(team, Path(folder), state, step, path, strict)
    finally:
        team.end()


def read(folder: str | Path, step: int | None = None, *, path: str = "") -> tuple[Loaded, dict[str, Any]] | None:
    """Return the newest good checkpoint, or that of a step or path, with its whole state in memory of this process
    alone: for who does not know its form. None when there is none; errors are those of `load`."""
    state: dict[str, Any] = {}
    loaded = load_with(Team(alone=True), Path(folder), state, step, path, None)
    return None if loaded is None else (loaded, state)


def load_with(
    team: Team,
    folder: Path,
    state: dict[str, Any],
    step: int | None,
    path: str,
    strict: bool | None,
    refused_before: tuple[str, ...] = (),
    restore: Callable[[str, str], bool] = lambda _name, _problem: False,
) -> Loaded | None:
    """Load the newest good checkpoint of a folder, that of a step, or the one with a path; None when there is none at
    all. Without a `strict` the state is empty, and gets all. `restore` hears on the first rank of each that is not good
    and what is wrong with it, and tells whether it is to be looked at again."""
    refused = list(refused_before)
    for name in team.leader(lambda: _named(folder, path) if path else _candidates(folder, step)):
        problem = _problem_of_all(team, folder / name)
        if problem and team.leader(lambda name=name, problem=problem: restore(name, problem)):  # type: ignore[misc]
            problem = _problem_of_all(team, folder / name)
        if not problem:
            return _load(team, folder / name, state, strict, tuple(refused))
        refused.append(problem)
    if refused or step is not None:
        of_step = "" if path or step is None else f" of step {step}"
        cause = f"has no good checkpoint{f' {Path(path).name}' if path else of_step}"
        raise CheckpointDamaged(f"{folder}", f"{cause}{': ' if refused else ''}{' '.join(refused)}".rstrip("."), _TODO)
    return None


_TODO = "Restore one from a copy, or begin anew in another folder."


def _named(folder: Path, path: str) -> list[str]:
    """Return the name of the checkpoint with a path; `CheckpointError` when it is of another folder."""
    if Path(path).absolute().parent != folder.absolute():
        raise CheckpointError(f"checkpoint {path}", f"is not in {folder}", "Give a checkpoint of this folder.")
    return [Path(path).name]


def _candidates(folder: Path, step: int | None) -> list[str]:
    """Names of checkpoints to try, the newest first, those with a loss that is no number last; before all those whose
    manifest is damaged, to be named."""
    found = [each.name for each in sorted(folders.complete(folder), key=lambda each: not each.is_finite)]
    rest = [name for name in folders.names(folder) if name not in found and (folder / name / MANIFEST).exists()]
    of_step = [name for name in folders.names(folder) if name not in found + rest] if step is not None else []
    return [name for name in rest + found + of_step if step in (None, (folders.parsed(name) or (None,))[0])]


def _problem_of_all(team: Team, path: Path) -> str | None:
    """Read all files of a checkpoint; return what is wrong with it, as a sentence."""
    return next((each for each in team.tell(_problem(team, path)) if each), None)


def _problem(team: Team, path: Path) -> str | None:
    """Read this rank's part of all files; return what is wrong with the checkpoint, as a sentence."""
    try:
        if (manifest := folders.read_manifest(path)) is None:
            return f"checkpoint {path.name} is torn: it has no {MANIFEST}."
    except CheckpointDamaged as error:
        return f"{error.thing} {error.cause}."
    if ".metadata" not in {file.name for file in manifest.files}:
        return f"checkpoint {path.name} lists no .metadata."
    for file in manifest.files[team.rank :: team.size]:
        if fault := folders.fault(path, file):
            return f"checkpoint {path.name} {fault}."
    return None


def _load(team: Team, path: Path, state: dict[str, Any], strict: bool | None, refused: tuple[str, ...]) -> Loaded:
    """Load a checkpoint whose files are good."""
    manifest = team.leader(lambda: folders.read_manifest(path))
    if manifest is None:
        raise CheckpointDamaged(f"checkpoint {path.name}", "was deleted meanwhile", _TODO)
    try:
        whole = {"storage_reader": _Reader(path), "process_group": team.group, "no_dist": team.group is None}
        if strict is None:
            _load_state_dict(state, planner=_WholePlanner(), **whole)
        else:
            dcp.load(state, planner=_Planner(strict), **whole)
    except (Exception, CheckpointException) as error:  # torch's is no Exception
        cause = f"cannot be loaded into this state: {sentence_of(error).rstrip('.')}"
        raise CheckpointError(f"checkpoint {path.name}", cause, "Load it into a state of the same form.") from error
    return Loaded(manifest.step, manifest.data_position, manifest.loss, path, refused)
