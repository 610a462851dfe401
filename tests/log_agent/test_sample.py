"""A sample holds whole groups, the largest first, as far as there is room."""

from hypothesis import given
from hypothesis import strategies as st

from logdoctor.learning.filters.sample import order, sample
from logdoctor.types import ShapeGroup
from tests.log_agent import samples


def group(shape: int, lines: int, *texts: str) -> ShapeGroup:
    return ShapeGroup(shape, lines, tuple(("main", number, text) for number, text in enumerate(texts, 1)))


def test_lines_know_their_place_and_their_group() -> None:
    held, shapes = sample("kind", "job", 3, [group(7, 90, "a 1", "a 2"), group(-8, 4, "b 1")], 1000, 10)
    assert (held.kind, held.job, held.attempt) == ("kind", "job", 3)
    assert held.lines == ("a 1", "a 2", "b 1") and held.groups == (0, 0, 1) and held.counts == (90, 4)
    assert held.places == (("main", 1), ("main", 2), ("main", 1)) and shapes == [7, -8]


def test_what_has_no_room_is_left_for_the_next_time() -> None:
    groups = [group(1, 9, "x" * 100), group(2, 8, "y" * 10), group(3, 7, "z" * 10), group(4, 6, "w" * 10)]
    held, shapes = sample("kind", "job", 1, groups, 22, 10)
    assert shapes == [2, 3] and held.lines == ("y" * 10, "z" * 10) and held.groups == (0, 1)
    assert sample("kind", "job", 1, groups, 1000, 2)[1] == [1, 2]
    assert sample("kind", "job", 1, groups, 5, 10)[1] == [] == sample("kind", "job", 1, [], 5, 10)[1]


@given(
    st.lists(st.lists(st.text(max_size=30), min_size=1, max_size=4), max_size=12),
    st.integers(0, 200),
    st.integers(0, 8),
)
def test_property_a_sample_is_whole_groups_within_its_bounds(texts: list[list[str]], room: int, most: int) -> None:
    groups = [group(number, 100 - number, *some) for number, some in enumerate(texts)]
    held, shapes = sample("kind", "job", 1, groups, room, most)
    assert sum(len(line) + 1 for line in held.lines) <= room and len(held.counts) == len(shapes) <= most
    assert shapes == sorted(shapes)
    for number, shape in enumerate(shapes):
        assert [line for line, of in zip(held.lines, held.groups, strict=True) if of == number] == texts[shape]


def test_each_run_sees_all_lines_in_an_order_of_its_own() -> None:
    held = samples.sample([f"a {n}" for n in range(6)], [f"b {n}" for n in range(6)])
    orders = [order(held, run) for run in range(5)]
    assert all(sorted(places) == list(range(12)) for places in orders)
    assert orders[0] == list(range(12)) and orders[1] == orders[0][::-1]
    assert len({tuple(places) for places in orders}) == 5
    assert orders == [order(held, run) for run in range(5)]
