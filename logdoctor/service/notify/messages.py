"""Messages about incidents, made once and free of secrets.

All text in them comes from logs and people. Secrets are masked before text is cut: half a secret no longer looks like
one.
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
"""Characters of prose."""
MAX_NAME = 200
MAX_SUSPECTS = 8
LISTED = 20
"""Incidents listed in a summary; of all others it has only the number."""
NUMBERED = 1000
BRIEF = 160
"""Characters of a text in a summary."""

_LOOKED_AT = 20_000  # characters of a text that are searched for secrets
_OPENED, _RESOLVED = "incident.opened", "incident.resolved"


class SuspectData(msgspec.Struct, frozen=True):
    """A node, rank or GPU that may be at fault, and why it is suspected."""

    node: str | None
    rank: int | None
    gpu: str | None
    why: str


class EvidenceTold(msgspec.Struct, frozen=True):
    """The line that decided the verdict."""

    stream: str
    line: int
    quote: str


class IncidentData(msgspec.Struct, frozen=True):
    """An incident as receivers get it. `job` and `attempt` are the newest of its `attempts`, which belong to `jobs`
    jobs; their verdict is `provisional` while it may still change. `by` resolved it with the note `note`; `link` is
    "" when no public URL is set."""

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
    """Many incidents at once: how many were opened, how many announced ones were resolved, the first of them, and the
    numbers of all."""

    opened: int
    resolved: int
    incidents: tuple[IncidentData, ...]
    numbers: tuple[int, ...]
    link: str = ""


class TrialTold(msgspec.Struct, frozen=True):
    """A test whether messages arrive."""

    text: str
    by: str
    link: str = ""


class Opened(msgspec.Struct, frozen=True, tag_field="type", tag=_OPENED):
    """A new incident. `timestamp` is when it was announced, in RFC 3339."""

    timestamp: str
    data: IncidentData


class Resolved(msgspec.Struct, frozen=True, tag_field="type", tag=_RESOLVED):
    """An incident announced before is resolved."""

    timestamp: str
    data: IncidentData


class Summary(msgspec.Struct, frozen=True, tag_field="type", tag="incidents.summary"):
    """Many incidents in one message."""

    timestamp: str
    data: SummaryData


class TrialMessage(msgspec.Struct, frozen=True, tag_field="type", tag="test"):
    """A test message, about no incident."""

    timestamp: str
    data: TrialTold


Message = Opened | Resolved | Summary | TrialMessage
Kind = Literal["incident.opened", "incident.resolved", "incidents.summary", "test"]
"""The types of messages."""

encode = msgspec.json.Encoder().encode
"""Encodes a message as JSON, the body of a webhook."""
_decode = msgspec.json.Decoder(Message).decode


def decode(body: str | bytes) -> Message:
    """Return the message of a body; `msgspec.MsgspecError` when it is malformed."""
    message: Message = _decode(body)
    return message


def read(body: str) -> Message | None:
    """Return a stored message; None if another version of logdoctor wrote it in another form."""
    try:
        return decode(body)
    except msgspec.MsgspecError:
        return None


def what(data: IncidentData) -> str:
    """Return what failed: the reason, or for an unknown one its details."""
    return title(data.reason, "failed", data.detail)


def kind_of(message: Message) -> str:
    """Return the type of a message."""
    return str(message.__struct_config__.tag)


def incident_data(unsent: UnsentIncident, public_url: str) -> IncidentData:
    """Return an incident without secrets, in texts of bounded length."""
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
    """Return the message that an incident is resolved; None if `before` did not announce it. It describes the `current`
    state, or, if no attempt is left, what was announced before."""
    if not isinstance(before, Opened):
        return None
    known = before.data if current is None else incident_data(current, "")
    said = {"state": "resolved", "by": private(by, MAX_NAME), "note": _prose(note), "link": before.data.link}
    return Resolved(stamp(now), msgspec.structs.replace(known, **said))


def summary(messages: Sequence[Message], public_url: str, now: float) -> Summary:
    """Merge many messages into one; the last message about an incident wins."""
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
    """Return a message that tests whether messages arrive."""
    text = "This is a test message from logdoctor. Incidents will be reported here."
    return TrialMessage(stamp(now), TrialTold(text, private(by, MAX_NAME), f"{public_url}/" if public_url else ""))


def recoveries(message: Message) -> set[str]:
    """Return the recoveries of the incidents in a message."""
    if isinstance(message, Opened | Resolved):
        return {message.data.recovery}
    return {one.recovery for one in message.data.incidents} if isinstance(message, Summary) else set()


def private(text: str, most: int) -> str:
    """Return outside text on one line, without secrets and control characters. It is cut to `most` characters, with a
    mark."""
    return _cut(mask(harmless(text[:_LOOKED_AT], _LOOKED_AT)), most)


def stamp(at: float) -> str:
    """Return a time in RFC 3339, to the second, in UTC."""
    return datetime.datetime.fromtimestamp(int(at), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def describe(message: Message | None) -> str:
    """Return a short description of a message, for lists."""
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
    """Return the incidents of a message; of a summary those that it lists."""
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
    """Return an incident with shorter texts, for a summary."""
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
