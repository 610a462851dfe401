"""Reads a verdict on an attempt: the fields of its JSON that decide about a restart."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from logdoctor.job.send.telling import named

NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""Valid node names; the same as `types.nodes.NAME`, which needs more than the standard library."""

_WORDS = 300  # characters kept of a text
_NODES = 1000
_STEP = 1 << 62
_POINTS = 100
_RECOVERIES = ("restart", "isolate_and_restart", "rollback_and_skip", "fix_first", "ask_human", "none")
_OUTCOMES = ("failed", "completed", "running", "cancelled", "recovered", "unknown")


class Judged(NamedTuple):
    """What a verdict says of an attempt (docs/verdict.md). `nodes` are suspects with valid names; `first` and `step`
    the first and last step read, `onset` the step at which a loss spike began; None when unknown. `has_crashed`: native
    code broke, and no line says why."""

    outcome: str
    reason: str
    recovery: str
    confidence: float
    fingerprint: str
    suggestion: str = ""
    detail: str = ""
    nodes: tuple[str, ...] = ()
    step: int | None = None
    onset: int | None = None
    first: int | None = None
    has_crashed: bool = False

    @property
    def is_unknown(self) -> bool:
        """Return whether the cause is unknown and the verdict does not advise a restart."""
        return self.recovery == "ask_human" or self.outcome == "unknown"

    @property
    def title(self) -> str:
        """Return the verdict's title."""
        return named(self.reason, self.detail)

    def is_doubtful(self, limit: float) -> bool:
        """Return whether it names a cause with less confidence than `limit`; a kill or crash without a witness names
        none."""
        return self.reason != "Unknown" and self.confidence < limit


def judged(verdict: object) -> Judged:
    """Parse a verdict's JSON object; `ValueError` names the invalid field."""
    if not isinstance(verdict, Mapping):
        raise ValueError("it is not a JSON object")
    progress = verdict.get("progress")
    steps = progress if isinstance(progress, Mapping) else {}
    decided = verdict.get("decided_by")
    return Judged(
        outcome=_one_of(verdict, "outcome", _OUTCOMES),
        reason=_text(verdict, "reason"),
        recovery=_one_of(verdict, "recovery", _RECOVERIES),
        confidence=_share(verdict, "confidence"),
        fingerprint=_text(verdict, "fingerprint"),
        suggestion=_text(verdict, "suggestion"),
        detail=_text(verdict, "detail"),
        nodes=_nodes(verdict.get("suspects")),
        step=_step(steps.get("step")) if not steps.get("learned") else None,
        onset=_step(verdict.get("onset_step")),
        first=min(_steps_of(steps.get("curve")), default=None),
        has_crashed=isinstance(decided, Mapping) and decided.get("rule") == "crash",
    )


def read_judged(text: bytes) -> Judged:
    """Parse a verdict from JSON text; `ValueError` when it is invalid."""
    try:
        return judged(json.loads(text))
    except RecursionError as error:
        raise ValueError("its JSON is nested too deep") from error


def _text(verdict: Mapping[str, Any], field: str) -> str:
    value = verdict.get(field, "")
    if not isinstance(value, str):
        raise ValueError(f"its {field} is no text")
    return "".join(character if character.isprintable() else " " for character in value[:_WORDS])


def _one_of(verdict: Mapping[str, Any], field: str, known: tuple[str, ...]) -> str:
    value = verdict.get(field)
    if value not in known:
        raise ValueError(f"its {field} is none of {', '.join(known)}")
    return str(value)


def _share(verdict: Mapping[str, Any], field: str) -> float:
    value = verdict.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"its {field} is not from 0 to 1")
    return float(value)


def _steps_of(curve: object) -> list[int]:
    points = curve[:_POINTS] if isinstance(curve, list) else []
    steps = (_step(point.get("step")) for point in points if isinstance(point, Mapping))
    return [step for step in steps if step is not None]


def _step(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _STEP:
        return None
    return int(value)


def _nodes(suspects: object) -> tuple[str, ...]:
    if not isinstance(suspects, list):
        return ()
    names = (suspect.get("node") for suspect in suspects[:_NODES] if isinstance(suspect, Mapping))
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and NODE.fullmatch(name)))
