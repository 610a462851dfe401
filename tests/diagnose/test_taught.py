"""Learned diagnosis rules: judged with at once, watched while in shadow, the same on lines that were kept."""

import datetime

import pytest

from logdoctor.compress.kept import rebuilt
from logdoctor.diagnose.decide import diagnose
from logdoctor.diagnose.episodes import episodes
from logdoctor.diagnose.taught import Taught, line_matches
from logdoctor.errors import RuleError
from logdoctor.learning.diagnoses.past import kept
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import Claim, DiagnosisRule, Example, Origin, When
from tests.diagnose.conftest import Recorded
from tests.diagnose.logs import ECC, nccl_timeout, prefixed, steps

HEAD = steps(0, 40)
JAM = "[rank3]: RuntimeError: loom driver reports a jammed shuttle at 0x7f\n"
PATTERN = "^RuntimeError: loom driver reports a jammed shuttle at 0x[0-9a-f]+"


def rule(
    status: str = "active", pattern: str = PATTERN, reason: str = "CUDA Error", name: str = "jam"
) -> DiagnosisRule:
    return DiagnosisRule(
        id=f"learned/diagnosis/{name}",
        status=status,  # type: ignore[arg-type]
        title="The loom is jammed",
        when=When((pattern,)),
        verdict=Claim(reason=reason, role="cause", recovery="isolate_and_restart", fault="infrastructure"),
        must_match=(Example(JAM.strip()),),
        origin=Origin("a person", datetime.date(2026, 11, 21), "j/1"),
    )


def test_an_active_rule_decides(recorded: Recorded, scanner: Scanner) -> None:
    records = recorded(HEAD + JAM + nccl_timeout([1]))
    assert diagnose(records, scanner.book).reason == "Unknown"
    marked, book = Taught([rule()]).applied(records, scanner.book)
    verdict = diagnose(marked, book)
    assert (verdict.reason, verdict.recovery, verdict.first_rank) == ("CUDA Error", "isolate_and_restart", 3)
    assert verdict.decided_by.rule == "learned/diagnosis/jam" and verdict.evidence[0].quote == JAM.rstrip("\n")
    assert verdict.decided_by.rulebook == book.digest != scanner.book.digest, "law 8: what it was made with"
    assert diagnose(records, scanner.book).reason == "Unknown", "the records stay as they were"


def test_a_rule_in_shadow_is_counted_and_changes_nothing(recorded: Recorded, scanner: Scanner) -> None:
    records = recorded(HEAD + JAM + prefixed("[rank4]: ", JAM[9:].strip()) + "\n")
    taught = Taught([rule("shadow"), rule("shadow", "^nothing of the kind$", name="other")])
    same, book = taught.applied(records, scanner.book)
    assert same == records and book is scanner.book
    assert taught.hits(records) == {"learned/diagnosis/jam": (("main", 41), ("main", 42))}


def test_what_shipped_rules_know_comes_first(recorded: Recorded, scanner: Scanner) -> None:
    """A learned rule was never tried against all of it."""
    for log in (ECC + JAM, JAM + ECC):
        marked, book = Taught([rule(reason="S3 Storage Error")]).applied(recorded(HEAD + log), scanner.book)
        assert diagnose(marked, book).reason == "ECC Error"


def test_many_rules_many_lines(recorded: Recorded, scanner: Scanner) -> None:
    rules = [rule(pattern=f"^RuntimeError: odd thing {n} of {'abc'[n % 3]}$", name=f"r{n}") for n in range(60)]
    log = "".join(f"RuntimeError: odd thing {n} of {'abc'[n % 3]}\n" for n in range(60))
    hits = Taught(rules).hits(recorded(log))
    assert hits == {f"learned/diagnosis/r{n}": (("main", n + 1),) for n in range(60)}


def test_kept_lines_give_the_same_hits_and_episodes(recorded: Recorded, scanner: Scanner) -> None:
    """So a back-test over them is exact."""
    taught = Taught([rule("shadow")])
    records = recorded({"a": HEAD + JAM + ECC, "b": prefixed("[rank9]: ", "RuntimeError: x\n\x1b[31mERROR\x1b[0m y")})
    again = rebuilt(kept(records), scanner)
    assert taught.hits(again) == taught.hits(records) != {}
    shown = [[(one.digest, one.lines, one.role) for one in episodes(some, scanner.book)] for some in (records, again)]
    assert shown[0] == shown[1]


def test_matching_lines_of_a_pattern() -> None:
    lines = ["x", "[rank3]: boom 3", "2024-03-02 11:08:47,123 boom 44\r", "a boom 3", "bo\nom 3", "boom 3" + "y" * 5000]
    assert line_matches(r"^boom \d+$", lines) == [1, 2]
    assert line_matches(r"boom \d", lines) == [1, 2, 3, 5]
    with pytest.raises(RuleError):
        line_matches("(?=x)", lines)
