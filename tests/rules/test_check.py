"""Each kind of problem in a rule book is found, and a good book has none."""

from pathlib import Path
from typing import Any

import pytest

from logdoctor.errors import RuleError
from logdoctor.rules.check import check, digests, hits, require
from tests.rules.books import diagnosis, filter_rule, small_scanner

GOOD_FILTER = filter_rule("good", "all is well")
GOOD = diagnosis("good", "double bit")
RETIRED = {"at": "2026-01-02", "by": "a person", "why": "it took evidence"}


def problems(root: Path, *rules: dict[str, Any]) -> list[str]:
    scanner = small_scanner(root, *rules)
    return [str(problem) for problem in check(scanner.book, scanner)]


def problem(root: Path, *rules: dict[str, Any]) -> str:
    (found,) = problems(root, *rules)
    return found


def test_a_good_book_has_no_problem(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD_FILTER, GOOD) == []


@pytest.mark.parametrize("example", ["nothing of the kind", "well, all is"])
def test_a_filter_example_that_fails(tmp_path: Path, example: str) -> None:
    rule = GOOD_FILTER | {"must_match": ["all is well", example]}
    assert "must match" in problem(tmp_path, rule, GOOD)


def test_a_filter_example_must_match_behind_prefixes(tmp_path: Path) -> None:
    """A leading `^` knows prefixes, one in a group does not."""
    rule = filter_rule("good", r"(?:^)all is well", must_match=["all is well"])
    assert "'[rank3]: all is well'" in problem(tmp_path, rule, GOOD)


def test_a_filter_example_that_looks_like_trouble_needs_harmless(tmp_path: Path) -> None:
    rule = filter_rule("good", "OddError: never mind")
    assert "harmless: true" in problem(tmp_path / "a", rule, GOOD)
    assert problems(tmp_path / "b", rule | {"harmless": True}, GOOD) == []


def test_a_filter_counter_example_that_matches(tmp_path: Path) -> None:
    rule = GOOD_FILTER | {"must_not_match": ["all is well, really"]}
    assert "must not match 'all is well, really' but does" in problem(tmp_path, rule, GOOD)


def test_a_filter_example_that_is_evidence(tmp_path: Path) -> None:
    rule = GOOD_FILTER | {"must_match": ["all is well, double bit"]}
    note = GOOD | {"verdict": {"reason": "ECC Error", "role": "note"}}
    assert "is evidence for diagnosis/good" in problem(tmp_path, rule, note)


def test_metrics_without_an_example(tmp_path: Path) -> None:
    rule = GOOD_FILTER | {"metrics": [r"loss (?P<loss>\d+)"]}
    assert "no example for the metrics" in problem(tmp_path, rule, GOOD)


@pytest.mark.parametrize("rule", [GOOD_FILTER, GOOD])
def test_a_pattern_without_an_example_of_its_own(tmp_path: Path, rule: dict[str, Any]) -> None:
    lonely = {"patterns": ["all is well", "lonely"]} if rule is GOOD_FILTER else {"when": {"any": ["double", "lonely"]}}
    assert "no example of its own for pattern 'lonely'" in problem(tmp_path, rule | lonely)


@pytest.mark.parametrize("rule", [GOOD_FILTER, GOOD])
def test_a_rule_without_examples_or_patterns(tmp_path: Path, rule: dict[str, Any]) -> None:
    assert any("no example that must match" in p for p in problems(tmp_path / "a", rule | {"must_match": []}))
    none: dict[str, Any] = {"patterns": []} if rule is GOOD_FILTER else {"when": {"any": []}}
    assert "has no pattern" in problem(tmp_path / "b", rule | none)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a)\1", "Hyperscan refuses"),
        ("a(?!b)", "has (?! in it"),
        ("(open", "has a group that is not closed"),
        ("(((a|b|c)?x{64}){64}){8}", "is too large"),
    ],
)
def test_a_refused_pattern(tmp_path: Path, pattern: str, why: str) -> None:
    """The rules are shadows, so that the scanner does not stumble over them first."""
    shadow = {"status": "shadow", "must_match": ["aa"]}
    assert repr(pattern) in problem(tmp_path / "a", filter_rule("x", pattern, **shadow))
    unless = diagnosis("x", "aa", unless=[pattern], status="shadow")
    assert repr(pattern) in problem(tmp_path / "b", unless)
    assert why in problem(tmp_path / "a")


def test_metrics_that_do_not_compile(tmp_path: Path) -> None:
    assert "refuses" in problem(tmp_path, GOOD_FILTER | {"metrics": ["(?P<loss>"]})


def test_a_diagnosis_example_that_fails(tmp_path: Path) -> None:
    rule = GOOD | {"must_match": [{"text": "double bit"}, {"text": "single bit"}]}
    assert "must match 'single bit' but does not" in problem(tmp_path, rule)


def test_a_diagnosis_counter_example_that_matches(tmp_path: Path) -> None:
    rule = GOOD | {"must_not_match": [{"text": "a double bit"}]}
    assert "must not match 'a double bit' but does" in problem(tmp_path, rule)


