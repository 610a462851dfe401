"""Requests about incidents: pydantic models, because FastAPI checks bodies with these only."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from logdoctor.store.incidents.mutes import LONGEST, Muted
from logdoctor.store.incidents.runbooks import RunbookKind
from logdoctor.web.incidents.working import BulkStep, Snooze
from logdoctor.web.parameters import MAX_ID

MOST_AT_ONCE = 200
"""Most incidents in one bulk step."""
MAX_TIME = 253_402_300_799.0
MAX_SPAN = 366 * 86_400.0


class IncidentStepIn(BaseModel):
    """A note on a step, and the state in which the person saw the incident."""

    model_config = ConfigDict(extra="forbid")
    note: str = Field(default="", max_length=2000, examples=["draining the node"])
    seen_as: Literal["new", "acknowledged", "resolved"] | None = Field(
        default=None,
        examples=["new"],
        description="refused when it is in another state now; so that two people take one step",
    )


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid")
    note: str = Field(default="", max_length=2000, examples=["it is the same bug"])


class AssignIn(_Said):
    """The new assignee of an incident."""

    assignee: str | None = Field(
        default=None, max_length=200, examples=["anna"], description="default: the caller; empty for nobody"
    )


class SnoozeIn(_Said):
    """When a snooze ends: at whichever comes first."""

    until: float | None = Field(
        default=None, ge=0, le=MAX_TIME, examples=[1795255505.2], description="seconds since the epoch"
    )
    seconds: float | None = Field(default=None, gt=0, le=MAX_SPAN, examples=[86400], description="from now on")
    more: int | None = Field(
        default=None, ge=1, le=1_000_000, examples=[5], description="until so many more attempts failed"
    )

    def wanted(self) -> Snooze:
        """Return the end of the snooze."""
        return Snooze(self.seconds, self.until, self.more)


class CommentIn(BaseModel):
    """A comment on an incident."""

    model_config = ConfigDict(extra="forbid")
    note: str = Field(min_length=1, max_length=2000, examples=["seen on the old image, too"])


class BulkIn(SnoozeIn):
    """One step for many incidents."""

    ids: list[Annotated[int, Field(ge=1, le=MAX_ID)]] = Field(min_length=1, max_length=MOST_AT_ONCE, examples=[[3, 7]])
    step: BulkStep = Field(examples=["acknowledge"])
    assignee: str | None = Field(default=None, max_length=200, examples=["anna"], description="default: the caller")


class MuteIn(BaseModel):
    """A fingerprint or a node to mute for a while."""

    model_config = ConfigDict(extra="forbid")
    kind: Muted = Field(examples=["fingerprint"])
    value: str = Field(min_length=1, max_length=300, examples=["4d1f0c9be2a70f15"])
    seconds: float = Field(default=7 * 86_400, gt=0, le=LONGEST, examples=[86400], description="from now on")
    why: str = Field(default="", max_length=2000, examples=["known bug, fixed in the next image"])


class RunbookIn(BaseModel):
    """The page to follow for a reason, a rule or a fingerprint. An empty URL removes it."""

    model_config = ConfigDict(extra="forbid")
    kind: RunbookKind = Field(examples=["reason"])
    value: str = Field(min_length=1, max_length=300, examples=["ECC Error"])
    url: str = Field(max_length=2000, examples=["https://wiki.example/ecc"])
