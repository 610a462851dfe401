"""Checks of rows that belong to learned rules: kinds, counts, texts."""

from collections.abc import Mapping

import sqlalchemy as sa

from logdoctor.errors import InputError, RuleRefused
from logdoctor.store.fit import fit

DIAGNOSIS = "diagnosis"
"""The kind of learned diagnosis rules; no kind of jobs has this name."""

MAX_KIND = 300
"""Characters of a kind."""
MAX_NAME = 200
MAX_TEXT = 2000
MAX_TEXTS = 50  # examples or metrics of a rule
MAX_COUNT = 2**48  # so that sums stay below 64 bits


def bounded(text: str) -> str:
    """Return the text as columns hold it, cut to 2,000 characters."""
    return fit(text, MAX_TEXT)


def refused(id: str, cause: str, next_step: str) -> RuleRefused:
    """Return the error for a step that a learned rule cannot take."""
    return RuleRefused(f"the learned rule {ascii(id)[:200]}", cause, next_step)


def checked_kind(kind: str) -> str:
    """Return the kind; `RuleRefused` if it cannot be stored and shown."""
    if not kind.strip() or len(kind) > MAX_KIND or not kind.isprintable():
        cause = f"is no kind of jobs ({len(kind)} characters)"
        raise RuleRefused(f"the kind {ascii(kind)[:100]}", cause, f"Use 1 to {MAX_KIND} printable characters.")
    return kind


def checked_count(value: int) -> int:
    """Return the number of lines; `InputError` if it is out of range."""
    if not 0 <= value <= MAX_COUNT:
        raise InputError("a number of lines", f"is {str(value)[:50]}", f"Use 0 to {MAX_COUNT}.")
    return value


def add_to(
    connection: sa.Connection, table: sa.Table, key: Mapping[str, str], amounts: Mapping[str, int | float]
) -> None:
    """Add to the numbers of a row, created if missing; nobody else may write meanwhile."""
    where = [table.c[name] == value for name, value in key.items()]
    more = {name: table.c[name] + amount for name, amount in amounts.items()}
    if not connection.execute(sa.update(table).where(*where).values(more)).rowcount:
        connection.execute(sa.insert(table).values({**key, **amounts}))


def of_attempt(table: sa.Table, job: str, attempt: int) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    """Return the condition for the rows of an attempt."""
    return table.c.job == job, table.c.attempt == attempt
