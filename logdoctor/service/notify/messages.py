"""Messages about incidents: they are made once, and nothing private can be read from them.

All text in them comes from logs and people. Secrets in it are masked before it is cut, for half a secret has the form
of none.
"""

import datetime
from collections.abc import Sequence
from typing import Literal

import msgspec

from logdoctor.llm.masking import mask
from logdoctor.store.incidents.notices import UnsentIncident
from logdoctor.taxonomy import advice, title
from logdoctor.text import harmless
from logdoctor.types import Evidence, Suspect, names_node

MAX_QUOTE = 1000
"""Characters of a line of a log."""
MAX_WORDS = 600
"""Characters of what is said of it."""
MAX_NAME = 200
MAX_SUSPECTS = 8
LISTED = 20
"""Incidents that a summary tells of; of all others it has the number."""
NUMBERED = 1000
BRIEF = 160
"""Characters of a text in a summary."""

_LOOKED_AT = 20_000  # characters of a text that are looked through for secrets
_OPENED, _RESOLVED = "incident.opened", "incident.resolved"


class SuspectData(msgspec.Struct, frozen=True):
    """A node, rank or GPU that may be at fault, and why it is named."""

    node: str | None
    rank: int | None
    gpu: str | None
    why: str


class EvidenceTold(msgspec.Struct, frozen=True):
    """The line that decided."""

    stream: str
    line: int
    quote: str


class IncidentData(msgspec.Struct, frozen=True):
    """An incident as receivers get it. `job` and `attempt` are the newest of its `attempts`, which are of
    `jobs` jobs; the verdict of that one is `provisional` when it may still change. `by` resolved it and said `note`;
    `link` is "" when nobody set where people reach logdoctor."""

    incident: int
    state: str
    opened: str
    reason: str
    category: str
    fault: str
    recovery: str
    advice: str
    provisional: bool
    confidence: float
    suspects: tuple[SuspectData, ...]
    job: str
    attempt: int
    attempts: int
    jobs: int
    user: str | None
    verdict: int
    decided_by: str
    evidence: EvidenceTold | None
    suggestion: str
    by: str = ""
    note: str = ""
    link: str = ""
    detail: str = ""


class SummaryData(msgspec.Struct, frozen=True):
    """Many incidents at once: how many were opened and how many of those announced before were resolved, the first of
    them, and the numbers of all."""

    opened: int
    resolved: int
    incidents: tuple[IncidentData, ...]
    numbers: tuple[int, ...]
    link: str = ""


class TrialTold(msgspec.Struct, frozen=True):
    """That somebody tries whether messages arrive."""

    text: str
    by: str
    link: str = ""


class Opened(msgspec.Struct, frozen=True, tag_field="type", tag=_OPENED):
    """A new incident. `timestamp` is when it was announced, as RFC 3339 has it."""

    timestamp: str
    data: IncidentData


class Resolved(msgspec.Struct, frozen=True, tag_field="type", tag=_RESOLVED):
    """An incident that was announced is resolved."""

    timestamp: str
    data: IncidentData


class Summary(msgspec.Struct, frozen=True, tag_field="type", tag="incidents.summary"):
    """Many incidents in one message."""

    timestamp: str
    data: SummaryData


class TrialMessage(msgspec.Struct, frozen=True, tag_field="type", tag="test"):
    """A message that tells of no incident."""

    timestamp: str
    data: TrialTold


Message = Opened | Resolved | Summary | TrialMessage
Kind = Literal["incident.opened", "incident.resolved", "incidents.summary", "test"]
"""The types of messages."""

encode = msgspec.json.Encoder().encode
"""The JSON of a message, which is the body of a webhook."""
_decode = msgspec.json.Decoder(Message).decode


def decode(body: str | bytes) -> Message:
    """Return the message of a body; `msgspec.MsgspecError` for one that has another form."""
    message: Message = _decode(body)
    return message


def read(body: str) -> Message | None:
    """Return a message that was stored; None for one that another version of logdoctor wrote, in another form."""
    try:
        return decode(body)
    except msgspec.MsgspecError:
        return None


def what(data: IncidentData) -> str:
    """Return what failed: the reason, of an unknown one what is known."""
    return title(data.reason, "failed", data.detail)


def kind_of(message: Message) -> str:
    """Return the type of a message."""
    return str(message.__struct_config__.tag)


def incident_data(unsent: UnsentIncident, public_url: str) -> IncidentData:
    """Return the incident without secrets, in texts of bounded length."""
    verdict = unsent.verdict.verdict
    return IncidentData(
        incident=unsent.id,
        state=unsent.state,
        opened=stamp(unsent.opened),
        reason=verdict.reason,
        category=verdict.category,
        fault=verdict.fault,
        recovery=verdict.recovery,
        advice=advice(verdict.recovery, names_node(verdict)),
        provisional=not unsent.verdict.final,
        confidence=verdict.confidence,
        suspects=tuple(_suspect(one) for one in verdict.suspects[:MAX_SUSPECTS]),
        job=private(unsent.verdict.job, MAX_NAME),
        attempt=unsent.verdict.attempt,
        attempts=unsent.attempts,
        jobs=unsent.jobs,
        user=None if unsent.verdict.user is None else private(unsent.verdict.user, MAX_NAME),
        verdict=unsent.verdict.id,
        decided_by=verdict.decided_by.kind,
        evidence=_evidence(verdict.evidence[0]) if verdict.evidence else None,
        suggestion=_prose(verdict.suggestion),
        link=f"{public_url}/incidents/{unsent.id}" if public_url else "",
        detail=_prose(verdict.detail),
    )


