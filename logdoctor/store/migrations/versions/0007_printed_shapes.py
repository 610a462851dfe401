"""The seventh form: what jobs of each kind print, by which a job of which nothing is told is recognised."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Makes the table; it is filled by the lessons to come."""
    op.create_table(
        "printed_shapes",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("shapes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_printed_shapes")),
    )
