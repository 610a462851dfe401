"""The form of the first release. No database is ever upgraded to it: a new one gets the newest form at once."""

revision = "r0001"
down_revision = None


def upgrade() -> None:
    """Change nothing: this revision only names where later ones begin."""
