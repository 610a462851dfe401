"""A person says what a failure was: their words and the verdict they looked at become a confirmation."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from logdoctor import taxonomy
from logdoctor.diagnose.conclude import RootCause, conclude
from logdoctor.diagnose.episodes import episodes
from logdoctor.errors import ConfirmationRefused
from logdoctor.failure_agent.write_back.confirming import confirmation_of
from logdoctor.failure_agent.write_back.teacher import Preview
from logdoctor.rules.load import RuleBook
from logdoctor.store.confirmed import AGREEMENT, Cited, Confirmation, NewConfirmation
from logdoctor.store.records import StoredVerdict
from logdoctor.types import Record, Verdict

CERTAIN = 1.0
"""Confidence of a verdict that a person corrected; what is known from past cases is never as sure."""

FoundBy = Literal["line", "likeness", "nothing"]
"""How a case is found again."""

_MOST_EVIDENCE = 20


class Ruling(NamedTuple):
    """What a person says of a verdict; None, "" and () mean that nothing is said, so what it says itself holds.

    `evidence` are lines as (stream, number), the one that names the failure first.
    """

    reason: str | None = None
    recovery: str = ""
    fault: str = ""
    fix: str = ""
    comment: str = ""
    suggestion: str = ""
    evidence: tuple[tuple[str, int], ...] = ()


class Foreseen(NamedTuple):
    """What a ruling would enter (a confirmation with the number 0), and what that would teach; without a `lesson` it
    teaches nothing, or that cannot be told now, and `why` says so. While the log is `unread`, nothing is known of how
    the case will be found again."""

    confirmation: Confirmation
    lesson: Preview | None
    why: str
    unread: bool = False


def found_by(case: NewConfirmation) -> FoundBy:
    """How a failure that is like this case is known by it: by the line that names it, by its likeness as a whole, which
    decides nothing, or by nothing."""
    return "line" if case.digests else "likeness" if case.summary else "nothing"


def correction(case: NewConfirmation, before: Verdict | None) -> str:
    """What somebody did who said that a verdict was wrong, behind their name; `before` is that verdict, None when it is
    not known."""
    if before is None:
        return "corrected this"
    if before.reason != case.reason:
        return f"corrected this from {before.reason}"
    return f'corrected what to do about it (it said "{taxonomy.ADVICE[before.recovery]}")'


def confirmation(
    stored: StoredVerdict,
    records: Sequence[Record],
    book: RuleBook,
    by: str,
    ruling: Ruling,
    text_of: Callable[[str, int], str | None],
) -> NewConfirmation:
    """What is to be entered; `records` are those of the attempt as far as they are known, `text_of` gives a raw line of
    it by stream and number.

    `ConfirmationRefused` for a job that did not fail, words that are not of the taxonomy, and lines that are not there.
    """
    verdict, thing = stored.verdict, f"verdict {stored.id}"
    if verdict.outcome != "failed":
        raise ConfirmationRefused(thing, f"says {verdict.outcome}, not failed", "Only failures become cases.")
    reason = ruling.reason or verdict.reason
    if reason not in taxonomy.REASONS or reason == "Unknown":
        raise ConfirmationRefused(thing, f"{ascii(reason)[:80]} is not a reason", "Use a reason of the taxonomy.")
    if by.strip() == AGREEMENT:
        raise ConfirmationRefused(thing, f"nobody may be called {AGREEMENT}", "Say who you are.")
    found = episodes(records, book)
    entered = confirmation_of(
        stored.job,
        stored.attempt,
        verdict,
        found,
        records,
        by,
        verdict_id=stored.id,
        reason=reason,
        fault=ruling.fault,
        recovery=ruling.recovery,
        fix=ruling.fix,
        comment=ruling.comment,
        evidence=[_cited(stored, stream, line, text_of) for stream, line in ruling.evidence[:_MOST_EVIDENCE]],
    )
    return msgspec.structs.replace(entered, suggestion=ruling.suggestion or entered.suggestion)


def rectified(verdict: Verdict, confirmation: Confirmation, records: Sequence[Record], book: RuleBook) -> Verdict:
    """The verdict as a person corrected it: what was known of the attempt stays, but for what it failed of."""
    said = RootCause(
        confirmation.reason,
        confirmation.recovery,
        confirmation.fault,
        CERTAIN,
        f"{confirmation.by} {correction(confirmation, verdict)}.",
        confirmation.suggestion,  # what fixed it is past, and stands in the case
        tuple((one.stream, one.line) for one in confirmation.evidence),
        "case",
        f"case/{confirmation.id}",
    )
    made = conclude(records, book, said)
    if made.reason == "Unknown":
        return verdict  # no line is left that proves it (law 3); the case says what it was
    known = {name: getattr(verdict, name) for name in ("progress", "compression", "problems", "file", "seconds")}
    return msgspec.structs.replace(made, ranks=made.ranks or verdict.ranks, **known)


def _cited(stored: StoredVerdict, stream: str, line: int, text_of: Callable[[str, int], str | None]) -> Cited:
    text = text_of(stream, line)
    if text is None:  # the log is gone, and the verdict kept what it cites of it
        known = (one.quote for one in stored.verdict.evidence if (one.stream, one.line) == (stream, line))
        text = next(known, None)
    if text is None:
        thing = f"line {line} of stream {ascii(stream)[:80]}"
        raise ConfirmationRefused(thing, f"is not in {stored.job}/{stored.attempt}", "Name lines of its log.")
    return Cited(stream, line, text)
