"""The severity of incidents: GPUs x time x repeats, as SQL and as a level.

`severity = (sum over its attempts of GPUs x hours until the failure) x number of attempts`. An attempt with unknown
GPUs counts as one GPU, and each counts for at least an hour: a job that dies at once has cost its start, a place in the
queue and a person's time, so size tells apart what failed on one day.
"""

from collections.abc import Sequence
from typing import Any, Literal

import sqlalchemy as sa

from logdoctor.store.schema import incident_attempts

Level = Literal["low", "moderate", "high", "critical"]
Order = Literal["last", "severity", "gpu_hours", "gpus"]
"""What lists of incidents are ordered by, largest first; `last` is the time of the newest failure."""
ORDERS: tuple[Order, ...] = ("last", "severity", "gpu_hours", "gpus")

LEVELS: tuple[tuple[float, Level], ...] = ((5000.0, "critical"), (500.0, "high"), (50.0, "moderate"), (0.0, "low"))
"""Where each level begins, the highest first."""
_HOUR = 3600.0  # and the least seconds that an attempt counts


def level(severity: float) -> Level:
    """Return the level of a severity."""
    return next((name for least, name in LEVELS if severity >= least), "low")


def sums(attempts: sa.FromClause = incident_attempts) -> Sequence[sa.ColumnElement[Any]]:
    """Return GPUs, GPU hours and severity over an incident's attempts, as SQL. `gpus` is that of the largest, None if
    unknown. Sums are of whole numbers, so the order of adding does not matter."""
    gpus, seconds = sa.cast(attempts.c.gpus, sa.Double), sa.func.coalesce(sa.cast(attempts.c.seconds, sa.Double), 0.0)
    counted = sa.case((seconds < _HOUR, _HOUR), else_=seconds)
    whole = sa.func.coalesce(sa.func.sum(gpus * seconds), 0.0)
    weight = sa.func.coalesce(sa.func.sum(sa.func.coalesce(gpus, 1.0) * counted), 0.0)
    return (
        sa.func.max(attempts.c.gpus).label("gpus"),
        (whole / _HOUR).label("gpu_hours"),
        (weight * sa.func.count() / _HOUR).label("severity"),
    )
