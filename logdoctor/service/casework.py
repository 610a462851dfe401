"""What people, past cases and models say of attempts: recorded, applied to verdicts, and withdrawn."""

import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from logdoctor.compress.kept import cited, rebuilt
from logdoctor.compress.leftovers import Leftovers
from logdoctor.compress.whole_log import WholeLog
from logdoctor.diagnose.overruling import Objections, objections
from logdoctor.diagnose.suspects import is_among
from logdoctor.errors import Busy, ConfirmationRefused, ConfirmationSuperseded, LogdoctorError
from logdoctor.failure_agent.agent import DIAGNOSE
from logdoctor.failure_agent.ladder import is_open
from logdoctor.learning.filters.kind import kind_of
from logdoctor.learning.form import full_claim, overriding
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import Claim, OverrideRule
from logdoctor.service import recheck
from logdoctor.service.confirming import Foreseen, Ruling, confirmation, overruling, rectified
from logdoctor.service.consulting import Consultant, Judged
from logdoctor.service.holding import ANEW
from logdoctor.service.intake import Intake
from logdoctor.service.learning import Learner
from logdoctor.service.overruling import Overruling
from logdoctor.service.reading import Logs
from logdoctor.service.streams import NoticedLine, reported_by
from logdoctor.service.view import StreamView
from logdoctor.service.watch import Watch
from logdoctor.store.jobs.records import JobFacts, Records, StoredVerdict, Wanted
from logdoctor.store.keeping.work import ASK, LOOK_UP, SETTLED, NewWork, Work, key_of
from logdoctor.store.learning.confirmed import Confirmation, Confirmed, Kept, NewConfirmation
from logdoctor.store.learning.exchanges import Exchanges
from logdoctor.store.learning.overrides import NewOverride
from logdoctor.store.names import Key
from logdoctor.text import decode
from logdoctor.types import Record, Verdict

_PREVIEW = 3.0  # seconds for which a lesson is tried on past attempts before it is saved
_QUICK = 64 << 20  # bytes of a log that are read for it, at most
_ANEW = 86_400.0  # seconds: open failures this recent are looked up again after a start


