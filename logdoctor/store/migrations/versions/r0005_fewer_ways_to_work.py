"""Pinned attempts and saved views are gone."""

from alembic import op

revision = "r0005"
down_revision = "r0004"


def upgrade() -> None:
    """Drop their columns and tables."""
    op.drop_index("ix_incident_attempts_pinned", "incident_attempts")
    op.drop_column("incident_attempts", "pinned")
    op.drop_table("saved_views")
