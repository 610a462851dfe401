"""The leader among the processes of a database, which does what only one may do: it renews a lease.

A process that lost the lease may still be in the middle of something; so all work of a leader is idempotent. Only the
clock of the database counts.
"""

import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.schema import leaders


class LeaderLease:
    """The lease of the leader, for one process. A leader must `beat` several times in `seconds`."""

    def __init__(self, database: Database, process: str, seconds: float = 10.0) -> None:
        self._database, self._process, self.seconds = database, process, seconds

    def beat(self) -> bool:
        """Renew the lease, or take it when it is free; return whether this process leads."""
        with self._database.appending() as connection:
            now = self._database.now(connection)
            free = sa.or_(leaders.c.process == self._process, leaders.c.until <= now)
            values = {"process": self._process, "until": now + self.seconds}
            return bool(connection.execute(sa.update(leaders).where(free).values(values)).rowcount)

    def clear(self) -> None:
        """End the lease, whoever holds it; for a process that knows its holder to be dead, because it holds the
        folder."""
        self._end(sa.true())

    def leave(self) -> None:
        """Release the lease at once, when stopping."""
        self._end(leaders.c.process == self._process)

    def _end(self, where: sa.ColumnElement[bool]) -> None:
        with self._database.appending() as connection:
            connection.execute(sa.update(leaders).where(where).values(process="", until=0.0))