class Casework:
    """Confirms, withdraws and re-judges for one service; thread-safe. Set `watch` and `consultant` before use."""

    watch: Watch
    consultant: Consultant | None = None

    def __init__(
        self,
        intake: Intake,
        logs: Logs,
        records: Records,
        work: Work,
        scanner: Scanner,
        overruling: Overruling,
        learner: Learner | None,
    ) -> None:
        self._intake, self._logs, self._records, self._work = intake, logs, records, work
        self._scanner, self._overruling, self._learner = scanner, overruling, learner
        self.confirmed = Confirmed(records.database)
        self.exchanges = Exchanges(records.database)
        self.stopping = False
        """Whether the service is stopping: nothing more is read then."""

    def confirm(self, verdict: int, by: str, ruling: Ruling, known: int | None = None) -> Confirmation:
        """Record what a person says a failure was, durably; it is taught afterwards. `ConfirmationRefused`.

        `known` is the live case that the person saw, 0 for none: `ConfirmationSuperseded` if another is live now, or if
        the verdict is no longer current. None skips this check.
        """
        stored = self._stored(verdict)
        if known is not None:
            self._require_current(stored, known)
        self._require_of_job(stored.job, ruling.nodes or ())
        records = self.known(stored.job, stored.attempt)
        text_of = partial(self._raw_line, stored.job, stored.attempt)
        new = confirmation(stored, records, self._scanner.book, by, ruling, text_of)
        over: tuple[NewOverride, ...] = ()
        if ruling.overrule:
            over = overruling(new, ruling.overrule, self._objections(new, records), self.kind(new.job))
        entered = self.confirmed.add(new, time.time(), known, over)
        self._overruling.look()
        if self.consultant:
            self.consultant.wake()
        return entered

    def _require_current(self, stored: StoredVerdict, known: int) -> None:
        if stored.current:
            return
        live = self.confirmed.live(stored.job, stored.attempt)
        meanwhile = f", {live.by} has said since that it was {live.reason}" if live and live.id != known else ""
        now = self._records.current(stored.job, stored.attempt)
        where = f"Look at verdict {now.id}, which replaced it." if now else "Check its attempt."
        raise ConfirmationSuperseded(f"verdict {stored.id}", f"it is no longer current{meanwhile}", where)

    def preview(self, verdict: int, by: str, ruling: Ruling) -> Foreseen:
        """Return what `confirm` would record and teach; changes nothing and asks no model.

        `ConfirmationRefused` as for `confirm`; `Busy` when the log must be read while too much comes in.
        """
        stored = self._stored(verdict)
        self._require_of_job(stored.job, ruling.nodes or ())
        records, unread = self._at_hand(stored.job, stored.attempt)
        text_of = partial(self._raw_line, stored.job, stored.attempt)
        new = confirmation(stored, records, self._scanner.book, by, ruling, text_of)
        drafted = self.confirmed.drafted(new, time.time())
        if not records:
            why = "this service records confirmations but learns no rules" if self.consultant is None else unread
            return Foreseen(drafted, None, why or "none of its log is kept", bool(unread))
        found = self._objections(drafted, records)
        over = overruling(drafted, ruling.overrule, found, self.kind(drafted.job)) if ruling.overrule else ()
        if self.consultant is None:
            why = "this service records confirmations but learns no rules"
            return Foreseen(drafted, None, why, bool(unread), found, over)
        standing = (*self._standing(drafted.job), *(overriding(one, one.rule) for one in over))
        book = self._scanner.book.overruled(standing)
        return Foreseen(drafted, self.consultant.preview(drafted, records, _PREVIEW, book), "", False, found, over)

    def _require_of_job(self, job: str, named: Sequence[str]) -> None:
        """Refuse nodes on which a job did not run, if its nodes are known."""
        nodes = self.watch.nodes_of(job)
        if odd := next((node for node in named if nodes and not is_among(node, nodes)), None):
            cause = f"{job} did not run on it"
            raise ConfirmationRefused(f"node {ascii(odd)[:80]}", cause, "Name a node of the job, or report its nodes.")

    def _objections(self, said: NewConfirmation, records: Sequence[Record]) -> Objections:
        """Return the shipped rules that contradict what is said of an attempt."""
        claim = full_claim(said.reason, said.fault, said.recovery, said.suggestion)
        named = (said.evidence[0].stream, said.evidence[0].line) if said.evidence else None
        wanted = Claim(claim.reason, "cause", claim.recovery, claim.fault)
        return objections(records, self._scanner.book, self._standing(said.job), wanted, named)

    def _standing(self, job: str) -> tuple[OverrideRule, ...]:
        return self._overruling.book(self._scanner.book, job).in_force

    def kind(self, job: str) -> str:
        """Return the kind of a job as overrides name it; "" when it has nothing that other jobs share."""
        return self._overruling.kind(job)

    def _at_hand(self, job: str, number: int) -> tuple[list[Record], str]:
        """Return the records of an attempt, or why getting them would take too long."""
        if records := self._revive(job, number):
            return records, ""
        size = sum(standing.next for standing in self._logs.streams(job, number).values())
        if size > _QUICK:
            return [], "its lines were not stored separately and its log is long: it is read again when you save"
        if self._intake.is_behind:
            raise Busy("the preview", "too many logs are coming in to read it now", "Try again in a minute.")
        return self.known(job, number), ""

    def withdraw(self, case: int, by: str, why: str) -> Confirmation:
        """Withdraw a confirmation, durably; `ConfirmationRefused`."""
        withdrawn = self.confirmed.withdraw(case, by, why, time.time())
        if self.consultant:
            self.consultant.wake()
        return withdrawn

    def ask(self, verdict: int) -> None:
        """Look an open failure up again, in the background; `ConfirmationRefused` if its verdict is not open."""
        stored = self._stored(verdict)
        if self.consultant is None or not stored.current or not is_open(stored.verdict):
            raise ConfirmationRefused(f"verdict {verdict}", "is already decided", "Choose an Unknown verdict.")
        self.consultant.ask(stored.job, stored.attempt)

    def ask_again(self) -> None:
        """Queue the open failures of the last day, except those that a model has answered."""
        if self.consultant is None:
            return
        waiting = self._work.keys((SETTLED, LOOK_UP, ASK))
        found = []
        for stored in self._records.every(Wanted("Unknown", outcomes=("failed",), since=time.time() - _ANEW)):
            asked = [one for one in self.exchanges.of(stored.job, stored.attempt) if one.purpose == DIAGNOSE]
            key = key_of(stored.job, stored.attempt)
            if stored.final and key not in waiting and (not asked or asked[-1].failure):
                found.append(NewWork(LOOK_UP, key))
        self._work.enter(found, time.time())

    def reread(self, job: str, number: int) -> Judged | None:
        """Read the archive of a settled attempt again; return its records with its current verdict."""
        if self._final(job, number) is None:
            return None
        scanner = self.rules_for(job)
        found = self.from_archive(job, number, scanner, ()) or self._revive(job, number)
        return self._judged(job, number, found, scanner.book) if found else None  # nothing of it is kept

    def rebuilt(self, job: str, number: int, lines: Sequence[Kept]) -> Judged | None:
        """The same as `reread`, from lines of the attempt that were kept."""
        scanner = self.rules_for(job)
        return self._judged(job, number, rebuilt(lines, scanner, f"{job}/{number}"), scanner.book)

    def _judged(self, job: str, number: int, found: Sequence[Record], book: RuleBook) -> Judged | None:
        """Return an attempt with its current verdict; None when that is not final."""
        current = self._final(job, number)
        if current is None:
            return None
        kept = self._records.attempt(job, number)
        reported = reported_by(kept.ends if kept is not None else ())
        return Judged(job, number, *self.watch.applied(job, found, book), current.verdict, reported)

    def _final(self, job: str, number: int) -> StoredVerdict | None:
        current = self._records.current(job, number)
        return current if current is not None and current.final else None

    def rules_for(self, job: str) -> Scanner:
        """Return the rules for jobs like this one: shipped ones and those learned of its kind."""
        return self._learner.agent.books.scanner(self._kind(job)) if self._learner else self._scanner

    def known(self, job: str, number: int) -> list[Record]:
        """Return the records of an attempt: from its kept lines, else its log, else what its verdict cites."""
        if found := self._revive(job, number) or self.from_archive(job, number, self._scanner, ()):
            return found
        stored = self._records.current(job, number)
        return rebuilt(cited(stored.verdict), self._scanner, f"{job}/{number}") if stored is not None else []

    def from_archive(self, job: str, number: int, scanner: Scanner, noticed: Sequence[NoticedLine]) -> list[Record]:
        """Read the streams of an attempt again, and return their records for diagnosis."""
        return recheck.records(self._views(job, number), job, number, scanner, noticed, self._wait)

    def gather(self, job: str, number: int, scanner: Scanner, leftovers: Leftovers) -> None:
        """Read an attempt again, and add the lines that no rule explains to the leftovers."""
        recheck.gather(self._views(job, number), scanner, leftovers, self._wait)

    def _views(self, job: str, number: int) -> dict[str, StreamView]:
        return {name: self._logs.view(Key(job, number, name)) for name in self._logs.streams(job, number)}

    def log_of(self, job: str, number: int) -> WholeLog:
        """Return the whole log of an attempt."""
        names = self._logs.streams(job, number)
        return WholeLog({name: partial(self._chunks, Key(job, number, name)) for name in names})

    def _chunks(self, key: Key) -> Iterator[bytes]:
        return self._logs.view(key).chunks()

    def upgrade(self, job: str, number: int, verdict: Verdict, unsure: Verdict) -> None:
        """Replace an unsure verdict, if it is still current and on the same lines. Protect the lines behind the new one
        from filter rules (law 2)."""

        def stands(current: Verdict) -> bool:
            same = current.compression.lines_in == unsure.compression.lines_in
            asked = (current.outcome, current.reason, current.decided_by) == (
                unsure.outcome,
                unsure.reason,
                unsure.decided_by,
            )
            return same and asked and self.confirmed.live(job, number) is None  # a person was quicker

        self.watch.reissue(job, number, verdict, of=stands)
        if self._learner is not None:
            self._learner.agent.handle((job, number), verdict, time.time())

    def rectify(self, confirmation: Confirmation) -> None:
        """Issue the verdict that a person corrected, with the lines they named."""
        job, number = confirmation.job, confirmation.attempt
        current = self._records.current(job, number)
        if current is None or not current.final or current.id != confirmation.verdict:
            return  # the corrected verdict is no longer current, or the correction is out already
        verdict = rectified(current.verdict, confirmation, self.known(job, number), self._scanner.book)
        self.watch.reissue(job, number, verdict)
        if self._learner is not None:
            self._learner.agent.handle((job, number), verdict, time.time())

    def reopen(self, reason: str, deciders: Collection[str]) -> None:
        """Re-judge attempts decided by withdrawn cases or rules, if their logs still exist."""
        for stored in self._records.every(Wanted(reason=reason, outcomes=("failed",))):
            if stored.verdict.decided_by.rule in deciders:
                self._judge_anew(stored.job, stored.attempt)

    def protect(self, lines: Sequence[str], where: str) -> None:
        """Keep filter rules off lines that name the cause of a failure."""
        if self._learner is not None and lines:
            self._learner.agent.protect(lines, where, time.time())

    def _stored(self, verdict: int) -> StoredVerdict:
        stored = self._records.verdict(verdict)
        if stored is None:
            raise ConfirmationRefused(f"verdict {verdict}", "does not exist", "List the verdicts.")
        return stored

    def _raw_line(self, job: str, number: int, stream: str, line: int) -> str | None:
        """Return a raw line of an attempt; None when it is gone or never existed."""
        try:
            there = line > 0 and stream in self._logs.streams(job, number)
            lines = self._logs.lines(Key(job, number, stream), line, line, 1 << 20).lines if there else []
        except LogdoctorError:
            return None
        return decode(lines[0]) if lines else None

    def _kind(self, job: str) -> str:
        known = self._records.job(job)
        return kind_of(job, known.facts if known else JobFacts())

    def _revive(self, job: str, number: int) -> list[Record]:
        past = self.confirmed.kept(job, number)
        return rebuilt(past.lines, self._scanner, f"{job}/{number}") if past is not None else []

    def _judge_anew(self, job: str, number: int) -> None:
        kept = self._records.attempt(job, number)
        if kept is None or kept.deleted is not None:
            return
        if kept.settled:
            self._records.reopen(job, number)
        self._intake.wish(job, number, ANEW)

    def _wait(self) -> None:
        """Wait until the watch has caught up with the log; `Busy` when the service is stopping."""
        while self.stopping or self._intake.is_behind:
            if self.stopping:
                raise Busy("reading the archive", "the service is stopping", "Start it again.")
            time.sleep(0.1)  # nothing signals that it has caught up
