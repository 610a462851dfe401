"""Answers about incidents, as in the OpenAPI document: types, each with an example."""

import msgspec

from logdoctor.store.incidents.mutes import Mute
from logdoctor.store.incidents.runbooks import Runbook
from logdoctor.store.incidents.table import Incident, IncidentEvent, IncidentPage
from logdoctor.web.incidents.working import BulkResult


class IncidentStory(msgspec.Struct, frozen=True):
    """The history of an incident, newest first."""

    items: list[IncidentEvent]


class Handover(msgspec.Struct, frozen=True):
    """An incident in 3,000 characters at most."""

    text: str


class IncidentCounts(msgspec.Struct, frozen=True):
    """The numbers of open incidents; `quiet` ones, which are snoozed or muted, are counted separately. `newest` is the
    highest id of an incident, 0 when there is none."""

    new: int
    acknowledged: int
    quiet: int
    newest: int


class BulkResults(msgspec.Struct, frozen=True):
    """The results of one step on many incidents."""

    items: list[BulkResult]


class MuteList(msgspec.Struct, frozen=True):
    """Mutes, newest first."""

    items: list[Mute]


class RunbookList(msgspec.Struct, frozen=True):
    """The runbooks that were set here; rule files have their own."""

    items: list[Runbook]


_AT = 1795255505.2
_INCIDENT = Incident(
    id=3,
    event=14,
    fingerprint="4d1f0c9be2a70f15",
    node="gpu-12",
    state="acknowledged",
    by="ops",
    note="draining the node",
    changed=_AT + 60,
    opened=_AT - 86_400,
    last=_AT,
    merged_into=None,
    attempts=7,
    jobs=2,
    newest=None,
    on_node=9,
    others=1,
    assignee="anna",
    snoozed=False,
    snoozed_until=None,
    snoozed_attempts=None,
    muted=False,
    gpus=1024,
    gpu_hours=1820.4,
    severity=12742.8,
    level="critical",
)
_EVENT = IncidentEvent(21, 3, _AT + 60, "ops", "acknowledged", "draining the node", None, None)
_MUTE = Mute(2, "fingerprint", "4d1f0c9be2a70f15", "anna", _AT, _AT + 86_400, "known bug", None, "")
_RUNBOOK = Runbook("reason", "ECC Error", "https://wiki.example/ecc", "anna", _AT)
_RESULT = BulkResult(3, "")
EXAMPLES = (
    _INCIDENT,
    IncidentPage([_INCIDENT], None),
    IncidentStory([_EVENT]),
    Handover("Incident 3 (acknowledged): ECC Error on gpu-12. ...\n\n#SBATCH --exclude=gpu-12"),
    IncidentCounts(new=3, acknowledged=1, quiet=2, newest=23),
    _RESULT,
    BulkResults([_RESULT, BulkResult(7, "ops resolved it at 2026-11-21 10:06:05 UTC")]),
    _MUTE,
    MuteList([_MUTE]),
    _RUNBOOK,
    RunbookList([_RUNBOOK]),
)
"""One of each answer."""
