"""Parameters of paths and queries, as the OpenAPI document describes them."""

from typing import Annotated, Literal, NamedTuple

from fastapi import Depends, Header, Path, Query

from logdoctor.store.learning.rule_rows import MAX_KIND
from logdoctor.store.names import MAX_ATTEMPT, MAX_NAME

MAX_ID = (1 << 63) - 1

JobName = Annotated[str, Path(min_length=1, max_length=MAX_NAME, description="name of the job", examples=["llama-7b"])]
AttemptNumber = Annotated[int, Path(ge=0, le=MAX_ATTEMPT, description="number of the attempt", examples=[1])]
StreamName = Annotated[
    str, Path(min_length=1, max_length=MAX_NAME, description="name of the stream", examples=["gpu-12"])
]
OptionalOffset = Annotated[
    int | None,
    Query(
        ge=0,
        le=1 << 62,
        description="place of the first byte in the stream, decompressed; without it, lines are appended",
        examples=[0],
    ),
]
IdempotencyKey = Annotated[
    str, Header(max_length=200, description="name of a body without offset; a repetition within a day is not taken")
]
JsonRecords = Annotated[
    Literal["text", "keep"],
    Query(description="without offset: turn JSON records of logging libraries into `text`, or `keep` them"),
]
Cursor = Annotated[str | None, Query(max_length=2000, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=500, description="items of a page")]
OptionalId = Annotated[int | None, Query(ge=1, le=MAX_ID)]
VerdictId = Annotated[int, Path(ge=1, le=MAX_ID, description="id of the verdict", examples=[1])]
LineRange = Annotated[
    str, Query(pattern=r"^[0-9]{1,15}(-[0-9]{1,15})?$", description="`A-B`, or one line", examples=["1120-1130"])
]
ExitCode = Annotated[int | None, Query(ge=-(1 << 31), lt=1 << 31, description="the job's exit code, where it is known")]
HasDied = Annotated[bool, Query(description="the job is known to have failed, however it ended")]
FileName = Annotated[str, Query(max_length=MAX_NAME, description="what the verdict calls the log")]
RuleId = Annotated[
    str,
    Path(
        pattern=r"^learned/[a-z0-9/-]+$",
        max_length=300,
        description="id of the learned rule",
        examples=["learned/megatron/pretrain-gpt-py/bed3b86f"],
    ),
]
CaseId = Annotated[int, Path(ge=1, le=MAX_ID, description="id of the case", examples=[12])]
NodeName = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$",
        max_length=253,
        description="name of the node",
        examples=["gpu-12"],
    ),
]
IncidentId = Annotated[int, Path(ge=1, le=MAX_ID, description="id of the incident", examples=[3])]
NodeTestId = Annotated[int, Path(ge=1, le=MAX_ID, description="id of the test", examples=[12])]
ActionId = Annotated[int, Path(ge=1, le=MAX_ID, description="id of the action", examples=[3])]
KindOfJobs = Annotated[str | None, Query(max_length=MAX_KIND, description="only rules learned from jobs of this kind")]
Status = Literal["proposed", "shadow", "active", "retired"]


class WantedPage(NamedTuple):
    """A requested page of a list: its cursor, and the most items."""

    cursor: str | None
    limit: int


async def _page(cursor: Cursor = None, limit: Limit = 50) -> WantedPage:
    return WantedPage(cursor, limit)


ThePage = Annotated[WantedPage, Depends(_page)]


def whole_number(text: str, most: int = MAX_ID) -> int | None:
    """Parse a number from 1 to `most` in a form field; None for anything else."""
    plain = text.strip()
    return int(plain) if plain.isascii() and plain.isdecimal() and len(plain) < 20 and 1 <= int(plain) <= most else None
