"""Writes a copied state as a durable checkpoint: the work of the writer thread, on every rank."""

import io
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import StorageMeta

from logdoctor.checkpoint import folders
from logdoctor.checkpoint.folders import Manifest
from logdoctor.checkpoint.hashing import File, HashedFile
from logdoctor.checkpoint.lease import Lease, put
from logdoctor.checkpoint.rank_names import forms_of
from logdoctor.checkpoint.replicas import HashedPlan, hash_of, lowest_only
from logdoctor.checkpoint.reports import Save
from logdoctor.checkpoint.team import Team
from logdoctor.errors import CheckpointError
from logdoctor.safe.lasting_files import synced

warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized", UserWarning)

_SEEN_WITHIN = 30.0  # seconds for a network file system to show a folder made on another node


class _HashedFiles(FileSystem):  # type: ignore[misc]
    """Files of one checkpoint, hashed while they are written, and never written twice."""

    def __init__(self) -> None:
        self.written: dict[str, File] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        file = HashedFile(Path(path))
        try:
            yield file
            file.close()
        except BaseException as error:
            with suppress(OSError):
                file.close()
            raise file.error or error from error
        self.written[Path(path).name] = file.as_file()

    def mkdir(self, path: Any) -> None:
        """Wait until the folder made by the first rank is visible; no other rank makes it."""
        end = time.monotonic() + _SEEN_WITHIN
        while not Path(path).is_dir():
            if time.monotonic() > end:
                todo = "Let all nodes share it, and only one trainer write into it."
                raise CheckpointError(f"the folder {path}", "is gone, or this node does not see it", todo)
            time.sleep(0.05)

    def rename(self, path: Any, new_path: Any) -> None:
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)._replace(name=Path(new_path).name)


class _Writer(dcp.FileSystemWriter):  # type: ignore[misc]
    """Torch's writer over hashing files. They sync themselves, because torch syncs `.metadata` before flushing it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, sync_files=False, per_thread_copy_ahead=0, overwrite=False)
        self.fs = _HashedFiles()

    def storage_meta(self) -> Any:
        """Return metadata with the folder's name instead of its path, which may change."""
        return StorageMeta(checkpoint_id=Path(self.path).name, save_id=self.save_id)


class _Planner(dcp.DefaultSavePlanner):  # type: ignore[misc]
    """Refuses objects that could not be loaded again, and finds parts that differ between ranks."""

    def __init__(self, alone: bool) -> None:
        super().__init__()
        self._alone = alone
        self.differing: tuple[str, ...] = ()
        """Their names; known on the first rank."""
        self.rank_forms: tuple[str, ...] | None = None
        """The forms of names that each rank has for itself; known on the first rank."""

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        if not self._alone:
            hashes = {item.index: hash_of(self.lookup_object(item.index)) for item in plan.items}
            self.plan = HashedPlan(**vars(plan), hashes=hashes)
        return self.plan

    def create_global_plan(self, all_plans: Any) -> Any:
        if not self._alone:
            if len(all_plans) > 1:
                self.rank_forms = forms_of([[item.index.fqn for item in plan.items] for plan in all_plans])
            all_plans, self.differing = lowest_only(all_plans)
        return super().create_global_plan(all_plans)

    def transform_object(self, write_item: Any, object: Any) -> Any:
        made = super().transform_object(write_item, object)
        if type(made) is not torch.Tensor:
            whole = made
            if isinstance(made, torch.Tensor):  # a wrapper of tensors
                torch.save(made, whole := io.BytesIO())
            whole.seek(0)
            try:
                torch.load(whole, weights_only=True)
            except Exception as error:  # pickle's, and torch's own
                cause = f"holds a {type(object).__name__}, which is not loaded again because loading it could run code"
                todo = "Save numbers, text and tensors, or allow its type with torch.serialization.add_safe_globals."
                raise CheckpointError(f"the state at {write_item.index.fqn}", cause, todo) from error
        return made


