"""What nothing explains is sampled by shape, in bounded memory; what was shown, proven or taken counts for nothing."""

import sys
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.compress import cut as cutting
from logdoctor.compress import leftovers as module
from logdoctor.compress.cut import cut
from logdoctor.compress.filter import compress
from logdoctor.compress.leftovers import EXAMPLES, LONGEST, PER_SEGMENT, Leftovers, shape
from logdoctor.rules.scanner import Scanner
from logdoctor.types import ShapeGroup
from tests.compress.test_filter import ERROR, STEP
from tests.rules.learned import KIND, learned_rule


def gathered(log: bytes, scanner: Scanner, known: Iterable[int] = (), block: int = 1 << 20) -> Leftovers:
    left = Leftovers(set(known))
    for segment in cut("main", (log[at : at + block] for at in range(0, len(log), block)), block):
        left.add(compress(segment, scanner))
    return left


def texts(groups: list[ShapeGroup]) -> set[str]:
    return {text for group in groups for _, _, text in group.examples}


def odd(count: int, word: str = "gizmo") -> bytes:
    return b"".join(b"the %s number %d turns\n" % (word.encode(), number) for number in range(count))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"took 3 s", b"took 17 s"),
        (b"took 3.5 s", b"took 1e-05 s"),
        (b"at 0x7ff3a", b"at 0x1"),
        (b"commit 1f3ab2", b"commit 99ffe01"),
        (b"saved to /a/b/c.pt", b"saved to /x.pt"),
        (b"at 11:08:47", b"at 1:02:03.5"),
        (b"a  b", b"a \t b"),
        (b"tick\r", b"tick"),
        (b"10%|#   | 1\r20%|##  | 2\r", b"90%|####| 3"),
        (b"name=gpu ........", b"name=gpu ...."),
    ],
)
def test_lines_of_a_shape(one: bytes, other: bytes) -> None:
    assert shape(one) == shape(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(b"took 3 s", b"took 3 h"), (b"a b", b"ab"), (b"", b"0"), (b"tick", b"tock"), (b"x: y", b"x; y")],
)
def test_lines_of_different_shapes(one: bytes, other: bytes) -> None:
    assert shape(one) != shape(other)


@given(st.binary(max_size=300))
def test_property_any_bytes_have_a_shape(line: bytes) -> None:
    assert -(2**63) <= shape(line) < 2**63
    assert shape(line) == shape(line.rstrip(b"\r") + b"\r")


@pytest.mark.parametrize(
    "unit",
    [b"1a", b"|#", b"0x", b"/", b" ", b"1.", b"a0 ", b"\xe2\x96\x8f", b".", b"=/", b"1:", b"x", b"-", b"a-", b"dead"],
)
def test_a_shape_takes_time_that_is_linear_in_the_line(unit: bytes) -> None:
    line = (unit * LONGEST)[:LONGEST]
    begin = time.process_time()
    for _ in range(100):
        shape(line)
    assert time.process_time() - begin < 10


def test_groups_with_their_lines_the_largest_first(scanner: Scanner) -> None:
    left = gathered(odd(5) + STEP % 1 + b"\n" + odd(11, "gadget") + b"\n" + ERROR + b"\n", scanner)
    large, small = left.groups()
    assert (large.lines, small.lines) == (11, 5)
    assert small.examples[0] == ("main", 1, "the gizmo number 0 turns")
    assert large.examples[8] == ("main", 15, "the gadget number 8 turns")
    assert (left.lines_in, left.unexplained) == (19, 11), "few lines of a form are worth no lesson"


def test_examples_are_few_and_from_everywhere(scanner: Scanner) -> None:
    (group,) = gathered(odd(200), scanner).groups()
    numbers = [number for _, number, _ in group.examples]
    assert len(set(numbers)) == EXAMPLES and max(numbers) > 100
    assert all(text == f"the gizmo number {number - 1} turns" for _, number, text in group.examples)


def test_colours_are_left_out(scanner: Scanner) -> None:
    (group,) = gathered(b"\x1b[32mthe gizmo 1\x1b[0m turns\n" * 3, scanner).groups()
    assert group.examples[0] == ("main", 1, "the gizmo 1 turns")


def test_what_was_shown_counts_for_nothing(scanner: Scanner) -> None:
    known: set[int] = set()
    left = Leftovers(known)
    (segment,) = cut("main", [odd(9)], 1 << 20)
    left.add(compress(segment, scanner))
    (group,) = left.groups()
    known.add(group.shape)
    assert left.groups() == []
    left.count_anew()
    left.add(compress(segment, scanner))
    assert (left.lines_in, left.unexplained, left.groups()) == (9, 0, [])


def test_counting_anew_keeps_the_groups(scanner: Scanner) -> None:
    left = gathered(odd(9), scanner)
    left.count_anew()
    assert (left.lines_in, left.unexplained) == (0, 0) and left.groups()[0].lines == 9


def test_after_counting_anew_no_more_is_unexplained_than_came(scanner: Scanner) -> None:
    left = gathered(odd(9), scanner)
    left.count_anew()
    (segment,) = cut("main", [odd(1)], 1 << 20)
    left.add(compress(segment, scanner))
    assert (left.lines_in, left.groups()[0].lines) == (1, 10) and left.unexplained <= 1


