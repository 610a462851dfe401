"""A person says what a failure was: their words and the verdict become a confirmation."""

import datetime
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from logdoctor import taxonomy
from logdoctor.diagnose.conclude import RootCause, conclude
from logdoctor.diagnose.episodes import episodes
from logdoctor.diagnose.overruling import Objections
from logdoctor.diagnose.verdict import for_suspects
from logdoctor.errors import ConfirmationRefused
from logdoctor.learning.diagnoses.confirming import confirmation_of
from logdoctor.learning.diagnoses.teacher import Preview
from logdoctor.learning.form import full_claim
from logdoctor.rules.load import RuleBook
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.store.learning.confirmed import AGREEMENT, Cited, Confirmation, NewConfirmation
from logdoctor.store.learning.overrides import NewOverride, Scope
from logdoctor.types import Record, Suspect, Verdict
from logdoctor.types.nodes import NAME

CERTAIN = 1.0
"""Confidence of a verdict that a person corrected; past cases never reach it."""

FoundBy = Literal["line", "likeness", "nothing"]
"""How a case is found again."""

_MOST_EVIDENCE = 20


class Overrule(NamedTuple):
    """The scope and last day of overrides of the contradicting rules; None: until somebody withdraws them."""

    scope: Scope
    expires: datetime.date | None = None


class Ruling(NamedTuple):
    """What a person says of a verdict; None, "" and () leave what the verdict says.

    `evidence` are lines as (stream, number), the one that names the failure first. `nodes` are those at fault; by
    default those that the verdict suspects. `detail` is a finer word than the reason for what failed.
    """

    reason: str | None = None
    recovery: str = ""
    fault: str = ""
    fix: str = ""
    comment: str = ""
    suggestion: str = ""
    evidence: tuple[tuple[str, int], ...] = ()
    nodes: tuple[str, ...] | None = None
    overrule: Overrule | None = None
    detail: str = ""


class Foreseen(NamedTuple):
    """A dry run of a ruling: the confirmation (number 0) and the lesson it would teach, or `why` there is no `lesson`.

    While the log is `unread`, how the case will be found again is unknown. `objections` are the contradicting rules and
    the verdict without them; None if this is no correction or nothing is known. `overruling` are the overrides it would
    enter.
    """

    confirmation: Confirmation
    lesson: Preview | None
    why: str
    unread: bool = False
    objections: Objections | None = None
    overruling: tuple[NewOverride, ...] = ()


def found_by(case: NewConfirmation) -> FoundBy:
    """Return how this case recognises a failure: by its naming line, by likeness (which decides nothing), or not at
    all."""
    return "line" if case.digests else "likeness" if case.summary else "nothing"


def correction(case: NewConfirmation, before: Verdict | None) -> str:
    """Return what the person did who corrected a verdict, to follow their name; `before` is that verdict, if known."""
    if before is None:
        return "corrected this"
    if before.reason != case.reason:
        return f"corrected this from {before.reason}"
    if case.detail not in ("", before.detail):
        return "said what exactly failed"
    if case.recovery in ("", before.recovery):
        return "corrected which node is at fault"
    return f'corrected what to do about it (it said "{taxonomy.ADVICE[before.recovery]}")'


