"""What the language of learned patterns lets in, what it says of a pattern, and that its automaton is right."""

import re
import time

import pytest
import regex
from hypothesis import assume, example, given
from hypothesis import strategies as st

from logdoctor.errors import PatternRefused
from logdoctor.learning.filters.automaton import Automaton
from logdoctor.learning.filters.matching import compiled, taken
from logdoctor.learning.grammar import parse
from logdoctor.rules.lines import hits, joined
from logdoctor.rules.match import Matcher

LITERALS = st.sampled_from(["step", "loss", " ", ": ", "a", "b", "0", r"\.", r"\[", r"\]", r"\|", "-", "=", "/", "█"])
CLASSES = st.sampled_from(
    [r"\d", r"\w", r"\S", r"\s", r"\D", r"\W", r"\t", "[a-z]", "[A-Z0-9_]", r"[\d.]", "[^|]", r"[^\s]", "[ab]", "[█▌]"]
)
REPEATS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"])
ATOMS = st.one_of(LITERALS, st.builds("{}{}".format, CLASSES, REPEATS))
BODIES = st.recursive(
    st.lists(ATOMS, min_size=1, max_size=5).map("".join),
    lambda inner: st.builds(
        "{}(?:{}){}{}".format,
        inner,
        st.lists(inner, min_size=1, max_size=3).map("|".join),
        st.sampled_from(["", "?"]),
        inner,
    ),
    max_leaves=6,
)
PATTERNS = BODIES.map("^{}$".format)
LINES = st.one_of(
    st.text(st.sampled_from("steploab 0123.[]|-=/:_AZ\t█▌é\r"), max_size=24),
    st.text(st.characters(max_codepoint=127, exclude_characters="\n"), max_size=24),
)


@pytest.mark.parametrize(
    "source, letters, characters",
    [
        (r"^step \d+ loss [\d.]+$", 8, 8),
        (r"^(?:iteration|step) \d+$", 4, 4),
        (r"^(?:iteration )?step \d+$", 4, 4),
        (r"^(?:a|b)c \d+$", 0, 2),  # single letters are no words
        (r"^step(?: \d+ of)? \d+ done$", 8, 8),
        (r"^[Ss]tep \d+$", 3, 3),
        (r"^s{4} \d+$", 0, 4),
        (r"^-{8,}$", 0, 8),
        (r"^\d+/\d+ \[x\]$", 0, 4),
        (r"^\d+(?:step)?$", 0, 0),
        (r"^█ ok$", 2, 5),
    ],
)
def test_the_least_literal_text(source: str, letters: int, characters: int) -> None:
    pattern = parse(source)
    assert (pattern.letters, pattern.characters) == (letters, characters)


def test_literals_are_the_text_between_fields() -> None:
    assert parse(r"^step \d+(?: of|/)(?:\d+)? \[█\] a{3}$").literals == ("step ", " of", "/", " [█] aaa")


@pytest.mark.parametrize(
    "source, free",
    [
        (r"^x[\w ]+$", True),
        (r"^x[^|]*$", True),
        (r"^x[ -~]{2}$", True),
        (r"^x\W+$", True),
        (r"^x\D+$", True),
        (r"^x[\w ]$", False),
        (r"^x[\d ,.e-]+$", False),
        (r"^x\S+$", False),
        (r"^x[^ -~]+$", True),  # a tab and other scripts
        (r"^x[ █▌]+$", False),
        (r"^x +$", False),
    ],
)
def test_free_text_is_seen(source: str, free: bool) -> None:
    assert any(field.free for field in parse(source).fields) == free


@given(PATTERNS, LINES)
@example("^[█▌]+$", "█")
@example(r"^a\s$", "a\r")
def test_a_pattern_means_the_same_to_all_engines(source: str, line: str) -> None:
    """Hyperscan, `regex`, `re` and our automaton agree on bytes; on ASCII `re` agrees on text as well."""
    try:
        pattern = parse(source)
    except PatternRefused:
        assume(False)
    raw = line.encode()
    expected = re.fullmatch(source[1:-1].encode() + rb"\r?", raw) is not None
    # a carriage return of a class may stand where the line end's own does
    assert (regex.fullmatch(source[1:-1].encode() + rb"\r?", raw) is not None) == expected
    automaton = Automaton(pattern)
    whole = any(automaton.backward(text)[0] & 1 for text in {raw, raw.removesuffix(b"\r")})
    assert whole == expected
    if line.isascii() and source.isascii():
        assert (re.fullmatch(source[1:-1] + "\r?", line, re.ASCII) is not None) == expected
    if expected and line:
        assert len(Matcher([source]).scan(raw)[0])


