"""A model and its optimizers as one part of a state that is saved and loaded."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class TrainingState:
    """What `Checkpointer.save` and `load` take of a model and its optimizers: plain ones, FSDP2 or DTensor.

    Its state names the optimizer's values by the parameters' names, so that they can be loaded on another number of
    ranks, and before the optimizer made its first step. `schedulers` (or anything else with `state_dict` and
    `load_state_dict`, of numbers and text) come along.
    """

    def __init__(
        self, model: torch.nn.Module, optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer], **others: Any
    ) -> None:
        self._model, self._others = model, others
        self._optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Return the state; its tensors are those of the model."""
        unused = [each for each in self._optimizers if not each.state]
        model, optimizer = get_state_dict(self._model, self._optimizers)
        for each in unused:  # torch has made a step with it, to learn what it keeps
            _reset(each)
        # as one value: what others hold may have another form when it is loaded
        others = {name: (each.state_dict(),) for name, each in self._others.items()}
        return {"model": model, "optimizer": optimizer, "others": others}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a state that was loaded."""
        set_state_dict(
            self._model, self._optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        for name, each in self._others.items():
            each.load_state_dict(state["others"][name][0])


def _reset(optimizer: torch.optim.Optimizer) -> None:
    """Take back the step that torch made with gradients and a rate of 0: what is saved has made no step, and the
    optimizer has none, either."""
    for kept in optimizer.state.values():
        if isinstance(kept.get("step"), torch.Tensor):
            kept["step"].zero_()
    optimizer.state.clear()
