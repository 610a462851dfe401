"""Watched before they act, back when they did harm, and no step of a human is taken back by code."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.errors import RuleRefused
from logdoctor.learning import steps
from logdoctor.learning.filters import life
from logdoctor.learning.filters.book import Books
from logdoctor.learning.filters.life import WatchTerms
from logdoctor.rules.scanner import Scanner
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.learned import ERROR_WORD, Learned, LearnedRules
from logdoctor.types import Evidence
from tests.log_agent.samples import KIND, new_rule

TERMS = WatchTerms(2, 50)
GIZMO = r"^the gizmo number \d+ turns$"


@pytest.fixture
def rules(tmp_path: Path) -> Iterator[LearnedRules]:
    records = Records(f"sqlite:///{tmp_path}/records.sqlite")
    yield LearnedRules(records.database)
    records.close()


@pytest.fixture
def books(scanner: Scanner, rules: LearnedRules) -> Books:
    return Books(scanner, rules)


def entered(rules: LearnedRules, pattern: str = GIZMO, **more: object) -> Learned:
    return rules.add([new_rule(pattern, **more)], "logdoctor", 1.0)[0]  # type: ignore[arg-type]


def seen(
    rules: LearnedRules, rule: Learned, job: int, lines: int, took: int = 0, terms: WatchTerms = TERMS
) -> list[str]:
    hits = {rule.id: (lines, took)} if lines else {}
    return life.count(rules, rule.kind, (f"job-{job}", 1), hits, terms, float(job))


def status(rules: LearnedRules, rule: Learned) -> str:
    return rules.one(rule.id).status


@pytest.mark.parametrize(
    ("lines", "when"),
    [([20], 2), ([19], None), ([19, 1], 3), ([10, 9, 1], 4), ([0, 20], 3), ([1000], 2), ([0, 0], None)],
)
def test_a_rule_becomes_active_at_exactly_the_terms(rules: LearnedRules, lines: list[int], when: int | None) -> None:
    """It was entered with 30 lines of job-1; the terms are 2 attempts and 50 lines."""
    rule = entered(rules)
    for job, count in enumerate(lines, 2):
        promoted = seen(rules, rule, job, count)
        assert promoted == ([rule.id] if job == when else [])
        assert status(rules, rule) == ("active" if when is not None and job >= when else "shadow")


def test_many_lines_of_one_attempt_are_not_enough(rules: LearnedRules) -> None:
    rule = entered(rules)
    for _ in range(3):
        assert seen(rules, rule, 1, 100_000) == []
    assert (rules.one(rule.id).jobs, status(rules, rule)) == (1, "shadow")


def test_the_step_is_told_with_its_numbers(rules: LearnedRules) -> None:
    rule = entered(rules)
    seen(rules, rule, 2, 20)
    event = rules.events(rule.id)[0]
    assert (event.step, event.by, event.at) == ("promote", steps.BY, 2.0)
    assert "2 attempts" in event.why and "50 lines" in event.why


def test_what_waits_for_a_human_is_never_promoted(rules: LearnedRules) -> None:
    rule = entered(rules, status="proposed", waits_for=f"{ERROR_WORD}: it looks like trouble")
    for job in range(2, 9):
        seen(rules, rule, job, 0)
    assert status(rules, rule) == "proposed"
    rules.approve(rule.id, "user-17", "fine", 9.0)
    assert seen(rules, rule, 10, 20) == [rule.id] and rules.one(rule.id).harmless


def test_the_rules_of_other_kinds_are_left_alone(rules: LearnedRules) -> None:
    mine, other = entered(rules), entered(rules, kind="other/kind")
    seen(rules, mine, 2, 20)
    assert (status(rules, mine), status(rules, other)) == ("active", "shadow")
    with pytest.raises(RuleRefused):
        life.count(rules, KIND, ("job-3", 1), {other.id: (1, 1)}, TERMS, 3.0)


def test_a_rule_that_is_not_seen_any_more_is_retired(rules: LearnedRules) -> None:
    rule, busy = entered(rules), entered(rules, "^busy$")
    for job in range(2, 2 + life._FORGOTTEN):
        assert status(rules, rule) == "shadow"
        life.count(rules, KIND, (f"job-{job}", 1), {busy.id: (1, 0)}, WatchTerms(999, 999), float(job))
    assert (status(rules, rule), status(rules, busy)) == ("retired", "shadow")
    assert f"{life._FORGOTTEN} attempts" in rules.events(rule.id)[0].why


def test_an_active_rule_is_kept_although_it_is_not_seen(rules: LearnedRules) -> None:
    rule = entered(rules)
    for job in range(2, 60):
        seen(rules, rule, job, 20 if job == 2 else 0)
    assert status(rules, rule) == "active"


def test_a_rule_that_did_harm_stays_in_shadow(rules: LearnedRules) -> None:
    """It still meets the terms; were it promoted by them, it would do harm again with the next attempt."""
    rule = entered(rules)
    seen(rules, rule, 2, 20)
    life.demote(rules, [rule.id], "took a line that the verdict on job-2/1 needs", 3.0)
    assert status(rules, rule) == "shadow"
    for job in range(3, 9):
        assert seen(rules, rule, job, 100) == []
    assert status(rules, rule) == "shadow"
    rules.approve(rule.id, "user-17", "it was something else", 9.0)
    assert status(rules, rule) == "active", "a human may think otherwise"


def test_what_a_human_took_back_is_not_promoted_again(rules: LearnedRules) -> None:
    rule = entered(rules)
    seen(rules, rule, 2, 20)
    rules.undo(rule.id, "user-17", "too early", 3.0)
    assert seen(rules, rule, 3, 100) == [] and status(rules, rule) == "shadow"


def test_what_a_human_retired_stays_retired(rules: LearnedRules, books: Books) -> None:
    rule = entered(rules)
    seen(rules, rule, 2, 20)
    books.refresh()
    rules.retire(rule.id, "user-17", "no", 3.0)
    life.demote(rules, [rule.id], "took a line", 4.0)  # the books of this process do not know of ann's step yet
    life.retire_what_matches(rules, books, ["the gizmo number 3 turns"], "job-4/1", 5.0)
    assert seen(rules, rule, 6, 100) == []
    assert status(rules, rule) == "retired" and rules.events(rule.id)[0].by == "user-17"


def test_demotion_is_for_active_rules(rules: LearnedRules) -> None:
    waiting = entered(rules, status="proposed")
    life.demote(rules, [waiting.id, "learned/nothing"], "took a line", 2.0)
    assert status(rules, waiting) == "proposed"


def test_a_human_and_code_at_once_end_in_the_step_of_the_human(rules: LearnedRules) -> None:
    """Code promotes and demotes while somebody retires: the rule is retired at the end, whoever came first."""
    some = [entered(rules, f"^word {letter}$") for letter in "abcdefghijkl"]

    def work() -> None:
        for job in range(2, 6):
            life.count(rules, KIND, (f"job-{job}", 1), {rule.id: (30, 0) for rule in some}, TERMS, float(job))
            life.demote(rules, [rule.id for rule in some], "took a line", float(job))

    thread = threading.Thread(target=work)
    thread.start()
    for rule in some:
        rules.retire(rule.id, "user-17", "no", 9.0)
    thread.join()
    assert {status(rules, rule) for rule in some} == {"retired"}


# evidence


@pytest.mark.parametrize("now", ["shadow", "active"])
def test_evidence_retires_the_rules_of_all_kinds_that_match_it(rules: LearnedRules, books: Books, now: str) -> None:
    mine, other = entered(rules), entered(rules, kind="other/kind")
    bystander = entered(rules, r"^the gadget number \d+ turns$")
    for rule in (mine, other) if now == "active" else ():
        rules.move(rule.id, "active", "logdoctor", "", 2.0)
    books.refresh()
    lines = ["[rank3]: the gizmo number 7 turns", "the gizmo number 8 turns\r", "nothing of them"]
    assert {one.id for one in life.retire_what_matches(rules, books, lines, "job-9/2", 3.0)} == {mine.id, other.id}
    assert [status(rules, rule) for rule in (mine, other, bystander)] == ["retired", "retired", "shadow"]
    event = rules.events(mine.id)[0]
    assert (event.step, event.by) == ("demote", steps.BY)
    assert "job-9/2" in event.why and "the gizmo number 7 turns" in event.why


@pytest.mark.parametrize(
    "quote",
    [
        "the gizmo number 7 turns",
        "\x1b[31mthe gizmo number 7 turns\x1b[0m",
        "\x1b[1m[rank3]: \x1b[31mthe gizmo number 7\x1b[0m turns\r",
        "2024-03-02 11:08:47,123 the gizmo number 7 turns",
    ],
)
def test_evidence_is_matched_as_the_log_is(rules: LearnedRules, books: Books, quote: str) -> None:
    """Quotes are raw: colours stand in them, and are taken out of the log before it is matched."""
    rule = entered(rules)
    books.refresh()
    lines = life.quotes([Evidence("file", "main", 7, quote, "diagnosis/x")])
    assert [one.id for one in life.retire_what_matches(rules, books, lines, "job-9/2", 3.0)] == [rule.id]


def test_metric_lines_that_are_cited_retire_nothing(rules: LearnedRules) -> None:
    cited = [
        Evidence("file", "main", 7, "step 7 loss 3", "progress/loss"),
        Evidence("file", "main", 8, "it broke", "structure/level"),
        Evidence("file", "main", 9, "it burnt", "diagnosis/x"),
    ]
    assert life.quotes(cited) == ["it broke", "it burnt"]
