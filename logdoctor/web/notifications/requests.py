"""Requests about notifications: pydantic models, because FastAPI checks bodies with these only."""

from pydantic import BaseModel, ConfigDict, Field


class TestIn(BaseModel):
    """The target to test."""

    __test__ = False
    model_config = ConfigDict(extra="forbid")
    target: str = Field(min_length=1, max_length=40, examples=["ops"])
