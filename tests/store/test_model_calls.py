"""What model calls cost is kept: budgets count across restarts, and nothing is refused."""

import math

import pytest

from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.model_calls import ModelCalls, ModelTotal
from logdoctor.types.models import Spent
from tests.databases import walks_indexes
from tests.store.conftest import on_both


@pytest.fixture
def calls(records: Records) -> ModelCalls:
    return ModelCalls(records.database)


@on_both
def test_what_was_spent_counts_after_a_restart(calls: ModelCalls, url: str) -> None:
    calls.enter("a", "m", "write", 100, 10, 0.5, "", 10.0)
    calls.enter("a", "m", "write", 200, 0, 0.0, "ModelUnavailable", 20.0)
    calls.enter("", "m", "judge", 1, 1, 0.25, "", 30.0)
    other = Records(url)
    again = ModelCalls(other.database)
    assert again.spent("a", 0.0) == Spent(2, 310, 0.5)
    assert again.spent("a", 20.0) == Spent(1, 200, 0.0)
    assert again.spent(None, 0.0) == Spent(3, 312, 0.75) and again.spent("", 0.0) == Spent(1, 2, 0.25)
    assert again.spent("b", 0.0) == again.spent(None, 31.0) == Spent(0, 0, 0.0)
    again.enter("a", "m", "write", 1, 2, 0.5, "", 40.0)
    assert again.totals() == [
        ModelTotal("m", "judge", "ok", 1, 1, 1, 0.25),
        ModelTotal("m", "write", "ModelUnavailable", 1, 200, 0, 0.0),
        ModelTotal("m", "write", "ok", 2, 101, 12, 1.0),
    ]
    other.close()


@on_both
def test_a_strange_call_is_entered_all_the_same(calls: ModelCalls) -> None:
    hostile = "\ud800\0" + "x" * 10**5
    calls.enter(hostile, hostile, hostile, -5, 2**100, math.nan, hostile, 1.0)
    calls.enter(hostile, "m", "p", 0, 0, -math.inf, "", 1.0)
    assert calls.spent(hostile, 0.0) == Spent(2, 2**48, 0.0)
    assert len(calls.totals()) == 2


@on_both
def test_budgets_are_read_by_index(calls: ModelCalls, records: Records) -> None:
    with records.database.reading() as connection:
        for where in ("at >= 1", "job = 'a' AND at >= 1"):
            query = f"SELECT count(*) FROM model_calls WHERE {where}"
            if connection.dialect.name == "postgresql":
                assert walks_indexes(connection, query)
                continue
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}")
            assert [row[3].split(" ")[0] for row in plan] == ["SEARCH"]