class Folder:
    """A checkpoint folder that this job writes into. Its methods are collective operations of the team."""

    def __init__(self, path: Path, keep: int, team: Team) -> None:
        self.path, self._keep, self._team = path, keep, team
        self.lease = Lease(path)
        self._mine: list[File] = []
        self._unproven: set[str] = set()
        self.in_use: Callable[[], str | None] = lambda: None
        """Returns a checkpoint that must not be deleted now."""

    def write(self, save: Save, tree: dict[str, Any], begun: float) -> None:
        """Write and commit the state copied at `begun` (monotonic). Errors are raised on all ranks, and the attempt is
        deleted."""
        save.name = self._team.leader(lambda: self._begin(save.step))
        try:
            every = self._team.everyone(lambda: self._files(save, tree))
            self._mine = every[self._team.rank]
            save.bytes = sum(file.bytes for file in self._mine)
            made = self._manifest(save, begun, [file for each in every for file in each])
            save.seconds = self._team.leader(lambda: self._commit(made, begun))
        except BaseException:
            if self._team.leads:
                with suppress(OSError, CheckpointError), self.lease.held():  # a fenced writer may not
                    folders.delete(self.path, save.name)
            raise

    def verify(self, save: Save) -> str | None:
        """Read back what was written; return a sentence on how it differs, then it is retired, or None. A read error is
        raised on all ranks."""
        place = self.path / save.name
        self._unproven.add(save.name)
        every = self._team.everyone(lambda: [folders.difference(place, file, from_disk=True) for file in self._mine])
        if faults := [fault for each in every for fault in each if fault]:
            self._team.leader(lambda: self._retire(save.name))
            return f"checkpoint {save.name} {faults[0]}."
        self._unproven.discard(save.name)
        return None

    def doubt(self, name: str, is_damaged: bool) -> None:
        """Stop counting a checkpoint among those to keep; mark permanent damage, if this writer may."""
        self._unproven.add(name)
        if is_damaged:
            with suppress(OSError, CheckpointError), self.lease.held():
                folders.mark_damaged(self.path, name)

    def prune(self) -> int:
        """Delete checkpoints older than those to keep, and unfinished ones; return how many."""
        return self._team.leader(self._prune)

    def _begin(self, step: int) -> str:
        """Make the folder of a new attempt; no two writers use the same name."""
        if not self.lease.epoch:
            self.lease.take()
        with self.lease.held():
            found = (folders.parsed(name) for name in folders.names(self.path))
            unused = folders.following(each[1] for each in found if each and each[0] == step)
            name = folders.name_of(step, max(unused, self.lease.first_attempt))
            (self.path / name).mkdir()
            synced(self.path)
        return name

    def _files(self, save: Save, tree: dict[str, Any]) -> list[File]:
        """Write this rank's files, and return them once they are durable."""
        place, group = self.path / save.name, self._team.group
        if group is not None and not dist.is_initialized():  # torch would let each rank save as if it were the only one
            cause, todo = "was ended before the save was written", "Close the Checkpointer before."
            raise CheckpointError("torch.distributed", cause, todo)
        writer, planner = _Writer(place), _Planner(alone=group is None)
        dcp.save(tree, storage_writer=writer, planner=planner, process_group=group, no_dist=group is None)
        save.differing, save.rank_forms = planner.differing, planner.rank_forms
        synced(place)
        return list(writer.fs.written.values())

    def _manifest(self, save: Save, begun: float, files: list[File]) -> Manifest:
        step, attempt = folders.parsed(save.name) or (save.step, 0)
        return Manifest(
            step=step,
            attempt=attempt,
            data_position=save.data_position,
            loss=save.loss,
            saved_at=folders.timestamp(time.time() - (time.monotonic() - begun)),
            seconds=0.0,
            world_size=self._team.size,
            epoch=self.lease.epoch,
            files=tuple(sorted(files)),
            rank_forms=save.rank_forms,
        )

    def _commit(self, made: Manifest, begun: float) -> float:
        """Put the manifest in place, and return the seconds since `begun`."""
        place = self.path / made.name
        for file in made.files:
            if not (place / file.name).is_file() or (place / file.name).stat().st_size != file.bytes:
                todo = "Let all nodes share the folder."
                raise CheckpointError(f"{file.name} of {made.name}", "is not what its rank wrote", todo)
        seconds = round(time.monotonic() - begun, 6)
        put(place / folders.MANIFEST, replace(made, seconds=seconds).as_json(), self.lease.held())
        synced(place)
        return seconds

    def _prune(self) -> int:
        found = folders.complete(self.path)
        good = [each for each in found if each.name not in self._unproven and each.is_finite]
        last = good[self._keep - 1].order if len(good) >= self._keep else None
        doomed = [each.name for each in found if last is not None and each.order < last]
        doomed += [*folders.torn(self.path), *(folders.damaged(self.path) if last is not None else ())]
        deleted = 0
        for name in doomed:
            if name != self.in_use() and not folders.pinned(self.path, name, time.time()):
                self._retire(name)
                folders.delete(self.path, name)
                deleted += 1
        return deleted

    def _retire(self, name: str) -> None:
        with self.lease.held():  # a fenced writer deletes nothing
            folders.retire(self.path, name)
