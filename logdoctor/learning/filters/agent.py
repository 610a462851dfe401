"""The Log Agent of one service: when it works, what it is shown, and what its answers lead to.

It never works while lines come in: callers hand it groups of unexplained lines and settled attempts when they have
time, and fetch the resulting scanners.
"""

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import regex
import structlog

from logdoctor.errors import ModelError, RuleRefused
from logdoctor.learning import steps
from logdoctor.learning.filters import life
from logdoctor.learning.filters.book import Books
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.learning.filters.kind import like
from logdoctor.learning.filters.lesson import FilterLesson, lesson
from logdoctor.learning.filters.proposal import Agent
from logdoctor.learning.filters.sample import REPEATS, sample
from logdoctor.llm.masking import mask
from logdoctor.store.learning.learned import LearnedRules, NewRule, Source
from logdoctor.store.learning.noticed import Noticed
from logdoctor.store.learning.refusals import Refused
from logdoctor.types import ShapeGroup, Verdict

log = structlog.get_logger()

_FIRST, _ENOUGH, _ENOUGH_AT_END = 40, 500, 50
_SHARE, _SHARE_AT_END, _SHARE_LATER = 0.02, 0.002, 0.05
_WARNS = regex.compile(r"(?i)warn")
_HOUR = 3600.0
_REST = 60.0  # seconds without advice after a model failed to answer
_CARRIED = 2000
"""Groups per kind that wait for a second attempt to show them."""
_KINDS = 500
"""Kinds with waiting groups; the most recently taught stays longest. Jobs without facts create no further kinds."""
_ALIKE, _SHARE_ALIKE = 8, 0.5
"""Least number of forms that a log of unstated kind shares with a kind's, and their share."""
_FEW_ALIKE, _MANY_ALIKE, _NEARLY_ALL = 3, 32, 0.8
"""Few forms are enough if nearly all are shared; many shared forms override a stated kind."""


class Left(NamedTuple):
    """What no rule explains in an attempt: lines since the last lesson, how many of them are unexplained and repeat,
    lessons so far, and whether the agent knew lines of such jobs before."""

    lines_in: int
    unexplained: float
    lessons: int
    taught: bool


class LearningLimits(NamedTuple):
    """Runs per sample, lessons per attempt (also of a free agent) and per hour, and how long rules are watched."""

    runs: int
    terms: life.WatchTerms
    lessons: int = 4
    free_lessons: int = 12
    lessons_per_hour: int = 120


