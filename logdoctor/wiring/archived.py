"""A data folder's archive as a source of logs, for commands beside a service."""

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import IO

from logdoctor.pipeline.batch.archived import ArchivedAttempt
from logdoctor.service.reading import Logs
from logdoctor.settings import Settings
from logdoctor.store.jobs.records import Job, JobFacts, Records, Wanted
from logdoctor.store.names import Key
from logdoctor.wiring import stored

_JOBS = 1000  # jobs whose facts are cached


class StoredArchive:
    """The archive of the data folder in the settings. No connection outlives a list of attempts in the process that
    forks others, and each of these has its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process = 0

    def attempts(self, wanted: Wanted) -> Iterator[ArchivedAttempt]:
        """Yield the matching attempts by their current verdicts, newest first."""
        records = stored.records(self._settings)
        try:
            yield from _attempts(records, stored.logs(self._settings, records.database), wanted)
        finally:
            records.close()

    def save(self, stream: Key, file: IO[bytes]) -> None:
        """Write the log of a stream to a file; `StoreError` when it is damaged."""
        for chunk in self._opened().view(stream).chunks():
            file.write(chunk)

    def _opened(self) -> Logs:
        if self._process != os.getpid():
            self._logs = stored.logs(self._settings, stored.records(self._settings).database)
            self._process = os.getpid()
        return self._logs


def _attempts(records: Records, logs: Logs, wanted: Wanted) -> Iterator[ArchivedAttempt]:
    job_of = lru_cache(_JOBS)(records.job)
    for judged in records.every(wanted):
        attempt, job = records.attempt(judged.job, judged.attempt), job_of(judged.job)
        if attempt is None:
            continue
        streams = logs.streams(judged.job, judged.attempt)
        size = sum(standing.next for standing in streams.values())
        yield ArchivedAttempt.of(judged, attempt, _facts(job), size, streams)


def _facts(job: Job | None) -> JobFacts:
    return job.facts if job is not None else JobFacts()
