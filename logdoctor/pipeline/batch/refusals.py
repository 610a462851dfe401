"""Logs refused by a bucket: whether it refuses only these, or suddenly everything.

An answer such as 403 says that one object may not be read, or that a credential has expired. A log that the bucket
gave before decides: if it gives that one now, the refusal is about the other log alone.
"""

import os
from collections.abc import Iterable

from logdoctor.errors import LogdoctorError, StoreRefused
from logdoctor.pipeline.batch.outages import outage
from logdoctor.pipeline.batch.sources import SERVICE, Fetch, Source, bucket_and_key


class Given:
    """The smallest log that each bucket or service has given."""

    def __init__(self, places: Iterable[str] = ()) -> None:
        self._of = {_store(place): (0, place) for place in places}

    @property
    def places(self) -> tuple[str, ...]:
        """Return the places of these logs."""
        return tuple(place for _, place in self._of.values())

    def note(self, place: str, size: int) -> None:
        """Record a log that was read, unless it is local."""
        if "://" in place:
            self._of[_store(place)] = min((size, place), self._of.get(_store(place), (size, place)))

    def require_again(self, refused: Source, error: StoreRefused, fetch: Fetch, others: Iterable[str]) -> None:
        """Return if only this source is refused: its bucket still gives a log that it gave before, or one of `others`.
        Raise the error when no such log is known, and `StoreError` when the bucket gives none."""
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
