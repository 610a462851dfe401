"""Print incidents in a terminal.

Reasons, names and notes come from logs and people: all of them are made harmless here.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from logdoctor import taxonomy
from logdoctor.text import message_in
from logdoctor.types import names_node
from logdoctor.words.show import ascii_json, day, each, facts, safe

if TYPE_CHECKING:
    from logdoctor.store.incidents.mutes import Mute
    from logdoctor.store.incidents.table import Incident, IncidentEvent
    from logdoctor.store.jobs.records import StoredVerdict

_NAME = 300  # characters of a job, a node or a person
_WORDS = 400  # characters of a quote or a note
_COLOURS = {"new": "red", "acknowledged": "yellow", "resolved": "green"}


def incidents(every: "Iterable[Incident]", as_json: bool) -> None:
    """Print some lines, or one JSON object, for each incident."""
    if as_json:
        for one in every:
            print(ascii_json(one))
        return
    console = Console(highlight=False)
    for one in each(every, "no incidents"):
        console.print(_head(one), soft_wrap=True)
        console.print(Padding(Text(_size(one), style="dim"), (0, 0, 0, 7)))
        if one.newest is not None:
            console.print(Padding(Text(_cause(one.newest)), (0, 0, 0, 7)))
        if one.note:
            status = f"{one.state} by {safe(one.by, _NAME)}: {safe(one.note, _WORDS)}"
            console.print(Padding(Text(status, style="dim"), (0, 0, 0, 7)))


def incident(one: "Incident", members: "Sequence[StoredVerdict]", events: "Sequence[IncidentEvent]") -> None:
    """Print everything known about an incident: the answer, its newest attempts, and its events."""
    console = Console(highlight=False)
    console.print(_head(one), soft_wrap=True)
    table = facts((name, Text(value)) for name, value in _facts(one) if value)
    console.print(Padding(table, (0, 0, 0, 2)))
    if members:
        console.print(Text("attempts, newest first", style="dim"))
    for stored in members:
        verdict = f"verdict {stored.id}{'' if stored.final else ', provisional'}"
        line = f"  {day(stored.at)}  {safe(stored.job, _NAME)}/{stored.attempt}  {verdict}"
        console.print(Text(line), soft_wrap=True)
    console.print(Text("history, newest first", style="dim"))
    for event in events:
        console.print(Text(f"  {_event_line(event)}"), soft_wrap=True)


def step(one: "Incident") -> None:
    """Print the result of a step on an incident."""
    whose = f", with {safe(one.assignee, _NAME)}" if one.assignee else ""
    print(f"incident {one.id}: {one.state}{whose}{', snoozed' if one.snoozed else ''}")


def mutes(every: "Iterable[Mute]", now: float) -> None:
    """Print a line for each mute."""
    for one in each(every, "nothing is muted"):
        ended = f"lifted by {safe(one.lifted_by, _NAME)}" if one.lifted is not None else "over"
        until = f"until {day(one.until)} UTC" if one.lifted is None and one.until > now else ended
        why = f": {safe(one.why, _WORDS)}" if one.why else ""
        print(f"mute {one.id}: {one.kind} {safe(one.value, _NAME)}, {until}, by {safe(one.by, _NAME)}{why}")


def _head(one: "Incident") -> Text:
    head = Text(f"{one.id:>5}  ").append(f"{one.state:<12}", style=_COLOURS.get(one.state, ""))
    reason = safe(one.newest.verdict.reason, 100) if one.newest else "no attempts left"
    head.append(f"  {reason}", style="bold")
    head.append(f"  on {safe(one.node, _NAME)}" if one.node else "")
    quiet = ", ".join(name for name, holds in (("snoozed", one.snoozed), ("muted", one.muted)) if holds)
    head.append(f"  {quiet}" if quiet else "", style="dim")
    return head.append(f"  with {safe(one.assignee, _NAME)}" if one.assignee else "", style="dim")


def _size(one: "Incident") -> str:
    """Return how many attempts and jobs failed, and when."""
    attempts = f"{one.attempts:,} attempt{'' if one.attempts == 1 else 's'}"
    jobs = f" of {one.jobs:,} job{'' if one.jobs == 1 else 's'}"
    more = f", {one.on_node:,} failures on this node in total" if one.on_node > one.attempts else ""
    last = f"last {day(one.last)} UTC" if one.attempts == 1 else f"{day(one.opened)} to {day(one.last)} UTC"
    gpus = f", {one.gpus:,} GPUs, {one.gpu_hours:,.1f} GPU hours" if one.gpus else ""
    return f"{attempts}{jobs}{more}{gpus}, {last}"


def _snooze(one: "Incident") -> str:
    """Return when the snooze of an incident ends."""
    times = f"until {day(one.snoozed_until)} UTC" if one.snoozed_until is not None else ""
    count = f"until it has {one.snoozed_attempts:,} attempts" if one.snoozed_attempts is not None else ""
    return " or ".join(part for part in (times, count) if part)


def _cause(stored: "StoredVerdict") -> str:
    """Return the newest attempt, and the line that proves its verdict."""
    quote = safe(message_in(stored.verdict.evidence[0].quote), 160).strip() if stored.verdict.evidence else ""
    return f"{safe(stored.job, _NAME)}/{stored.attempt}{': ' if quote else ''}{quote}"


def _facts(one: "Incident") -> Iterator[tuple[str, str]]:
    """Yield the facts about an incident as (name, value); "" is unknown."""
    yield "size", _size(one)
    yield "severity", f"{one.level} ({one.severity:,.1f})"
    yield "with", safe(one.assignee, _NAME)
    yield "snoozed", _snooze(one) if one.snoozed else ""
    yield "muted", "its fingerprint or node is: logdoctor incidents mutes" if one.muted else ""
    yield "merged", f"into incident {one.merged_into}" if one.merged_into else ""
    if one.newest is not None:
        verdict = one.newest.verdict
        yield "advice", taxonomy.advice(verdict.recovery, names_node(verdict))
        yield "fault", taxonomy.FAULT_WORDS[verdict.fault]
        yield "next", safe(verdict.suggestion, 1000)
        yield "proof", _cause(one.newest)
    yield "similar", f"{one.others:,} with the same fingerprint" if one.others else ""
    if one.by:
        yield (
            one.state,
            f"{day(one.changed)} UTC by {safe(one.by, _NAME)}{f': {safe(one.note, 2000)}' if one.note else ''}",
        )
    yield "fingerprint", safe(one.fingerprint, _NAME)


def _event_line(event: "IncidentEvent") -> str:
    """Return an event on one line."""
    whose = f" {safe(event.job, _NAME)}/{event.attempt}" if event.job is not None else ""
    who = "" if event.job is not None else f" by {safe(event.by, _NAME)}"
    return f"{day(event.at)}  {event.step}{whose}{who}{f': {safe(event.note, _WORDS)}' if event.note else ''}"
