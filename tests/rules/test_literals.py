"""What a pattern needs of a line is a property of the pattern: no line that it matches lacks it."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from logdoctor.errors import RuleError
from logdoctor.rules import literals as module
from logdoctor.rules.literals import Expression, expressions_of, known_expressions, outline
from logdoctor.rules.load import RuleBook
from logdoctor.rules.match import LINE_START, LINE_STARTS, Compiled, Matcher
from tests.soak import SOAKING


def needs(pattern: str) -> list[set[bytes]]:
    """The sets of literals of a pattern that is compiled in one piece."""
    (found,) = expressions_of(pattern)
    return [set(one) for one in found.sets]


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("link down", [{b"link down"}]),
        ("(?i)Link DOWN", [{b"link down"}]),
        ("link.*down", [{b"link"}, {b"down"}]),
        ("link (?:is )?down", [{b"link down", b"link is down"}]),
        ("link(?:s down|ed)", [{b"linked", b"links down"}]),
        ("(?:link .*down|port \\w+ lost)", [{b"link ", b"port "}]),
        (r"rank \d+ died", [{b"0 died"}, {b"rank "}]),
        (r"\d\d:\d\d lost", [{b"00:00 lost"}]),
        ("[Ll]ost", [{b"lost"}]),
        ("(?:abc){2}d", [{b"abcabcd"}]),
        ("(?:abc){2,}d", [{b"abcabcd"}]),
        ("(?:abc)*defg", [{b"defg"}]),
        ("a+b", [{b"ab"}]),
        (r"lost\.$", [{b"lost.", b"lost.\r"}]),
        (r"^\[rank\d\] lost", [{b"[rank0] lost"}]),
        ("über alles", [{"über alles".encode()}]),
        (r"—{3} lost", [{b" lost"}]),
        (r"\w+", []),
        ("(?:lost|.)", []),
    ],
)
def test_what_a_line_needs(pattern: str, literals: list[set[bytes]]) -> None:
    assert sorted(map(sorted, needs(pattern))) == sorted(map(sorted, literals))


@pytest.mark.parametrize(
    ("pattern", "tells"),
    [
        (r"rank \d+", False),
        (r"rank [0-9]+", False),
        (r"rank [\da-f]{1,20} \w+", False),
        ("rank 0", True),
        (r"rank [1-9]\d*", True),
        (r"[^0]", True),
        (r"[^\d,]", False),
        (r"a{2,30}", False),
        (r"(?P<x2>lost)", False),
        (r"\x31", True),
    ],
)
def test_which_patterns_tell_digits_apart(pattern: str, tells: bool) -> None:
    assert (expressions_of(pattern)[0].blind is not None) == tells


def test_alternatives_that_tell_digits_apart_stand_by_themselves() -> None:
    plain, telling = expressions_of(r"NCCL (?:lost \d|version 2|gone)")
    assert (plain.source, plain.blind) == (r"NCCL (?:lost \d|gone)", None)
    assert (telling.source, telling.blind) == ("NCCL (?:version 2)", "NCCL (?:version 0)")
    (repeated,) = expressions_of(r"(?:lost|2)+ x")
    assert repeated.blind


def test_an_outline_keeps_all_but_digits() -> None:
    assert outline(b"rank 17 of 2048\r\nx") == b"rank 00 of 0000\r\nx"


@pytest.mark.parametrize("pattern", ["^a{0,2}", "x?", "(?:a|b*)", r"^\r?$", r"\b", ""])
def test_what_matches_any_line_is_refused(pattern: str) -> None:
    with pytest.raises(RuleError, match="matches an empty line"):
        expressions_of(pattern)


def test_what_would_take_long_to_compile_is_refused() -> None:
    with pytest.raises(RuleError, match="repeats something more than"):
        expressions_of("a{9999}")


def test_what_is_known_is_kept_and_damage_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (Expression("link down", ((b"link down",),), None),)
    for damage in (lambda raw: raw, lambda raw: b"\xff" + raw, lambda raw: raw[:7], lambda raw: b""):
        monkeypatch.setattr(module, "_files", {})
        with known_expressions(tmp_path) as known:
            assert known("link down") == wanted
        (kept,) = tmp_path.iterdir()
        kept.write_bytes(damage(kept.read_bytes()))


@pytest.mark.more_in_soak
def test_every_example_has_what_its_pattern_needs(book: RuleBook) -> None:
    """Held for each pattern of the shipped rules and each line of their examples that it matches."""
    examples = [text for rule in book.filters for text in rule.must_match]
    examples += [example.text for rule in book.diagnoses for example in rule.must_match]
    sources = [source for rule in book.filters for source in rule.patterns]
    sources += [source for rule in book.diagnoses for source in (*rule.when.any, *rule.when.unless)]
    dice = random.Random(5)
    for source in dice.sample(sources, 120 if SOAKING else 40):
        expressions = expressions_of(source)
        matcher = Matcher([source])
        for text in dice.sample(examples, 60):
            raw = text.replace("\n", " ").encode()
            if len(matcher.scan(raw)[0]):
                lowered = outline(raw).lower()
                assert any(
                    all(any(literal in lowered for literal in one) for one in expression.sets)
                    for expression in expressions
                ), (source, text)


PIECES = ["ab", "a", "7", r"\d", r"\d+", "[0-3]", "[ab7]", "(?:ab|7)", "(?:a|b\\d)?", "(?:7a)+", "b{2}", ".", " ", "x*"]


@given(
    pattern=st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join),
    lines=st.lists(st.text("ab0347 x", max_size=12), min_size=1, max_size=8),
)
def test_property_a_match_has_the_literals_and_its_outline_the_blind_form(pattern: str, lines: list[str]) -> None:
    assume(re.fullmatch(pattern, "") is None)
    expressions = expressions_of(pattern)
    for line in lines:
        if re.search(pattern, line) is None:
            continue
        raw = line.encode()
        lowered = outline(raw).lower()
        mine = [one for one in expressions if re.search(one.source, line)]
        assert mine
        for one in mine:
            assert all(any(literal in lowered for literal in need) for need in one.sets)
            assert one.blind is None or re.search(one.blind, outline(raw).decode())


@given(st.text("ab0347 x\t", max_size=30))
def test_property_lines_with_one_outline_are_told_apart_by_blind_patterns_alone(line: str) -> None:
    other = line.translate(str.maketrans("347", "985"))
    for pattern in (piece for piece in PIECES if re.fullmatch(piece, "") is None):
        (one,) = expressions_of(pattern) if len(expressions_of(pattern)) == 1 else (None,)
        if one is not None and one.blind is None:
            assert bool(re.search(pattern, line)) == bool(re.search(pattern, other))


def test_a_start_with_a_repeat_and_many_alternatives_misses_no_line() -> None:
    """Behind a bare `^` Hyperscan finds only the first of such lines, when they are long."""
    source = r"\d+ :: (?:Creat(?:ed|ing) |Gather|Loaded reference|Wrote |batch_size_one=|dedicated_ranks = |ranks = )"
    line = b"0 :: Gathered torch.Size([16, 50, 84, 1024]) -> [16, 50, 84, 1024]"
    ends = Compiled([f"{LINE_STARTS}(?:{source})"]).scan(LINE_START.join([b"", line, line, line]) + b"\n")[1]
    assert len(ends) == 3
