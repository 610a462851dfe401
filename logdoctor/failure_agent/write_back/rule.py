"""The one way from a stored diagnosis rule to the form of a rule file, and from an attempt to what is kept of it."""

from collections.abc import Iterable, Sequence

from logdoctor import taxonomy
from logdoctor.diagnose.taught import LONGEST
from logdoctor.log_agent.book import day
from logdoctor.rules.schema import Claim, DiagnosisRule, Example, Origin, Retirement, When
from logdoctor.store.confirmed import Kept
from logdoctor.store.learned import Learned
from logdoctor.store.learned import StoredClaim as LearnedClaim
from logdoctor.text import shown
from logdoctor.types import Line, Record


def as_diagnosis(rule: Learned) -> DiagnosisRule:
    """A learned diagnosis rule in the form of a rule file; its line is the cause."""
    assert rule.claim is not None
    source = f"{rule.source.job}/{rule.source.attempt}" if rule.source.job else "imported"
    retired = Retirement(day(rule.changed), rule.agent, "see its events") if rule.status == "retired" else None
    return diagnosis(
        rule.id,
        rule.pattern,
        rule.claim,
        rule.examples,
        title=rule.title,
        status=rule.status,
        origin=Origin(rule.agent, day(rule.created), source),
        retired=retired,
    )


def diagnosis(
    id: str,
    pattern: str,
    claim: LearnedClaim,
    examples: Sequence[str],
    *,
    title: str,
    status: str = "active",
    origin: Origin | None = None,
    retired: Retirement | None = None,
) -> DiagnosisRule:
    """A diagnosis rule of one pattern; what its claim leaves open is as the taxonomy says."""
    default = taxonomy.REASONS[claim.reason]
    return DiagnosisRule(
        id,
        status,  # type: ignore[arg-type]  # the store knows the same four words
        title,
        When((pattern,)),
        Claim(claim.reason, "cause", claim.recovery or default.recovery, claim.fault or default.fault),
        tuple(Example(text) for text in examples),
        origin or Origin("", day(0.0), ""),
        suggestion=claim.suggestion,
        retired=retired,
    )


def kept(records: Iterable[Record]) -> list[Kept]:
    """The lines of records as far as learned rules look at them; what looks like trouble has the greatest weight."""
    return [
        Kept(record.stream, line.number, shown(line.text)[:LONGEST], 2 * line.strong + line.weak + bool(line.rules))
        for record in records
        for line in record.lines
    ]


def as_records(lines: Iterable[Kept]) -> list[Record]:
    """Kept lines as records, for learned rules to be tried on."""
    streams: dict[str, list[Line]] = {}
    for one in lines:
        streams.setdefault(one.stream, []).append(Line(one.line, one.text))
    return [Record(stream, "", lines) for stream, lines in streams.items()]
