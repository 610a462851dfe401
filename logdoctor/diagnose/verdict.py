"""Writing of verdicts: quotes with context, symptoms, progress, and the line counts of the log."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, cast

import regex

from logdoctor import taxonomy
from logdoctor.diagnose.cause import CauseJudgement, explains
from logdoctor.diagnose.findings import LogFinding, StreamReading
from logdoctor.diagnose.fingerprint import fingerprint
from logdoctor.diagnose.progress import Spike, Stall, StreamCourse, furthest
from logdoctor.diagnose.ranks import first_errors
from logdoctor.diagnose.tracebacks import Traceback
from logdoctor.diagnose.weighing import why_not
from logdoctor.llm.masking import mask
from logdoctor.rules.load import RuleBook
from logdoctor.text import last_state, natural
from logdoctor.types import (
    Alternative,
    Category,
    Compression,
    DecidedBy,
    Evidence,
    Fault,
    Outcome,
    RankError,
    Record,
    Recovery,
    RuleCount,
    Suspect,
    Symptom,
    Verdict,
)

_ANOTHER = 2000  # ordinary lines after a stop that belong to another job
_MAX_QUOTE = 1000  # characters
_MAX_EVIDENCE = 4
_MAX_DETAIL = 100  # characters
_LOOKED_AT = 20_000  # characters of a message that are searched for secrets
_CONTEXT = 2
_MAX_NODES = 10_000


class CitedLine(NamedTuple):
    """A line of a stream, with the rule or structure that cites it."""

    stream: int
    line: int
    rule: str

    @classmethod
    def of(cls, finding: LogFinding) -> "CitedLine":
        """Cite the line of a finding."""
        return cls(finding.stream, finding.line, finding.source)


class Examined(NamedTuple):
    """All that is known about an attempt before it is judged."""

    readings: list[StreamReading]
    courses: list[StreamCourse]
    found: list[LogFinding]
    judgement: CauseJudgement
    spike: Spike | None
    stall: Stall | None
    book: RuleBook
    earlier: list[Record]
    """Earlier runs of a job in the same file; the rest is of the last run."""

    @property
    def own(self) -> list[StreamCourse]:
        """The courses of the job's own streams."""
        return [course for course in self.courses if not course.reading.record.is_witness]

    def chain_of(self, finding: LogFinding) -> Traceback | None:
        """Return the traceback around a finding."""
        return self.readings[finding.stream].chain_at(finding.line)

    def outcomes(self, kind: str) -> list[LogFinding]:
        """Return the lines that mark an outcome."""
        return [finding for finding in self.found if finding.outcome == kind and self._holds(finding)]

    def first(self, kind: str) -> LogFinding | None:
        """Return the first line that marks an outcome, None without one."""
        return next((finding for finding in self.found if finding.outcome == kind and self._holds(finding)), None)

    def last(self, kind: str) -> LogFinding | None:
        """Return the last line that marks an outcome, None without one."""
        found = reversed(self.found)
        return next((finding for finding in found if finding.outcome == kind and self._holds(finding)), None)

    def _holds(self, mark: LogFinding) -> bool:
        """Return whether no progress follows a mark. A recovery always counts; a mark that no rule knows needs work
        before it and none behind."""
        if mark.outcome == "recovered":
            return True
        if mark.outcome == "cancelled" and self.readings[mark.stream].ordinary_after(mark.line) >= _ANOTHER:
            return False
        return not self.courses[mark.stream].renewed_after(mark.line) and bool(mark.rule or self._closes(mark))

    def _closes(self, mark: LogFinding) -> bool:
        """Return whether a program closed its work with a line. Results do not when silence follows, nor do last words
        of a kind that was printed before."""
        if self.stall is not None and mark.name == "results":
            return False
        aftermath = self.courses[mark.stream].aftermath
        if mark.name in ("end", "figures"):
            return aftermath.is_new(mark.line, mark.origin.channel)
        return aftermath.closes(mark.line, mark.origin.channel)


