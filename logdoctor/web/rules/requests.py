"""Requests about rules: pydantic models, because FastAPI checks bodies with these only."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from logdoctor import taxonomy

_REASONS: dict[str, Any] = {"enum": ["", *(name for name in taxonomy.REASONS if name != "Unknown")]}
_RECOVERIES: dict[str, Any] = {"enum": ["", *(name for name in taxonomy.RECOVERIES if name != "none")]}


class OverrideIn(BaseModel):
    """What a shipped diagnosis rule should state instead; without a reason it is muted."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"rule": "diagnosis/hardware/ecc", "scope": "job", "whose": "llama-7b", "why": "test board"}]
        },
    )
    rule: str = Field(min_length=1, max_length=300, description="id of the rule")
    scope: Literal["job", "kind", "fleet"] = "fleet"
    whose: str = Field(default="", max_length=300, description="the job or the kind that is meant")
    reason: str = Field(default="", max_length=100, json_schema_extra=_REASONS)
    recovery: str = Field(default="", max_length=100, json_schema_extra=_RECOVERIES)
    fault: str = Field(default="", max_length=100, json_schema_extra={"enum": ["", *taxonomy.FAULTS]})
    suggestion: str = Field(default="", max_length=4000)
    why: str = Field(default="", max_length=2000)
    days: int | None = Field(default=90, ge=1, le=3650, description="null: until somebody takes it back")


class StepIn(BaseModel):
    """The reason of a step."""

    model_config = ConfigDict(extra="forbid")
    why: str = Field(default="", max_length=2000, examples=["seen in ten runs, says nothing"])


class ApproveIn(StepIn):
    """The reason of an approval, and the rule's status when it was decided."""

    seen_as: Literal["proposed", "shadow", "retired"] | None = Field(
        default=None,
        examples=["proposed"],
        description="refused when the rule has another status now; so that two people take one step",
    )
