"""Which of several processes over one database leads, by a lease."""

import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.keeping.leader import LeaderLease
from logdoctor.store.schema import leaders
from tests.store.conftest import on_both


@on_both
def test_a_leader_that_does_not_renew_its_lease_is_succeeded(url: str) -> None:
    database = Database(url)
    first, second = (LeaderLease(database, name) for name in ("first", "second"))
    assert first.beat() and not second.beat() and first.beat()
    with database.appending() as connection:  # as if its time were over
        connection.execute(sa.update(leaders).values(until=database.now(connection)))
    assert second.beat() and not first.beat()
    second.leave()
    assert first.beat()
    with database.reading() as connection:
        assert connection.execute(leaders.select()).one().process == "first"
    database.close()