def write(
    case: Examined,
    reason: str,
    outcome: str,
    *,
    confidence: float,
    why: str,
    places: list[CitedLine],
    decided: tuple[str, str],
    print_of: tuple[str, tuple[str, ...]],
    symptoms: list[LogFinding],
    recovery: str = "",
    fault: str = "",
    suggestion: str = "",
    suspected: Sequence[Suspect] = (),
    first_rank: int | None = None,
    cause: LogFinding | None = None,
    alternatives: tuple[Alternative, ...] = (),
    onset_step: int | None = None,
    detail: str = "",
) -> Verdict:
    """Return the verdict; one whose evidence cannot be quoted is `Unknown` (law 3)."""
    default = taxonomy.REASONS.get(reason, taxonomy.Reason("None", "nobody", "none", ""))
    evidence = _evidence(case, places)
    if places and not evidence:
        why = "The deciding line cannot be quoted."
        return write(
            case,
            "Unknown",
            "failed",
            confidence=0.0,
            why=why,
            places=[],
            decided=("nobody", ""),
            print_of=print_of,
            symptoms=symptoms,
        )
    recovery = recovery or default.recovery
    suggestion = _fitting(suggestion or (default.next_step if outcome == "failed" else "Nothing to do."), evidence)
    return Verdict(
        reason=reason,
        category=cast(Category, default.category),
        fault=cast(Fault, fault or default.fault),
        recovery=cast(Recovery, recovery),
        outcome=cast(Outcome, outcome),
        confidence=round(confidence, 2),
        suggestion=for_suspects(suggestion, suspected),
        evidence=evidence,
        suspects=tuple(suspected),
        first_rank=first_rank,
        symptoms=_symptoms(case, [one for one in symptoms if not _proves(one, reason, places)], decided[1], cause),
        decided_by=DecidedBy(
            cast(Literal["rule", "structure", "case", "agent", "nobody"], decided[0]), decided[1], case.book.digest
        ),
        fingerprint=fingerprint(reason, *print_of),
        progress=furthest(case.courses),
        compression=_compression([reading.record for reading in case.readings]),
        problems=tuple(problem for reading in case.readings for problem in reading.record.problems),
        why=why,
        file=case.readings[0].record.file if case.readings else "",
        nodes=_nodes(case),
        ranks=_ranks(case, cause) if outcome == "failed" else (),
        alternatives=alternatives,
        onset_step=onset_step,
        detail=detail or (_detail(case, cause) if cause is not None else ""),
    )


def _detail(case: Examined, cause: LogFinding) -> str:
    """Return a finer name of a cause than its reason. It is an exception with its message's beginning, a table's
    meaning of a code, or the rule's title."""
    if cause.rule is None or cause.frames:
        return _first_words(cause.origin.message)
    lookup = cause.rule.verdict.lookup
    row = case.book.knowledge(lookup).get(cause.captures.get(lookup, "")) if lookup else None
    return row["meaning"] if row else cause.rule.title


def _first_words(message: str) -> str:
    """Return a message's beginning, cut between words; secrets go first, as half of one has no form."""
    message = " ".join(mask(message[:_LOOKED_AT]).split())
    return message if len(message) <= _MAX_DETAIL else message[:_MAX_DETAIL].rsplit(" ", 1)[0] + " ..."


_THING = regex.compile(r"(?P<thing>\b(?:file|path|folder|option|key|package|line))(?: that)? (?:it|is) name[sd]\b")
_NAMED = regex.compile(r"\bnamed (?=(?:data |image or )?(?:file|path|folder|option|key|package|line)\b)")
_THE_NODE, _A_NODE = "Cordon the node", "Once the node is found, cordon it"
_NAME = regex.compile(r"['\"`][^'\"`]+['\"`]|[\w.-]*/[\w./-]+|\b[\w-]+\.\w{2,10}\b|--?\w[\w-]+")


def for_suspects(suggestion: str, suspected: Iterable[Suspect]) -> str:
    """Return the suggestion for these suspects: the node to cordon is known, or has to be found."""
    known = any(suspect.node for suspect in suspected)
    told, meant = (_A_NODE, _THE_NODE) if known else (_THE_NODE, _A_NODE)
    return regex.sub(rf"^{told}\b", meant, suggestion)


