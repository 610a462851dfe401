"""The revisions of the database, and the upgrade to the newest one.

A new database is created from `schema.metadata` and stamped with the newest revision, so no revision repeats the
schema. An existing one takes the steps in `versions/`, which are in the wheel. A released step is never changed, and
never reads `schema.metadata`, which moves on.

The first change of the schema after a release adds a step, and to the tests a dump of the released database: upgraded,
it must have the same schema as a new one.
"""

import threading
from pathlib import Path

import sqlalchemy as sa

_FOLDER = Path(__file__).parent
_ALONE = threading.Lock()  # alembic's context is global to the process
_DEVELOPMENT = frozenset(f"000{number}" for number in range(1, 8))  # revisions before the first release


class UnknownRevision(Exception):
    """Raised when there is no upgrade from a database's revision. `is_older` if it was written during development,
    before the first release; else by a newer program."""

    def __init__(self, revision: str) -> None:
        super().__init__(revision)
        self.revision = revision
        self.is_older = revision in _DEVELOPMENT


def standing(connection: sa.Connection, folder: Path = _FOLDER) -> tuple[str, str]:
    """Return the database's revision ("" without tables) and the newest, changing nothing."""
    has_any = sa.inspect(connection).has_table("alembic_version")
    found = connection.scalars(sa.text("SELECT version_num FROM alembic_version")) if has_any else ()
    return ",".join(found), max(file.name.split("_")[0] for file in (folder / "versions").glob("r*.py"))


def upgrade(connection: sa.Connection, metadata: sa.MetaData, folder: Path = _FOLDER) -> None:
    """Upgrade the database to the newest revision, whose schema is `metadata`, in the caller's transaction.

    `UnknownRevision` when there is no upgrade from its revision; then nothing was changed.
    """
    found, newest = standing(connection, folder)
    if found == newest:
        return
    from alembic import command  # half a second of imports, only when a step is needed
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
