"""Write-back: turns confirmed failures into diagnosis rules, and watches these.

A rule begins in shadow, where it is only counted. It is promoted after hitting in enough attempts with agreeing
verdicts, unless it may cordon nodes: then a person must approve it. A later confirmation outweighs any rule: one that
hits an attempt confirmed otherwise is demoted at once.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from logdoctor.diagnose.decide import diagnose
from logdoctor.diagnose.ending import FAILED
from logdoctor.diagnose.episodes import Episode, episodes
from logdoctor.diagnose.taught import Taught
from logdoctor.errors import RuleError, RuleRefused
from logdoctor.learning import steps
from logdoctor.learning.backtest import BackTest, Tried
from logdoctor.learning.diagnoses.candidates import written
from logdoctor.learning.diagnoses.confirming import naming
from logdoctor.learning.diagnoses.guards import ConfirmedTrial, DiagnosisCandidate, DiagnosisGuards, trial_of
from logdoctor.learning.diagnoses.past import decided, kept
from logdoctor.learning.diagnoses.writer import OfflineWriter, Writer
from logdoctor.learning.form import as_diagnosis, awaited, diagnosis, full_claim
from logdoctor.learning.proposed import Refusal, refusal
from logdoctor.llm.masking import mask
from logdoctor.rules.load import RuleBook
from logdoctor.rules.match import hyperscan_complaint
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import DiagnosisRule
from logdoctor.store.learning.confirmed import AGREEMENT, Confirmation, Confirmed
from logdoctor.store.learning.learned import Learned, LearnedRules, NewRule, Source, StoredClaim
from logdoctor.store.learning.refusals import Refused, Votes
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from logdoctor.text import harmless, shown
from logdoctor.types import LEARNED, Record, Verdict

log = structlog.get_logger()

_MOST_EXAMPLE = 2000
_MOST_SUGGESTION = 500


class TeachingTerms(NamedTuple):
    """How many attempts a rule must hit before it becomes active, its own included, and how many agreeing attempts
    confirm a failure (0: only people confirm).

    What a person confirmed is watched as well: a person says what a failure was, not which pattern identifies it.
    """

    attempts: int
    agreement: int


class DiagnosisLesson(NamedTuple):
    """The result of a confirmation: the id ("" for none) and status of the rule that covers the failure, or why none
    does; refusals, the lines that the rule covers, and demoted or retired rules."""

    rule: str
    status: str
    why: str
    refused: tuple[Refusal, ...] = ()
    lines: tuple[str, ...] = ()
    demoted: tuple[str, ...] = ()


class Steps(NamedTuple):
    """The rules that became active, and those that were demoted or retired."""

    promoted: tuple[str, ...] = ()
    demoted: tuple[str, ...] = ()


class PutBack(NamedTuple):
    """A demotion or retirement that a confirmation requires."""

    rule: Learned
    status: str
    why: str


class Preview(NamedTuple):
    """What a confirmation would teach if it was entered now.

    `rule` would be entered for the line of `candidate`, beginning in its status; None, with `why`, when nothing would
    be: `known` is then the id of the learned rule that already covers the failure ("" for none). `tried` is the rule's
    back-test. `refused` are patterns refused before it, `steps` the demotions of contradicting rules. `attempts` is how
    many attempts a rule must hit before it becomes active, its own included; `asks` is the model asked for a pattern on
    entering ("" for none): the preview is made without it.
    """

    rule: NewRule | None
    candidate: DiagnosisCandidate | None
    why: str
    known: str
    tried: Tried
    refused: tuple[Refusal, ...]
    steps: tuple[PutBack, ...]
    attempts: int
    asks: str


class _Proposal(NamedTuple):
    """What a confirmation leads to before anything is entered: `known` if rules already cover it, or the new rule with
    its candidate, after refusals."""

    known: DiagnosisLesson | None
    chosen: DiagnosisCandidate | None = None
    rule: NewRule | None = None
    refused: tuple[Refusal, ...] = ()
    tried: Tried = Tried()


class Teacher:
    """Teaches and watches diagnosis rules; any thread may call, and changes of rules are serialised.

    Compiled rules are kept in the folder `cache`, if given. `book_of` returns a job's rules, with overrides. `telling`
    returns, for a job, the test whether its readers may see what people wrote about another job.
    """

    def __init__(
        self,
        rules: LearnedRules,
        confirmed: Confirmed,
        writer: Writer,
        terms: TeachingTerms,
        book: RuleBook,
        scanner: Scanner,
        clock: Callable[[], float] = time.time,
        cache: Path | None = None,
        book_of: Callable[[str], RuleBook] | None = None,
        telling: Callable[[str], Callable[[str], bool]] = lambda job: lambda other: True,
    ) -> None:
        self._rules, self._confirmed, self._writer, self._terms, self._clock = rules, confirmed, writer, terms, clock
        self._book, self._cache = book, cache
        self._book_of, self._telling = book_of or (lambda job: book), telling
        self.guards = DiagnosisGuards(book, scanner, confirmed.past)
        self._changing = threading.RLock()
        self._loading = threading.Lock()
        self._loaded: tuple[int, Taught] = (-1, Taught([]))

    # queries

    def version(self) -> int:
        """Return a number that every change of a learned rule increases."""
        return self._rules.version()

    def alive(self) -> Taught:
        """Return the rules that are active or in shadow, compiled, as stored now."""
        with self._loading:
            version = self._rules.version()
            if version != self._loaded[0]:
                rules = [as_diagnosis(rule) for rule in self._alive()]
                self._loaded = version, _compiled(rules, self._cache)
            return self._loaded[1]

    def taught(self) -> tuple[DiagnosisRule, ...]:
        """Return the rules that are active or in shadow."""
        return self.alive().rules

    def told(self, taught: Taught, job: str) -> Taught:
        """Return learned rules for a job, without words about jobs hidden from its readers."""
        return taught.withholding(self._telling(job)) if taught.rules else taught

    def lines(self) -> list[str]:
        """Return the lines that these rules were learned from, masked: no filter rule may take one of them."""
        return [example.text for rule in self.taught() for example in rule.must_match]

    # a failure was confirmed

    def teach(self, confirmation: Confirmation, records: Sequence[Record]) -> DiagnosisLesson:
        """Learn from a confirmation, given its attempt's records, and return the result.

        Rules that contradict it on these records are demoted first.
        """
        records = self._by_rules_of_the_book(records)
        with self._changing:
            demoted = self._demote_contradicted(confirmation, records)
            book = self._book_of(confirmation.job)
            proposal = self._propose(confirmation, records, self._alive(), self.alive(), self._writer, book)
            if proposal.known:
                return proposal.known._replace(demoted=demoted)
            refused = proposal.refused
            if proposal.rule is not None and proposal.chosen is not None:
                lesson = self._enter(proposal.rule, proposal.chosen)
                if isinstance(lesson, DiagnosisLesson):
                    self._note(confirmation, refused)
                    return lesson._replace(refused=refused, demoted=demoted)
                refused = (*refused, lesson)
            self._note(confirmation, refused)
            return DiagnosisLesson("", "", refused[-1].cause if refused else "", refused, (), demoted)

    def preview(
        self,
        confirmation: Confirmation,
        records: Sequence[Record],
        seconds: float,
        writer: Writer | None = None,
        book: RuleBook | None = None,
    ) -> Preview:
        """Return what `teach` would do, without changing anything or asking a model; `book` replaces the overrides in
        force.

        The back-test takes the newest attempts for at most `seconds`; `teach` tries all that are kept.
        """
        writer = writer or OfflineWriter()
        records = self._by_rules_of_the_book(records)
        put_back = self._contradicted(confirmation, records)
        standing, taught = self._alive(), self.alive()
        if put_back:
            to = {step.rule.id: step.status for step in put_back}
            moved = [msgspec.structs.replace(rule, status=to.get(rule.id, rule.status)) for rule in standing]
            standing = [rule for rule in moved if rule.status != "retired"]
            taught = _compiled([as_diagnosis(rule) for rule in standing], self._cache)
        book = book or self._book_of(confirmation.job)
        proposal = self._propose(confirmation, records, standing, taught, writer, book, BackTest(seconds))
        rule, refused, known = proposal.rule, proposal.refused, proposal.known
        if rule is not None and (twin := self._twin(rule)) is not None:
            if duplicate := _duplicate(twin):
                refused = (*refused, duplicate)
            else:
                known = DiagnosisLesson(twin.id, twin.status, "it has the same pattern and verdict")
            rule = None
        why = known.why if known else refused[-1].cause if rule is None and refused else ""
        asks = self._writer.name if self._writer.name != writer.name and known is None else ""
        reported = (known.rule if known else "", proposal.tried, refused, put_back, self._terms.attempts, asks)
        return Preview(rule, proposal.chosen if rule else None, why, *reported)

    def withdrawn(self, confirmation: Confirmation) -> tuple[str, ...]:
        """Retire the rules learned from a withdrawn confirmation, and return them."""
        with self._changing:
            gone = [rule for rule in self._alive() if _is_from(rule, confirmation)]
            why = f"the confirmation of {confirmation.job}/{confirmation.attempt} was withdrawn"
            return tuple(rule.id for rule in gone if self._move(rule, "retired", why))

    def agreeing(self, job: str, verdict: Verdict, digest: str, is_read: bool = False) -> bool:
        """Return whether a failure counts as confirmed: rules and a model that read it agree, or enough attempts of
        different jobs have the agent's same verdict. A job that fails repeatedly is no second opinion.

        A different confirmation of such a failure forbids it.
        """
        if self._terms.agreement <= 0 or not digest:
            return False
        if not is_read:
            if verdict.decided_by.kind != "agent":
                return False
            jobs = {job, *(one for one, _ in self._confirmed.agreed(digest, verdict.reason, verdict.recovery))}
            if len(jobs) < self._terms.agreement:
                return False
        return all(case.reason == verdict.reason for case in self._confirmed.cases() if digest in case.digests[:1])

    # an attempt is settled

    def settled(
        self,
        job: str,
        attempt: int,
        records: Sequence[Record],
        verdict: Verdict,
        found: Sequence[Episode] | None = None,
        named_by: Verdict | None = None,
    ) -> Steps:
        """Store what remains of an attempt, count rule hits, and take the steps that follow.

        `found` are its episodes, if known; `named_by` is the verdict whose line names the failure, if another. A
        verdict that was issued again may be settled again.
        """
        records = self._by_rules_of_the_book(records)
        found = episodes(records, self._book) if found is None else found
        named = naming(found, records, [(one.stream, one.line) for one in (named_by or verdict).evidence])
        with self._changing:
            self._confirmed.keep_lines(
                job,
                attempt,
                kept(records),
                outcome=verdict.outcome,
                reason=verdict.reason,
                recovery=verdict.recovery,
                decided=decided(verdict),
                digest=named.digest if named else "",
            )
            confirmation = self._confirmed.live(job, attempt)
            demoted = self._demote_contradicted(confirmation, records) if confirmation else ()
            self._count(job, attempt, records, verdict, confirmation)
            promoted, harmful = self._promote()
            return Steps(promoted, (*demoted, *harmful))

    # inside

    def _by_rules_of_the_book(self, records: Sequence[Record]) -> list[Record]:
        """Return the records without learned diagnosis rules used in judging, which are matched again."""
        known = len(self._book.diagnoses)
        return [
            msgspec.structs.replace(
                record,
                lines=[
                    line
                    if all(number < known for number in line.rules)
                    else line._replace(rules=tuple(number for number in line.rules if number < known))
                    for line in record.lines
                ],
            )
            for record in records
        ]

    def _alive(self) -> list[Learned]:
        every = self._rules.list(DIAGNOSIS)
        return [rule for rule in every if rule.status in ("active", "shadow") and rule.claim is not None]

    def _propose(
        self,
        confirmation: Confirmation,
        records: Sequence[Record],
        standing: Sequence[Learned],
        taught: Taught,
        writer: Writer,
        book: RuleBook,
        backtest: BackTest | None = None,
    ) -> _Proposal:
        """Return what a confirmation leads to, given these rules; nothing is changed."""
        claim = _claim(confirmation)
        if known := self._known(claim, records, standing, taught, book):
            return _Proposal(known)
        digests = frozenset(confirmation.digests)
        trial = ConfirmedTrial(confirmation.job, confirmation.attempt, records, claim, digests, book)
        may_tell = self._telling(confirmation.job)
        cases = [case for case in self._confirmed.cases() if may_tell(case.job)]
        candidates, by = written(confirmation, records, self._book, cases, writer)
        if not candidates:
            return _Proposal(None, refused=(refusal("", "evidence", "rules look at none of its lines"),))
        chosen, refused = self.guards.first_fit(candidates, trial, backtest)
        tried = backtest.of(None if chosen is None else candidates.index(chosen)) if backtest else Tried()
        rule = None if chosen is None else _new_rule(chosen, by[chosen.pattern], trial, confirmation)
        return _Proposal(None, chosen, rule, tuple(refused), tried)

    def _contradicted(self, confirmation: Confirmation, records: Sequence[Record]) -> tuple[PutBack, ...]:
        """Return the steps of rules that contradict a confirmation on its attempt: active ones are demoted to shadow;
        those in shadow, and those learned from it, are retired."""
        hits = self.alive().hits(records)
        where = f"{confirmation.job}/{confirmation.attempt}"
        put_back = []
        for rule in self._alive():
            if rule.id not in hits or not _contradicts(rule, confirmation):
                continue
            stream, line = hits[rule.id][0]
            said = f"{confirmation.by} confirmed {confirmation.reason} for {where}, where it matches {stream}:{line}"
            back = rule.status == "active" and not _is_from(rule, confirmation)
            put_back.append(PutBack(rule, "shadow" if back else "retired", said))
        return tuple(put_back)

    def _demote_contradicted(self, confirmation: Confirmation, records: Sequence[Record]) -> tuple[str, ...]:
        """Demote the rules that contradict a confirmation, and return them."""
        put_back = self._contradicted(confirmation, records)
        return tuple(step.rule.id for step in put_back if self._move(step.rule, step.status, step.why))

    def _known(
        self,
        claim: StoredClaim,
        records: Sequence[Record],
        standing: Sequence[Learned],
        taught: Taught,
        book: RuleBook,
    ) -> DiagnosisLesson | None:
        """Return the lesson when these rules already cover the failure, active or in shadow; None otherwise."""
        verdict = diagnose(*taught.applied(records, book), reported=FAILED)
        if (verdict.reason, verdict.recovery, verdict.outcome) == (claim.reason, claim.recovery, "failed"):
            by = verdict.decided_by
            mine = by.rule if by.rule.startswith(LEARNED) else ""
            return DiagnosisLesson(mine, "active" if mine else "", f"{by.rule or by.kind} already covers it")
        hits = taught.hits(records)
        for rule in standing:
            if rule.status == "shadow" and rule.id in hits and rule.claim and _same(rule.claim, claim):
                return DiagnosisLesson(rule.id, rule.status, "it is already being watched")
        return None

    def _enter(self, new: NewRule, chosen: DiagnosisCandidate) -> DiagnosisLesson | Refusal:
        """Enter a rule; return the lesson, or the refusal."""
        where = f"learned from {new.source.job}/{new.source.attempt}"
        try:
            (rule,) = self._rules.add([new], steps.BY, self._clock(), why=where)
        except RuleRefused as error:
            return refusal(mask(new.pattern), "duplicate", error.cause)
        if duplicate := _duplicate(rule):
            return duplicate
        log.info("diagnosis rule learned", rule=rule.id, reason=rule.claim and rule.claim.reason, job=new.source.job)
        return DiagnosisLesson(rule.id, rule.status, where, (), (chosen.text,))

    def _twin(self, new: NewRule) -> Learned | None:
        """Return a stored rule with the same pattern and claim, whatever its status; None without one."""
        for rule in self._rules.list(DIAGNOSIS):
            if rule.pattern == new.pattern and rule.claim and new.claim and _same(rule.claim, new.claim):
                return rule
        return None

    def _note(self, confirmation: Confirmation, refused: Sequence[Refusal]) -> None:
        reported = [Refused(one.pattern, one.guard, one.cause) for one in refused]
        self._rules.refusals.add(
            DIAGNOSIS, confirmation.job, confirmation.attempt, self._writer.name, reported, self._clock()
        )

    def _count(
        self,
        job: str,
        attempt: int,
        records: Sequence[Record],
        verdict: Verdict,
        confirmation: Confirmation | None,
    ) -> None:
        """Count the hits of rules that the verdict, or a confirmation, does not contradict."""
        hits = self.alive().hits(records)
        outcome = "failed" if confirmation else verdict.outcome
        reason = confirmation.reason if confirmation else verdict.reason
        counts = {}
        for rule in self._alive():
            if rule.id not in hits or rule.claim is None:
                continue
            if outcome in ("failed", "recovered") and reason in (rule.claim.reason, "Unknown"):
                decided = verdict.decided_by.rule == rule.id
                counts[rule.id] = len(hits[rule.id]), len(hits[rule.id]) if decided else 0
        self._rules.hits.count(DIAGNOSIS, job, attempt, counts, self._clock())

    def _promote(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return (promoted rules, rules retired because they would now do harm)."""
        promoted, harmful = [], []
        for rule in self._rules.list(DIAGNOSIS, "shadow"):
            if rule.claim is None or rule.claim.cordons or rule.jobs < self._terms.attempts:
                continue
            if not steps.may_rise(self._rules, rule.id):
                continue
            if cause := self.guards.harm(as_diagnosis(rule), trial_of(rule, rule.claim, self._confirmed)):
                if self._move(rule, "retired", f"{cause.guard}: {cause.cause}"):
                    harmful.append(rule.id)
            elif self._move(rule, "active", f"hit in {rule.jobs} attempts whose verdicts agree", "promote"):
                promoted.append(rule.id)
        return tuple(promoted), tuple(harmful)

    def _move(self, rule: Learned, status: str, why: str, step: str = "demote") -> bool:
        return steps.take(self._rules, rule.id, rule.status, status, step, why, self._clock())


