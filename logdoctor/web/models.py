"""What goes in and out as JSON, as the OpenAPI document tells it."""

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from logdoctor.store.names import MAX_ATTEMPT, MAX_NAME

JobName = Annotated[str, Path(min_length=1, max_length=MAX_NAME, description="name of the job", examples=["llama-7b"])]
AttemptNumber = Annotated[int, Path(ge=0, le=MAX_ATTEMPT, description="number of the attempt", examples=[1])]
StreamName = Annotated[
    str, Path(min_length=1, max_length=MAX_NAME, description="name of the stream", examples=["gpu-12"])
]
Offset = Annotated[
    int, Query(ge=0, le=1 << 62, description="place of the first byte in the stream, decompressed", examples=[0])
]
Cursor = Annotated[str | None, Query(max_length=2000, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=500, description="items of a page")]
VerdictId = Annotated[int, Path(ge=1, le=(1 << 63) - 1, description="id of the verdict", examples=[1])]
LineRange = Annotated[
    str, Query(pattern=r"^[0-9]{1,15}(-[0-9]{1,15})?$", description="`A-B`, or one line", examples=["1120-1130"])
]
FileName = Annotated[str, Query(max_length=MAX_NAME, description="what the verdict calls the log")]
_COUNT = Field(default=None, ge=0, le=100_000_000)
_TEXT = Field(default=None, max_length=10_000)


class JobIn(BaseModel):
    """What is known of a job. What is left out stays as it was."""

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
    command: str | None = Field(default=None, max_length=100_000)
    checkpoint_dir: str | None = _TEXT
    parent: str | None = Field(default=None, max_length=10_000, description="the `job/attempt` it goes on from")
    nodes: int | None = _COUNT
    ranks_per_node: int | None = _COUNT
    gpus: int | None = Field(default=None, ge=0, le=100_000_000, description="in all")
    labels: dict[str, str] = Field(default={}, max_length=256)


class JobOut(BaseModel):
    """A job. Times are seconds since the epoch."""

    job: str = Field(examples=["llama-7b"])
    facts: JobIn
    created: float = Field(examples=[1795255505.2])
    updated: float = Field(examples=[1795255505.2])
    attempts: list["AttemptOut"] = []


class AttemptKey(BaseModel):
    """What all nodes of one try have in common."""

    model_config = ConfigDict(extra="forbid")
    key: str = Field(min_length=1, max_length=200, examples=["48213.0"])


class AttemptNumberOut(BaseModel):
    """The number of an attempt; the same key gives the same number."""

    attempt: int = Field(examples=[1])


class StandingOut(BaseModel):
    """Where a stream stands."""

    next_offset: int = Field(description="the byte to send next", examples=[4096])
    lines_in: int = Field(description="lines received", examples=[31])
    lines_scanned: int = Field(description="lines compressed so far", examples=[31])
    lines_kept: int = Field(description="of these, lines that no filter rule took", examples=[2])


class EndIn(BaseModel):
    """How an attempt ended, or with `stream` how one of its processes did."""

    model_config = ConfigDict(extra="forbid")
    exit_code: int | None = Field(default=None, ge=-(1 << 31), lt=1 << 31, examples=[1])
    signal: int | None = Field(default=None, ge=0, le=128, examples=[None])
    scheduler_state: str | None = Field(default=None, max_length=200, examples=["NODE_FAIL"])
    stream: str | None = Field(default=None, min_length=1, max_length=MAX_NAME, examples=[None])


class EndOut(BaseModel):
    """How a stream ended; the stream "" is the whole attempt."""

    stream: str
    exit_code: int | None
    signal: int | None
    scheduler_state: str | None
    at: float


class AttemptOut(BaseModel):
    """One try to run a job. `settled` when its final verdict stands."""

    job: str
    number: int
    started: float
    ended: float | None
    settled: bool
    ends: list[EndOut]
    deleted: float | None = Field(default=None, description="when retention took its raw log")
    streams: list[str] = []
    verdict: int | None = Field(default=None, description="id of its current verdict")


class VerdictOut(BaseModel):
    """A verdict in its place. `verdict` is what `logdoctor diagnose --json` prints; `logdoctor schema` tells of it."""

    id: int
    event: int = Field(description="grows with every change of any verdict")
    job: str
    attempt: int
    at: float
    final: bool = Field(description="the attempt has ended, and all that was sent is in it")
    current: bool
    superseded_by: int | None
    user: str | None
    verdict: dict[str, Any]


class ContextLine(BaseModel):
    """A line of the log, from the archive."""

    line: int
    text: str


class EvidenceContext(BaseModel):
    """The lines around one piece of evidence."""

    stream: str
    line: int
    lines: list[ContextLine]


class VerdictDetail(VerdictOut):
    """A verdict with its evidence in context (empty when the raw log was deleted), and the ids of its history."""

    context: list[EvidenceContext]
    history: list[int]


class VerdictPage(BaseModel):
    """Some verdicts, newest first; `next` is the cursor of the next page."""

    items: list[VerdictOut]
    next: str | None


class JobPage(BaseModel):
    """Some jobs, newest first; `next` is the cursor of the next page."""

    items: list[JobOut]
    next: str | None
