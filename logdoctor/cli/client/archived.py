"""The archive of a service as a source of logs."""

from collections.abc import Iterator
from functools import lru_cache
from typing import IO

from logdoctor.cli.client.attempts import ServedAttempts
from logdoctor.cli.client.connection import Connection, path
from logdoctor.pipeline.batch.archived import ArchivedAttempt
from logdoctor.store.jobs.records import Wanted
from logdoctor.store.names import Key
from logdoctor.web.jobs.answers import JobOut

_JOBS = 1000  # jobs with their attempts that are cached


class ServedArchive:
    """The archive of a service, as far as the token may read it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def attempts(self, wanted: Wanted) -> Iterator[ArchivedAttempt]:
        """Yield the matching attempts by their current verdicts, newest first."""
        job_of = lru_cache(_JOBS)(lambda job: self._connection.get(JobOut, path("jobs", job)))
        for stored in ServedAttempts(self._connection).every(wanted):
            job = job_of(stored.job)
            attempt = next((one for one in job.attempts if one.number == stored.attempt), None)
            if attempt is not None:
                size = stored.verdict.compression.bytes_in
                yield ArchivedAttempt.of(stored, attempt, job.facts, size, attempt.streams)

    def save(self, stream: Key, file: IO[bytes]) -> None:
        """Write the log of a stream to a file."""
        self._connection.save(
            path("jobs", stream.job, "attempts", stream.attempt, "streams", stream.stream, "download"), file
        )
