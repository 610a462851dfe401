"""The revisions of the database, and how it comes to the newest one.

A new database is created from `schema.metadata` and stamped with the newest revision, so no revision repeats the
schema. An existing one takes the steps in `versions/`, which travel in the wheel. A step that was released is never
changed, and never reads `schema.metadata`, which moves on.

The first change of the schema after a release adds a step, and to the tests a dump of the database as it was released:
upgraded, it must have the form of a new one.
"""

import threading
from pathlib import Path

import sqlalchemy as sa

_FOLDER = Path(__file__).parent
_ALONE = threading.Lock()  # alembic's context is one for the whole process
_DEVELOPMENT = frozenset(f"000{number}" for number in range(1, 8))  # revisions before the first release


class UnknownRevision(Exception):
    """Says that the database has a revision to which this program knows no way. `is_older` when it was written during
    development, before the first release; else the program that wrote it is newer."""

    def __init__(self, revision: str) -> None:
        super().__init__(revision)
        self.revision = revision
        self.is_older = revision in _DEVELOPMENT


def standing(connection: sa.Connection, folder: Path = _FOLDER) -> tuple[str, str]:
    """Return the revision of the database, "" for one without tables, and the newest; change nothing."""
    has_any = sa.inspect(connection).has_table("alembic_version")
    found = connection.scalars(sa.text("SELECT version_num FROM alembic_version")) if has_any else ()
    return ",".join(found), max(file.name.split("_")[0] for file in (folder / "versions").glob("r*.py"))


def upgrade(connection: sa.Connection, metadata: sa.MetaData, folder: Path = _FOLDER) -> None:
    """Bring the database to the newest revision, whose schema is `metadata`, in the transaction of the connection.

    `UnknownRevision` when there is no way from where it is; then nothing was changed.
    """
    found, newest = standing(connection, folder)
    if found == newest:
        return
    from alembic import command  # half a second of imports, for those who need a step
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with _ALONE:
        scripts = ScriptDirectory.from_config(config)
        if not found:
            metadata.create_all(connection, checkfirst=False)
            MigrationContext.configure(connection).stamp(scripts, "head")
        elif found not in {script.revision for script in scripts.walk_revisions()}:
            raise UnknownRevision(found)
        else:
            command.upgrade(config, "head")
