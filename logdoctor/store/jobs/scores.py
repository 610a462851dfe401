"""Scores of the checkpoints of jobs."""

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from logdoctor.errors import InputError
from logdoctor.jobs.scores import MOST_SCORES, Score
from logdoctor.store.database import Database
from logdoctor.store.fit import MAX_ID, plain
from logdoctor.store.jobs.records import open_job
from logdoctor.store.names import checked
from logdoctor.store.schema import scores as table

_LONGEST = 200  # characters of the names of sets and metrics
_MOST = 20_000  # most scores of a job that are returned, of the newest steps


class Scores:
    """The scores of one database; raises `StoreError` as `Records` does."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def enter(self, job: str, scores: Sequence[Score], at: float) -> int:
        """Store scores of a job, created if unknown, and return their number. A score replaces an earlier one of the
        same set, metric and step. `InputError` when one cannot be stored: then none is."""
        checked("job", job)
        if len(scores) > MOST_SCORES:
            raise InputError("scores", f"there are more than {MOST_SCORES:,}", "Send some of them at a time.")
        rows = {(one.set, one.metric, one.step): _row(job, one, at) for one in scores}
        with self._database.writing() as connection:
            open_job(connection, job, at)
            if rows:
                same = [
                    getattr(table.c, name) == sa.bindparam(f"b_{name}") for name in ("job", "set", "metric", "step")
                ]
                keys = [{f"b_{name}": row[name] for name in ("job", "set", "metric", "step")} for row in rows.values()]
                connection.execute(sa.delete(table).where(*same), keys)
                connection.execute(sa.insert(table), list(rows.values()))
        return len(rows)

    def of(self, job: str) -> list[Score]:
        """Return the scores of a job by set, metric and step; beyond 20,000 those of the newest steps."""
        query = sa.select(table).where(table.c.job == plain(job)).order_by(table.c.step.desc()).limit(_MOST)
        with self._database.reading() as connection:
            found = [Score(row.step, row.set, row.metric, row.value, row.samples) for row in connection.execute(query)]
        return sorted(found, key=lambda one: (one.set, one.metric, one.step))


def _row(job: str, one: Score, at: float) -> dict[str, object]:
    for what, name in (("set", one.set), ("metric", one.metric)):
        if not 1 <= len(name) <= _LONGEST or not name.isprintable():
            step = f"Use 1 to {_LONGEST} printable characters."
            raise InputError(f"the {what} {ascii(name)[:80]}", "is no name", step)
    if not 0 <= one.step <= MAX_ID or not 0 <= (one.samples or 0) <= MAX_ID:
        raise InputError(f"a score of {one.set}", "has a step or a number of samples out of range", "Correct it.")
    if one.value != one.value or abs(one.value) == float("inf"):
        raise InputError(f"the score {one.metric} of {one.set}", "is no number", "Leave it out.")
    return {"job": job, "at": at, **msgspec.structs.asdict(one)}
