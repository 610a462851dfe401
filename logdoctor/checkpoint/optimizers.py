"""The state of an optimizer by itself, which numbers its parameters, in a form that can be saved: keys are text."""

from typing import Any


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Return `optimizer.state_dict()` as it is saved; its tensors are those of the optimizer."""
    groups = {key: value for key, value in state.items() if key != "state"}
    return {"state": {str(number): kept for number, kept in state["state"].items()}, "groups": (groups,)}


def loaded(state: dict[str, Any]) -> dict[str, Any]:
    """Return what `optimizer.load_state_dict` takes. One that has made no step kept nothing."""
    kept = {int(number) if number.isdigit() else number: each for number, each in state.get("state", {}).items()}
    return {"state": kept, **state["groups"][0]}
