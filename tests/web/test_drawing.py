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
from logdoctor.web import drawing, rank_chart

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
    "ranks": lambda label: rank_chart.rank_times([RankError(None, label, label, 1, None, label, label)], None),
    "bars": lambda label: drawing.bars([(label, 1.0)], label, label),
    "stacked": lambda label: drawing.stacked([label, label], {label: [1.0, 2.0]}, label, label),
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
        rank_chart.rank_times([], None),
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
    assert lines(drawn) == ["M0 83.33L200 66.67", "M800 16.67L1000 33.33"]
    assert words(drawn) == ["0", "2", "4", "6", "0", "5"]


def test_both_axes_say_what_they_count_from_where() -> None:
    points = [(11_210.0, 354.0), (12_380.0, 366.6)]
    drawn = drawing.sparkline(points, "Throughput", x="step", y="TFLOP/s per GPU")
    assert words(drawn) == ["TFLOP/s per GPU", "350", "355", "360", "365", "370", "11,210", "step", "12,380"]
    beside = [text for text in elements(drawn, "text") if text.attrib["text-anchor"] == "end"][:-1]
    assert {text.attrib["x"] for text in beside} == {"-8"}, "the marks stand in the margin, not on the line"
    assert drawing.begins(points) == "350"
    assert not [path for path in elements(drawn, "path") if path.attrib["class"] == "area"], "no ground but from 0 on"


def test_an_axis_begins_at_0_where_that_hides_nothing() -> None:
    points = [(0.0, 9.0), (1.0, 2.5)]
    drawn = drawing.sparkline(points, "Loss")
    assert words(drawn)[:3] == ["0", "5", "10"] and drawing.begins(points) == ""
    assert [path for path in elements(drawn, "path") if path.attrib["class"] == "area"]


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ((1.8774, 1.9211), ["1.86", "1.88", "1.90", "1.92", "1.94"]),
        ((-4.0, 3.0), ["-5", "0", "5"]),
        ((1_200_000.0, 1_500_000.0), ["1.2e+06", "1.3e+06", "1.4e+06", "1.5e+06"]),
        ((0.0, 108_593.0), ["0", "50,000", "100,000", "150,000"]),
        ((-1e308, 1e308), ["-1e+308", "1e+308"]),
        ((5.0, 5.0 + 1e-14), ["5"]),
    ],
)
def test_marks_of_an_axis_are_round_and_told_apart(values: tuple[float, float], marks: list[str]) -> None:
    drawn = drawing.sparkline(list(enumerate(values)), "Loss")
    assert sorted({*words(drawn)[:-2]}, key=words(drawn).index) == marks


def test_one_point_is_seen() -> None:
    drawn = drawing.sparkline([(7, 3.0)], "Loss")
    assert lines(drawn) == ["M500 50m-4 0h8"]
    assert words(drawn) == ["3", "7"] and not drawing.sparkline([(7, 3.0)], "Loss").count("area")


def test_the_failure_is_marked_behind_the_last_point() -> None:
    drawn = drawing.sparkline([(0, 1.0), (50, 2.0)], "Loss", end=100)
    assert lines(drawn) == ["M0 50L500 0"]
    marks = [path for path in elements(drawn, "path") if "mark" in path.attrib["class"]]
    assert len(marks) == 2
    assert "100%" in [svg.attrib.get("x") for svg in elements(drawn, "svg")]


def test_ten_thousand_points_are_thinned_and_no_extreme_is_lost() -> None:
    points = [(float(x), 1000.0 if x == 5003 else 0.5 if x == 7001 else 2.0) for x in range(10_000)]
    drawn = drawing.sparkline(points, "Loss")
    (line,) = lines(drawn)
    assert line.count("L") <= 400 and len(drawn) < 20_000
    assert [place.split()[1] for place in line[1:].split("L")].count("0") == 1
    assert words(drawn)[:3] == ["0", "500", "1,000"]


