"""The schema of the first release. No database is ever upgraded to it: new ones get the newest schema."""

revision = "r0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: this revision only marks where later ones begin."""
