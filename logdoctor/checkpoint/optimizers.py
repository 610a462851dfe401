"""Optimizer state keyed by parameter number, in a form that can be saved: keys are text."""

from typing import Any


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Return `optimizer.state_dict()` in its saved form, sharing the optimizer's tensors."""
    groups = {key: value for key, value in state.items() if key != "state"}
    return {"state": {str(number): kept for number, kept in state["state"].items()}, "groups": (groups,)}


def loaded(state: dict[str, Any]) -> dict[str, Any]:
    """Return what `optimizer.load_state_dict` takes; an optimizer without steps has no state."""
    kept = {int(number) if number.isdigit() else number: each for number, each in state.get("state", {}).items()}
    return {"state": kept, **state["groups"][0]}
