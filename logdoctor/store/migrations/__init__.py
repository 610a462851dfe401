"""The forms that the database had, and the way to the newest one.

The steps lie in `versions/` and travel in the wheel. A step that was released is never changed.
"""

import threading
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

_FOLDER = Path(__file__).parent
_ALONE = threading.Lock()  # alembic's context is one for the whole process


class UnknownRevision(Exception):
    """The database has a form that this program does not know."""

    def __init__(self, revision: str) -> None:
        super().__init__(revision)
        self.revision = revision


def upgrade(connection: sa.Connection) -> None:
    """Brings the database to the newest form, in the transaction of the connection.

    `UnknownRevision` when it is newer than this program; then nothing was changed.
    """
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with _ALONE:
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        for revision in MigrationContext.configure(connection).get_current_heads():
            if revision not in known:
                raise UnknownRevision(revision)
        command.upgrade(config, "head")
