"""Runs agree by what their patterns match, not by how they are written; a majority is one of all that were asked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logdoctor.errors import BudgetSpent, ModelError, ModelNonsense, ModelUnavailable
from logdoctor.learning.filters.proposal import Answer
from logdoctor.learning.filters.vote import poll
from tests.log_agent.samples import Told, said, sample

STEPS = [f"step {n}" for n in range(10)]
SAVES = [f"saved {n}" for n in range(10)]
HELD = sample(STEPS, SAVES)
NO = ModelUnavailable("the model", "does not answer", "Wait.")


def agreed(*answers: object, runs: int = 5) -> dict[str, tuple[int, ...]]:
    """The runs that voted for each candidate that has a majority, by its pattern."""
    found = poll(Told(*answers), HELD, runs)  # type: ignore[arg-type]
    return {one.proposal.pattern: one.runs for one in found.candidates}


def test_patterns_that_differ_in_text_only_are_one() -> None:
    forms = (r"^step \d+$", r"^step [0-9]+$", r"^step  ?\d{1,9}$", r"^step \d\d?$", r"^(?:step) \d+$")
    found = poll(Told(*(said(form) for form in forms)), HELD, 5)
    (one,) = found.candidates
    assert one.runs == (0, 1, 2, 3, 4) and one.takes == frozenset(range(10)) and found.refused == []
    assert one.proposal.pattern in forms


def test_a_majority_of_the_runs_that_were_asked_is_needed() -> None:
    step, save = said(r"^step \d+$"), said(r"^saved \d+$")
    both = said(r"^step \d+$", r"^saved \d+$")
    assert agreed(step, step, step, save, save) == {r"^step \d+$": (0, 1, 2)}
    assert agreed(both, step, save, step, save) == {r"^step \d+$": (0, 1, 3), r"^saved \d+$": (0, 2, 4)}
    assert agreed(step, save, said(), said(), said()) == {}
    assert agreed(step, runs=1) == {r"^step \d+$": (0,)}
    assert agreed(step, save, runs=2) == {}
    assert agreed(step, step, save, save, runs=4) == {}


def test_what_too_few_agree_on_is_refused_with_the_count() -> None:
    found = poll(Told(said(r"^step \d+$"), *[said(r"^saved \d+$")] * 4), HELD, 5)
    (refusal,) = found.refused
    assert (refusal.pattern, refusal.guard) == (r"^step \d+$", "vote") and "1 of 5" in refusal.cause


def test_one_run_has_one_vote_however_often_it_says_it() -> None:
    thrice = said(r"^step \d+$", r"^step [0-9]+$", r"^step \d\d?$")
    assert agreed(thrice, thrice, said(), said(), said()) == {}


def test_failed_runs_count_against() -> None:
    step = said(r"^step \d+$")
    found = poll(Told(step, NO, step, NO, step), HELD, 5)
    assert [one.runs for one in found.candidates] == [(0, 2, 4)] and found.answered == 3
    assert len(found.failures) == 2 and "does not answer" in found.failures[0]
    assert agreed(step, NO, step, NO, said()) == {}


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 5, 8])
def test_when_no_majority_can_come_of_it_that_is_an_error(runs: int) -> None:
    """What was shown would else be known from then on, and never be learned."""
    most = runs // 2 + 1
    enough: list[Answer | Exception] = [NO] * (runs - most + 1)
    for answers in ([*enough, *[said("^step .$")] * runs], [*[said("^step .$")] * (most - 1), *enough]):
        agent = Told(*answers)
        with pytest.raises(ModelError):
            poll(agent, HELD, runs)
        assert len(agent.asked) <= runs
    assert len(poll(Told(*enough[1:], *[said(r"^step \d$")] * runs), HELD, runs).candidates) == 1


@pytest.mark.parametrize("error", [NO, ModelNonsense("m", "no JSON", "x."), BudgetSpent("m", "spent", "x.")])
def test_the_error_of_the_agent_is_told(error: ModelError) -> None:
    with pytest.raises(type(error)):
        poll(Told(*[error] * 5), HELD, 5)


def test_an_error_that_is_none_of_a_model_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        poll(Told(ZeroDivisionError(), *[said()] * 4), HELD, 5)


def test_a_dying_model_is_not_asked_again_and_again() -> None:
    agent = Told(*[NO] * 5)
    with pytest.raises(ModelUnavailable):
        poll(agent, HELD, 5)
    assert agent.asked == [0, 1, 2]


def test_nearly_the_same_lines_are_the_same() -> None:
    most, all_ = said(r"^step [0-8]$"), said(r"^step \d+$")
    found = poll(Told(all_, all_, all_, most, most), HELD, 5)
    assert found.candidates[0].takes == frozenset(range(10)) and found.candidates[0].runs == (0, 1, 2, 3, 4)
    half = said(r"^step [0-4]$")
    assert agreed(all_, all_, all_, half, half) == {r"^step \d+$": (0, 1, 2)}


def test_of_those_that_agree_the_lines_most_runs_match_are_taken() -> None:
    wide, narrow = said(r"^step \d+$"), said(r"^step [0-8]$")
    (one,) = poll(Told(narrow, narrow, narrow, wide, wide), HELD, 5).candidates
    assert one.proposal.pattern == r"^step [0-8]$" and one.takes == frozenset(range(9))


@pytest.mark.parametrize("bad", ["", "(", "^(?=a)$", r"^(a+)+$", "^nothing like it$", "^" + "x" * 5000 + "$", "\ud800"])
def test_a_pattern_that_matches_nothing_is_no_candidate(bad: str) -> None:
    found = poll(Told(*[said(bad, r"^step \d+$")] * 5), HELD, 5)
    assert [one.takes for one in found.candidates if one.takes] == [frozenset(range(10))]
    assert {refusal.pattern for refusal in found.refused} | {
        one.proposal.pattern for one in found.candidates if not one.takes
    } == {bad}


def test_error_lines_are_counted_by_run() -> None:
    found = poll(Told(said(errors=[3, 3, 4]), said(errors=[3]), said(), said(errors=[4, 3]), said()), HELD, 5)
    assert found.noticed == {3: 3, 4: 2}


PATTERNS = st.sampled_from([r"^step \d+$", r"^step [0-9]$", r"^step [0-4]$", r"^saved \d+$", r"^\w+ \d+$", "^x$", "("])


@given(st.lists(st.lists(PATTERNS, max_size=4), min_size=5, max_size=5))
@settings(max_examples=settings.default.max_examples // 6)
def test_property_the_vote_does_not_depend_on_the_order_of_proposals(texts: list[list[str]]) -> None:
    once = poll(Told(*(said(*some) for some in texts)), HELD, 5)
    again = poll(Told(*(said(*reversed(some)) for some in texts)), HELD, 5)
    assert [(one.takes, one.runs) for one in once.candidates] == [(one.takes, one.runs) for one in again.candidates]
    assert all(len(one.runs) >= 3 or not one.takes for one in once.candidates)
    assert [one.runs for one in once.candidates if one.takes] == sorted(
        (one.runs for one in once.candidates if one.takes), key=len, reverse=True
    )
