"""The list of rules, shipped and learned: filters in its URL, and the page."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from logdoctor.rules.load import RuleBook
from logdoctor.rules.schema import Claim, FilterRule, Rule
from logdoctor.store.learning.learned import Learned, LearnedRules
from logdoctor.store.learning.rule_totals import RuleTotals, Total
from logdoctor.web.url_query import PAGE, ListQuery, Text

STATES = ("waiting", "active", "shadow", "retired", "all")
"""The tabs; `waiting` rules need a person's approval."""

_PATTERN = 300  # characters of a pattern in a list
_ORDER = {"waiting": 0, "proposed": 1, "shadow": 2, "active": 3, "retired": 4}


class RuleFilters(ListQuery):
    """The query of the list's URL."""

    path = "/rules"

    state: Literal["waiting", "active", "shadow", "retired", "all"] | None = None
    kind: Literal["filter", "diagnosis"] | None = None
    source: Literal["shipped", "learned"] | None = None
    q: Text = None
    page: int = Field(default=1, ge=1, le=100_000)

    @property
    def narrow(self) -> bool:
        """Return whether any filter beside the state is set."""
        return any((self.kind, self.source, self.q))


class RuleRow(NamedTuple):
    """A rule in the list. `says` is the reason or outcome of a diagnosis rule, `words` the text that searches use;
    `job` is the job that a learned rule comes from."""

    id: str
    kind: str
    status: str
    waits: bool
    learned: bool
    title: str
    says: str
    jobs: str
    pattern: str
    patterns: int
    job: str | None
    words: str


class Numbers(NamedTuple):
    """The use of a rule: numbers of attempts and lines, and when last (None: never)."""

    attempts: int
    lines: int
    last: float | None


class ListedRule(NamedTuple):
    """A row with its numbers (None if hidden from this caller), and any learned rule."""

    row: RuleRow
    numbers: Numbers | None
    rule: Learned | None


class RuleListing(NamedTuple):
    """A page of rules, their total, and the totals by other filters."""

    items: list[ListedRule]
    state: str
    total: int
    pages: int
    states: Counter[str]
    kinds: Counter[str]
    sources: Counter[str]


class Catalogue:
    """All rules of a service in list order. Learned rules are read again when one of them changed; their numbers are
    read for each page."""

    def __init__(self, book: RuleBook, rules: LearnedRules, totals: RuleTotals) -> None:
        self._rules, self._totals = rules, totals
        shipped: tuple[Rule, ...] = (*book.diagnoses, *book.filters)
        self._shipped = [_shipped_row(rule) for rule in shipped]
        self._reading = threading.Lock()
        self._known: tuple[int, list[RuleRow]] = (-1, [])

    def listing(self, filters: RuleFilters, sees: Callable[[str | None], bool], sees_all: bool) -> RuleListing:
        """Return the page for the filters, without learned rules that the caller may not see. The numbers of shipped
        rules cover all jobs, and need `sees_all`."""
        rows = [row for row in self._learned() if sees(row.job)] + self._shipped
        if filters.q:
            rows = _with_words(rows, filters.q)
        states: Counter[str] = Counter()
        for row in _where(rows, filters.kind, filters.source):
            states.update(_states(row))
        state = filters.state or ("waiting" if states["waiting"] else "all")
        of_state = [row for row in rows if state in _states(row)]
        found = _where(of_state, filters.kind, filters.source)
        found.sort(key=lambda row: _ORDER["waiting" if row.waits else row.status] if row.learned else 5)
        chosen = found[(filters.page - 1) * PAGE : filters.page * PAGE]
        return RuleListing(
            self._shown(chosen, sees_all),
            state,
            len(found),
            max(1, -(-len(found) // PAGE)),
            states,
            Counter(row.kind for row in _where(of_state, None, filters.source)),
            Counter(_source(row) for row in _where(of_state, filters.kind, None)),
        )

    def _shown(self, rows: Sequence[RuleRow], sees_all: bool) -> list[ListedRule]:
        learned = self._rules.some([row.id for row in rows if row.learned])
        totals = self._totals.all() if sees_all else None
        return [_shown(row, learned.get(row.id), totals) for row in rows]

    def _learned(self) -> list[RuleRow]:
        """Return the learned rules, newest first."""
        with self._reading:
            version = self._rules.version()
            if version != self._known[0]:
                every = sorted(self._rules.list(), key=lambda rule: (rule.created, rule.place), reverse=True)
                self._known = version, [_learned_row(rule) for rule in every]
            return self._known[1]


def numbers_of(rule: Learned) -> Numbers:
    """Return the numbers of a learned rule, including its time in shadow."""
    return Numbers(rule.jobs, rule.lines, rule.last_hit)


def numbers_in(totals: dict[str, Total], id: str) -> Numbers:
    """Return the numbers of a shipped rule in current verdicts."""
    total = totals.get(id)
    return Numbers(total.attempts, total.lines, total.last) if total else Numbers(0, 0, None)


def patterns_of(rule: Rule) -> tuple[str, ...]:
    """Return a shipped rule's patterns; one of them must match."""
    return rule.patterns if isinstance(rule, FilterRule) else rule.when.any


def _shown(row: RuleRow, rule: Learned | None, totals: dict[str, Total] | None) -> ListedRule:
    if rule is not None:
        return ListedRule(row, numbers_of(rule), rule)
    return ListedRule(row, None if totals is None else numbers_in(totals, row.id), None)


def _where(rows: Iterable[RuleRow], kind: str | None, source: str | None) -> list[RuleRow]:
    return [row for row in rows if kind in (None, row.kind) and source in (None, _source(row))]


def _with_words(rows: Iterable[RuleRow], text: str) -> list[RuleRow]:
    words = text.lower().split()
    return [row for row in rows if all(word in row.words for word in words)]


def _states(row: RuleRow) -> tuple[str, ...]:
    """Return the tabs of a rule; a proposed one is among those that wait."""
    return ("all", row.status, "waiting") if row.waits else ("all", row.status)


def _source(row: RuleRow) -> str:
    return "learned" if row.learned else "shipped"


def _learned_row(rule: Learned) -> RuleRow:
    says = rule.claim.reason if rule.claim else ""
    return RuleRow(
        rule.id,
        "filter" if rule.claim is None else "diagnosis",
        rule.status,
        rule.waits,
        True,
        rule.title,
        says,
        rule.kind if rule.claim is None else "",
        rule.pattern[:_PATTERN],
        1,
        rule.source.job,
        "\n".join((rule.id, rule.title, rule.pattern, rule.kind, says, rule.agent, rule.source.job or "")).lower(),
    )


def _shipped_row(rule: Rule) -> RuleRow:
    patterns = patterns_of(rule)
    says = "" if isinstance(rule, FilterRule) else _claimed(rule.verdict)
    pattern = patterns[0][:_PATTERN] if patterns else ""
    words = "\n".join((rule.id, rule.title, *patterns, says)).lower()
    kind = "filter" if isinstance(rule, FilterRule) else "diagnosis"
    waits = rule.status == "proposed"
    return RuleRow(rule.id, kind, rule.status, waits, False, rule.title, says, "", pattern, len(patterns), None, words)


def _claimed(claim: Claim) -> str:
    return claim.reason or claim.outcome or (f"by the table {claim.lookup}" if claim.lookup else "")
