"""A learned rule tried on what is kept: where it hits, and whether it is right there."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from logdoctor.errors import RuleError
from logdoctor.learning.backtest import Tried
from logdoctor.learning.files.backtest import backtest
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.confirmed import Confirmed, Kept
from logdoctor.store.learning.learned import Learned, LearnedRules, Source, StoredClaim
from logdoctor.store.learning.refusals import Votes
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from logdoctor.types import Evidence
from tests.rule_files.learned import entered, new
from tests.web.test_pages import FAULT

LINE = "RuntimeError: buckets differ on rank 3"
PATTERN = "^RuntimeError: buckets differ on rank [0-9]+"


class Kit:
    """The stores of one database."""

    def __init__(self, folder: Path) -> None:
        self.records = Records(f"sqlite:///{folder / 'records.db'}")
        self.rules = LearnedRules(self.records.database)
        self.confirmed = Confirmed(self.records.database)

    def keep(self, job: str, reason: str, text: str = LINE, outcome: str = "failed", cited: int | None = None) -> None:
        """A settled attempt whose seventh line is kept, and cited by its verdict when that says so."""
        lines = [Kept("main", 7, text), Kept("main", 9, "something else")]
        self.confirmed.keep_lines(job, 1, lines, outcome=outcome, reason=reason, decided="rule")
        if cited is not None:
            proof = (Evidence(f"{job}/1/main", "main", cited, text, "diagnosis/x"),)
            self.records.publish(job, 1, msgspec.structs.replace(FAULT, evidence=proof), True, 5.0)

    def cause(self, source: Source = Source("own", 1)) -> Learned:  # noqa: B008 - immutable
        """A diagnosis rule for Runtime Errors."""
        claim, votes = StoredClaim("Runtime Error"), Votes(1, (0,), "")
        rule = new(pattern=PATTERN, kind=DIAGNOSIS, examples=(LINE,), claim=claim, votes=votes, source=source, lines=1)
        return entered(self.rules, rule)[0]

    def test(self, rule: Learned, seconds: float = 20.0, prefix: str = "") -> Tried:
        return backtest(rule, self.confirmed, self.records, lambda job: job.startswith(prefix), seconds)


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(tmp_path)
    yield made
    made.records.close()


def counted(tried: Tried) -> tuple[int, int, int, int]:
    return tried.attempts, tried.agree, tried.contradict, tried.open


def test_a_diagnosis_rule_is_held_against_reasons(kit: Kit) -> None:
    kit.keep("a", "Runtime Error")
    kit.keep("b", "CUDA Error")
    kit.keep("c", "Unknown")
    kit.keep("d", "None", outcome="completed")
    kit.keep("e", "CUDA Error", "nothing of it")
    kit.keep("own", "Runtime Error")
    tried = kit.test(kit.cause())
    assert counted(tried) == (5, 1, 2, 1) and tried.complete
    assert {(hit.job, hit.says) for hit in tried.hits} == {
        ("a", "agrees"),
        ("b", "contradicts"),
        ("c", "open"),
        ("d", "contradicts"),
    }
    assert tried.hits[0].text == LINE and (tried.hits[0].stream, tried.hits[0].line) == ("main", 7)


def test_a_rule_in_any_state_is_tried(kit: Kit) -> None:
    kit.keep("a", "Runtime Error")
    rule = kit.rules.retire(kit.cause().id, "ops", "", 3.0)
    assert counted(kit.test(rule)) == (1, 1, 0, 0)


def test_a_filter_rule_must_hit_no_evidence(kit: Kit) -> None:
    kit.keep("a", "CUDA Error", cited=7)
    kit.keep("b", "CUDA Error", cited=9)
    kit.keep("c", "CUDA Error")
    rule = entered(kit.rules, new(pattern="^RuntimeError: [a-z ]+[0-9]+$", source=Source()))[0]
    tried = kit.test(rule)
    assert counted(tried) == (3, 1, 1, 1)
    assert (tried.hits[0].job, tried.hits[0].says) == ("a", "contradicts")


def test_only_jobs_that_one_sees_are_tried(kit: Kit) -> None:
    for job in ("team-a-1", "team-b-1"):
        kit.keep(job, "CUDA Error")
    tried = kit.test(kit.cause(), prefix="team-b-")
    assert counted(tried) == (1, 0, 1, 0) and {hit.job for hit in tried.hits} == {"team-b-1"}


def test_the_time_is_kept(kit: Kit) -> None:
    kit.keep("a", "Runtime Error")
    tried = kit.test(kit.cause(), seconds=0.0)
    assert counted(tried) == (0, 0, 0, 0) and not tried.complete


def test_what_does_not_compile_is_told(kit: Kit) -> None:
    kit.keep("a", "Runtime Error")
    bad = entered(kit.rules, new(pattern="^x(?<!y)$", source=Source()))[0]
    with pytest.raises(RuleError):
        kit.test(bad)