def _fitting(suggestion: str, evidence: tuple[Evidence, ...]) -> str:
    """Return the suggestion, without "it names" when no quoted line names anything."""
    if any(_NAME.search(one.quote.partition(": ")[2] or one.quote) for one in evidence):
        return suggestion
    return _NAMED.sub("", _THING.sub(r"\g<thing>", suggestion))


def _ranks(case: Examined, cause: LogFinding | None) -> tuple[RankError, ...]:
    """Return the first lasting error of each rank; the cause under its final reason."""
    judged = case.judgement
    lasting = [found for found in (judged.cause, *judged.symptoms, *judged.teardown) if found]
    if cause is not None:
        lasting = [cause, *(found for found in lasting if (found.stream, found.line) != (cause.stream, cause.line))]
    return first_errors(case.readings, lasting, cause)


def _nodes(case: Examined) -> tuple[str, ...]:
    """Return the nodes on which ranks were placed, or whose addresses the log gives."""
    known = {node for reading in case.readings for node in reading.record.placements.values()}
    known |= {node for reading in case.readings for node in reading.record.aliases.values()}
    return tuple(sorted(known, key=natural)[:_MAX_NODES])


def _evidence(case: Examined, places: list[CitedLine]) -> tuple[Evidence, ...]:
    """Return the cited lines as quotes with their neighbours, each line once, at most 4."""
    quotes: dict[tuple[int, int], Evidence] = {}
    for stream, number, rule in places:
        reading = case.readings[stream]
        text = reading.text(number)
        if text is None or (stream, number) in quotes or len(quotes) == _MAX_EVIDENCE:
            continue
        before = tuple(quote(t) for n in range(number - _CONTEXT, number) if (t := reading.text(n)) is not None)
        after = tuple(quote(t) for n in range(number + 1, number + _CONTEXT + 1) if (t := reading.text(n)) is not None)
        record = reading.record
        quotes[stream, number] = Evidence(record.file, record.stream, number, quote(text), rule, before, after)
    return tuple(quotes.values())


def quote(text: str) -> str:
    """Return the quoted part of a raw line: a bar's last state, at most 1000 characters."""
    return last_state(text)[:_MAX_QUOTE]


def _proves(finding: LogFinding, reason: str, places: list[CitedLine]) -> bool:
    """Return whether a finding is of the verdict's proof: that does not follow from itself."""
    cited = any((place.stream, place.line) == (finding.stream, finding.line) for place in places)
    return cited and finding.reason == reason


def _symptoms(case: Examined, found: list[LogFinding], decided: str, cause: LogFinding | None) -> tuple[Symptom, ...]:
    """Return findings by reason: first line, count, and what explains them ("" for nothing)."""
    grouped: dict[str, list[LogFinding]] = {}
    for finding in found:
        if finding.reason != "Unknown":
            grouped.setdefault(finding.reason, []).append(finding)
    return tuple(
        Symptom(
            reason,
            some[0].line,
            case.readings[some[0].stream].record.stream,
            len(some),
            decided if all(explains(cause, finding) for finding in some) else "",
            why_not(cause, some) if cause is not None else "",
        )
        for reason, some in grouped.items()
    )


def _compression(records: list[Record]) -> Compression:
    """Return the line counts of all streams added up. A rule's first and last line are those of the first stream that
    has it."""
    if len(records) == 1:
        return records[0].compression
    parts = [record.compression for record in records]
    rules: dict[str, RuleCount] = {}
    for part in parts:
        for rule, count in part.rules.items():
            known = rules.get(rule)
            rules[rule] = RuleCount(known.lines + count.lines, known.first, known.last) if known else count
    return Compression(
        sum(part.lines_in for part in parts),
        sum(part.lines_kept for part in parts),
        sum(part.bytes_in for part in parts),
        sum(part.bytes_kept for part in parts),
        rules,
    )