def _compiled(rules: Sequence[DiagnosisRule], cache: Path | None) -> Taught:
    """Compile the rules, without any that do not compile, which are logged (guards admit none)."""
    try:
        return Taught(rules, cache)
    except RuleError:
        bad = [rule.id for rule in rules if any(map(hyperscan_complaint, rule.when.any))]
        log.error("learned diagnosis rules do not compile", rules=bad)
        return Taught([rule for rule in rules if rule.id not in bad], cache)


def _claim(confirmation: Confirmation) -> StoredClaim:
    """Return the complete claim that a rule is to make about the failure."""
    suggestion = harmless(mask(confirmation.fix or confirmation.suggestion), _MOST_SUGGESTION).strip()
    return full_claim(confirmation.reason, confirmation.fault, confirmation.recovery, suggestion)


def _new_rule(chosen: DiagnosisCandidate, by: str, trial: ConfirmedTrial, confirmation: Confirmation) -> NewRule:
    """Return the rule of a candidate, in shadow."""
    claim = trial.claim
    probe = diagnosis("learned/candidate", chosen.pattern, claim, (), "")
    lines = Taught([probe]).hits(trial.records)[probe.id]
    return NewRule(
        DIAGNOSIS,
        chosen.pattern,
        chosen.title,
        (mask(shown(chosen.text))[:_MOST_EXAMPLE],),
        (),
        "shadow",
        awaited(claim),
        by,
        Source(trial.job, trial.attempt),
        Votes(1, (0,), f"confirmed by {confirmation.by}"),
        len(lines),
        claim=claim,
    )


def _duplicate(rule: Learned) -> Refusal | None:
    """Return why an existing rule that no longer hits forbids learning it again; None if it still may hit."""
    if rule.status in ("shadow", "active"):
        return None
    return refusal(mask(rule.pattern), "duplicate", f"{rule.id} has the same pattern and is {rule.status}")


def _same(one: StoredClaim, other: StoredClaim) -> bool:
    return (one.reason, one.recovery) == (other.reason, other.recovery)


def _contradicts(rule: Learned, confirmation: Confirmation) -> bool:
    """Return whether a rule contradicts a confirmation; on the recovery only people's confirmations count."""
    if rule.claim is None:
        return False
    claim = _claim(confirmation)
    if rule.claim.reason != claim.reason:
        return True
    return confirmation.by != AGREEMENT and rule.claim.recovery != claim.recovery


def _is_from(rule: Learned, confirmation: Confirmation) -> bool:
    return (rule.source.job, rule.source.attempt) == (confirmation.job, confirmation.attempt)