def opened(unsent: UnsentIncident, public_url: str, now: float) -> Opened:
    """Return the message of a new incident."""
    return Opened(stamp(now), incident_data(unsent, public_url))


def resolved(before: Message, by: str, note: str, now: float, current: UnsentIncident | None = None) -> Resolved | None:
    """Return the message that an incident is resolved, with what is known of it by now, when no attempt is left in it
    with what announced it before; None when that announced none."""
    if not isinstance(before, Opened):
        return None
    known = before.data if current is None else incident_data(current, "")
    said = {"state": "resolved", "by": private(by, MAX_NAME), "note": _prose(note), "link": before.data.link}
    return Resolved(stamp(now), msgspec.structs.replace(known, **said))


def summary(messages: Sequence[Message], public_url: str, now: float) -> Summary:
    """One message for many: of an incident that comes twice the last word counts."""
    latest: dict[int, IncidentData] = {}
    for message in messages:
        if isinstance(message, Opened | Resolved):
            latest[message.data.incident] = message.data
    gone = sum(one.state == "resolved" for one in latest.values())
    counted = SummaryData(
        len(latest) - gone,
        gone,
        tuple(_brief(one) for one in tuple(latest.values())[:LISTED]),
        tuple(latest)[:NUMBERED],
        f"{public_url}/" if public_url else "",
    )
    return Summary(stamp(now), counted)


def trial(by: str, public_url: str, now: float) -> TrialMessage:
    """Return the message that somebody has sent to see whether it arrives."""
    text = "This is a test message from logdoctor. Incidents will be reported here."
    return TrialMessage(stamp(now), TrialTold(text, private(by, MAX_NAME), f"{public_url}/" if public_url else ""))


def recoveries(message: Message) -> set[str]:
    """Return what is to be done about the incidents that a message tells of."""
    if isinstance(message, Opened | Resolved):
        return {message.data.recovery}
    return {one.recovery for one in message.data.incidents} if isinstance(message, Summary) else set()


def private(text: str, most: int) -> str:
    """Return a text from outside on one line, without secrets and without what steers a terminal, at most `most`
    characters; a mark at the end tells that it was cut."""
    return _cut(mask(harmless(text[:_LOOKED_AT], _LOOKED_AT)), most)


def stamp(at: float) -> str:
    """Return a time to the second, as RFC 3339 has it, in UTC."""
    return datetime.datetime.fromtimestamp(int(at), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def describe(message: Message | None) -> str:
    """Return a message in a few words, for lists of messages."""
    if message is None:
        return "a message of another version of logdoctor"
    if isinstance(message, TrialMessage):
        return "test"
    if isinstance(message, Summary):
        return _counted(message.data)
    node = next((one.node for one in message.data.suspects if one.node), None)
    where = f" on {node}" if node else ""
    about = f"incident {message.data.incident}: {what(message.data)}{where}, {message.data.job}"
    return f"{about}, resolved" if isinstance(message, Resolved) else about


def numbers(message: Message | None) -> list[int]:
    """Return the incidents that a message tells of, of a summary those that it lists."""
    if isinstance(message, Opened | Resolved):
        return [message.data.incident]
    return list(message.data.numbers[:LISTED]) if isinstance(message, Summary) else []


def _counted(data: SummaryData) -> str:
    number = data.opened + data.resolved
    return f"{number} incident{'' if number == 1 else 's'}"


def _suspect(one: Suspect) -> SuspectData:
    node, gpu = (None if name is None else private(name, MAX_NAME) for name in (one.node, one.gpu))
    return SuspectData(node, one.rank, gpu, _prose(one.why))


def _brief(one: IncidentData) -> IncidentData:
    """Return an incident for a summary, in shorter texts."""
    evidence = one.evidence and msgspec.structs.replace(one.evidence, quote=_cut(one.evidence.quote, BRIEF))
    suspects = tuple(msgspec.structs.replace(who, why=_cut(who.why, BRIEF)) for who in one.suspects[:2])
    suggestion, note = _cut(one.suggestion, BRIEF), _cut(one.note, BRIEF)
    return msgspec.structs.replace(one, evidence=evidence, suspects=suspects, suggestion=suggestion, note=note)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _evidence(first: Evidence) -> EvidenceTold:
    return EvidenceTold(private(first.stream, MAX_NAME), first.line, private(first.quote, MAX_QUOTE))


def _prose(text: str) -> str:
    return private(" ".join(text[:_LOOKED_AT].split()), MAX_WORDS)
