"""Options shared by several commands, and their values."""

import functools
import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from logdoctor.errors import StoreError
from logdoctor.settings import data_folder, load_env_file, read_settings

if TYPE_CHECKING:
    from logdoctor.cli.client.connection import Connection
    from logdoctor.settings import Settings

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}  # seconds


class Folder(click.Path):
    """A folder, which need not exist yet. An empty path is refused: `--data-dir "$UNSET"` does not mean the current
    one."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of a folder."""
        if not value:
            self.fail("it is empty.", param, ctx)
        return super().convert(value, param, ctx)


data_dir_option = click.option("--data-dir", type=Folder(), help="Data folder of the service.")
why_option = click.option("--why", default="", help="Reason, for the audit log.")
by_option = click.option("--by", help="Your name; default: your login name. With --url, your token says who you are.")


class Span(click.ParamType[float]):
    """A span of time, such as 90s, 30m, 8h, 3d or 2w, in seconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        if isinstance(value, float):
            return value
        number, unit = value[:-1], _UNITS.get(value[-1:], 0)
        seconds = float(int(number) * unit) if number.isascii() and number.isdecimal() and len(number) < 10 else 0.0
        if not seconds:
            self.fail(f"{value[:40]!a} is no span of time; write 30m, 8h or 3d.", param, ctx)
        return seconds


class Place(NamedTuple):
    """Where a command works: a data folder (None: that of the settings), or a service."""

    data_dir: Path | None
    service: "Connection | None" = None

    def who(self, by: str | None) -> str:
        """Return who acts; "" with a service, which knows by the token."""
        if self.service is None:
            return by or login()
        if by is not None:
            raise click.UsageError("--by is for a data folder: a service knows by the token who you are.")
        return ""


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --url and --data-dir to a command, which gets the `place` that they name."""

    @click.option("--url", help="URL of a running service to ask; default: LOGDOCTOR_URL, else the data folder.")
    @data_dir_option
    @functools.wraps(command)
    def placed(*arguments: Any, url: str | None, data_dir: Path | None, **options: Any) -> Any:
        return command(*arguments, place=chosen_place(url, data_dir), **options)

    return placed


def chosen_place(url: str | None, data_dir: Path | None) -> Place:
    """Return where a command works; options override the settings."""
    if url is not None and data_dir is not None:
        raise click.UsageError("--url and --data-dir cannot be combined.")
    if data_dir is not None:
        return Place(data_dir)
    settings = read_settings()
    url = url if url is not None else settings.url
    return Place(None, _connection(url, settings)) if url else Place(None)


def _connection(url: str, settings: "Settings") -> "Connection":
    from logdoctor.cli.client.connection import Connection
    from logdoctor.job.send.target import checked_token, checked_url

    return Connection(checked_url(url), checked_token(settings.token, "LOGDOCTOR_TOKEN"))


def local_only(why: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a command refuse --url, with the reason `why`."""

    def refuse(context: click.Context, option: click.Parameter, url: str | None) -> None:
        if url is not None:
            raise click.UsageError(f"`{context.command_path}` takes no --url: {why}.")

    return click.option("--url", hidden=True, expose_value=False, is_eager=True, callback=refuse)


beside_data = local_only("it works on the data folder, on the machine of the service")


def env_file_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --env-file to a command; the file's variables become settings."""

    def load(context: click.Context, option: click.Parameter, path: Path | None) -> None:
        if path is not None:
            load_env_file(path)

    about = "File with settings, NAME=value a line; the environment goes before it. Default: LOGDOCTOR_ENV_FILE."
    given = click.option(
        "--env-file",
        envvar="LOGDOCTOR_ENV_FILE",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=load,
        help=about,
    )
    return given(command)


def settings_with(data_dir: Path | None) -> "Settings":
    """Return the settings, with `data_dir` if given."""

    settings = read_settings()
    return msgspec.structs.replace(settings, data_dir=data_dir) if data_dir else settings


def served_settings(data_dir: Path | None) -> "Settings":
    """Return the settings with the data folder; `StoreError` without a database: reading creates none."""
    settings = settings_with(data_dir)
    if not has_records(settings):
        raise StoreError(str(data_folder(settings)), "holds no records", _where_records_are())
    return settings


def _where_records_are() -> str:
    """Return the advice where to find records; not every command can ask a service."""
    context = click.get_current_context(silent=True)
    options = context.command.params if context else []
    asks = any(one.name == "url" and isinstance(one, click.Option) and not one.hidden for one in options)
    ask = ", or ask a running service with --url URL (or LOGDOCTOR_URL)" if asks else ""
    return f"Name the data folder of the service with --data-dir{ask}."


def has_records(settings: "Settings") -> bool:
    """Return whether there is a database."""
    return bool(settings.database_url) or (data_folder(settings) / "logdoctor.db").exists()


def login() -> str:
    """Return the login name by the user id, which no variable can change."""

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def log_to_stderr() -> None:
    """Log warnings on standard error: standard output is for answers."""
    import logging

    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
