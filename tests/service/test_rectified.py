"""A verdict that a person corrected keeps what was known of the attempt."""

import msgspec
import pytest

from logdoctor import taxonomy
from logdoctor.diagnose.decide import diagnose
from logdoctor.rules.scanner import Scanner
from logdoctor.service.confirming import CERTAIN, found_by, rectified
from logdoctor.store.learning.confirmed import Cited, Confirmation
from tests.diagnose.conftest import Recorded, recorded
from tests.diagnose.logs import nccl_timeout, prefixed, steps, traceback

__all__ = ["recorded"]  # a fixture
LOG = steps(0, 40) + prefixed("[rank3]: ", traceback("KeyError: 'tokens'")) + nccl_timeout([0, 1])


def confirmation(line: int) -> Confirmation:
    cited = (Cited("main", line, "[rank3]: KeyError: 'tokens'"),)
    return Confirmation("j", 1, "ops", "Dataset Loading Error", evidence=cited, id=7, at=0.0, withdrawn=False)


def test_it_keeps_the_curve_and_the_ranks(recorded: Recorded, scanner: Scanner) -> None:
    found = recorded(LOG)
    verdict = diagnose(found, scanner.book)
    made = rectified(verdict, confirmation(46), found, scanner.book)
    assert (verdict.reason, made.reason) == ("Key Error", "Dataset Loading Error")
    assert made.progress == verdict.progress and len(made.progress.curve) == 40
    assert [error.rank for error in made.ranks] == [error.rank for error in verdict.ranks] == [3, 0, 1]
    assert made.ranks[0].reason == "Dataset Loading Error", "the rank failed of what the person says"
    assert made.ranks[1:] == verdict.ranks[1:]


@pytest.mark.parametrize(
    ("reason", "recovery", "why"),
    [
        ("Dataset Loading Error", "", "ops corrected this from Key Error."),
        ("Key Error", "restart", 'ops corrected what to do about it (it said "do not restart: fix first").'),
    ],
)
def test_it_says_what_was_wrong_and_what_to_do_next(
    recorded: Recorded, scanner: Scanner, reason: str, recovery: str, why: str
) -> None:
    found = recorded(LOG)
    said = msgspec.structs.replace(confirmation(46), reason=reason, recovery=recovery, fix="rebuilt shard 12")
    made = rectified(diagnose(found, scanner.book), said, found, scanner.book)
    assert (made.why, made.confidence, made.recovery) == (why, CERTAIN, recovery or "fix_first")
    assert made.suggestion == taxonomy.REASONS[reason].next_step, "what fixed it is past"
    told = msgspec.structs.replace(said, suggestion="Ask ops.")
    assert rectified(diagnose(found, scanner.book), told, found, scanner.book).suggestion == "Ask ops."


@pytest.mark.parametrize(
    ("digests", "summary", "way"), [(("a" * 16,), "x", "line"), ((), "x", "likeness"), ((), "", "nothing")]
)
def test_how_a_case_is_found_again(digests: tuple[str, ...], summary: str, way: str) -> None:
    assert found_by(msgspec.structs.replace(confirmation(46), digests=digests, summary=summary)) == way


def test_a_line_that_is_gone_leaves_the_verdict_as_it_was(recorded: Recorded, scanner: Scanner) -> None:
    found = recorded(LOG)
    verdict = diagnose(found, scanner.book)
    assert rectified(verdict, confirmation(4600), found, scanner.book) == verdict
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=type(verdict)) == verdict
