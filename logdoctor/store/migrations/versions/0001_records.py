"""The first form: jobs, attempts, ends, verdicts, tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_STANDS = sa.text("superseded_by IS NULL")
_FACETS = ("reason", "category", "user", "job", "outcome", "recovery", "fingerprint")
_CURRENT: dict[str, tuple[str, ...]] = {"newest": (), **{facet: (facet,) for facet in _FACETS}}


def upgrade() -> None:
    """Makes all tables."""
    op.create_table(
        "counters",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counters")),
    )
    op.create_table(
        "jobs",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("updated", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_newest", "jobs", ["created", "job"])
    op.create_table(
        "tokens",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("prefixes", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=True),
        sa.Column("revoked", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_table(
        "attempts",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("deleted", sa.Double()),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_attempts_job")),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("pk_attempts")),
        sa.UniqueConstraint("job", "key", name=op.f("uq_attempts_job_key")),
    )
    op.create_index("ix_attempts_settled", "attempts", ["settled", "job", "number"])
    op.create_table(
        "ends",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("signal", sa.BigInteger(), nullable=True),
        sa.Column("scheduler_state", sa.Text(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job", "attempt"], ["attempts.job", "attempts.number"], name=op.f("fk_ends_job_attempt")
        ),
        sa.PrimaryKeyConstraint("job", "attempt", "stream", name=op.f("pk_ends")),
    )
    op.create_table(
        "verdicts",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("event", sa.BigInteger(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("superseded_by", _NUMBER, nullable=True),
        sa.Column("user", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("recovery", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job", "attempt"], ["attempts.job", "attempts.number"], name=op.f("fk_verdicts_job_attempt")
        ),
        sa.ForeignKeyConstraint(["superseded_by"], ["verdicts.id"], name=op.f("fk_verdicts_superseded_by")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdicts")),
        sa.UniqueConstraint("event", name=op.f("uq_verdicts_event")),
    )
    for name, columns in _CURRENT.items():
        op.create_index(
            f"ix_verdicts_{name}", "verdicts", [*columns, "at", "id"], sqlite_where=_STANDS, postgresql_where=_STANDS
        )
    op.create_index("ix_verdicts_history", "verdicts", ["job", "attempt", "id"])
    op.create_table(
        "verdict_bodies",
        sa.Column("verdict", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["verdict"], ["verdicts.id"], name=op.f("fk_verdict_bodies_verdict")),
        sa.PrimaryKeyConstraint("verdict", name=op.f("pk_verdict_bodies")),
    )
    op.create_table(
        "verdict_nodes",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("verdict", _NUMBER, autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["verdict"], ["verdicts.id"], name=op.f("fk_verdict_nodes_verdict")),
        sa.PrimaryKeyConstraint("node", "at", "verdict", name=op.f("pk_verdict_nodes")),
    )
    op.create_index("ix_verdict_nodes_verdict", "verdict_nodes", ["verdict"])
    op.execute("INSERT INTO counters (name, value) VALUES ('event', 0)")
