"""A model and its optimizers as one part of a state to save and load."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class TrainingState:
    """Makes a model and its optimizers (plain, FSDP2 or DTensor) savable with `Checkpointer.save` and `load`.

    Optimizer values are keyed by parameter names, so they can be loaded on another number of ranks, and before the
    optimizer's first step. `schedulers` (or anything else with `state_dict` and `load_state_dict`, of numbers and text)
    come along.
    """

    def __init__(
        self, model: torch.nn.Module, optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer], **others: Any
    ) -> None:
        self._model, self._others = model, others
        self._optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, sharing the model's tensors."""
        unused = [each for each in self._optimizers if not each.state]
        model, optimizer = get_state_dict(self._model, self._optimizers)
        for each in unused:  # torch made a step with it to create its state
            _reset(each)
        # as one value: its form may differ when loaded
        others = {name: (each.state_dict(),) for name, each in self._others.items()}
        return {"model": model, "optimizer": optimizer, "others": others}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Apply a loaded state."""
        set_state_dict(
            self._model, self._optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        for name, each in self._others.items():
            each.load_state_dict(state["others"][name][0])


def _reset(optimizer: torch.optim.Optimizer) -> None:
    """Undo torch's step with gradients and learning rate 0: neither the saved state nor the optimizer has made one."""
    for kept in optimizer.state.values():
        if isinstance(kept.get("step"), torch.Tensor):
            kept["step"].zero_()
    optimizer.state.clear()