def confirmation(
    stored: StoredVerdict,
    records: Sequence[Record],
    book: RuleBook,
    by: str,
    ruling: Ruling,
    text_of: Callable[[str, int], str | None],
) -> NewConfirmation:
    """Return the confirmation to record; `records` are those known of the attempt, `text_of` returns a raw line by
    stream and number.

    `ConfirmationRefused` for a job that did not fail, words outside the taxonomy, and lines that do not exist.
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
    nodes = ruling.nodes if ruling.nodes is not None else _suspected(entered, verdict)
    other_node = ruling.nodes is not None and set(ruling.nodes) != {one.node for one in verdict.suspects if one.node}
    return msgspec.structs.replace(
        entered,
        suggestion=ruling.suggestion or entered.suggestion,
        nodes=nodes,
        corrects=entered.corrects or other_node or ruling.detail not in ("", verdict.detail),
        detail=ruling.detail,
    )


def _suspected(entered: NewConfirmation, verdict: Verdict) -> tuple[str, ...] | None:
    """Return the suspected nodes of a verdict if the confirmed recovery needs a node; None where it names none."""
    recovery = entered.recovery or taxonomy.REASONS[entered.reason].recovery
    named = [one.node for one in verdict.suspects if one.node and NAME.fullmatch(one.node)]
    return tuple(dict.fromkeys(named)) or None if recovery == "isolate_and_restart" else None


def overruling(said: NewConfirmation, overrule: Overrule, found: Objections, kind: str) -> tuple[NewOverride, ...]:
    """Return overrides of the rules that contradict a confirmation; `ConfirmationRefused` for scope `kind` without a
    kind."""
    if overrule.scope == "kind" and not kind:
        cause = f"nothing is known of {said.job} that other jobs share"
        raise ConfirmationRefused("the override", cause, "Overrule the rule for this job, or for all.")
    meant = msgspec.structs.asdict(full_claim(said.reason, said.fault, said.recovery, said.suggestion))
    whose = {"job": said.job, "kind": kind, "fleet": ""}[overrule.scope]
    return tuple(
        NewOverride(
            one.rule,
            overrule.scope,
            whose,
            **(meant if one.renamed else {}),
            why=f"{said.job}/{said.attempt} was {said.reason}, not {one.reason}",
            expires=overrule.expires,
            verdict=said.verdict,
            quote=one.quote,
        )
        for one in found.rules
    )


def rectified(verdict: Verdict, confirmation: Confirmation, records: Sequence[Record], book: RuleBook) -> Verdict:
    """Return a verdict as a person corrected it: all facts of the attempt stay except those of the failure."""
    said = RootCause(
        confirmation.reason,
        confirmation.recovery,
        confirmation.fault,
        CERTAIN,
        f"{confirmation.by} {correction(confirmation, verdict)}.",
        confirmation.suggestion,  # what fixed it is past, and is kept in the case
        tuple((one.stream, one.line) for one in confirmation.evidence),
        "case",
        f"case/{confirmation.id}",
        detail=confirmation.detail,
    )
    made = conclude(records, book, said)
    if made.reason == "Unknown":
        return verdict  # no line is left to prove it (law 3); the case says what it was
    known = {name: getattr(verdict, name) for name in ("progress", "compression", "problems", "file", "seconds")}
    suspects = made.suspects if confirmation.nodes is None else _named(confirmation, verdict, made)
    known |= {"suspects": suspects, "suggestion": for_suspects(made.suggestion, suspects)}
    return msgspec.structs.replace(made, ranks=made.ranks or verdict.ranks, nodes=made.nodes or verdict.nodes, **known)


def _named(confirmation: Confirmation, before: Verdict, made: Verdict) -> tuple[Suspect, ...]:
    """Return the nodes that a person named, with their known rank, GPU and reason."""
    known = {one.node: one for one in (*before.suspects, *made.suspects) if one.node}
    said = f"{confirmation.by} named it"
    return tuple(known.get(node) or Suspect(node, None, None, said) for node in confirmation.nodes or ())


def _cited(stored: StoredVerdict, stream: str, line: int, text_of: Callable[[str, int], str | None]) -> Cited:
    text = text_of(stream, line)
    if text is None:  # the log is gone, but the verdict has kept what it cites
        known = (one.quote for one in stored.verdict.evidence if (one.stream, one.line) == (stream, line))
        text = next(known, None)
    if text is None:
        thing = f"line {line} of stream {ascii(stream)[:80]}"
        raise ConfirmationRefused(thing, f"is not in {stored.job}/{stored.attempt}", "Name lines of its log.")
    return Cited(stream, line, text)
