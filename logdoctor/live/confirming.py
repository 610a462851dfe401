"""A person says what a failure was: their words and the verdict they looked at become a confirmation."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from logdoctor import taxonomy
from logdoctor.diagnose.conclude import Conclusion, conclude
from logdoctor.diagnose.episodes import episodes
from logdoctor.errors import ConfirmationRefused
from logdoctor.rules.load import RuleBook
from logdoctor.store.confirmed import AGREEMENT, Cited, Confirmation, NewConfirmation
from logdoctor.store.records import StoredVerdict
from logdoctor.teach.confirming import confirmation_of
from logdoctor.teach.teacher import Preview
from logdoctor.types import Record, Verdict

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
    teaches nothing, or that cannot be told now, and `why` says so."""

    confirmation: Confirmation
    lesson: Preview | None
    why: str


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
        raise ConfirmationRefused(thing, f"{ascii(reason)[:80]} is no reason", "Name one of the taxonomy.")
    if by.strip() == AGREEMENT:
        raise ConfirmationRefused(thing, f"nobody is called {AGREEMENT}", "Say who you are.")
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
    said = Conclusion(
        confirmation.reason,
        confirmation.recovery,
        confirmation.fault,
        1.0,
        f"{confirmation.by} corrected it: it was called {verdict.reason} ({verdict.recovery}).",
        confirmation.fix or confirmation.suggestion,
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
        raise ConfirmationRefused(thing, f"is not in {stored.job}/{stored.attempt}", "Give lines of its log.")
    return Cited(stream, line, text)
