"""Shapes of log lines by kind of job: those that an agent has examined, and those that its jobs print."""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.fit import plain
from logdoctor.store.learning.rule_rows import checked_kind
from logdoctor.store.schema import printed_shapes, seen_shapes

MAX_SHAPES = 50_000
MAX_PRINTED = 5_000
"""Shapes kept per kind: the last examined, the first printed."""

_COMMON = 3  # kinds that print a shape before it tells nothing of a job


class Shapes:
    """The shapes of one database, kept as `LearnedRules` keeps the rules."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def seen(self, kind: str) -> set[int]:
        """Return the shapes of lines that were examined for this kind."""
        with self._database.reading() as connection:
            return set(_shapes(connection, seen_shapes, plain(kind)).tolist())

    def add_seen(self, kind: str, shapes: Iterable[int]) -> None:
        """Add examined shapes, keeping the last 50,000 of a kind. `InputError` beyond signed 64 bits."""
        self._keep(seen_shapes, kind, shapes, slice(-MAX_SHAPES, None))

    def add_printed(self, kind: str, shapes: Iterable[int]) -> None:
        """Add shapes that a job of this kind printed, keeping its first 5,000. Those are how its jobs begin.
        `InputError` as for `add_seen`."""
        self._keep(printed_shapes, kind, shapes, slice(MAX_PRINTED))

    def printed(self, shapes: Collection[int]) -> dict[str, int]:
        """Return how many of some shapes jobs of each kind print. Shapes that three or more kinds print, and unreadable
        rows, do not count."""
        asked = np.array(sorted(shapes), dtype="<i8")
        found: dict[str, Any] = {}
        with self._database.reading() as connection:
            for row in connection.execute(sa.select(printed_shapes.c.kind, printed_shapes.c.shapes)):
                if len(row.shapes) % asked.itemsize == 0:
                    found[row.kind] = np.isin(asked, np.frombuffer(row.shapes, dtype="<i8"))
        telling = sum(found.values(), np.zeros(len(asked), np.int64)) < _COMMON
        return {kind: int((hit & telling).sum()) for kind, hit in found.items()}

    def _keep(self, table: sa.Table, kind: str, shapes: Iterable[int], kept: slice) -> None:
        kind = checked_kind(kind)
        with self._database.writing() as connection:
            former = _shapes(connection, table, kind)
            known = set(former.tolist())
            new = np.array([shape for shape in dict.fromkeys(shapes) if shape not in known], dtype="<i8")
            if not len(new):
                return
            stored = np.concatenate((former, new))[kept].tobytes()
            change = sa.update(table).where(table.c.kind == kind).values(shapes=stored)
            if not connection.execute(change).rowcount:
                connection.execute(sa.insert(table).values(kind=kind, shapes=stored))


def _shapes(connection: sa.Connection, table: sa.Table, kind: str) -> Any:
    """Return a kind's shapes in a table, oldest first, as an array of 64-bit numbers."""
    kept = connection.scalar(sa.select(table.c.shapes).where(table.c.kind == kind))
    return np.frombuffer(kept or b"", dtype="<i8")
