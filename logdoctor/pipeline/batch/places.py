"""The place of a row's attempt in a service: its job and number there."""

import hashlib
import re
from typing import NamedTuple

from logdoctor.pipeline.batch.rows import Row
from logdoctor.store.names import MAX_ATTEMPT

_NUMBER = re.compile(r"(?:^|\D)(\d{1,6})$", re.ASCII)
_UNFIT = re.compile(r"[/\\\s\x00-\x1f\x7f\N{REPLACEMENT CHARACTER}]+")
_LONGEST = 75  # bytes; still a file name when percent-encoded
_KEPT = 60  # characters kept from the end of a longer name


class Place(NamedTuple):
    """A job and the number of an attempt."""

    job: str
    attempt: int


def place_of(row: Row) -> Place:
    """Return the place of a row; an attempt without a number counts as the first, even if several of a job have
    none."""
    number = number_of(row)
    return Place(job_of(row), 1 if number is None else number)


def job_of(row: Row) -> str:
    """Return the name of a row's job, or one made from its source, fit for a service."""
    name = row.job if row.job is not None else row.source
    plain = "".join(c if c.isprintable() else "_" for c in _UNFIT.sub("_", name)).strip("_. ")
    if plain and len(plain.encode()) <= _LONGEST:
        return plain
    end = plain.encode("ascii", "ignore").decode()[-_KEPT:].strip("_. ")
    return f"{end}-{_digest(name)[:12]}"


def number_of(row: Row) -> int | None:
    """Return the number in the name of a row's attempt, as in `3` and `attempt_3`; None without one."""
    found = _NUMBER.search(row.attempt)
    return int(found[1]) if found and int(found[1]) <= MAX_ATTEMPT else None


def key_of(row: Row) -> str:
    """Return a key for the attempt of a row, stable over diagnoses of its log: 32 hex digits."""
    return _digest(f"{row.source}\0{row.attempt}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