def test_the_cause_stands_first_and_has_a_shape_of_its_own() -> None:
    drawn = rank_chart.rank_times([cascade(3), ERROR, cascade(4, 57)], ("main", 1123))
    told = words(drawn)
    assert told[:2] == ["rank 17 - ECC Error", "+0 s"]
    assert "rank 4 - NCCL Timeout Error (+ 56 more)" in told
    first, *others = [group for group in elements(drawn, "g")]
    assert first.attrib["class"] == "cause"
    assert {other.attrib["class"] for other in others} == {"rank"}
    assert len(elements(drawn, "rect")) == 2, "squares follow"


def test_without_times_lines_say_the_order() -> None:
    some = [RankError(rank, None, "main", 10 * rank, None, "Key Error", "proximate") for rank in (1, 2, 11)]
    told = words(rank_chart.rank_times(some, ("main", 10)))
    assert told[-3:] == ["line 10", "line of the log", "line 110"]
    places = [svg.attrib["x"] for svg in elements(rank_chart.rank_times(some, None), "svg")[1:]]
    assert places == ["2%", "11.6%", "98%"]


def test_times_that_are_all_the_same_tell_nothing_apart() -> None:
    some = [RankError(rank, None, "main", 10 * rank, 99.0, "Key Error", "proximate") for rank in (1, 2, 11)]
    told = words(rank_chart.rank_times(some, ("main", 10)))
    assert told[-3:] == ["line 10", "line of the log", "line 110"]
    assert (
        rank_chart.rank_note(some, ("main", 10))
        == "All timestamps show the same second: marks are placed by line number."
    )
    assert "+0 s" not in told
    exact = [msgspec.structs.replace(one, time=99.25) for one in some]
    assert rank_chart.rank_note(exact, None) == "All timestamps show the same time: marks are placed by line number."
    later = [*some[:2], msgspec.structs.replace(some[2], time=99.5)]
    assert words(rank_chart.rank_times(later, ("main", 10)))[-3:] == ["+0 s", "time from the cause", "+0.5 s"]
    assert rank_chart.rank_note(later, None) == rank_chart.rank_note([], None) == ""


def test_an_error_without_a_stamp_has_no_place_among_times() -> None:
    some = [ERROR, cascade(3), RankError(None, "gpu-7", "main", 1300, None, "Unknown", "cascade")]
    drawn = rank_chart.rank_times(some, ("main", 1123))
    assert ["node gpu-7 - unknown error", "line 1,300"] == words(drawn)[4:6]
    assert len([svg for svg in elements(drawn, "svg") if "x" in svg.attrib]) == 2
    assert rank_chart.rank_note(some, ("main", 1123)) == "A line without a timestamp has no mark."


def test_who_failed_is_called_what_it_is() -> None:
    rank, node = ERROR, RankError(None, "gpu-7", "main", 1, None, "Unknown", "cascade")
    stream = msgspec.structs.replace(node, node=None)
    assert [rank_chart.who_failed(one) for one in (rank, node, stream)] == ["rank 17", "node gpu-7", "stream main"]
    assert rank_chart.whose_errors([rank, rank]) == "First error of each rank"
    assert rank_chart.whose_errors([node, rank]) == "First error of each rank and node"
    assert rank_chart.whose_errors([stream, node, rank]) == "First error of each rank, node and stream"
    assert rank_chart.whose_errors([stream]) == "First error of each stream"


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ((99.0, 99.123, 98.9871), ["+0 s", "+0.123 s", "-0.013 s"]),
        ((99.0, 111.3456, 111.3), ["+0 s", "+12.346 s", "+12.3 s"]),
        ((99.0, 111.3456, 131.3456), ["+0 s", "+12.3 s", "+32.3 s"]),
        ((0.0, 1800.35, 1800.3), ["+0 s", "+1,800.35 s", "+1,800.3 s"]),
        ((0.0, 1800.35, 1900.3), ["+0 s", "+30 min", "+31.7 min"]),
        ((0.0, 0.000012, 9.0), ["+0 s", "+0.000012 s", "+9 s"]),
    ],
)
def test_times_less_than_a_second_apart_are_told_to_the_millisecond(times: list[float], told: list[str]) -> None:
    some = [RankError(n, None, "main", n, time, "Key Error", "proximate") for n, time in enumerate(times)]
    assert words(rank_chart.rank_times(some, ("main", 0)))[1:6:2] == told


