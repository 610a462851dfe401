"""States to save: every value of one tells its step, so that values of two steps are seen."""

from typing import Any

import torch

LARGE = 40_000  # elements; what is smaller than 64 KiB is copied at once


def state_of(step: int) -> dict[str, Any]:
    """A state whose every value is that of a step."""
    return {
        "model": {"weight": torch.full((LARGE,), float(step)), "bias": torch.full((3,), float(step))},
        "optimizer": [torch.full((200, 200), float(step), dtype=torch.float64), torch.tensor(step)],
        "text": str(step),
        "pair": (step, step),
    }


def empty() -> dict[str, Any]:
    """A state of this form to load into."""
    return state_of(-1)


def steps_in(state: dict[str, Any]) -> set[float]:
    """The steps whose values are in a state."""
    tensors = (*state["model"].values(), *state["optimizer"])
    return {value for tensor in tensors for value in tensor.unique().tolist()} | {int(state["text"]), *state["pair"]}


def set_to(state: dict[str, Any], step: int) -> None:
    """Change a state in place, as an optimizer does."""
    for tensor in (*state["model"].values(), *state["optimizer"]):
        tensor.fill_(step)
    state |= {"text": str(step), "pair": (step, step)}
