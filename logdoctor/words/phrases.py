"""Verdicts in words for people, on pages."""

import datetime
import signal
from collections.abc import Sequence

from logdoctor import taxonomy
from logdoctor.errors import LogdoctorError
from logdoctor.service.confirming import CERTAIN, FoundBy, found_by
from logdoctor.store.jobs.records import End
from logdoctor.store.learning.confirmed import NewConfirmation
from logdoctor.store.learning.exchanges import StoredExchange
from logdoctor.types import LEARNED, Compression, DecidedBy, Progress, Suspect, Verdict, names_node

_DECIDED = {
    "rule": "a rule",
    "case": "a past failure that looks the same",
    "agent": "the Failure Agent",
    "nobody": "no rule or case",
}
_STRUCTURE = {
    "loss": "the loss curve",
    "stall": "the training steps, which stop before the log does",
    **dict.fromkeys(taxonomy.OUTCOMES, "how the log ends"),
}
_FOUND: dict[FoundBy, str] = {
    "line": "A failure with the same line is recognised, whatever its ranks, hosts, times and numbers.",
    "likeness": "It is recognised by similarity only: a model sees it next to similar failures. It decides none of "
    "them, because no line that identifies it was kept.",
    "nothing": "It is not recognised again by itself, because no line that identifies it was kept. Such a line is the "
    "last one of a traceback, one that a diagnosis rule matches, or one with an error word, such as error, failed or "
    "aborted, that no filter rule removes. From another line near the end a rule can be learned.",
}
_PREDICATES = ("is ", "does ", "has ", "was ", "cannot ")
"""Beginnings of causes that continue a sentence about the thing."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_LONG_AGO = 300 * _DAY
_YEAR_10000 = 253_402_300_800


def title(verdict: Verdict) -> str:
    """Return the reason, or the outcome without one; for an unknown cause, what is known."""
    return taxonomy.title(verdict.reason, verdict.outcome, verdict.detail)


def advice(verdict: Verdict) -> str:
    """Return whether to restart, or the state of the job when nothing failed. Where the node to cordon is not named, it
    says to find it."""
    if verdict.outcome == "running":
        return "Nothing to do: it is running"
    if verdict.outcome == "unknown":
        return "No advice: it is not known how the job ended"
    words = taxonomy.advice(verdict.recovery, names_node(verdict))
    return words[:1].upper() + words[1:]


def problem(error: LogdoctorError) -> str:
    """Return an error as a sentence: "Test 7 does not exist", "The cordon: it gives no reason"."""
    joint = " " if error.cause.startswith(_PREDICATES) else ": "
    return f"{error.thing[:1].upper()}{error.thing[1:]}{joint}{error.cause}"


def wants_node(verdict: Verdict) -> bool:
    """Return whether to cordon a node that the verdict does not name."""
    failed = verdict.outcome == "failed" and verdict.recovery == "isolate_and_restart"
    return failed and not names_node(verdict)


def fault(verdict: Verdict) -> str:
    """Return the fault in words."""
    return taxonomy.FAULT_WORDS[verdict.fault]


def category(verdict: Verdict) -> str:
    """Return the category of its reason, as the usual one where it contradicts the fault."""
    return taxonomy.category_words(verdict.category, verdict.fault)


def decided(verdict: Verdict, person: str = "") -> str:
    """Return who decided, to follow "decided by"; `person` is who corrected it, if known."""
    by = verdict.decided_by
    if verdict.reason == "Unknown":
        return _DECIDED["nobody"]
    if by.kind == "case" and verdict.confidence == CERTAIN:
        return person or "a person"
    if by.kind == "structure":
        return _STRUCTURE.get(by.rule) or (f"the traceback ({by.rule})" if by.rule else "how the log ends")
    return "a learned rule" if by.kind == "rule" and by.rule.startswith(LEARNED) else _DECIDED[by.kind]


def found_again(case: NewConfirmation) -> str:
    """Return how this case will recognise similar failures, or what would make that possible."""
    return _FOUND[found_by(case)]


def case_of(by: DecidedBy) -> int | None:
    """Return the number of the case that decided; None without one."""
    number = by.rule.removeprefix("case/")
    return int(number) if by.kind == "case" and number.isascii() and number.isdecimal() and len(number) < 19 else None


def recovery(name: str, reason: str) -> str:
    """Return the advice for a confirmed failure; an empty name means the reason's default."""
    return taxonomy.ADVICE[name or taxonomy.REASONS[reason].recovery]


