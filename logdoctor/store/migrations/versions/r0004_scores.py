"""Scores of the checkpoints of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the table of scores."""
    op.create_table(
        "scores",
        sa.Column("job", _TEXT, nullable=False),
        sa.Column("set", _TEXT, nullable=False),
        sa.Column("metric", _TEXT, nullable=False),
        sa.Column("step", _NUMBER, nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("samples", _NUMBER),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job", "set", "metric", "step", name="pk_scores"),
    )
    op.create_index("ix_scores_step", "scores", ["job", "step"])