def test_evidence_structure_and_long_lines_are_never_shown(scanner: Scanner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MAX_LINE", 5000)
    kept_out = [
        ERROR,
        b"Traceback (most recent call last):",
        b"acme.WeirdError: the gizmo is gone",
        b"",
        b"gizmo " * (LONGEST // 6 + 1),
        b"gizmo " * 2000,
    ]
    left = gathered(b"\n".join(kept_out * 30) + b"\n", scanner)
    assert left.groups() == [] and left.unexplained == 0


def test_lines_that_learned_rules_take_or_watch_are_explained(scanner: Scanner) -> None:
    rules = (learned_rule(r"^the gizmo number \d+ turns$"), learned_rule(r"^the gadget .*$", "two", "shadow"))
    log = odd(11) + odd(11, "gadget") + odd(11, "widget")
    left = gathered(log, scanner.learning(KIND, rules))
    assert [group.examples[0][2] for group in left.groups()] == ["the widget number 0 turns"]
    assert left.unexplained == 11


def test_trouble_is_shown_only_when_there_is_much_of_it(scanner: Scanner) -> None:
    few, many = (gathered(b"the gizmo failed to turn, try 7\n" * count, scanner) for count in (19, 20))
    assert few.groups() == [] and few.unexplained == 0
    assert len(many.groups()) == 1 and many.unexplained == 0


def test_lines_that_look_like_trouble_are_not_among_others_of_their_shape(scanner: Scanner) -> None:
    """`0 failed` and `3 failed` differ in a number only, but the second is trouble."""
    good, bad = b"gizmos turned, 0 failed\n", b"gizmos turned, 3 failed\n"
    for log in (good * 5 + bad * 5, bad + good * 9):
        assert texts(gathered(log, scanner).groups()) == {"gizmos turned, 0 failed"}


def test_of_a_large_segment_a_part_is_looked_at_and_stands_for_all(scanner: Scanner) -> None:
    log = b"".join(line for pair in zip(*(odd(9000, w).splitlines(True) for w in ("gizmo", "widget")), strict=True)
                   for line in pair)  # fmt: skip
    left = gathered(log, scanner)
    assert left.lines_in == 18_000 and left.unexplained == pytest.approx(18_000)
    assert [group.lines for group in left.groups()] == pytest.approx([9000, 9000], rel=0.25)


def test_the_same_bytes_give_the_same_groups(scanner: Scanner) -> None:
    log = odd(3000) + odd(2000, "widget")
    assert gathered(log, scanner).groups() == gathered(log, scanner).groups()


def letters(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def test_a_log_of_shapes_without_end_is_held_in_bounded_memory(scanner: Scanner) -> None:
    left = Leftovers(frozenset())
    for block in range(20):
        log = "".join(f"the {letters(block * 1000 + n)} turns {'x ' * 700}\n" for n in range(PER_SEGMENT)).encode()
        (segment,) = cut("main", [log], 1 << 30)
        left.add(compress(segment, scanner))
        assert len(left._groups) <= module._GROUPS + PER_SEGMENT
    assert sum(sys.getsizeof(text) for text in texts(left.groups())) < 4 << 20


def test_a_group_that_is_common_outlives_those_that_are_rare(scanner: Scanner) -> None:
    left = Leftovers(frozenset())
    for block in range(20):
        rare = "".join(f"the {letters(block * 1000 + n)} turns\n" for n in range(200))
        (segment,) = cut("main", [rare.encode() + odd(20)], 1 << 20)
        left.add(compress(segment, scanner))
    first = left.groups()[0]
    assert first.lines == 400 and first.examples[0][2].startswith("the gizmo")


@given(st.lists(st.sampled_from([b"the gizmo 1", b"x", b"", ERROR, STEP % 1, b"\xff\x00", b"3 failed"]), max_size=30))
def test_property_no_more_is_unexplained_than_came_in(scanner: Scanner, lines: list[bytes]) -> None:
    left = gathered(b"\n".join(lines), scanner, block=7)
    assert 0 <= left.unexplained <= left.lines_in
    assert all(group.lines >= len(group.examples) >= 1 for group in left.groups())
    assert not texts(left.groups()) & {ERROR.decode(), "", (STEP % 1).decode()}


def test_a_line_that_was_seen_once_does_not_come_again_because_many_were_left_out(scanner: Scanner) -> None:
    """Lines of a large segment are sampled: each stands for others, but of a form seen once nothing is known."""
    once = b"".join(b"moss on gate%s grew\n" % (b"x" * number) for number in range(1, 400))
    left = gathered(odd(2000) + once, scanner)
    lines = {group.lines for group in left.groups() if "moss" in group.examples[0][2]}
    assert lines == {1}
    assert max(group.lines for group in left.groups()) > 1000


def test_lines_that_begin_alike_are_worth_a_look_though_no_two_go_on_alike(scanner: Scanner) -> None:
    names = [first + second for first in "abcdefgh" for second in "klmnopqr"]
    alike = gathered(b"".join(b"[rank3]: telling tales of %s\n" % name.encode() for name in names), scanner)
    assert (alike.lines_in, alike.unexplained) == (64, 45), "from the twentieth on"
    others = gathered(b"".join(b"%s tells other tales\n" % name.encode() for name in names), scanner)
    assert (others.lines_in, others.unexplained) == (64, 0)
    warned = gathered(b"".join(b"telling failed for %s\n" % name.encode() for name in names), scanner)
    assert warned.unexplained == 0, "what looks like trouble"


def test_beginnings_are_remembered_in_bounds(scanner: Scanner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GROUPS", 10)
    names = [first + second for first in "abcdefgh" for second in "klmnopqr"]
    left = gathered(b"".join(b"%s tells tales\n" % name.encode() for name in names), scanner, block=100)
    assert len(left._openings) <= 20
