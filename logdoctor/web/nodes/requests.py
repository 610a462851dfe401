"""Requests about nodes: pydantic models, because FastAPI checks bodies with these only."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from logdoctor.types.launchers import LauncherName
from logdoctor.web.parameters import MAX_ID


class NodeTestIn(BaseModel):
    """Which nodes to test, and how. Without names, those of the verdict's job; with `all`, every node that the launcher
    knows. Fields that are left out have the configured values."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"nodes": ["gpu-11", "gpu-12", "gpu-13"], "launcher": "slurm", "verdict": 7}]},
    )
    nodes: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(default=[], max_length=10_000)
    launcher: LauncherName | None = None
    verdict: int | None = Field(default=None, ge=1, le=MAX_ID, description="id of the verdict it is because of")
    repeats: int | None = Field(default=None, ge=1, le=1000, description="how often the gather is repeated in a world")
    seconds: float | None = Field(default=None, ge=1, le=3600, description="after which a world is ended by force")
    regroups: int | None = Field(
        default=None, ge=0, le=100, description="how often all nodes are paired again while nothing passes"
    )
    all: bool = Field(default=False, description="test all nodes when neither nodes nor a verdict is named")


class CordonIn(BaseModel):
    """Why to cordon a node, and the proof."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"reason": "gather fails with 2 good nodes", "test": 12}]}
    )
    reason: str = Field(min_length=1, max_length=2000, description="written on the node, as far as it fits")
    verdict: int | None = Field(default=None, ge=1, le=MAX_ID, description="id of a verdict")
    test: int | None = Field(default=None, ge=1, le=MAX_ID, description="id of a test of nodes")


class NodeStepIn(BaseModel):
    """The reason of a step."""

    model_config = ConfigDict(extra="forbid")
    why: str = Field(default="", max_length=2000, examples=["board replaced"])
