"""A pattern is measured before it is compiled, and what would take minutes is refused at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import RuleError
from logdoctor.rules.pattern_size import Size, may_explode, require_small, size_of
from logdoctor.service.sifting import sieve


@pytest.mark.parametrize(
    "pattern",
    [
        "(((a|b|c)?x{64}){64}){8}",
        "(((a|b)?x{64}){64}){2}",
        "(?:(?i:(?:a?x{40}){20}))+",
        "(?P<name>(a|b)?x{60}){60}",
        "([)]|x{60}){60}",
        "([]()]|x{60}){60}",
        r"(\)|x{60}){60}",
        "([[:alpha:])]|x{60}){60}",
        "(x{60}){,60}",
        "(x{1,60}){60,}",
        "(a?){64}(a?){64}x",
        r"(x{60}\Q)\E){60}",
        "(?x)((x{60}) #)\n){60}",
        "(*UCP)x",
        "(?#))x",
        "(" * 50 + "x" + ")" * 50,
        "x{65}",
        "x{99999999999}",
        "x)",
        "(x",
    ],
)
def test_what_would_take_long_is_refused_before_it_is_compiled(pattern: str) -> None:
    with pytest.raises(RuleError):
        require_small(pattern)
    with pytest.raises(RuleError):
        sieve(pattern, True, True, None)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", Size()),
        ("abc", Size(3, 1, 1, 5, False)),
        ("a|bc", Size(3, 2, 2, 4, False)),
        ("(a|bc)d", Size(4, 2, 1, 7, False)),
        ("a?b", Size(2, 2, 1, 3, False)),
        ("a{3}", Size(3, 1, 1, 5, False)),
        ("(?:ab){2,3}", Size(6, 1, 2, 11, False)),
        ("a+", Size(1, 1, 1, 2, False)),
        ("a*b", Size(2, 2, 1, 4, False)),
        ("x{0}y", Size(1, 1, 1, 1, False)),
        (r"^[a-z]\d\x41\p{L}\)$", Size(5, 1, 1, 9, False)),
        ("[]a][^]a][[:alpha:]()]", Size(3, 1, 1, 5, False)),
        ("(?i)a|(?:)", Size(1, 1, 1, 1, True)),
    ],
)
def test_the_size_of_a_pattern(pattern: str, size: Size) -> None:
    assert size_of(pattern) == size


PARTS = st.recursive(
    st.sampled_from(["a", "[ab]", "é", r"\d", "^", ""]),
    lambda part: st.one_of(
        st.tuples(part, part).map("".join),
        st.tuples(part, part).map(lambda both: f"(?:{both[0]}|{both[1]})"),
        st.tuples(part, st.sampled_from("?*+")).map(lambda two: f"(?:{two[0]}){two[1]}"),
    ),
    max_leaves=6,
)


@given(PARTS, st.integers(0, 5), st.integers(0, 5))
def test_a_repeat_is_as_large_as_its_part_written_out(part: str, least: int, more: int) -> None:
    required = f"(?:{part})" * least
    optional = f"(?:(?:{part})" * more + ")?" * more
    assert size_of(f"(?:{part}){{{least},{least + more}}}") == size_of(required + optional)
    without_end = f"(?:{part})" * (least - 1) + (f"(?:{part})+" if least else f"(?:{part})*")
    assert size_of(f"(?:{part}){{{least},}}") == size_of(without_end)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^step \d*7 is",
        r"(?:NCCL|RCCL) (?:WARN|ERROR).{0,64}(?:timeout|abort)",
        r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b",
        r"\d{1,3}(?:\.\d{1,3}){3}:\d{2,5}",
        r"(?i)loss[ =:]+(?:nan|[-+]?inf)",
        "é{2}x",
        r"a{,5}\{x\}",
    ],
)
def test_what_people_look_for_compiles(pattern: str) -> None:
    assert sieve(pattern, True, True, None).matcher.size == 1


@pytest.mark.parametrize(
    ("pattern", "explodes"),
    [
        (r"(?P<loss>(?:\d|\d\d)+) end", True),
        (r"(a+)+b", True),
        (r"((?:ab?)*,){4,}c", True),
        (r"(?:(?:a|b)c){9}", True),
        (r"(?P<loss>[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))", False),
        (r"(?:ab)+c", False),
        (r"(?:a|b)?c+d*", False),
        (r"[(a|b)+]+", False),
        (r"\(a+\)+", False),
        (")+", False),
    ],
)
def test_who_searches_by_trying_may_never_end(pattern: str, explodes: bool) -> None:
    assert may_explode(pattern) == explodes
