"""The attempts of a job of a service, and the verdicts on them."""

from collections.abc import Iterator

from logdoctor.cli.client.connection import Connection, path
from logdoctor.pipeline.batch.archived import FILTERS
from logdoctor.store.jobs.records import StoredVerdict, Wanted
from logdoctor.web.jobs.answers import AttemptOut, JobOut, VerdictPage

_PAGE = 500


class ServedAttempts:
    """The calls of `store.jobs.records.Records`, over HTTP."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def attempts(self, job: str) -> list[AttemptOut]:
        """Return the attempts of a job, in order; none of an unknown job."""
        found = self._connection.get_if_any(JobOut, path("jobs", job))
        return list(found.attempts) if found else []

    def every(self, wanted: Wanted) -> Iterator[StoredVerdict]:
        """Yield all matching current verdicts, newest first."""
        filters = {name: getattr(wanted, name) for name in FILTERS}
        for outcome in wanted.outcomes or (None,):
            cursor: str | None = None
            while True:
                page = self._connection.page(
                    VerdictPage, path("verdicts"), cursor, limit=_PAGE, outcome=outcome, **filters
                )
                yield from page.items
                if (cursor := page.next) is None:
                    break
