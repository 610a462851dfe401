"""The guards over real causes: nothing that they let pass ever takes a line that tells of a cause."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logdoctor.errors import RuleError
from logdoctor.learning.filters import canary
from logdoctor.learning.filters.guards import GUARDS, Approval, FilterGuards
from logdoctor.learning.filters.matching import taken
from logdoctor.learning.filters.proposal import FilterCandidate, Proposal, Sample
from logdoctor.learning.proposed import Refusal
from logdoctor.rules.lines import joined
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from tests.soak import SOAKING

CANARY = Path(__file__).parents[2] / "rules" / "canary"
STEP = r"^step \d+ loss [\d.]+$"
LINES = ("step 1 loss 2.31", "step 2 loss 2.30", "wrote shard 3 of 64")


def sample_of(lines: Sequence[str], groups: Sequence[int] | None = None) -> Sample:
    groups = tuple(groups or range(len(lines)))
    counts = tuple(99 for _ in set(groups))
    return Sample("kind", "job", 1, tuple(lines), (("log", 1),) * len(lines), groups, counts)


def candidate(pattern: Any, *takes: int) -> FilterCandidate:
    return FilterCandidate(Proposal(pattern, "title"), frozenset(takes), (0, 1, 2))


def guard_of(outcome: object) -> str:
    return outcome.guard if isinstance(outcome, (Refusal, Approval)) else "passed"


def test_the_canary_corpus_is_large_and_without_doubles(book: RuleBook, cause_lines: tuple[str, ...]) -> None:
    corpus = canary.corpus(CANARY)
    assert 600 <= len(corpus) == len(set(corpus))
    assert len(list(CANARY.glob("*.txt"))) >= 12
    assert all(line.isprintable() or line.startswith("\t") or "\t" in line for line in corpus)
    assert len(cause_lines) > len(list(canary.examples(book))) + 1200, "most dangers are no example of any rule"
    assert "NVRM: Xid (PCI:0000:3b:00): 79" in cause_lines
    assert any("SXid (PCI:0000:c1:00.0): 10001" in line for line in cause_lines)
    for rule in book.diagnoses:
        for example in rule.must_match:
            assert example.text.split("\n")[0] in cause_lines, rule.id


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "2024-03-02 11:08:47,123 "])
def test_no_shipped_filter_rule_takes_a_cause(scanner: Scanner, cause_lines: tuple[str, ...], prefix: str) -> None:
    lines = joined(prefix + line for line in cause_lines)
    scan = scanner.scan(lines.buffer, lines.newlines)
    taken_by = {
        lines.texts[n].removeprefix(prefix): scanner.book.filters[scan.owner[n]].id
        for n in np.flatnonzero(scan.owner >= 0).tolist()
    }
    assert taken_by == {}


@pytest.mark.parametrize("text", [None, "# only a comment\n\n"])
def test_a_corpus_that_is_missing_is_told(tmp_path: Path, text: str | None) -> None:
    if text:
        (tmp_path / "x.txt").write_text(text)
    with pytest.raises(RuleError, match="canary corpus"):
        canary.corpus(tmp_path)


@pytest.mark.more_in_soak
def test_every_cause_by_its_own_text_is_refused(guards: FilterGuards, cause_lines: tuple[str, ...]) -> None:
    """A pattern that spells a cause line never passes, and is refused for that wherever nothing else is wrong."""
    fit = [line for line in cause_lines if len(line) < 400 and line.isprintable() and line.isascii()]
    lines = fit[:: 12 if SOAKING else 60]
    patterns = ["^" + "".join(c if c.isalnum() or c in " _" else f"\\{c}" for c in line) + "$" for line in lines]
    outcomes = guards.outcomes([candidate(p, n) for n, p in enumerate(patterns)], sample_of(lines))
    assert all(isinstance(outcome, Refusal) for outcome in outcomes)
    assert sum(guard_of(outcome) == "evidence" for outcome in outcomes) > 0.8 * len(outcomes)


def test_past_evidence_is_remembered(cause_lines: tuple[str, ...]) -> None:
    guards = FilterGuards(cause_lines)
    sample = sample_of(LINES)
    assert guards.outcome(candidate(STEP, 0, 1), sample) is None
    guards.remember(["2024-03-02 11:08:47,123 [rank3]: step 812 loss 9.87"])
    outcome = guards.outcome(candidate(STEP, 0, 1), sample)
    assert guard_of(outcome) == "evidence" and "step 812" in str(outcome)
    assert guards.outcome(candidate(r"^wrote shard \d+ of \d+$", 2), sample) is None


def test_much_past_evidence_costs_little(cause_lines: tuple[str, ...]) -> None:
    guards = FilterGuards(cause_lines, (f"RuntimeError: rank {n} met an odd state {n * 7}" for n in range(20_000)))
    candidates = [candidate(rf"^step \d+ loss{n} [\d.]+$", n) for n in range(30)]
    sample = sample_of([f"step 1 loss{n} 2.31" for n in range(30)])
    guards.outcomes(candidates[:1], sample)
    started = time.process_time()
    assert guards.outcomes(candidates, sample) == [None] * 30
    assert time.process_time() - started < 8  # 0.8 s on a quiet machine, most of it compiling


def test_duplicates(guards: FilterGuards) -> None:
    sample = sample_of(LINES)
    wide = r"^step \d+ loss \d[\d.]*$"
    assert guard_of(guards.outcome(candidate(STEP, 0, 1), sample, live=[STEP])) == "duplicate"
    assert guard_of(guards.outcome(candidate(STEP, 0, 1), sample, explained={0, 1})) == "duplicate"
    assert guards.outcome(candidate(STEP, 0, 1), sample, explained={0}) is None
    outcomes = guards.outcomes([candidate(STEP, 0, 1), candidate(STEP, 0, 1), candidate(wide, 0, 1)], sample)
    assert [guard_of(outcome) for outcome in outcomes] == ["passed", "duplicate", "duplicate"]
    assert guards.outcomes([], sample) == []


def test_one_that_was_refused_makes_no_duplicate(guards: FilterGuards) -> None:
    lines = ["tick 1 loss 2.31", "tick 2 loss nan"]
    sample = sample_of(lines)
    outcomes = guards.outcomes(
        [candidate(r"^tick \d+ loss \S+$", 0, 1), candidate(r"^tick \d+ loss [\d.]+$", 0)], sample
    )
    assert [guard_of(outcome) for outcome in outcomes] == ["field", "passed"]


def test_claims_are_checked_with_the_matcher(guards: FilterGuards) -> None:
    sample = sample_of(LINES)
    assert guard_of(guards.outcome(candidate(STEP), sample)) == "claims"
    assert guard_of(guards.outcome(candidate(STEP, 0, 1, 2), sample)) == "claims"
    assert guard_of(guards.outcome(candidate(STEP, 0), sample)) == "claims"
    assert guard_of(guards.outcome(candidate(STEP, 0, 1, 99), sample)) == "claims"
    assert guard_of(guards.outcome(candidate(STEP, -1, 0, 1), sample)) == "claims"


def test_a_pattern_that_takes_most_of_a_log_is_refused(guards: FilterGuards) -> None:
    lines = [f"cfg.{chr(97 + n)}: {n}.5" for n in range(20)]
    outcome = guards.outcome(candidate(r"^cfg\.[a-z]: [\d.]+$", *range(20)), sample_of(lines))
    assert guard_of(outcome) == "literal"


def test_words_in_any_order_are_refused(guards: FilterGuards) -> None:
    pattern = r"^(?:alpha|beta|gamma) (?:alpha|beta|gamma) (?:alpha|beta|gamma)$"
    outcome = guards.outcome(candidate(pattern, 0), sample_of(["alpha beta gamma"]))
    assert guard_of(outcome) == "literal"


@pytest.mark.parametrize(
    "pattern, line",
    [
        (r"^retry \d+: prefetch failed, trying again$", "retry 3: prefetch failed, trying again"),
        (r"^\[hook\] invalid cache entry \d+ rebuilt$", "[hook] invalid cache entry 3 rebuilt"),
        (r"^plugin says \S+: all fine$", "plugin says x1.OddError: all fine"),
    ],
)
def test_error_like_lines_need_a_human(guards: FilterGuards, pattern: str, line: str) -> None:
    outcome = guards.outcome(candidate(pattern, 0), sample_of([line]))
    assert isinstance(outcome, Approval) and outcome.guard == "error-word"
    assert outcome.cause and outcome.pattern == pattern


def test_rules_from_elsewhere_are_judged_by_their_examples(guards: FilterGuards) -> None:
    assert guards.outcome_of_rule(STEP, LINES[:2]) is None
    assert guard_of(guards.outcome_of_rule(STEP, LINES)) == "claims"
    assert guard_of(guards.outcome_of_rule(STEP, [])) == "claims"
    assert guard_of(guards.outcome_of_rule(STEP, LINES[:2], live=[STEP])) == "duplicate"
    assert guard_of(guards.outcome_of_rule(r"^node gpu-\d+ drained$", ["node gpu-3 drained"])) == "evidence"


def test_guards_are_named() -> None:
    assert len(set(GUARDS)) == 11


WORDS = st.sampled_from(
    ["step", "loss", "rank", "GPU", "node", "waiting for", "link", "CUDA error", "Xid", "DOWN", "Killed"]
)
FIELDS = st.sampled_from(
    [
        r"\d+",
        r"[\d.]+",
        r"\S+",
        r"\w+",
        "[a-z]+",
        "[A-Z]+",
        "[a-z0-9_-]+",
        r"[\w.:/-]+",
        r"[^ ]*",
        r"\(\S+\)",
        r"\W+",
        "[^|]+",
    ]
)
PIECES = st.one_of(WORDS, FIELDS, WORDS.map("(?:{})?".format), st.builds("(?:{}|{})".format, WORDS, FIELDS))
PATTERNS = st.lists(PIECES, min_size=1, max_size=6).flatmap(
    lambda pieces: st.sampled_from([" ", ": ", r" \| ", "=", ", ", ""]).map(lambda gap: f"^{gap.join(pieces)}$")
)
PREFIXES = ("", "[rank7]: ", "12: ", "worker-3 | ", "(pid=4182) ", "[trainer] ", "2024-03-02 11:08:47 ERROR ", "x: ")


@settings(max_examples=settings.default.max_examples // 3)
@given(PATTERNS)
def test_what_passes_takes_no_cause_behind_any_prefix(
    guards: FilterGuards, cause_lines: tuple[str, ...], pattern: str
) -> None:
    """Lines are claimed that the pattern takes, so that it is not refused for its claims alone."""
    lines = ["step 1 loss 2.3", "rank 3 GPU 4", "waiting for 3", "link: up", "loss=2.31", "GPU", "step 12"]
    takes = taken([pattern], lines)[0]
    outcome = guards.outcome(candidate(pattern, *takes), sample_of(lines))
    if outcome is None or isinstance(outcome, Approval):
        for prefix in PREFIXES:
            assert taken([pattern], [prefix + line for line in cause_lines]) == [set()]


@given(st.one_of(st.text(max_size=80), st.text(st.sampled_from(list(r"^$.*+?{}[]()|\-,:ab1 dwsSx")), max_size=40)))
def test_no_text_breaks_the_guards(guards: FilterGuards, text: str) -> None:
    for source in (text, f"^{text}$"):
        outcome = guards.outcome(candidate(source, 0), sample_of(LINES))
        assert outcome is None or outcome.guard in GUARDS
