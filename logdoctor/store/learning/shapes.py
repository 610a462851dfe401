"""Shapes of log lines by kind of job: which an agent has looked at, and which its jobs print."""

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
"""Shapes of a kind that are kept: of those that were looked at the last, of those that were printed the first."""

_COMMON = 3  # kinds that print a form which then tells nothing of a job


class Shapes:
    """The shapes of one database, kept as `LearnedRules` keeps the rules."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def seen(self, kind: str) -> set[int]:
        """Return the shapes of lines that were looked at for this kind."""
        with self._database.reading() as connection:
            return set(_shapes(connection, seen_shapes, plain(kind)).tolist())

    def add_seen(self, kind: str, shapes: Iterable[int]) -> None:
        """Keep shapes that were looked at; the last 50,000 of a kind. `InputError` beyond 64 bits with a sign."""
        self._keep(seen_shapes, kind, shapes, slice(-MAX_SHAPES, None))

    def add_printed(self, kind: str, shapes: Iterable[int]) -> None:
        """Keep shapes of lines that a job of this kind printed; the first 5,000 of a kind, with which its jobs begin.
        `InputError` as above."""
        self._keep(printed_shapes, kind, shapes, slice(MAX_PRINTED))

    def printed(self, shapes: Collection[int]) -> dict[str, int]:
        """Return how many of some shapes were printed by jobs of each kind, less those that three kinds or more print;
        a row that cannot be read counts for nothing."""
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
    """Return the shapes that a table has of a kind, the oldest first: an array of 64-bit numbers."""
    kept = connection.scalar(sa.select(table.c.shapes).where(table.c.kind == kind))
    return np.frombuffer(kept or b"", dtype="<i8")