@given(PATTERNS, LINES, LINES)
def test_no_pattern_matches_across_a_line_end(source: str, first: str, second: str) -> None:
    try:
        parse(source)
    except PatternRefused:
        assume(False)
    matcher = Matcher([source])
    together = hits(matcher, joined([f"x{first}", f"x{second}"]))[0]
    alone = {n for n, line in enumerate((first, second)) if hits(matcher, joined([f"x{line}"]))[0]}
    assert together == alone
    assert not len(matcher.scan(f"\n{first}".encode())[0]) or hits(matcher, joined([first]))[0]


@given(st.text(max_size=60))
@example("^" + "(?:" * 900)
@example("^[" + "a" * 990 + "$")
def test_any_text_is_taken_apart_or_refused(text: str) -> None:
    for source in (text, f"^{text}$"):
        try:
            pattern = parse(source)
        except PatternRefused as refused:
            assert refused.guard in ("anchor", "grammar", "compile")
            assert refused.cause and len(str(refused)) < 600
        else:
            assert pattern.source == source


@given(st.lists(st.sampled_from(list(r"^$.*+?{}[]()|\-,:<>=!P#sdwSWDbnxA10aé ")), max_size=30).map("".join))
def test_what_is_let_in_compiles(text: str) -> None:
    source = f"^{text}$"
    try:
        parse(source)
    except PatternRefused:
        return
    re.compile(source)
    regex.compile(source)
    assert compiled([source]) is not None


@pytest.mark.parametrize(
    "source",
    [
        "^y" + "x?" * 100 + "$",
        r"^y\S{0,64}\w{0,64}$",
        "^" + r"(?:\w+\d*|\S+x)" * 40 + "$",
        "^" + r"\w*" * 100 + "x$",
        "^" + r"\S+\d+" * 60 + "x$",
        "^" + r"[\d.,]+(?:[eE][-+]?\d+)? ab " * 30 + "$",
        "^" + r"\S{1,4}\w?" * 30 + "$",
    ],
)
def test_the_largest_patterns_stay_small(source: str) -> None:
    """Compiling stays in bounds, and time is linear in the line."""
    started = time.process_time()
    parse(source)
    matcher = Matcher([source])
    matcher.scan(b"a1" * 500_000)
    assert time.process_time() - started < 8  # 1 s on a quiet machine


def test_phrases_that_a_pattern_could_hold() -> None:
    def holds(source: str, phrase: str) -> bool:
        return Automaton(parse(source)).holds(phrase.encode())

    assert holds(r"^x \w+ \w+$", "link down")
    assert not holds(r"^x \w+: \w+$", "link down")
    assert holds(r"^x \w+(?: \w+)?$", "link down")
    assert holds(r"^x l[a-i]nk \S+$", "link down")
    assert not holds(r"^x [a-c]+ [a-c]+$", "link down")
    assert holds(r"^x [a-z]{4} [a-z]{4}$", "link down")
    assert not holds(r"^x [a-z]{3} [a-z]{4}$", "link down")
    assert holds(r"^x [a-z]{3,5} [a-z]{2,64}$", "link down")


def test_where_a_message_begins() -> None:
    automaton = Automaton(parse(r"^step \d+$"))
    assert automaton.message(b"[rank3]: step 12") == 9
    assert automaton.message(b"step 12") == 0
    assert automaton.message(b"step x") is None


def test_what_patterns_take() -> None:
    lines = ["step 1", "[rank3]: step 2", "", "foo bar", "step x", "step 3\r", "x\nstep 3"]
    found = taken([r"^step \d+$", "^a|b$", r"^foo \S+$", r"^step \d+$", "(", "^(?:a{1,500}){1,500}$"], lines)
    assert found == [{0, 1, 5}, set(), {3}, {0, 1, 5}, set(), set()]
    assert taken([r"^step \d+$"], []) == [set()]
    assert taken([], lines) == []


def test_many_patterns_are_compiled_in_parts() -> None:
    lines = [f"step {n} of kind{n}" for n in range(100)]
    assert taken([rf"^step \d+ of kind{n}$" for n in range(100)], lines) == [{n} for n in range(100)]
