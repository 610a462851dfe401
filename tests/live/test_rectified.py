"""A verdict that a person corrected keeps what was known of the attempt."""

import msgspec

from logdoctor.diagnose.decide import diagnose
from logdoctor.live.confirming import rectified
from logdoctor.rules.scanner import Scanner
from logdoctor.store.confirmed import Cited, Confirmation
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


def test_a_line_that_is_gone_leaves_the_verdict_as_it_was(recorded: Recorded, scanner: Scanner) -> None:
    found = recorded(LOG)
    verdict = diagnose(found, scanner.book)
    assert rectified(verdict, confirmation(4600), found, scanner.book) == verdict
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=type(verdict)) == verdict
