"""The Trainer of transformers: its checkpoints, saved in the background.

>>> with TrainerCheckpoints("/ckpt/run-7") as saving:  # doctest: +SKIP
...     trainer = Trainer(model, arguments, callbacks=[saving], ...)
...     trainer.train(resume_from_checkpoint=saving.resume())

The Trainer's arguments say when (`save_strategy` steps or epoch). Model, optimizer, schedule, random states and
counters are saved here instead of by the Trainer, which would stop for it, and restored in the Trainer's own form.
"""

import dataclasses
import io
import json
import random
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from transformers import TrainerCallback

from logdoctor.checkpoint import optimizers
from logdoctor.checkpoint.checkpointer import Checkpointer
from logdoctor.checkpoint.reading import read
from logdoctor.errors import CheckpointError
from logdoctor.safe.lasting_files import Folder

_RESUME = ".resume"  # a folder that the checkpoint catalogue ignores
_RANDOM = "random"


class TrainerCheckpoints(TrainerCallback):  # type: ignore[misc]
    """The callback. Make it after `TrainingArguments`, on every rank; `options` are those of `Checkpointer`."""

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self._folder = Path(folder)
        self._stepped = False
        self._checkpoints = Checkpointer(folder, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self._checkpoints.__exit__(kind, error, stack)

    def resume(self, step: int | None = None, *, path: str = "") -> str | None:
        """Return a `resume_from_checkpoint` for the newest good checkpoint, or that of a step or path; None without
        one. It is written out in the Trainer's form."""
        return self._checkpoints.team.leader(lambda: self._written_out(step, path))

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Refuse what would be saved incompletely; `CheckpointError`."""
        for refused, what in (
            (args.fsdp or args.deepspeed, "FSDP or DeepSpeed, whose state only the Trainer can gather"),
            (type(model).__module__.startswith("peft."), "adapters of PEFT, which the Trainer loads in another form"),
            (args.fp16, "fp16, whose scaling of gradients a callback does not see"),
            (args.load_best_model_at_end, "load_best_model_at_end, which needs the Trainer's own checkpoints"),
            (
                args.save_strategy == "best",
                "save_strategy='best', which the Trainer decides where no callback is asked",
            ),
        ):
            if refused:
                raise CheckpointError("this training", f"uses {what}", "Leave that out, or let the Trainer save.")

    def on_step_end(self, args: Any, state: Any, control: Any, **of: Any) -> Any:
        """Save if it is time, instead of the Trainer."""
        if not self._stepped:  # all ranks have read it
            with suppress(OSError):
                Folder(self._folder).remove_all(_RESUME)
            self._stepped = True
        if control.should_save:
            control.should_save = False
            self._save(args, state, of["model"], of["optimizer"], of["lr_scheduler"])
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **of: Any) -> Any:
        """Save if it is time, instead of the Trainer."""
        return self.on_step_end(args, state, control, **of)

    def on_train_end(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        """Wait until the last save is written."""
        self._checkpoints.wait()

    def _save(self, args: Any, state: Any, model: Any, optimizer: Any, schedule: Any) -> None:
        samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        logged = [
            each["loss"] for each in state.log_history[-1:] if each.get("step") == state.global_step and "loss" in each
        ]
        whole = {
            "model": getattr(model, "module", model).state_dict(),  # unwraps DDP
            "optimizer": optimizers.saved(optimizer.state_dict()),
            "scheduler": (schedule.state_dict(),),
            "trainer": json.dumps(dataclasses.asdict(state)),
            f"{_RANDOM}{args.process_index}": _random_state(args.world_size > 1),
        }
        step = state.global_step
        self._checkpoints.save(whole, step=step, data_position=step * samples, loss=logged[0] if logged else None)

    def _written_out(self, step: int | None, path: str) -> str | None:
        self._checkpoints.fetch(step, path)
        found = read(self._folder, step, path=path, or_before=True, restore=self._checkpoints.restore)
        if found is None:
            return None
        loaded, state = found
        place, name = Folder(self._folder), f"{_RESUME}/checkpoint-{loaded.step}"
        place.remove_all(_RESUME)
        place.make(name)
        for file_name, value in (
            ("pytorch_model.bin", state["model"]),
            ("optimizer.pt", optimizers.loaded(state["optimizer"])),
            ("scheduler.pt", state["scheduler"][0]),
        ):
            with place.new_file(f"{name}/{file_name}", lasting=False) as file:
                torch.save(value, file)
        place.write(f"{name}/trainer_state.json", state["trainer"].encode(), None, lasting=False)
        ranks = {key.removeprefix(_RANDOM): value for key, value in state.items() if key.startswith(_RANDOM)}
        for rank, value in ranks.items():
            file_name = f"rng_state_{rank}.pth" if len(ranks) > 1 else "rng_state.pth"
            place.write(f"{name}/{file_name}", value.numpy().tobytes(), None, lasting=False)
        return place.path_of(name)


def _random_state(several: bool) -> torch.Tensor:
    """Return a rank's random states as the file that the Trainer writes."""
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.random.get_rng_state_all() if several else torch.cuda.random.get_rng_state()
    file = io.BytesIO()
    torch.save(states, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
