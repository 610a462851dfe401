"""Stamps as they may be compared: in the year of the log, and in the order of the lines."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.diagnose.stamps import dated, rising
from tests.test_text import at


@pytest.mark.parametrize(
    ("time", "latest", "want"),
    [
        (at(2000, 3, 2, 11) + 0.25, at(2024, 3, 2), at(2024, 3, 2, 11) + 0.25),
        (at(2000, 12, 31, 23), at(2024, 1, 1), at(2023, 12, 31, 23)),
        (at(2000, 1, 1, 1), at(2023, 12, 31), at(2024, 1, 1, 1)),
        (at(2000, 2, 29), at(2022, 3, 1), at(2000, 2, 29)),
        (at(2000, 2, 29), at(2024, 3, 1), at(2024, 2, 29)),
        (at(2023, 3, 2), at(2024, 3, 2), at(2023, 3, 2)),
        (at(2000, 3, 2), at(2000, 9, 2), at(2000, 3, 2)),
        (at(2000, 3, 2), at(9999, 9, 2), at(9999, 3, 2)),
        (at(2000, 3, 2), at(1, 4, 2), at(1, 3, 2)),
    ],
)
def test_a_stamp_without_a_year_is_of_the_year_next_to_the_latest(time: float, latest: float, want: float) -> None:
    assert dated(time, latest) == want


@pytest.mark.parametrize(
    ("times", "want"),
    [
        ([], []),
        ([5.0], [5.0]),
        ([1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 2.0, 3.0]),
        ([1.0, 2.0, 1.9, 3.0], [1.0, 1.0, 1.9, 3.0]),
        ([9.0, 1.0, 2.0, 3.0], [1.0, 1.0, 2.0, 3.0]),
        ([1.0, 2.0, 9.0, 3.0, 4.0], [1.0, 2.0, 2.0, 3.0, 4.0]),
        ([5.0, 6.0, 0.0, 7.0], [5.0, 6.0, 6.0, 7.0]),
    ],
)
def test_a_stamp_that_runs_against_most_counts_as_the_one_before(times: list[float], want: list[float]) -> None:
    assert rising(times) == want


@given(st.lists(st.floats(0, 1e10), max_size=60))
def test_property_the_order_of_lines_stays(times: list[float]) -> None:
    found = rising(times)
    assert len(found) == len(times)
    assert all(one <= other for one, other in pairwise(found))
    assert set(found) <= set(times)
    assert rising(sorted(times)) == sorted(times)
