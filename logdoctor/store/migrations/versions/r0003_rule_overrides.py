"""Overrides of shipped rules."""

import sqlalchemy as sa
from alembic import op

revision = "r0003"
down_revision = "r0002"

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the table of overrides."""
    op.create_table(
        "rule_overrides",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("rule", _TEXT, nullable=False),
        sa.Column("scope", _TEXT, nullable=False),
        sa.Column("whose", _TEXT, nullable=False),
        sa.Column("by", _TEXT, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("withdrawn", sa.Boolean(), nullable=False),
        sa.Column("withdrawn_by", _TEXT, nullable=False),
        sa.Column("withdrawn_why", _TEXT, nullable=False),
        sa.Column("withdrawn_at", sa.Double()),
        sa.Column("body", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rule_overrides"),
    )
    op.create_index("ix_rule_overrides_rule", "rule_overrides", ["rule", "id"])
