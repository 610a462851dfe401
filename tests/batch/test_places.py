"""Names of jobs that a service can store, made of whatever logs are called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.pipeline.batch.places import Place, job_of, key_of, place_of
from logdoctor.pipeline.batch.rows import Row
from logdoctor.store.names import checked


@pytest.mark.parametrize(
    ("row", "place"),
    [
        (Row(source="logs/a.log"), Place("logs_a.log", 1)),
        (Row(source="x", job="llama-7b", attempt="3"), Place("llama-7b", 3)),
        (Row(source="x", job="llama-7b", attempt="attempt_0"), Place("llama-7b", 0)),
        (Row(source="x", job="a/b"), Place("a_b", 1)),
    ],
)
def test_places_are_those_that_people_expect(row: Row, place: Place) -> None:
    assert place_of(row) == place


@given(st.text(max_size=400))
def test_whatever_a_log_is_called_makes_a_name(source: str) -> None:
    checked("job", job_of(Row(source=source)))


def test_long_names_that_differ_in_front_stay_different() -> None:
    end = "/logs/train/" + "x" * 100
    assert job_of(Row(source=f"a{end}")) != job_of(Row(source=f"b{end}"))
    assert key_of(Row(source="a")) != key_of(Row(source="a", attempt="1"))
