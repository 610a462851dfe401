"""What callers send about rules: pydantic models, because FastAPI checks bodies with these only."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class StepIn(BaseModel):
    """The reason of a step."""

    model_config = ConfigDict(extra="forbid")
    why: str = Field(default="", max_length=2000, examples=["seen in ten runs, says nothing"])


class ApproveIn(StepIn):
    """The reason of an approval, and what the rule was when that was decided."""

    seen_as: Literal["proposed", "shadow", "retired"] | None = Field(
        default=None,
        examples=["proposed"],
        description="refused when the rule has another status now; so that two people take one step",
    )