def test_lines_of_several_streams_are_not_compared() -> None:
    some = [RankError(rank, None, f"rank_{rank}", 99 - rank, None, "Key Error", "proximate") for rank in (1, 2)]
    assert words(rank_chart.rank_times(some, None))[-3:] == ["first", "order in the log", "last"]


def test_rows_are_few_however_many_ranks_there_are() -> None:
    many = [ERROR] + [cascade(rank) for rank in range(60)]
    told = words(rank_chart.rank_times(many, ("main", 1123)))
    assert "rank 2 - NCCL Timeout Error (+ 57 more)" in told
    assert len(told) < 12
    unlike = [RankError(n, None, "main", n, None, f"Reason {n}", "cascade") for n in range(64)]
    assert len(elements(rank_chart.rank_times(unlike, None), "g")) == 16


def test_a_bar_is_as_long_as_its_share_of_the_longest() -> None:
    drawn = drawing.bars([("a", 50.0), ("b", 12.5), ("c", -3.0), ("d", math.nan)], "GPU h", "Time")
    widths = [rect.attrib["width"] for rect in elements(drawn, "rect") if rect.attrib["class"] == "c0"]
    assert widths == ["100%", "25%", "0%", "0%"]
    assert words(drawn)[:4] == ["a", "50 GPU h", "b", "12.5 GPU h"]
    shares = drawing.bars([("a", 59.0), ("b", 40.25), ("c", 100.0)], "%", "Shares", 100)
    assert words(shares)[1::2] == ["59.0%", "40.2%", "100%"]


def test_columns_stand_on_each_other() -> None:
    drawn = drawing.stacked(["w1", "w2"], {"a": [1, 4], "b": [1, 0]}, "h", "Time")
    told = [(r.attrib["class"], float(r.attrib["y"]), float(r.attrib["height"])) for r in elements(drawn, "rect")]
    assert told == [("c0", 112.0, 30.0), ("c1", 82.0, 30.0), ("c0", 22.0, 120.0)]
    assert "w2: a, 4 h" in [title.text for title in elements(drawn, "title")]


def test_columns_are_measured_from_0_and_labelled_below_themselves() -> None:
    drawn = drawing.stacked(["19 Oct", "26 Oct"], {"a": [1, 23]}, "failures", "Failures", "week of")
    assert words(drawn) == ["failures", "0", "10", "20", "30", "19 Oct", "26 Oct", "week of"]
    below = [text.attrib["x"] for text in elements(drawn, "text") if "Oct" in (text.text or "")]
    assert below == ["25%", "75%"]
    few = drawing.stacked(["w"], {"a": [1]}, "failures", "Failures")
    assert words(few) == ["failures", "0", "1", "w"], "there are no halves of failures"


def test_long_times_label_few_columns() -> None:
    drawn = drawing.stacked([f"week {n}" for n in range(300)], {"a": [1.0] * 300}, "h", "Time")
    assert len([word for word in words(drawn) if word.startswith("week")]) <= 6


_FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(_FLOATS, st.none() | _FLOATS), max_size=30), st.none() | _FLOATS)
def test_any_points_are_drawn(points: list[tuple[float, float | None]], end: float | None) -> None:
    drawn = drawing.sparkline(points, "Loss", end)
    assert isinstance(drawing.begins(points), str)
    assert elements(drawn, "svg") and drawn == drawing.sparkline(points, "Loss", end)
    assert "nan" not in drawn and "inf" not in drawn


def test_one_period_is_one() -> None:
    assert "1 period; the largest" in drawing.stacked(["2026-11-23"], {"Script": [2.0]}, "failures", "Failures")
