"""What callers send about incidents: pydantic models, because FastAPI checks bodies with these only."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class IncidentStepIn(BaseModel):
    """A person's words on a step, and what the incident was when they decided."""

    model_config = ConfigDict(extra="forbid")
    note: str = Field(default="", max_length=2000, examples=["draining the node"])
    seen_as: Literal["new", "acknowledged", "resolved"] | None = Field(
        default=None,
        examples=["new"],
        description="refused when it is in another state now; so that two people take one step",
    )
