"""The whole way of a lesson and of a settled attempt, with the real rules, store and guards."""

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from logdoctor.compress.cut import cut
from logdoctor.compress.filter import compress
from logdoctor.compress.leftovers import Leftovers
from logdoctor.errors import LogdoctorError, ModelUnavailable
from logdoctor.learning.filters.agent import LearningLimits, Left, LogAgent
from logdoctor.learning.filters.book import Books
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.learning.filters.life import WatchTerms
from logdoctor.learning.filters.miner import Miner
from logdoctor.rules.scanner import Scanner
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.types import Compression, DecidedBy, Evidence, Progress, ShapeGroup, Verdict
from tests.log_agent.samples import KIND, SOURCE, Told, said

LIMITS = LearningLimits(3, WatchTerms(2, 20))
STEP = r"^the gizmo number \d+ turns$"
NO = ModelUnavailable("the model", "does not answer", "Wait.")


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    opened = Records(f"sqlite:///{tmp_path}/records.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def rules(records: Records) -> LearnedRules:
    return LearnedRules(records.database)


@pytest.fixture
def own_guards(cause_lines: tuple[str, ...]) -> FilterGuards:
    """FilterGuards that a test may tell of evidence."""
    return FilterGuards(cause_lines)


def agent_of(
    scanner: Scanner, rules: LearnedRules, guards: FilterGuards, agent: object, limits: LearningLimits = LIMITS
) -> LogAgent:
    return LogAgent(Books(scanner, rules), rules, agent, guards, limits)  # type: ignore[arg-type]


Made = Callable[..., LogAgent]


@pytest.fixture
def made(scanner: Scanner, rules: LearnedRules, guards: FilterGuards) -> Made:
    """Makes an agent of whoever proposes rules."""
    return partial(agent_of, scanner, rules, guards)


def groups(word: str = "gizmo", lines: int = 900, shape: int = 1) -> list[ShapeGroup]:
    return [ShapeGroup(shape, lines, tuple(("main", n, f"the {word} number {n} turns") for n in range(1, 13)))]


def verdict(*quotes: str, rule: str = "diagnosis/x") -> Verdict:
    evidence = tuple(Evidence("f", "main", n, quote, rule) for n, quote in enumerate(quotes, 1))
    return Verdict(
        *("CUDA Error", "Infrastructure", "infrastructure", "restart", "failed", 0.9, "look", evidence, (), None, ()),
        DecidedBy("rule", rule), "print", Progress(), Compression(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lines_in", "unexplained", "lessons", "over", "taught", "due"),
    [
        (1000, 40, 0, False, False, True),
        (1000, 39, 0, False, False, False),
        (1000, 79, 1, False, False, False),
        (1000, 80, 1, False, False, True),
        (1000, 500, 9, False, False, True),
        (1000, 49, 0, True, False, False),
        (1000, 50, 0, True, False, True),
        (1000, 50, 0, True, True, False),
        (10**6, 500, 0, False, False, False),
        (10**6, 20_000, 0, False, False, True),
        (10**6, 20_000, 0, False, True, False),
        (10**6, 10**6, 0, False, True, True),
        (0, 0, 0, True, False, False),
    ],
)
def test_when_a_lesson_is_due(
    made: Made, lines_in: int, unexplained: float, lessons: int, over: bool, taught: bool, due: bool
) -> None:
    agent = made(Told())
    assert agent.is_due(Left(lines_in, unexplained, lessons, taught), over) == due


def test_what_costs_nothing_is_asked_at_the_end_of_each_job(made: Made) -> None:
    agent = made(Miner())
    assert agent.is_due(Left(1000, 1, 3, True), True) and agent.is_due(Left(1000, 40, 0, True), False)


def test_a_rule_takes_lines_when_one_attempt_has_shown_it_enough(made: Made, rules: LearnedRules) -> None:
    agent = made(Told(*[said(STEP)] * 3))
    agent.learn(KIND, ("job-1", 1), groups(), SOURCE)
    (rule,) = rules.list(KIND)
    agent.earn(KIND, {rule.id: 19})
    assert rules.one(rule.id).status == "shadow"
    agent.earn(KIND, {rule.id: 20})
    assert rules.one(rule.id).status == "active"
    agent.demote([rule.id], "it took what a verdict needed", 3.0)
    agent.earn(KIND, {rule.id: 500})
    assert rules.one(rule.id).status == "shadow", "it stays until a human approves it"


def test_only_people_make_rules_active_where_they_wish_so(made: Made, rules: LearnedRules) -> None:
    agent = made(Told(*[said(STEP)] * 3), LearningLimits(3, WatchTerms(0, 20)))
    agent.learn(KIND, ("job-1", 1), groups(), SOURCE)
    (rule,) = rules.list(KIND)
    agent.earn(KIND, {rule.id: 500})
    for number in range(1, 4):
        agent.settle(KIND, (f"job-{number}", 1), {rule.id: (500, 0)}, verdict(), True, 2.0)
    assert rules.one(rule.id).status == "shadow"


def test_what_a_job_that_ended_well_taught_serves_the_next(made: Made, rules: LearnedRules) -> None:
    agent = made(Told(*[said(STEP)] * 3))
    agent.learn(KIND, ("job-1", 1), groups(), SOURCE)
    agent.settle(KIND, ("job-2", 1), {}, verdict(), True, 2.0)
    assert [rule.status for rule in rules.list(KIND)] == ["shadow"], "learned from another attempt, and not seen here"
    agent.settle(KIND, ("job-1", 1), {}, verdict(), False, 3.0)
    assert [rule.status for rule in rules.list(KIND)] == ["shadow"], "that one failed"
    agent.settle(KIND, ("job-1", 1), {}, verdict(), True, 4.0)
    assert [rule.status for rule in rules.list(KIND)] == ["active"]


def test_a_line_that_comes_again_in_another_attempt_repeats(made: Made, rules: LearnedRules) -> None:
    agent = made(Miner(), LearningLimits(5, WatchTerms(2, 20)))
    once = [ShapeGroup(7, 1, (("main", 3, "the vault of gizmos opens at 7 today"),))]
    agent.learn(KIND, ("job-1", 1), once, SOURCE)
    assert rules.list(KIND) == []
    agent.carry(KIND, once)
    again = [ShapeGroup(7, 1, (("main", 4, "the vault of gizmos opens at 9 today"),))]
    agent.learn(KIND, ("job-2", 1), again, SOURCE)
    (rule,) = rules.list(KIND)
    assert re.fullmatch(rule.pattern, "the vault of gizmos opens at 12 today")


def test_a_lesson_enters_rules_in_shadow_and_its_lines_are_known(made: Made, rules: LearnedRules) -> None:
    agent = made(Told(*[said(STEP, "^.*$")] * 3))
    assert agent.learn(KIND, ("job-1", 1), groups(), SOURCE) == []
    (rule,) = rules.list(KIND)
    assert (rule.pattern, rule.status, rule.jobs, rule.lines) == (STEP, "shadow", 1, 900)
    assert rule.source == SOURCE and rules.events(rule.id)[0].why == "learned from job-1/1"
    assert [refusal.pattern for refusal in rules.refusals.list(KIND)] == ["^.*$"]
    assert agent.lessons == 1
    assert [one.id for one in agent.books.scanner(KIND).book.learned] == [rule.id], "streams get it at once"


def test_what_was_shown_twice_or_to_the_end_is_known(made: Made, rules: LearnedRules) -> None:
    agent = made(Told(*[said()] * 3))
    agent.learn(KIND, ("job-1", 1), groups(shape=1), SOURCE)
    assert agent.known(KIND) == set(), "there may have been too few lines to tell"
    agent.learn(KIND, ("job-1", 1), [*groups(shape=1), *groups(shape=2)], SOURCE)
    assert agent.known(KIND) == {1} == rules.shapes.seen(KIND)
    agent.settle(KIND, ("job-1", 1), {}, verdict(), True, 2.0)
    assert agent.known(KIND) == {1, 2} == rules.shapes.seen(KIND) and agent.known("other/kind") == set()
    again = made(Told())
    assert again.known(KIND) == {1, 2}


def test_a_model_that_does_not_answer_changes_nothing(made: Made, rules: LearnedRules) -> None:
    agent = made(Told(said(STEP), NO, NO))
    with pytest.raises(ModelUnavailable):
        agent.learn(KIND, ("job-1", 1), groups(), SOURCE)
    assert rules.list() == [] and agent.known(KIND) == set() == rules.shapes.seen(KIND)


def test_a_lesson_that_was_stopped_changes_nothing(made: Made, rules: LearnedRules) -> None:
    agent = made(Told(*[said(STEP)] * 3))
    agent.stopping = True
    with pytest.raises(LogdoctorError):
        agent.learn(KIND, ("job-1", 1), groups(), SOURCE)
    assert rules.list() == [] and agent.known(KIND) == set()


def test_nothing_to_show_asks_nobody(made: Made) -> None:
    told = Told()
    agent = made(told)
    assert agent.learn(KIND, ("job-1", 1), [], SOURCE) == [] and told.asked == [] and agent.lessons == 0


def test_a_retired_rule_is_not_learned_again(made: Made, rules: LearnedRules) -> None:
    agent = made(Told(*[said(STEP)] * 3))
    agent.learn(KIND, ("job-1", 1), groups(), SOURCE)
    (rule,) = rules.list(KIND)
    rules.retire(rule.id, "a person", "no", 2.0)
    agent.books.refresh()
    agent.learn(KIND, ("job-2", 1), groups(shape=2), SOURCE)
    assert [(one.id, one.status) for one in rules.list(KIND)] == [(rule.id, "retired")]
    assert rules.refusals.list(KIND)[0].guard == "duplicate"


def test_noticed_lines_are_kept(made: Made, rules: LearnedRules) -> None:
    agent = made(Told(*[said(STEP, errors=[3])] * 3))
    (noticed,) = agent.learn(KIND, ("job-1", 1), groups(), SOURCE)
    assert (noticed.line, noticed.text) == (4, "the gizmo number 4 turns")
    assert rules.noticed.of("job-1", 1) == [noticed] and rules.list() == []


def test_a_full_kind_is_not_asked_about_for_ever(scanner: Scanner, records: Records, guards: FilterGuards) -> None:
    """When no more rules can be entered, a model must not be paid again for the same lines."""
    rules = LearnedRules(records.database, most=1)
    agent = agent_of(scanner, rules, guards, Told(*[said(STEP, r"^the widget number \d+ turns$")] * 3))
    both = [*groups(), *groups("widget", 800, 2)]
    for _ in range(2):
        with contextlib.suppress(LogdoctorError):
            agent.learn(KIND, ("job-1", 1), both, SOURCE)
    assert 2 in agent.known(KIND) and len(rules.list(KIND)) == 1


def test_lessons_are_few_for_an_attempt_and_an_hour(made: Made) -> None:
    limits = LIMITS._replace(lessons=3, lessons_per_hour=2)
    agent = made(Told(*[said()] * 3), limits)
    assert [agent.has_room(lessons) for lessons in (0, 2, 3)] == [True, True, False]
    for shape in (1, 2):
        agent.learn(KIND, ("job-1", 1), groups(shape=shape), SOURCE)
    assert not agent.has_room(0)


def test_settled_attempts_make_a_rule_active_and_streams_get_it(made: Made, rules: LearnedRules) -> None:
    agent = made(Told(*[said(STEP)] * 3))
    agent.learn(KIND, ("job-1", 1), groups(lines=15), SOURCE)
    (rule,) = rules.list(KIND)
    agent.settle(KIND, ("job-1", 1), {rule.id: (15, 0)}, verdict(), False, 2.0)
    assert rules.one(rule.id).status == "shadow"
    agent.settle(KIND, ("job-2", 1), {rule.id: (5, 0)}, verdict("something else"), False, 3.0)
    assert rules.one(rule.id).status == "active"
    assert agent.books.scanner(KIND).book.learned[0].status == "active"
    agent.demote([rule.id], "took what a verdict needs", 4.0)
    assert agent.books.scanner(KIND).book.learned[0].status == "shadow"


@pytest.mark.parametrize(("reason", "outcome"), [("Unknown", "failed"), ("None", "unknown")])
def test_where_nobody_knows_what_happened_no_rule_is_shown_to_be_harmless(
    made: Made, rules: LearnedRules, reason: str, outcome: Any
) -> None:
    agent = made(Told(*[said(STEP)] * 3))
    agent.learn(KIND, ("job-1", 1), groups(lines=15), SOURCE)
    (rule,) = rules.list(KIND)
    nobody = msgspec.structs.replace(verdict(), reason=reason, outcome=outcome)
    for number in range(2, 9):
        agent.settle(KIND, (f"job-{number}", 1), {rule.id: (15, 0)}, nobody, False, 2.0)
    assert rules.one(rule.id).status == "shadow"
    for number in range(10, 12):
        agent.settle(KIND, (f"job-{number}", 1), {rule.id: (15, 0)}, nobody, True, 3.0)
    assert rules.one(rule.id).status == "active"


def test_a_rule_whose_line_is_cited_never_becomes_active(
    scanner: Scanner, rules: LearnedRules, own_guards: FilterGuards
) -> None:
    """The attempt that would make it active is the one whose verdict cites a line of it."""
    agent = agent_of(scanner, rules, own_guards, Told(*[said(STEP)] * 3))
    agent.learn(KIND, ("job-1", 1), groups(), SOURCE)
    (rule,) = rules.list(KIND)
    agent.settle(KIND, ("job-2", 1), {rule.id: (500, 0)}, verdict("[rank1]: the gizmo number 77 turns"), True, 3.0)
    assert rules.one(rule.id).status == "retired"
    assert agent.books.scanner(KIND).book.learned[0].status == "retired"


def test_what_was_cited_once_is_never_learned(scanner: Scanner, rules: LearnedRules, own_guards: FilterGuards) -> None:
    agent = agent_of(scanner, rules, own_guards, Told(*[said(STEP)] * 3))
    agent.settle("other/kind", ("job-0", 1), {}, verdict("\x1b[31mthe gizmo number 77 turns\x1b[0m"), True, 1.0)
    agent.learn(KIND, ("job-1", 1), groups(), SOURCE)
    assert rules.list() == [] and rules.refusals.list(KIND)[0].guard == "evidence"


def test_a_cited_metric_line_forbids_nothing(scanner: Scanner, rules: LearnedRules, own_guards: FilterGuards) -> None:
    agent = agent_of(scanner, rules, own_guards, Told(*[said(STEP)] * 3))
    agent.settle(KIND, ("job-0", 1), {}, verdict("the gizmo number 77 turns", rule="progress/loss"), True, 1.0)
    agent.learn(KIND, ("job-1", 1), groups(), SOURCE)
    assert len(rules.list(KIND)) == 1


def gathered(log: bytes, scanner: Scanner, agent: LogAgent) -> Leftovers:
    left = Leftovers(agent.known(KIND))
    for segment in cut("main", [log], 1 << 16):
        left.add(compress(segment, scanner))
    return left


def test_the_second_job_of_a_kind_teaches_nothing_new(made: Made, scanner: Scanner, rules: LearnedRules) -> None:
    """From the log to the rules with the miner, over the same job twice with other numbers, hosts and paths."""

    def log(seed: int) -> bytes:
        lines = []
        for n in range(600):
            lines.append(f"[rank{n % 8}]: gizmo step {n + seed} took {n / 7 + seed:.3f} s on gpu-{seed}{n % 4}")
            lines.append(f"2026-01-02 03:{n // 60:02d}:{n % 60:02d} saving the gizmo to /ckpt/run-{seed}/{n}.pt")
            lines.append(f"gizmo pool has {n} of {seed * 600} slots, 0 failed")
        lines.insert(77, "a warning that comes once: the vault is low on gold")
        return "\n".join(lines).encode()

    agent = made(Miner(), LearningLimits(5, WatchTerms(2, 20)))
    first = gathered(log(1), scanner, agent)
    assert first.unexplained >= 500
    agent.learn(KIND, ("job-1", 1), first.groups(), SOURCE)
    assert {rule.status for rule in rules.list(KIND)} == {"shadow"}
    for number in (2, 3):
        second = gathered(log(number), agent.books.scanner(KIND), agent)
        assert second.unexplained < 50
        hits = {rule.id: (600, 0) for rule in rules.list(KIND)}
        agent.settle(KIND, (f"job-{number}", 1), hits, verdict(), True, time.time())
    (segment,) = cut("main", [log(4)], 1 << 30)
    residual = compress(segment, agent.books.scanner(KIND))
    assert [residual.line(place) for place in residual.kept] == [b"a warning that comes once: the vault is low on gold"]
    msgspec.json.encode(rules.list(KIND))


def printed(*shapes: int) -> list[ShapeGroup]:
    return [ShapeGroup(shape, 1, (("main", shape, f"the gizmo number {shape} turns"),)) for shape in shapes]


@pytest.mark.parametrize(
    ("told", "shapes", "kind"),
    [
        ("", range(16), "knit"),
        ("", range(32, 48), "knit"),
        ("", range(33, 49), ""),
        ("", range(7), "knit"),
        ("", range(36, 43), ""),
        ("", range(100, 120), "weave"),
        ("", range(2), ""),
        ("", (), ""),
        ("unheard", range(32), "knit"),
        ("unheard", range(31), "unheard"),
        ("unheard", range(4, 52), "unheard"),
        ("weave", range(100, 103), "weave"),
    ],
)
def test_a_kind_is_recognised_by_what_its_jobs_print(made: Made, told: str, shapes: Collection[int], kind: str) -> None:
    agent = made(Miner())
    agent.learn("knit", ("knit-1", 1), printed(*range(40)), SOURCE)
    agent.learn("weave", ("weave-1", 1), printed(*range(100, 120)), SOURCE)
    assert agent.recognised(told, printed(*shapes)) == kind


def test_what_all_kinds_print_tells_nothing_of_a_job(made: Made) -> None:
    agent = made(Miner())
    for kind in ("knit", "weave", "spin"):
        agent.learn(kind, (kind, 1), printed(*range(16)), SOURCE)
    assert agent.recognised("", printed(*range(16))) == ""


def test_a_kind_of_which_something_is_known_is_believed(made: Made) -> None:
    agent = made(Told(*[said(STEP)] * 3))
    agent.learn("knit", ("knit-1", 1), printed(*range(16)), SOURCE)
    agent.learn(KIND, ("job-1", 1), groups(), SOURCE)
    assert agent.knows(KIND) and agent.recognised(KIND, printed(*range(16))) == KIND
    assert agent.recognised("", printed(*range(50, 60))) == ""
    assert agent.new_kind("8412", groups()) == "like/8412" and agent.new_kind("8412", printed(1, 2, 3)) == ""


def advised(scanner: Scanner, rules: LearnedRules, guards: FilterGuards, adviser: object) -> LogAgent:
    """An agent that makes a rule of gizmos, and whoever advises it."""
    first = Told(*[said(STEP)] * 3)
    first.free = True
    return LogAgent(Books(scanner, rules), rules, first, guards, LIMITS, adviser)  # type: ignore[arg-type]


def test_an_adviser_sees_once_what_the_agent_made_no_rule_of(
    scanner: Scanner, rules: LearnedRules, guards: FilterGuards
) -> None:
    adviser = Told(*[said(r"^the widget number \d+ turns$")] * 3)
    agent = advised(scanner, rules, guards, adviser)
    for _ in range(3):
        agent.learn(KIND, ("job-1", 1), [*groups(), *groups("widget", shape=2)], SOURCE)
    assert adviser.asked == [0, 1, 2] and len(adviser.judged) == 1
    assert [rule.pattern for rule in rules.list(KIND)] == [STEP, r"^the widget number \d+ turns$"]
    assert 2 in agent.known(KIND)


def test_an_adviser_is_not_asked_for_what_is_little_or_known(
    scanner: Scanner, rules: LearnedRules, guards: FilterGuards
) -> None:
    adviser = Told()
    agent = advised(scanner, rules, guards, adviser)
    agent.learn(KIND, ("job-1", 1), [*groups(), *groups("widget", lines=39, shape=2)], SOURCE)
    assert adviser.asked == []


def test_an_adviser_that_does_not_answer_costs_nothing(
    scanner: Scanner, rules: LearnedRules, guards: FilterGuards
) -> None:
    adviser = Told(NO, NO, NO)
    agent = advised(scanner, rules, guards, adviser)
    for _ in range(2):
        agent.learn(KIND, ("job-1", 1), [*groups(), *groups("widget", shape=2)], SOURCE)
    assert adviser.asked == [0, 1], "two of three did not answer; then it was left alone"
    assert [rule.pattern for rule in rules.list(KIND)] == [STEP] and rules.shapes.seen(KIND) == set()
