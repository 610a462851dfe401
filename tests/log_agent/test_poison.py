"""Bad proposals are refused by the guard that is meant for them, good ones pass."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from logdoctor.learning.filters.guards import GUARDS, Approval, FilterGuards
from logdoctor.learning.filters.proposal import FilterCandidate, Proposal, Sample
from logdoctor.learning.proposed import Refusal

HERE = Path(__file__).parent / "poison"
BAD: list[dict[str, Any]] = yaml.safe_load((HERE / "bad.yaml").read_text(encoding="utf-8"))
GOOD: list[dict[str, Any]] = yaml.safe_load((HERE / "good.yaml").read_text(encoding="utf-8"))
MADE: tuple[tuple[str, str, str], ...] = (
    ("form", "^" + "step " * 2000 + "$", "10 kB"),
    ("form", "^" + "a" * 999 + "$", "1,001 characters"),
    ("form", "^(?:" + "(?:" * 5000 + ")" * 5000 + "$", "deep groups"),
    ("form", "^step\n\\d+$", "a real line end"),
    ("form", "^step \\d+$\n^.*$", "a second pattern"),
    ("form", "^step\r\\d+$", "a carriage return"),
    ("form", "^step\x00\\d+$", "a NUL"),
    ("form", "^step\t\\d+$", "a tab that is not escaped"),
    ("form", "^step\x1b[31m \\d+$", "a colour"),
    ("form", "^step\u200b \\d+$", "a zero-width blank"),
    ("form", "^step\u00a0\\d+$", "a blank that is none"),
    ("form", "^\u202estep \\d+$", "turns the writing direction"),
    ("form", "^step\u2028\\d+$", "a line end of Unicode"),
    ("form", "^step\ufeff \\d+$", "a byte order mark"),
    ("form", "^step \ud800\\d+$", "half of a surrogate pair"),
    ("compile", "^step " + "x?" * 450 + "$", "19 s of compiling"),
    ("compile", "^step " + "(?:a|b|c|d|e|f)?" * 60 + "$", "3 s of compiling"),
    ("compile", "^step " + "(?:a?b?c?)" * 90 + "$", "many optional letters"),
    ("compile", "^step " + "\\S{1,16}\\w?" * 20 + "$", "many bounded repeats"),
    ("grammar", "^" + "(?:" * 200 + "x" + ")" * 200 + "$", "deep groups of few characters"),
)


def case(lines: list[str], pattern: str) -> tuple[FilterCandidate, Sample]:
    places = range(len(lines))
    sample = Sample("kind", "job", 1, tuple(lines), tuple(("log", p + 1) for p in places), (0,) * len(lines), (99,))
    return FilterCandidate(Proposal(pattern, "title"), frozenset(places), (0, 1, 2)), sample


def refused(guards: FilterGuards, pattern: str, lines: list[str]) -> Refusal:
    candidate, sample = case(lines, pattern)
    outcome = guards.outcome(candidate, sample)
    assert isinstance(outcome, Refusal), outcome
    assert outcome.cause and outcome.pattern == pattern[:1000]
    return outcome


def test_the_set_is_large_and_covers_the_guards() -> None:
    assert len(BAD) + len(MADE) >= 120
    assert len(GOOD) >= 60
    assert {one["guard"] for one in BAD} | {guard for guard, _, _ in MADE} == set(GUARDS) - {"duplicate", "error-word"}


@pytest.mark.parametrize("one", BAD, ids=lambda one: f"{one['guard']}: {one['pattern'][:40]}")
def test_bad_proposals_are_refused_by_name(guards: FilterGuards, one: dict[str, Any]) -> None:
    outcome = refused(guards, one["pattern"], one.get("lines", ["step 120 loss 2.31 lr 0.0003"]))
    assert outcome.guard == one["guard"], f"{one['why']}: {outcome}"


@pytest.mark.parametrize("guard, pattern, why", MADE, ids=[why for _, _, why in MADE])
def test_bad_proposals_that_are_made_here_are_refused_by_name(
    guards: FilterGuards, guard: str, pattern: str, why: str
) -> None:
    assert refused(guards, pattern, ["step 120 loss 2.31 lr 0.0003"]).guard == guard, why


@pytest.mark.parametrize("nothing", [None, 3, b"^step$", ["^step$"]])
def test_what_is_no_text_is_refused(guards: FilterGuards, nothing: Any) -> None:
    candidate, sample = case(["step 1"], nothing)
    outcome = guards.outcome(candidate, sample)
    assert isinstance(outcome, Refusal) and outcome.guard == "form"


@pytest.mark.parametrize("one", GOOD, ids=lambda one: one["pattern"][:50])
def test_good_proposals_pass(guards: FilterGuards, one: dict[str, Any]) -> None:
    candidate, sample = case(one["lines"], one["pattern"])
    assert guards.outcome(candidate, sample) is None


def test_all_at_once_give_the_same_outcomes(guards: FilterGuards) -> None:
    """One log that holds the lines of all proposals, good and bad, in one lesson."""
    ones = [*GOOD, *(one for one in BAD if "lines" in one)]
    lines = [line for one in ones for line in one["lines"]]
    groups = [number for number, one in enumerate(ones) for _ in one["lines"]]
    sample = Sample("kind", "job", 1, tuple(lines), (("log", 1),) * len(lines), tuple(groups), (99,) * len(ones))
    candidates = [
        FilterCandidate(Proposal(one["pattern"], ""), frozenset(p for p, g in enumerate(groups) if g == number), (0,))
        for number, one in enumerate(ones)
    ]
    outcomes = guards.outcomes(candidates, sample)
    assert [outcome for outcome in outcomes[: len(GOOD)] if outcome] == []
    assert all(isinstance(outcome, Refusal) for outcome in outcomes[len(GOOD) :])


def test_trouble_that_is_harmless_needs_a_human(guards: FilterGuards) -> None:
    candidate, sample = case(["retry 3: prefetch failed, trying again"], r"^retry \d+: prefetch failed, trying again$")
    outcome = guards.outcome(candidate, sample)
    assert isinstance(outcome, Approval) and outcome.guard == "error-word"
