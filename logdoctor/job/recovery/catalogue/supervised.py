"""The checkpoints of a job for its supervisor, read from their folder by the catalogue."""

import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from logdoctor.errors import CheckpointError
from logdoctor.job.recovery import catalogue
from logdoctor.job.recovery.catalogue import Checkpoint
from logdoctor.job.recovery.checkpoints import Aside, Chosen


class FolderCheckpoints:
    """The checkpoints in one folder, read again at each question because attempts write into it.

    `CheckpointError` when it cannot be read.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._suspect: dict[tuple[str, float | None, int], str] = {}  # also those that the folder could not record

    def complete(self) -> Mapping[str, int]:
        """Return the steps of complete checkpoints by path, where the step is known."""
        return {one.path: one.step for one in self._read() if one.complete and one.step is not None}

    def best(self, before_step: int | None = None) -> Chosen | None:
        """Return the newest complete, healthy one, before a step if given; None without one."""
        chosen = catalogue.best(self._read(), before_step)
        if not isinstance(chosen, Checkpoint) or chosen.step is None:
            return None
        return Chosen(chosen.path, chosen.step, chosen.data_position if chosen.data_unit == "batches" else None)

    def suspect(self, step: int) -> None:
        """Mark those from a step on as saved after a loss spike; later starts skip them."""
        later = [one for one in self._noted() if not one.suspect and one.step is not None and one.step >= step]
        failures = []
        for one in later:
            try:
                self._pass_over(one, f"saved at step {one.step}, after a loss spike at step {step}", noted=True)
            except CheckpointError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def not_loaded(self, path: str) -> None:
        """Record that an attempt was told to load one and ended without a further step."""
        for one in self._called(path):
            catalogue.tried(one)

    def loaded(self, path: str) -> None:
        """Record that an attempt loaded one and made steps."""
        for one in self._called(path):
            catalogue.loaded(one)

    def unreadable(self, path: str, noted: bool, aside: Aside) -> str:
        """Return which checkpoint an attempt could not load, and why: the one at `path`, or the newest usable one. It
        is read whole `aside` to compare checksums."""
        usable = [one for one in self._read() if one.complete and not one.suspect]
        for one in self._called(path) if path else usable[-1:]:
            why = one.suspect or aside(lambda one=one: catalogue.verify(one).torn)  # type: ignore[misc]
            if why:
                self._pass_over(one, why, noted)
                return f"{one.name} is damaged ({why})"
        return ""

    def _pass_over(self, one: Checkpoint, why: str, noted: bool) -> None:
        """Exclude one from `best` and, if `noted`, record that in the folder."""
        if one.suspect:
            return
        self._suspect[_identity(one)] = why
        if noted:
            catalogue.suspected(one, why)

    def _called(self, path: str) -> Iterable[Checkpoint]:
        return (one for one in self._read() if one.path == path)

    def _read(self) -> Sequence[Checkpoint]:
        """Return the checkpoints, with our own suspicions; none before the program has made the folder."""
        return [
            one if one.suspect or not why else msgspec.structs.replace(one, suspect=why, health="suspect")
            for one, why in ((one, self._suspect.get(_identity(one), "")) for one in self._noted())
        ]

    def _noted(self) -> Sequence[Checkpoint]:
        """Return the checkpoints as the folder describes them."""
        return catalogue.read(self._folder) if os.path.lexists(self._folder) else ()


def _identity(one: Checkpoint) -> tuple[str, float | None, int]:
    """Return what tells it from one saved again under the same path."""
    return one.path, one.saved_at, one.bytes
