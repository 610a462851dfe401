"""Lightning: its checkpoints, saved in the background.

>>> saving = LightningCheckpoints("/ckpt/run-7")  # doctest: +SKIP
>>> trainer = Trainer(plugins=[saving], callbacks=[ModelCheckpoint(every_n_train_steps=500)])  # doctest: +SKIP
>>> trainer.fit(model, ckpt_path=saving.latest())  # doctest: +SKIP

`ModelCheckpoint` says when; what Lightning would write into one file goes into the folder of this plug-in, which keeps
the newest ones. Only for strategies that save on the first rank (one device, DDP): those of FSDP write by themselves.
"""

import logging
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO

from logdoctor.checkpoint import optimizers
from logdoctor.checkpoint.checkpointer import Checkpointer
from logdoctor.checkpoint.mirror import Mirror
from logdoctor.checkpoint.reading import latest, read
from logdoctor.errors import CheckpointError

_log = logging.getLogger("logdoctor.checkpoint")
_APART = ("state_dict", "optimizer_states")


class LightningCheckpoints(CheckpointIO):  # type: ignore[misc]
    """The plug-in. `options` are those of `Checkpointer`."""

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self._folder, self._options = Path(folder), options
        if url := options.pop("mirror", None):
            options["mirror"] = Mirror(url, options.pop("mirror_options", None))
        self._checkpoints: Checkpointer | None = None
        self._latest = ""

    def latest(self) -> str | None:
        """Return the `ckpt_path` of the newest complete checkpoint, fetched from the mirror if newer there; None
        without one."""
        if mirror := self._options.get("mirror"):
            for sentence in mirror.brought(self._folder):
                _log.error("%s", sentence)
        found = latest(self._folder)
        self._latest = str(self._folder / found.name) if found else ""
        return self._latest or None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Save what Lightning has gathered, under its global step; `path` is ignored."""
        if self._checkpoints is None:  # on the first rank only, which Lightning calls alone
            self._checkpoints = Checkpointer(self._folder, alone=True, **self._options)
        states = checkpoint.get("optimizer_states", [])
        state = {
            "state_dict": checkpoint["state_dict"],
            "optimizer_states": {str(place): optimizers.saved(each) for place, each in enumerate(states)},
            "rest": ({key: value for key, value in checkpoint.items() if key not in _APART},),
        }
        self._checkpoints.save(state, step=checkpoint["global_step"])

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Load a checkpoint of the folder, verified, into host memory; other paths as Lightning does. If the one from
        `latest` is damaged, the newest good one before it is loaded."""
        if Path(path).absolute().parent != self._folder.absolute():
            loaded: dict[str, Any] = TorchCheckpointIO().load_checkpoint(path, map_location, weights_only)
            return loaded
        found = read(self._folder, path=str(path), or_before=str(path) == self._latest)
        if found is None:
            raise CheckpointError(str(path), "is no checkpoint", "Give what `latest()` returns.")
        good, state = found
        for sentence in good.refused:
            _log.error("%s", sentence)
        states = state.get("optimizer_states", {})
        by_place = [optimizers.loaded(states[str(place)]) for place in range(len(states))]
        return {"state_dict": state["state_dict"], "optimizer_states": by_place, **state["rest"][0]}

    def remove_checkpoint(self, path: Any) -> None:
        """Do nothing: `keep` and pins decide what stays."""

    def teardown(self) -> None:
        """Wait until the last save is written."""
        if self._checkpoints is not None:
            self._checkpoints.close()
            self._checkpoints = None
