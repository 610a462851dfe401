"""Charts: well-formed, escaped, bounded, and the same for the same data."""

import math
from collections.abc import Callable
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from logdoctor.types import RankError
from logdoctor.web import drawing

EVIL = "<script>alert(1)</script>\"'&\x00\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}]]>"
ERROR = RankError(17, "gpu-12", "main", 1123, 1000.0, "ECC Error", "cause")


def elements(drawn: Markup, kind: str) -> list[ElementTree.Element]:
    """What is drawn of a kind; an error when it is not well-formed."""
    return [element for element in ElementTree.fromstring(str(drawn)).iter() if element.tag == kind]


def words(drawn: Markup) -> list[str]:
    return [element.text or "" for element in elements(drawn, "text")]


def lines(drawn: Markup) -> list[str]:
    """The strokes of a line, as their paths."""
    return [path.attrib["d"] for path in elements(drawn, "path") if path.attrib["class"] == "line"]


def cascade(rank: int, count: int = 1, role: str = "cascade") -> RankError:
    return RankError(rank, None, "main", 1200 + rank, 1600.0 + rank, "NCCL Timeout Error", role, count)


DRAWN: dict[str, Callable[[str], Markup]] = {
    "sparkline": lambda label: drawing.sparkline([(0, 1.0), (1, 2.0)], label),
    "ranks": lambda label: drawing.rank_times([RankError(None, label, label, 1, None, label, label)], None),
    "bars": lambda label: drawing.bars([(label, 1.0)], label, label),
    "stacked": lambda label: drawing.stacked([label, label], {label: [1.0, 2.0]}, label, label),
    "legend": lambda label: drawing.legend([label]),
}


@pytest.mark.parametrize("name", DRAWN)
def test_hostile_labels_are_text(name: str) -> None:
    drawn = DRAWN[name](EVIL)
    assert isinstance(drawn, Markup)
    assert elements(drawn, "script") == []
    assert "alert(1)" in drawn and "\x1b" not in drawn and "\N{RIGHT-TO-LEFT OVERRIDE}" not in drawn
    assert DRAWN[name]("x" * 100_000).count("x") < 2000


@pytest.mark.parametrize("name", DRAWN)
def test_nothing_is_styled_or_fetched(name: str) -> None:
    for element in ElementTree.fromstring(str(DRAWN[name]("a"))).iter():
        assert not {"style", "href", "src", "onload"} & set(element.attrib)


@pytest.mark.parametrize(
    "drawn",
    [
        drawing.sparkline([], "Loss"),
        drawing.sparkline([(1, None), (2, math.nan), (math.inf, 3.0)], "Loss"),
        drawing.rank_times([], None),
        drawing.bars([], "h", "Loss"),
        drawing.stacked([], {}, "h", "Loss"),
        drawing.stacked(["a"], {"x": [0.0]}, "h", "Loss"),
        drawing.stacked(["a"], {"x": []}, "h", "Loss"),
    ],
)
def test_nothing_to_draw_is_said(drawn: Markup) -> None:
    assert len(words(drawn)) == 1 and not elements(drawn, "rect") and not lines(drawn)
    (root,) = [one for one in elements(drawn, "svg") if "role" in one.attrib]
    assert root.attrib["role"] == "img"


def test_a_gap_parts_the_line() -> None:
    drawn = drawing.sparkline([(0, 1.0), (1, 2.0), (2, None), (3, math.inf), (4, 5.0), (5, 4.0)], "Loss")
    assert lines(drawn) == ["M0 100L200 75", "M800 0L1000 25"]
    assert words(drawn) == ["5", "1", "0", "5"]


def test_one_point_is_seen() -> None:
    drawn = drawing.sparkline([(7, 3.0)], "Loss")
    assert lines(drawn) == ["M500 50m-4 0h8"]
    assert words(drawn) == ["3", "7"]


def test_the_failure_is_marked_behind_the_last_point() -> None:
    drawn = drawing.sparkline([(0, 1.0), (50, 2.0)], "Loss", end=100)
    assert lines(drawn) == ["M0 100L500 0"]
    marks = [path for path in elements(drawn, "path") if "mark" in path.attrib["class"]]
    assert len(marks) == 2
    assert "100%" in [svg.attrib.get("x") for svg in elements(drawn, "svg")]


