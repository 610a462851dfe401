"""Options that several commands share, and what they resolve to."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from logdoctor.errors import StoreError
from logdoctor.settings import data_folder, read_settings

if TYPE_CHECKING:
    from logdoctor.settings import Settings

data_dir_option = click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Data folder of the service."
)
why_option = click.option("--why", default="", help="Reason, for the audit log.")
by_option = click.option("--by", help="Your name; default: your login name.")


def settings_with(data_dir: Path | None) -> "Settings":
    """Return the settings, with another data folder when one is given."""
    import msgspec

    settings = read_settings()
    return msgspec.structs.replace(settings, data_dir=data_dir) if data_dir else settings


def served_settings(data_dir: Path | None) -> "Settings":
    """Return the settings with the data folder; `StoreError` when it has no database: none is created for a look."""
    settings = settings_with(data_dir)
    if not has_records(settings):
        raise StoreError(
            str(data_folder(settings)), "holds no records", "Name the data folder of the service with --data-dir."
        )
    return settings


def has_records(settings: "Settings") -> bool:
    """Return whether there is a database."""
    return bool(settings.database_url) or (data_folder(settings) / "logdoctor.db").exists()


def login() -> str:
    """Return the login name of the user, which no variable can change."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"