class LogAgent:
    """Learns filter rules. One thread may learn while another settles; any thread may use `books`.

    An `adviser` is shown only lines that repeat and that the `agent` made no rule of, each form once.
    """

    def __init__(
        self,
        books: Books,
        rules: LearnedRules,
        agent: Agent,
        guards: FilterGuards,
        limits: LearningLimits,
        adviser: Agent | None = None,
    ) -> None:
        self.books, self.agent, self.adviser = books, agent, adviser
        self._rules, self._guards, self._limits = rules, guards, limits
        self._known: dict[str, set[int]] = {}
        self._shown: dict[str, set[int]] = {}
        self._carried: dict[str, dict[int, ShapeGroup]] = {}
        self._checked: set[str] = set()
        self._checked_version = -1
        self._advised_from = 0.0
        self._begun: deque[float] = deque(maxlen=limits.lessons_per_hour)
        self.stopping = False
        """Set from another thread: a lesson is abandoned between two calls, and nothing of it is entered."""
        self.lessons = 0
        """Lessons since the start; each asks the agent `runs` times and its judge."""

    @property
    def enough(self) -> int:
        """Return how many lines of one attempt a rule must match before it takes any."""
        return self._limits.terms.lines

    def refresh(self) -> None:
        """Load changes by others. A rule new in shadow or active that takes a line of a cause or of past evidence is
        retired (law 2)."""
        self.books.refresh()
        if self.books.version == self._checked_version:
            return
        self._checked_version = self.books.version
        alive = {rule.patterns[0]: rule for rule in self.books.alive()}
        self._checked &= alive.keys()
        fresh = [pattern for pattern in alive if pattern not in self._checked]
        harmful = self._guards.evidence_taken(fresh)
        for pattern, line in harmful.items():
            life.retire(
                self._rules, alive[pattern], f"removes a line that states a cause: {mask(line)[:200]}", time.time()
            )
        self._checked.update(set(fresh) - harmful.keys())
        if harmful:
            self.books.refresh()

    def known(self, kind: str) -> set[int]:
        """Return the shapes of a kind's lines that were shown before; it grows while lessons run."""
        if kind not in self._known:
            self._known[kind] = self._rules.shapes.seen(kind)
        return self._known[kind]

    def knows(self, kind: str) -> bool:
        """Return whether anything was learned for a kind."""
        return bool(self.books.scanner(kind).book.learned)

    def recognised(self, kind: str, groups: Sequence[ShapeGroup]) -> str:
        """Return a job's kind by the look of its log, unless its stated kind is known. That is the kind whose jobs also
        printed most of these groups, else the stated one. Overriding a stated kind takes many shared groups."""
        shapes = {group.shape for group in groups}
        if self.knows(kind) or len(shapes) < _FEW_ALIKE:
            return kind
        many, most = (_MANY_ALIKE, _NEARLY_ALL) if kind else (_ALIKE, _SHARE_ALIKE)
        printed = self._rules.shapes.printed(shapes)
        alike = {
            other: count
            for other, count in printed.items()
            if count >= max(many, most * len(shapes)) or (not kind and count >= _NEARLY_ALL * len(shapes))
        }
        return max(alike, key=lambda other: (alike[other], other == kind, other), default=kind)

    def new_kind(self, job: str, groups: Sequence[ShapeGroup]) -> str:
        """Return a new kind for a job of unstated kind that looks like no other; "" when there are too many kinds, or
        too few of its lines repeat."""
        again = sum(group.lines for group in groups if group.lines >= REPEATS)
        return like(job) if again >= _FIRST and len(self.books.kinds) < _KINDS else ""

    def noticed(self, job: str, attempt: int) -> list[Noticed]:
        """Return the error lines that were noticed in an attempt."""
        return self._rules.noticed.of(job, attempt)

    def has_room(self, lessons: int) -> bool:
        """Return whether an attempt with that many lessons may have another one now."""
        now = time.monotonic()
        full = len(self._begun) == self._limits.lessons_per_hour and now - self._begun[0] < _HOUR
        return lessons < (self._limits.free_lessons if self.agent.free else self._limits.lessons) and not full

    def is_due(self, left: Left, over: bool) -> bool:
        """Return whether what no rule explains is worth a lesson.

        The first comes soon, so that the rest of the same log shrinks, and each later one after twice as many lines. A
        free agent is also asked at the end of each attempt. From a kind's second job on, a model's lesson must promise
        much, because later jobs should cost nothing.
        """
        if over and self.agent.free:
            return True
        enough, share = (_ENOUGH_AT_END, _SHARE_AT_END) if over else (min(_FIRST << left.lessons, _ENOUGH), _SHARE)
        if left.taught and not self.agent.free:
            enough, share = _ENOUGH, _SHARE_LATER
        return left.unexplained >= max(enough, share * left.lines_in)

    def learn(self, kind: str, attempt: tuple[str, int], groups: Sequence[ShapeGroup], source: Source) -> list[Noticed]:
        """Show a sample of the groups to the agent and enter the results; return noticed error lines.

        A group that was shown twice, or in a settled attempt, is known from then on, whatever was said of it (at first
        there may have been too few lines to tell); with an adviser, a group that the adviser was shown. `ModelError`
        when the agent does not answer: then nothing changed. An adviser that does not answer is left alone for a while.
        """
        self._rules.shapes.add_printed(kind, [group.shape for group in groups])
        open_groups = self._with_carried(kind, self._unexplained(kind, groups))
        noticed, shapes = self._lesson(kind, attempt, open_groups, self.agent, source)
        before = self._shown.setdefault(kind, set())
        if self.adviser is None:
            self._remember(kind, before.intersection(shapes))
        before.update(shapes)
        return noticed + self._advice(kind, attempt, groups, source)

    def _advice(
        self, kind: str, attempt: tuple[str, int], groups: Sequence[ShapeGroup], source: Source
    ) -> list[Noticed]:
        """Show the adviser what the agent made no rule of, if that is enough."""
        if self.adviser is None or self.stopping or time.monotonic() < self._advised_from:
            return []
        left = [group for group in self._unexplained(kind, groups) if group.lines >= REPEATS]
        if sum(group.lines for group in left) < _FIRST:
            return []
        try:
            noticed, shapes = self._lesson(kind, attempt, left, self.adviser, source)
        except ModelError as error:
            self._advised_from = time.monotonic() + _REST
            log.warning("no advice", kind=kind, job=attempt[0], cause=str(error))
            return []
        self._remember(kind, shapes)
        return noticed

    def _lesson(
        self, kind: str, attempt: tuple[str, int], groups: Sequence[ShapeGroup], agent: Agent, source: Source
    ) -> tuple[list[Noticed], list[int]]:
        """Have an agent learn from a sample of groups; return the error lines it noticed, and the shapes it was
        shown."""
        shown, shapes = sample(kind, *attempt, groups, agent.room, agent.groups)
        if not shapes:
            return [], []
        self._begun.append(time.monotonic())
        self.lessons += 1
        live = {rule.pattern for rule in self._rules.list(kind)}
        learned = lesson(shown, agent, self._limits.runs, self._guards, live, source, stopped=lambda: self.stopping)
        if self.stopping:
            return [], []
        self._enter(kind, attempt, learned, agent)
        return learned.noticed, shapes

    def _unexplained(self, kind: str, groups: Sequence[ShapeGroup]) -> list[ShapeGroup]:
        """Return the groups that no rule learned since they were collected matches."""
        scanner = self.books.scanner(kind)
        learned = {pattern for rule in scanner.book.learned for pattern in rule.patterns}
        if not learned:
            return list(groups)
        found = []
        matching = iter(scanner.matching([text for group in groups for _, _, text in group.examples]))
        for group in groups:
            examples = tuple(one for one in group.examples if next(matching).isdisjoint(learned))
            if examples:
                found.append(group._replace(examples=examples))
        return found

    def carry(self, kind: str, groups: Sequence[ShapeGroup]) -> None:
        """Keep groups of an attempt that hardly repeat: another attempt of the kind may show them again. A single
        warning does not become routine, however many attempts print it."""
        known = self._carried.pop(kind, {})
        seldom = {
            group.shape: group
            for group in self._unexplained(kind, groups)
            if group.lines < REPEATS and not any(_WARNS.search(text) for _, _, text in group.examples)
        }
        self._carried[kind] = dict(list((known | seldom).items())[-_CARRIED:])
        while len(self._carried) > _KINDS:
            self._carried.pop(next(iter(self._carried)))

    def _with_carried(self, kind: str, groups: Sequence[ShapeGroup]) -> list[ShapeGroup]:
        """Return the groups; one that another attempt of the kind also had counts as repeating."""
        carried = self._carried.get(kind, {})
        found = []
        for group in groups:
            before = carried.get(group.shape)
            if before is not None and group.lines < REPEATS:
                group = group._replace(lines=REPEATS, examples=group.examples + before.examples)
            found.append(group)
        return sorted(found, key=lambda group: (-group.lines, group.shape))

    def earn(self, kind: str, lines: Mapping[str, int]) -> None:
        """Promote rules in shadow that matched enough lines in one attempt; `lines` has the count of each."""
        earned = [rule_id for rule_id, count in lines.items() if count >= self.enough]
        why = f"matched {self.enough} lines of one attempt, none of them evidence"
        self._promote(kind, earned, why)

    def any_young(self, kind: str, rule_ids: Collection[str]) -> bool:
        """Return whether one of some rules was seen in too few attempts to be trusted."""
        enough = max(self._limits.terms.jobs, 1)
        young = {rule.id for rule in self._rules.list(kind, "active") if rule.jobs < enough}
        return not young.isdisjoint(rule_ids)

    def trust(self, kind: str, attempt: tuple[str, int]) -> None:
        """Promote the rules learned from an attempt that ended well."""
        mine = [
            rule.id for rule in self._rules.list(kind, "shadow") if (rule.source.job, rule.source.attempt) == attempt
        ]
        self._promote(kind, mine, f"learned from {attempt[0]}/{attempt[1]}, which ended well")

    def _promote(self, kind: str, ids: Collection[str], why: str) -> None:
        """Promote those of some rules that are in shadow, unless only people may."""
        if self._limits.terms.jobs and life.promote(self._rules, kind, ids, why, time.time()):
            self.books.refresh()

    def _remember(self, kind: str, shapes: Collection[int]) -> None:
        """Never show lines of these shapes again."""
        if shapes:
            self._rules.shapes.add_seen(kind, shapes)
            self.known(kind).update(shapes)

    def settle(
        self,
        kind: str,
        attempt: tuple[str, int],
        hits: Mapping[str, tuple[int, int]],
        verdict: Verdict,
        ended_well: bool,
        at: float,
    ) -> None:
        """Enter learned rules' hits in an attempt, and what its verdict means for them.

        A failure of unknown cause, or an unknown end, proves no rule harmless, unless the job is known to have
        `ended_well` and only its log says nothing.
        """
        self.handle(attempt, verdict, at)
        if not kind:  # nothing is learned from such jobs
            return
        if (verdict.reason == "Unknown" or verdict.outcome == "unknown") and not ended_well:
            hits = {}
        shown = self._shown.pop(kind, set())
        if not self.agent.free:
            self._remember(kind, shown)
        if life.count(self._rules, kind, attempt, hits, self._limits.terms, at):
            self.books.refresh()
        if ended_well or verdict.outcome == "completed":
            self.earn(kind, {rule: self.enough for rule, (matched, _) in hits.items() if matched})
            self.trust(kind, attempt)

    def handle(self, attempt: tuple[str, int], verdict: Verdict, at: float) -> None:
        """Protect the lines that a verdict rests on from all rules (law 2)."""
        self.protect(life.quotes(verdict.evidence), f"{attempt[0]}/{attempt[1]}", at)

    def protect(self, lines: Sequence[str], where: str, at: float) -> None:
        """Protect these lines, which show a failure's cause, from all present and later rules."""
        self._guards.remember(lines)
        if retired := life.retire_what_matches(self._rules, self.books, lines, where, at):
            self._checked -= {pattern for rule in retired for pattern in rule.patterns}
            self.books.refresh()

    def demote(self, rule_ids: Sequence[str], why: str, at: float) -> None:
        """Demote rules to shadow that took what a verdict needed."""
        life.demote(self._rules, rule_ids, why, at)
        self.books.refresh()

    def _add(self, rules: Sequence[NewRule], why: str, at: float) -> None:
        """Enter rules; if the kind has no room for all, as many as fit."""
        try:
            self._rules.add(rules, steps.BY, at, why=why)
        except RuleRefused as error:
            if len(rules) == 1:
                log.warning("rule not entered", kind=rules[0].kind, cause=str(error))
                return
            for rule in rules:
                self._add([rule], why, at)

    def _enter(self, kind: str, attempt: tuple[str, int], learned: FilterLesson, agent: Agent) -> None:
        now = time.time()
        refused = [Refused(one.pattern, one.guard, one.cause, votes) for one, votes in learned.refused]
        self._rules.refusals.add(kind, *attempt, agent.name, refused, now)
        if learned.noticed:
            self._rules.noticed.add(*attempt, kind, learned.noticed)
        self._add(learned.rules, f"learned from {attempt[0]}/{attempt[1]}", now)
        self.books.refresh()
        log.info(
            "lesson",
            kind=kind,
            job=attempt[0],
            agent=agent.name,
            rules=len(learned.rules),
            refused=len(refused),
            failures=len(learned.failures),
        )
