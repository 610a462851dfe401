"""Exchanges with models in the database: kept whole, bounded, and found again."""

import pytest
import sqlalchemy as sa

from logdoctor.errors import StoreError
from logdoctor.store.database import Database
from logdoctor.store.learning.exchanges import MAX_TEXT, Exchanges
from logdoctor.types.models import Exchange
from tests.databases import walks_indexes
from tests.store.conftest import on_both

ONE = Exchange(
    at=5.0, job="job", attempt=1, purpose="why", model="m", prompt="d", key="k", request="{}",
    sent=(("user", "a line"), ("tool", "another")), got='{"x": 1}', calls="[]", tokens_in=3, tokens_out=4,
    dollars=0.5, seconds=0.25, cached=False, failure="", cause="",
)  # fmt: skip


def test_what_was_said_comes_back_as_it_was(database: Database) -> None:
    exchanges = Exchanges(database)
    exchanges.enter(ONE)
    (kept,) = exchanges.of("job", 1)
    for name, value in ONE._asdict().items():
        assert name == "key" or getattr(kept, name) == value
    assert not kept.cut and exchanges.cached("k") == (ONE.got, ONE.calls)


def test_an_attempt_has_its_own_the_last_ones_in_their_order(database: Database) -> None:
    exchanges = Exchanges(database)
    for number in range(5):
        exchanges.enter(ONE._replace(at=float(number)))
    exchanges.enter(ONE._replace(attempt=2))
    exchanges.enter(ONE._replace(attempt=None))
    exchanges.enter(ONE._replace(job="other"))
    assert [one.at for one in exchanges.of("job", 1)] == [0, 1, 2, 3, 4]
    assert [one.at for one in exchanges.of("job", 1, limit=2)] == [3, 4]
    assert len(exchanges.of("job", 2)) == 1 and exchanges.of("job", 3) == []


def test_only_good_answers_are_given_again_the_last_first(database: Database) -> None:
    exchanges = Exchanges(database)
    exchanges.enter(ONE._replace(failure="nonsense", got="bad"))
    assert exchanges.cached("k") is None
    exchanges.enter(ONE)
    exchanges.enter(ONE._replace(got="newer"))
    exchanges.enter(ONE._replace(failure="unavailable", got=""))
    exchanges.enter(ONE._replace(key="other", got="other"))
    assert exchanges.cached("k") == ("newer", "[]") and exchanges.cached("unknown") is None


def test_without_a_key_nothing_is_given_again(database: Database) -> None:
    exchanges = Exchanges(database)
    exchanges.enter(ONE._replace(key=""))
    assert exchanges.cached("") is None


@pytest.mark.parametrize("long", ["got", "calls", "request", "sent", "cause"])
def test_long_texts_are_cut_and_no_answer_then(database: Database, long: str) -> None:
    exchanges = Exchanges(database)
    huge = "\N{SNOWMAN}\x01" * MAX_TEXT
    value = (("user", "first"), ("user", huge), ("user", "last")) if long == "sent" else huge
    exchanges.enter(ONE._replace(**{long: value}))
    (kept,) = exchanges.of("job", 1)
    sizes = [sum(len(text) for _, text in kept.sent), *map(len, (kept.got, kept.calls, kept.request, kept.cause))]
    assert max(sizes) <= MAX_TEXT and kept.sent[0][1] in ("first", "a line")
    assert kept.cut == (long != "cause") and (exchanges.cached("k") is None) == kept.cut


def test_the_oldest_go(database: Database) -> None:
    exchanges = Exchanges(database, most=3)
    for number in range(7):
        exchanges.enter(ONE._replace(at=float(number), key=str(number)))
    assert [one.at for one in exchanges.of("job", 1)] == [4, 5, 6]
    assert exchanges.cached("3") is None and exchanges.cached("4") is not None


def test_text_that_databases_refuse_is_replaced(database: Database) -> None:
    exchanges = Exchanges(database)
    exchanges.enter(ONE._replace(sent=(("user", "a\0\ud800"),), got="\0", cause="\ud800", purpose="\0"))
    (kept,) = exchanges.of("job", 1)
    assert kept.sent == (("user", "a\ufffd?"),) and kept.got == "\ufffd"


@on_both
def test_a_row_that_was_damaged_is_told_and_is_no_answer(database: Database) -> None:
    exchanges = Exchanges(database)
    exchanges.enter(ONE)
    with database.writing() as connection:
        connection.execute(sa.text("UPDATE model_exchanges SET body = :body"), {"body": b"damaged"})
    (kept,) = exchanges.of("job", 1)
    assert "cannot be read" in kept.cause and kept.sent == () and exchanges.cached("k") is None


@on_both
def test_the_answer_is_found_by_an_index(database: Database) -> None:
    queries = (
        "SELECT body FROM model_exchanges WHERE key = 'k' AND usable ORDER BY id DESC LIMIT 1",
        "SELECT * FROM model_exchanges WHERE job = 'j' AND attempt = 1 ORDER BY id DESC LIMIT 100",
    )
    with database.reading() as connection:
        if connection.dialect.name == "postgresql":
            assert all(walks_indexes(connection, query) for query in queries)
            return
        plans = [str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}").all()) for query in queries]
    assert "ix_model_exchanges_key" in plans[0] and "ix_model_exchanges_attempt" in plans[1]


@on_both
def test_a_database_that_fails_is_a_store_error(database: Database) -> None:
    with database.writing() as connection:
        connection.exec_driver_sql("DROP TABLE model_exchanges")
    with pytest.raises(StoreError):
        Exchanges(database).enter(ONE)
