"""The sixth form: incidents, how often each rule took part, notifications, and what decided each verdict."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_OPEN = sa.text("state IN ('new', 'acknowledged')")
_UNMERGED = sa.text("merged_into IS NULL")
_READ = 500  # verdicts at a time
_LAST_HIT = sa.text(
    "UPDATE learned_rules SET last_hit = (SELECT max(a.at) FROM rule_hits h JOIN counted_attempts a"
    " ON a.job = h.job AND a.attempt = h.attempt WHERE h.rule = learned_rules.number)"
)


def upgrade() -> None:
    """Makes the tables and reads who decided from the verdicts; the service groups these when it starts."""
    op.add_column("verdicts", sa.Column("decided", sa.Text(), nullable=False, server_default=""))
    op.add_column("learned_rules", sa.Column("last_hit", sa.Double(), nullable=True))
    op.execute(_LAST_HIT)
    _incidents()
    _others()
    _fill()


def _incidents() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("event", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("recovery", sa.Text(), nullable=False),
        sa.Column("fault", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("changed", sa.Double(), nullable=False),
        sa.Column("opened", sa.Double(), nullable=False),
        sa.Column("last", sa.Double(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("newest", _NUMBER, nullable=True),
        sa.Column("merged_into", _NUMBER, nullable=True),
        sa.Column("notified", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incidents")),
        sa.UniqueConstraint("event", name=op.f("uq_incidents_event")),
        sa.ForeignKeyConstraint(["newest"], ["verdicts.id"], name=op.f("fk_incidents_newest")),
        sa.ForeignKeyConstraint(["merged_into"], ["incidents.id"], name=op.f("fk_incidents_merged_into")),
    )
    op.create_index("ix_incidents_fingerprint", "incidents", ["fingerprint", "id"])
    op.create_index("ix_incidents_newest", "incidents", ["last", "id"])
    op.create_index("ix_incidents_notified", "incidents", ["notified", "id"])
    op.create_index("ix_incidents_reason", "incidents", ["reason", "last", "id"])
    op.create_index("ix_incidents_state", "incidents", ["state", "last", "id"])
    op.create_index(
        "ix_incidents_facets",
        "incidents",
        ["state", "reason", "category", "recovery", "fault"],
        sqlite_where=_UNMERGED,
        postgresql_where=_UNMERGED,
    )
    op.create_index(
        "uq_incidents_open",
        "incidents",
        ["key"],
        unique=True,
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )
    op.create_table(
        "incident_attempts",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("incident", _NUMBER, nullable=False),
        sa.Column("verdict", _NUMBER, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("user", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("recovery", sa.Text(), nullable=False),
        sa.Column("fault", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "attempt", name=op.f("pk_incident_attempts")),
        sa.UniqueConstraint("verdict", name=op.f("uq_incident_attempts_verdict")),
        sa.ForeignKeyConstraint(["incident"], ["incidents.id"], name=op.f("fk_incident_attempts_incident")),
        sa.ForeignKeyConstraint(["verdict"], ["verdicts.id"], name=op.f("fk_incident_attempts_verdict")),
    )
    op.create_index("ix_incident_attempts_job", "incident_attempts", ["incident", "job"])
    op.create_index("ix_incident_attempts_newest", "incident_attempts", ["incident", "at", "verdict", "job"])
    op.create_index("ix_incident_attempts_user", "incident_attempts", ["user", "incident"])
    op.create_table(
        "incident_events",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("incident", _NUMBER, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incident_events")),
        sa.ForeignKeyConstraint(["incident"], ["incidents.id"], name=op.f("fk_incident_events_incident")),
    )
    op.create_index("ix_incident_events_incident", "incident_events", ["incident", "id"])


def _others() -> None:
    for table in ("node_actions", "node_cordons", "node_tests"):
        op.create_index(f"ix_{table}_verdict", table, ["verdict", "id"])
    op.create_table(
        "rule_totals",
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("rule", name=op.f("pk_rule_totals")),
    )
    op.create_table(
        "notices",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("incident", _NUMBER, nullable=True),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("changed", sa.Double(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("summary", _NUMBER, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notices")),
        sa.UniqueConstraint("key", name=op.f("uq_notices_key")),
        sa.ForeignKeyConstraint(["incident"], ["incidents.id"], name=op.f("fk_notices_incident")),
        sa.ForeignKeyConstraint(["summary"], ["notices.id"], name=op.f("fk_notices_summary")),
    )
    op.create_index("ix_notices_due", "notices", ["target", "state", "due", "id"])
    op.create_index("ix_notices_incident", "notices", ["incident", "id"])
    op.create_index("ix_notices_state", "notices", ["state", "id"])
    op.create_index("ix_notices_summary", "notices", ["summary"])
    op.create_table(
        "notice_targets",
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("target", name=op.f("pk_notice_targets")),
    )


def _fill() -> None:
    """Puts into a column what stood in the bodies only: who decided."""
    connection = op.get_bind()
    bodies = sa.table("verdict_bodies", sa.column("verdict"), sa.column("body"))
    verdicts = sa.table("verdicts", *(sa.column(name) for name in ("id", "at", "superseded_by", "decided")))
    last = 0
    while found := connection.execute(
        sa.select(verdicts.c.id, bodies.c.body)
        .join(bodies, bodies.c.verdict == verdicts.c.id)
        .where(verdicts.c.id > last)
        .order_by(verdicts.c.id)
        .limit(_READ)
    ).all():
        for id, body in found:
            by = json.loads(body)["decided_by"]
            decided = "learned" if by["kind"] == "rule" and by["rule"].startswith("learned/") else by["kind"]
            connection.execute(sa.update(verdicts).where(verdicts.c.id == id).values(decided=decided))
            last = id
