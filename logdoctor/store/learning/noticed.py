"""Error lines that an agent noticed while it learned, by attempt."""

import heapq
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.fit import plain
from logdoctor.store.learning.rule_rows import bounded, checked_count, checked_kind, of_attempt
from logdoctor.store.names import checked, checked_attempt
from logdoctor.store.schema import noticed_lines

MAX_NOTICED = 200
"""Noticed lines that are kept per attempt: those that most runs noticed."""


class Noticed(msgspec.Struct, frozen=True):
    """An error line that an agent noticed, and how many of its runs did."""

    stream: str
    line: int
    text: str
    runs: int


class NoticedLines:
    """The noticed lines of one database, kept as `LearnedRules` keeps the rules."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, job: str, attempt: int, kind: str, lines: Sequence[Noticed]) -> None:
        """Store noticed error lines of an attempt, keeping the 200 that most runs noticed."""
        kind, attempt = checked_kind(kind), checked_attempt(attempt)
        checked("job", job)
        with self._database.writing() as connection:
            found = {(line.stream, line.line): line for line in _noticed(connection, job, attempt)}
            for line in map(_stored, lines):
                former = found.get((line.stream, line.line))
                if former is None or former.runs < line.runs:
                    found[line.stream, line.line] = line
            kept = heapq.nsmallest(MAX_NOTICED, found.values(), key=lambda line: (-line.runs, line.stream, line.line))
            connection.execute(sa.delete(noticed_lines).where(*of_attempt(noticed_lines, job, attempt)))
            if kept:
                whose = {"job": job, "attempt": attempt, "kind": kind}
                connection.execute(sa.insert(noticed_lines), [whose | msgspec.structs.asdict(line) for line in kept])

    def of(self, job: str, attempt: int) -> list[Noticed]:
        """Return the error lines that an agent noticed in an attempt, by stream and line."""
        with self._database.reading() as connection:
            return _noticed(connection, plain(job), attempt)


def _stored(line: Noticed) -> Noticed:
    """Return the line as it will be stored; `InputError` for a number out of range."""
    return Noticed(
        checked("stream", line.stream),
        checked_count(line.line),
        bounded(line.text),
        min(checked_count(line.runs), 10**6),
    )


def _noticed(connection: sa.Connection, job: str, attempt: int) -> list[Noticed]:
    table = noticed_lines
    query = sa.select(table).where(*of_attempt(table, job, attempt)).order_by(table.c.stream, table.c.line)
    return [Noticed(row.stream, row.line, row.text, row.runs) for row in connection.execute(query)]
