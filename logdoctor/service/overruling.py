"""The overrides in force when an attempt is judged."""

import threading
import time

from logdoctor.learning.filters.kind import kind_of
from logdoctor.learning.form import as_override
from logdoctor.rules.load import RuleBook
from logdoctor.rules.schema import OverrideRule
from logdoctor.store.jobs.records import JobFacts, Records
from logdoctor.store.learning.overrides import Overrides

_REFRESH = 1.0  # seconds between checks for overrides that others entered


class Overruling:
    """The overrides of a service; thread-safe. `StoreError` when the database fails."""

    def __init__(self, overrides: Overrides, records: Records) -> None:
        self._overrides, self._records = overrides, records
        self._reading = threading.Lock()
        self._known: tuple[OverrideRule, ...] = ()
        self._version, self._next_look = -1, 0.0

    def book(self, book: RuleBook, job: str) -> RuleBook:
        """Return the rules as they now apply to an attempt of a job."""
        known = self._now()
        if not known and not book.overrides:
            return book
        return book.for_job(job, self.kind(job), known)

    def kind(self, job: str) -> str:
        """Return the kind of a job, by which its rules are learned."""
        known = self._records.job(job)
        return kind_of(job, known.facts if known else JobFacts())

    def look(self) -> None:
        """Load entered or withdrawn overrides at the next use."""
        self._next_look = 0.0

    def _now(self) -> tuple[OverrideRule, ...]:
        with self._reading:
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + _REFRESH
                version = self._overrides.version()
                if version != self._version:
                    stored = reversed(self._overrides.list())  # the later of two wins
                    self._known, self._version = tuple(map(as_override, stored)), version
            return self._known