def test_ten_thousand_points_are_thinned_and_no_extreme_is_lost() -> None:
    points = [(float(x), 1000.0 if x == 5003 else 0.5 if x == 7001 else 2.0) for x in range(10_000)]
    drawn = drawing.sparkline(points, "Loss")
    (line,) = lines(drawn)
    assert line.count("L") <= 400 and len(drawn) < 20_000
    assert [place.split()[1] for place in line[1:].split("L")].count("0") == 1
    assert words(drawn)[:2] == ["1,000", "0.5"]


def test_the_cause_stands_first_and_has_a_shape_of_its_own() -> None:
    drawn = drawing.rank_times([cascade(3), ERROR, cascade(4, 57)], ("main", 1123))
    told = words(drawn)
    assert told[:2] == ["rank 17 - ECC Error", "+0 s"]
    assert "rank 4 - NCCL Timeout Error (+ 56 more)" in told
    first, *others = [group for group in elements(drawn, "g")]
    assert first.attrib["class"] == "cause"
    assert {other.attrib["class"] for other in others} == {"rank"}
    assert len(elements(drawn, "rect")) == 2, "squares follow"


def test_without_times_lines_say_the_order() -> None:
    some = [RankError(rank, None, "main", 10 * rank, None, "Key Error", "proximate") for rank in (1, 2, 11)]
    told = words(drawing.rank_times(some, ("main", 10)))
    assert told[-2:] == ["line 10", "line 110"]
    places = [svg.attrib["x"] for svg in elements(drawing.rank_times(some, None), "svg")[1:]]
    assert places == ["2%", "11.6%", "98%"]


def test_times_that_are_all_the_same_tell_nothing_apart() -> None:
    some = [RankError(rank, None, "main", 10 * rank, 99.0, "Key Error", "proximate") for rank in (1, 2, 11)]
    told = words(drawing.rank_times(some, ("main", 10)))
    assert told[-3:] == ["line 10", "line 110", "All stamps tell the same second: marks stand by their line."]
    assert "+0 s" not in told
    later = [*some[:2], msgspec.structs.replace(some[2], time=99.5)]
    assert words(drawing.rank_times(later, ("main", 10)))[-2:] == ["+0 s", "+0.5 s"]


def test_lines_of_several_streams_are_not_compared() -> None:
    some = [RankError(rank, None, f"rank_{rank}", 99 - rank, None, "Key Error", "proximate") for rank in (1, 2)]
    assert words(drawing.rank_times(some, None))[-2:] == ["first", "last"]


def test_rows_are_few_however_many_ranks_there_are() -> None:
    many = [ERROR] + [cascade(rank) for rank in range(60)]
    told = words(drawing.rank_times(many, ("main", 1123)))
    assert "rank 2 - NCCL Timeout Error (+ 57 more)" in told
    assert len(told) < 12
    unlike = [RankError(n, None, "main", n, None, f"Reason {n}", "cascade") for n in range(64)]
    assert len(elements(drawing.rank_times(unlike, None), "g")) == 16


def test_a_bar_is_as_long_as_its_share_of_the_longest() -> None:
    drawn = drawing.bars([("a", 50.0), ("b", 12.5), ("c", -3.0), ("d", math.nan)], "GPU h", "Time")
    widths = [rect.attrib["width"] for rect in elements(drawn, "rect") if rect.attrib["class"] == "c0"]
    assert widths == ["100%", "25%", "0%", "0%"]
    assert words(drawn)[:4] == ["a", "50 GPU h", "b", "12.5 GPU h"]


def test_columns_stand_on_each_other() -> None:
    drawn = drawing.stacked(["w1", "w2"], {"a": [1, 4], "b": [1, 0]}, "h", "Time")
    told = [(r.attrib["class"], float(r.attrib["y"]), float(r.attrib["height"])) for r in elements(drawn, "rect")]
    assert told == [("c0", 100.5, 27.5), ("c1", 73.0, 27.5), ("c0", 18.0, 110.0)]
    assert "w2: a, 4 h" in [title.text for title in elements(drawn, "title")]


def test_long_times_label_few_columns() -> None:
    drawn = drawing.stacked([f"week {n}" for n in range(300)], {"a": [1.0] * 300}, "h", "Time")
    assert len(words(drawn)) <= 5


_FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(_FLOATS, st.none() | _FLOATS), max_size=30), st.none() | _FLOATS)
def test_any_points_are_drawn(points: list[tuple[float, float | None]], end: float | None) -> None:
    drawn = drawing.sparkline(points, "Loss", end)
    assert elements(drawn, "svg") and drawn == drawing.sparkline(points, "Loss", end)
    assert "nan" not in drawn and "inf" not in drawn
