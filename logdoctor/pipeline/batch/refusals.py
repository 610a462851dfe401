"""Logs that a bucket refuses: whether it refuses these alone, or all of a sudden everything.

An answer such as 403 says that one object may not be read, or that a credential has ended. What tells these apart is a
log that the bucket gave before: if it gives that one now, the refusal is about the log alone.
"""

import os
from collections.abc import Iterable

from logdoctor.errors import LogdoctorError, StoreRefused
from logdoctor.pipeline.batch.outages import outage
from logdoctor.pipeline.batch.sources import SERVICE, Fetch, Source, bucket_and_key


class Given:
    """The smallest log that each bucket or service gave."""

    def __init__(self, places: Iterable[str] = ()) -> None:
        self._of = {_store(place): (0, place) for place in places}

    @property
    def places(self) -> tuple[str, ...]:
        """Return where these logs are."""
        return tuple(place for _, place in self._of.values())

    def note(self, place: str, size: int) -> None:
        """Remember a log that was read; one of this machine tells nothing."""
        if "://" in place:
            self._of[_store(place)] = min((size, place), self._of.get(_store(place), (size, place)))

    def require_again(self, refused: Source, error: StoreRefused, fetch: Fetch, others: Iterable[str]) -> None:
        """Return when the refusal of a source is about it alone: its bucket gives another log now, one of those that it
        gave or one of `others`. Raise the error when no other is known, and `StoreError` when it gives none."""
        given = Given(others)._of | self._of
        if (example := given.get(_store(refused.name))) is None:
            raise error
        try:
            with open(os.devnull, "wb") as nowhere:
                fetch(example[1], nowhere)
        except LogdoctorError as failed:
            if (ending := outage(refused.name, failed)) is not None:
                raise ending from failed


def _store(place: str) -> str:
    return SERVICE if place.startswith(SERVICE) else bucket_and_key(place)[0]
