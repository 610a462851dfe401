"""Requests about failures: pydantic models, because FastAPI checks bodies with these only."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from logdoctor import taxonomy
from logdoctor.store.names import MAX_NAME

_WORDS = Field(default="", max_length=4000)
_REASONS: dict[str, Any] = {"enum": [name for name in taxonomy.REASONS if name != "Unknown"]}
_RECOVERIES: dict[str, Any] = {"enum": ["", *(name for name in taxonomy.RECOVERIES if name != "none")]}
_FAULTS: dict[str, Any] = {"enum": ["", *taxonomy.FAULTS]}


class ConfirmIn(BaseModel):
    """Remarks on a verdict that is right."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"fix": "drained the node"}]})
    fix: str = Field(default="", max_length=4000, description="what fixed it")
    comment: str = _WORDS
    suggestion: str = Field(default="", max_length=4000, description="what to do next time")
    known: int | None = Field(
        default=None,
        ge=0,
        le=2**63 - 1,
        description="id of the case that counted when you looked, 0 for none: 409 when that changed or the verdict no "
        "longer stands. Without it, nobody asks.",
    )


class LineIn(BaseModel):
    """A line of the log of the attempt."""

    model_config = ConfigDict(extra="forbid")
    stream: str = Field(min_length=1, max_length=MAX_NAME, examples=["gpu-12"])
    line: int = Field(ge=1, le=(1 << 62), examples=[126])


class OverruleIn(BaseModel):
    """Where contradicting rules are overruled, and for how many days."""

    model_config = ConfigDict(extra="forbid")
    scope: Literal["job", "kind", "fleet"] = Field(description="this job, jobs of its kind, or all")
    days: int | None = Field(default=90, ge=1, le=3650, description="null: until somebody takes it back")


class CorrectIn(ConfirmIn):
    """The correct cause of a failure. "" for recovery or fault means the default of the reason."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "reason": "Key Error",
                    "recovery": "fix_first",
                    "fix": "renamed the setting",
                    "evidence": [{"stream": "gpu-12", "line": 126}],
                }
            ]
        },
    )
    reason: str = Field(min_length=1, max_length=100, json_schema_extra=_REASONS)
    recovery: str = Field(default="", max_length=100, json_schema_extra=_RECOVERIES)
    fault: str = Field(default="", max_length=100, json_schema_extra=_FAULTS)
    detail: str = Field(default="", max_length=200, description="a finer word than the reason for what failed")
    evidence: list[LineIn] = Field(
        default=[], max_length=20, description="lines that prove it, the one that names the failure first"
    )
    suspects: list[str] | None = Field(
        default=None,
        max_length=200,
        description="nodes at fault; without it, those that the verdict suspects are kept where a node is asked for",
        examples=[["gpu-12"]],
    )
    overrule: OverruleIn | None = Field(
        default=None, description="what to do with rules that say otherwise; without it, they stay in force"
    )