def choices() -> dict[str, list[str]]:
    """Return the reasons to choose from, by category."""
    named = [(row.category, reason) for reason, row in taxonomy.REASONS.items() if reason != "Unknown"]
    return {category: [one for of, one in named if of == category] for category in dict.fromkeys(of for of, _ in named)}


def call(one: StoredExchange) -> str:
    """Return the cost of a call to a model."""
    tokens = f"{one.tokens_in:,} tokens sent, {one.tokens_out:,} received"
    if one.cached:
        return "cached: nothing was sent or paid"
    price = f", {dollars(one.dollars)}" if one.dollars else ""
    return f"{tokens}{price}, {one.seconds:.1f} s{f', {one.failure}' if one.failure else ''}"


def dollars(amount: float) -> str:
    """Format a sum of money, small ones to the hundredth of a cent."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.4f}"


def suspects(verdict: Verdict) -> list[Suspect]:
    """Return the suspects with a name."""
    return [one for one in verdict.suspects if one.node or one.gpu or one.rank is not None]


def suspect(one: Suspect) -> str:
    """Return the names of a suspect."""
    names = (one.node, f"rank {one.rank}" if one.rank is not None else None, f"GPU {one.gpu}" if one.gpu else None)
    return ", ".join(name for name in names if name)


def progress(so_far: Progress) -> str:
    """Return the progress of the job; "" when no step was seen."""
    if so_far.step is None:
        return ""
    exact = f", accuracy {so_far.accuracy:.4g}" if so_far.accuracy is not None else ""
    of = f" of {so_far.total:,}" if so_far.total else ""
    loss = f", loss {so_far.loss:.4g}" if so_far.loss is not None else ""
    rate = f", throughput {so_far.throughput:.4g}" if so_far.throughput is not None else ""
    return f"step {so_far.step:,}{of}{loss}{rate}{exact}"


def account(of: Compression) -> str:
    """Return the effect of compression on the log."""
    share = f" ({of.lines_kept / of.lines_in:.1%})" if of.lines_in else ""
    lines = f"{count(of.lines_in, 'line')} in, {of.lines_kept:,} kept{share}"
    return f"{lines}; {size(of.bytes_in)} in, {size(of.bytes_kept)} kept"


def end(how: End) -> str:
    """Return how a process ended."""
    parts = []
    if how.signal:
        parts.append(f"signal {how.signal}{_signal(how.signal)}")
    if how.exit_code is not None:
        parts.append(f"exit code {how.exit_code}")
    if how.scheduler_state:
        parts.append(f"scheduler state {how.scheduler_state}")
    return ", ".join(parts) or "ended, exit status unknown"


def number(given: int | None) -> str:
    """Format a number with thousands separators; "" for None."""
    return "" if given is None else f"{given:,}"


def count(number: int, thing: str) -> str:
    """Format a number of things."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def hours(gpu_hours: float) -> str:
    """Format GPU hours, to the tenth below ten."""
    return f"{gpu_hours:,.1f} GPU h" if gpu_hours < 10 else f"{gpu_hours:,.0f} GPU h"


def gpus(number: int, gpu_hours: float) -> str:
    """Format GPUs with their hours; too little time to count is left out."""
    return f"{count(number, 'GPU')}{f', {hours(gpu_hours)}' if gpu_hours >= 0.05 else ''}"


def size(number: float) -> str:
    """Format bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"


def age(seconds: float) -> str:
    """Format how long ago something was."""
    if seconds < _MINUTE:
        return "just now"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min ago"
    if seconds < _DAY:
        return f"{seconds // _HOUR:.0f} h ago"
    return f"{count(int(seconds // _DAY), 'day')} ago"


def moment(at: float) -> str:
    """Format a time to the minute, in UTC."""
    return _utc(at).strftime("%Y-%m-%d %H:%M")


def short_moment(at: float, now: float) -> str:
    """Format a time to the minute in UTC, a long past one to the day."""
    return _utc(at).strftime("%d %b %H:%M" if now - at < _LONG_AGO else "%d %b %Y")


def days(dates: Sequence[str]) -> list[str]:
    """Shorten ISO days, such as 2026-10-19, for the axis of a chart: 19 Oct."""
    return [f"{datetime.date.fromisoformat(date):%-d %b}" for date in dates]


def clock(at: float) -> str:
    """Format a time of day to the millisecond, as logs do, or ""."""
    if not 0 <= at < _YEAR_10000:
        return ""
    return _utc(at).strftime("%H:%M:%S.%f")[:-3]


def machine_moment(at: float) -> str:
    """Format a time for programs (ISO 8601, UTC)."""
    return _utc(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def _utc(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, datetime.UTC)


def _signal(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""
