"""The fourth form: failures that were confirmed, and the lines of settled attempts that rules are tried on."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes the tables; those of the third form stay as they are."""
    op.create_table(
        "confirmations",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("withdrawn", sa.Boolean(), nullable=False),
        sa.Column("withdrawn_by", sa.Text(), nullable=False),
        sa.Column("withdrawn_why", sa.Text(), nullable=False),
        sa.Column("withdrawn_at", sa.Double(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_confirmations")),
    )
    op.create_index("ix_confirmations_attempt", "confirmations", ["job", "attempt", "id"])
    live = sa.text("withdrawn IS 0") if op.get_bind().dialect.name == "sqlite" else sa.text("withdrawn IS false")
    op.create_index(
        "uq_confirmations_live",
        "confirmations",
        ["job", "attempt"],
        unique=True,
        sqlite_where=live,
        postgresql_where=live,
    )
    op.create_table(
        "residuals",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("recovery", sa.Text(), nullable=False),
        sa.Column("decided", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("frame", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_residuals")),
        sa.UniqueConstraint("job", "attempt", name=op.f("uq_residuals_job_attempt")),
    )
    op.create_index("ix_residuals_digest", "residuals", ["digest", "decided"])
    op.execute("INSERT INTO counters (name, value) VALUES ('confirmed', 0)")