def test_captures_that_are_not_found(tmp_path: Path) -> None:
    rule = diagnosis("xid", "", any=[r"Xid (?P<xid>\d+)"])
    right = {"text": "Xid 79", "captures": {"xid": "79"}}
    assert problems(tmp_path / "a", rule | {"must_match": [right]}) == []
    for captures in ({"xid": "80"}, {"gpu": "3"}):
        assert "captures" in problem(
            tmp_path / "b", rule | {"must_match": [right, {"text": "Xid 79", "captures": captures}]}
        )


def test_a_lookup_that_captures_nothing_or_finds_wrong_words(tmp_path: Path) -> None:
    rule = diagnosis("xid", "Xid", verdict={"lookup": "xid"})
    (tmp_path / "knowledge").mkdir()
    table = tmp_path / "knowledge" / "xid.tsv"
    table.write_text("xid\trole\treason\n79\tcause\tCUDA Error\n1\tnote\tanything\n")
    assert "captures no 'xid' to look up" in problem(tmp_path, rule)


@pytest.mark.parametrize("row", ["79\tculprit\tCUDA Error", "79\tcause\tBad Luck"])
def test_a_table_with_wrong_words(tmp_path: Path, row: str) -> None:
    rule = diagnosis("xid", "Xid 79", any=[r"Xid (?P<xid>\d+)"], verdict={"lookup": "xid"})
    (tmp_path / "knowledge").mkdir()
    (tmp_path / "knowledge" / "xid.tsv").write_text(f"xid\trole\treason\n{row}\n")
    assert "row '79'" in problem(tmp_path, rule)


@pytest.mark.parametrize("retired", [False, True])
def test_the_evidence_law(tmp_path: Path, retired: bool) -> None:
    """Guards retired diagnosis rules too."""
    cause = GOOD | ({"status": "retired", "retired": RETIRED} if retired else {})
    greedy = filter_rule("greedy", "bit", must_match=["a bit of news"])
    assert (
        problem(tmp_path / "a", greedy, cause)
        == "filter/greedy: takes 'double bit', which is evidence of diagnosis/good"
    )
    assert problems(tmp_path / "b", greedy | {"status": "shadow"}, cause) == []


def test_a_tie(tmp_path: Path) -> None:
    one = diagnosis("one", "double bit", reason="ECC Error")
    two = diagnosis("two", "bit double", reason="CUDA Error", any=["double b.t", "bit double"])
    two["must_match"] = [{"text": "double b1t"}, {"text": "bit double"}]
    assert problem(tmp_path / "a", one, two) == "diagnosis/one: ties with diagnosis/two on 'double bit'"
    for n, mended in enumerate(
        ({"role": "proximate", "reason": "CUDA Error"}, {"role": "cause", "reason": "ECC Error"})
    ):
        assert problems(tmp_path / f"mended{n}", one, two | {"verdict": mended}) == []


def test_a_known_wrong_that_is_mended(tmp_path: Path) -> None:
    wrong = {"want": "nothing", "got": "CUDA Error"}
    assert problems(tmp_path / "a", GOOD | {"known_wrong": [wrong | {"text": "no double bit"}]}) == []
    mended = GOOD | {"known_wrong": [wrong | {"text": "all fine"}]}
    assert "the known false match 'all fine' is fixed" in problem(tmp_path / "b", mended)


@pytest.mark.parametrize("rule", [GOOD_FILTER, GOOD])
def test_retirement_says_when_by_whom_and_why(tmp_path: Path, rule: dict[str, Any]) -> None:
    assert "belong together" in problem(tmp_path / "a", rule | {"status": "retired"})
    assert "belong together" in problem(tmp_path / "b", rule | {"retired": RETIRED})
    assert problems(tmp_path / "c", rule | {"status": "retired", "retired": RETIRED}) == []


def test_require_raises_for_a_book_with_problems(tmp_path: Path) -> None:
    good = small_scanner(tmp_path / "a", GOOD)
    require(good.book, good)
    bad = small_scanner(tmp_path / "b", GOOD | {"must_match": [{"text": "double bit"}, {"text": "other"}]})
    with pytest.raises(RuleError, match=r"diagnosis/good.*must match 'other'"):
        require(bad.book, bad)


def test_hits(tmp_path: Path) -> None:
    scanner = small_scanner(tmp_path, GOOD_FILTER, GOOD)
    assert hits(scanner, ["all is well", "", "all is well, double bit"]) == [(0, []), (-1, []), (-1, [0])]
    assert hits(scanner, [""]) == [(-1, [])] and hits(scanner, []) == []


def test_of_rules_known_to_pass_only_what_new_ones_change_is_checked(tmp_path: Path) -> None:
    old = [GOOD_FILTER, GOOD, diagnosis("broken", "triple bit", must_match=[{"text": "no such line"}])]
    known = digests(small_scanner(tmp_path / "old", *old).book)
    same = small_scanner(tmp_path / "same", *old)
    assert check(same.book, same, known) == [] and len(check(same.book, same)) == 1
    wide = small_scanner(tmp_path / "wide", *old, filter_rule("wide", "double", must_match=["double"]))
    assert [str(one) for one in check(wide.book, wide, known)] == [
        "filter/wide: takes 'double bit', which is evidence of diagnosis/good"
    ]
    rival = small_scanner(tmp_path / "rival", *old, diagnosis("rival", "is well"))
    assert "evidence for diagnosis/rival" in str(check(rival.book, rival, known)[0])
