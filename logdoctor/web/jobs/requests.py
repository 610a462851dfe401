"""Requests about jobs and attempts: pydantic models, because FastAPI checks bodies with these only."""

from pydantic import BaseModel, ConfigDict, Field

from logdoctor.jobs.scores import MOST_SCORES
from logdoctor.store.jobs.past_limits import MAX_COUNT, MAX_LABELS, MAX_LIST, MAX_TEXT
from logdoctor.store.names import MAX_NAME

_COUNT = Field(default=None, ge=0, le=MAX_COUNT)
_TEXT = Field(default=None, max_length=MAX_TEXT)


class JobIn(BaseModel):
    """Facts about a job. Fields that are left out keep their value."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "name": "llama 7b, run 3",
                    "user": "u17",
                    "framework": "megatron",
                    "launcher": "slurm",
                    "nodes": 128,
                    "ranks_per_node": 8,
                    "gpus": 1024,
                    "image": "registry.local/train:2026-11",
                    "command": "torchrun pretrain_gpt.py",
                    "checkpoint_dir": "/ckpt/llama-7b",
                    "parent": "llama-7b/1",
                }
            ]
        },
    )
    name: str | None = _TEXT
    user: str | None = _TEXT
    framework: str | None = _TEXT
    launcher: str | None = _TEXT
    image: str | None = _TEXT
    command: str | None = Field(default=None, max_length=MAX_LIST)
    checkpoint_dir: str | None = _TEXT
    parent: str | None = Field(default=None, max_length=MAX_TEXT, description="the `job/attempt` it goes on from")
    nodelist: str | None = Field(
        default=None, max_length=MAX_LIST, description="the nodes of the job by name", examples=["gpu-[01-08],gpu-11"]
    )
    nodes: int | None = _COUNT
    ranks_per_node: int | None = _COUNT
    gpus: int | None = Field(default=None, ge=0, le=MAX_COUNT, description="in all")
    labels: dict[str, str] = Field(default={}, max_length=MAX_LABELS)


class AttemptKey(BaseModel):
    """A key that all nodes of one attempt have in common."""

    model_config = ConfigDict(extra="forbid")
    key: str = Field(min_length=1, max_length=200, examples=["48213.0"])


class ScoreIn(BaseModel):
    """One metric of one data set at a step."""

    model_config = ConfigDict(extra="forbid")
    step: int = Field(ge=0, le=MAX_COUNT, examples=[12000])
    set: str = Field(min_length=1, max_length=200, examples=["humaneval"])
    metric: str = Field(min_length=1, max_length=200, examples=["pass@1"])
    value: float = Field(allow_inf_nan=False, examples=[0.31])
    samples: int | None = Field(default=None, ge=0, le=MAX_COUNT, examples=[164])


class ScoresIn(BaseModel):
    """Scores of checkpoints."""

    model_config = ConfigDict(extra="forbid")
    scores: list[ScoreIn] = Field(max_length=MOST_SCORES)


class EndIn(BaseModel):
    """How an attempt ended, or with `stream` how one of its processes did."""

    model_config = ConfigDict(extra="forbid", strict=True)  # `true` is no exit code
    exit_code: int | None = Field(default=None, ge=-(1 << 31), lt=1 << 31, examples=[1])
    signal: int | None = Field(default=None, ge=0, le=128, examples=[None])
    scheduler_state: str | None = Field(default=None, max_length=200, examples=["NODE_FAIL"])
    stream: str | None = Field(default=None, min_length=1, max_length=MAX_NAME, examples=[None])
