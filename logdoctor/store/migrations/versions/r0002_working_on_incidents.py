"""Work on incidents: assignee, snooze, size and pinning of attempts; mutes, views, runbooks."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_AT_ONCE = 1000


def upgrade() -> None:
    """Add columns and tables, and fill in GPUs and seconds of the attempts of incidents."""
    for name in ("snoozed_until", "woken"):
        op.add_column("incidents", sa.Column(name, sa.Double()))
    op.add_column("incidents", sa.Column("assignee", _TEXT, nullable=False, server_default=""))
    op.add_column("incidents", sa.Column("snoozed_attempts", sa.BigInteger()))
    for name in ("gpus", "seconds"):
        op.add_column("incident_attempts", sa.Column(name, sa.BigInteger()))
    op.add_column("incident_attempts", sa.Column("pinned", _TEXT, nullable=False, server_default=""))
    is_pinned = sa.text("pinned != ''")
    op.create_index(
        "ix_incident_attempts_pinned",
        "incident_attempts",
        ["pinned"],
        sqlite_where=is_pinned,
        postgresql_where=is_pinned,
    )
    _create()
    _size_attempts()


def _create() -> None:
    op.create_table(
        "mutes",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("value", _TEXT, nullable=False),
        *_said(),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("why", _TEXT, nullable=False),
        sa.Column("lifted", sa.Double()),
        sa.Column("lifted_by", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_mutes"),
    )
    op.create_index("ix_mutes_value", "mutes", ["kind", "value", "until"])
    op.create_table(
        "saved_views",
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("query", _TEXT, nullable=False),
        *_said(),
        sa.PrimaryKeyConstraint("name", name="pk_saved_views"),
    )
    op.create_table(
        "runbooks",
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("value", _TEXT, nullable=False),
        sa.Column("url", _TEXT, nullable=False),
        *_said(),
        sa.PrimaryKeyConstraint("kind", "value", name="pk_runbooks"),
    )


def _said() -> tuple[sa.Column[Any], sa.Column[Any]]:
    return sa.Column("by", _TEXT, nullable=False), sa.Column("at", sa.Double(), nullable=False)


def _size_attempts() -> None:
    connection = op.get_bind()
    query = sa.text(
        "SELECT a.job, a.attempt, a.at, t.started, j.facts FROM incident_attempts a "
        "JOIN attempts t ON t.job = a.job AND t.number = a.attempt JOIN jobs j ON j.job = a.job"
    )
    sizing = sa.text(
        "UPDATE incident_attempts SET gpus = :gpus, seconds = :seconds WHERE job = :job AND attempt = :attempt"
    )
    rows = [_sized(*row) for row in connection.execute(query)]
    for at in range(0, len(rows), _AT_ONCE):
        connection.execute(sizing, rows[at : at + _AT_ONCE])


def _sized(job: str, attempt: int, at: float, started: float, facts: str) -> dict[str, Any]:
    told = json.loads(facts)
    gpus = told.get("gpus") or (told.get("nodes") or 0) * (told.get("ranks_per_node") or 0)
    return {"job": job, "attempt": attempt, "gpus": gpus or None, "seconds": max(round(at - started), 0)}
