"""Files of environment variables, as systemd, Docker and shells keep them: one NAME=value a line."""

import re
from pathlib import Path
from typing import NamedTuple

from logdoctor.errors import SettingsError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST = 1 << 20  # bytes
_NEXT_STEP = "Write NAME=value, with nothing before NAME; a value may stand in quotes."


class Variable(NamedTuple):
    """A variable's value, and its line in the file."""

    value: str
    line: int


def read_env_file(path: Path) -> dict[str, Variable]:
    """Return the variables of a file; `SettingsError` names the invalid line.

    A value is taken literally, without surrounding blanks and quotes: nothing is expanded, and there are no escapes,
    about which systemd, Docker and shells disagree. Empty lines and those that begin with # are ignored.
    """
    found: dict[str, Variable] = {}
    for number, line in enumerate(_text(path).split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        place = f"{path}, line {number}"
        name, equals, value = line.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise SettingsError(place, "is not NAME=value", _NEXT_STEP)
        if name in found:
            raise SettingsError(place, f"sets {name}, as line {found[name].line} does", "Delete one of them.")
        found[name] = Variable(_unquoted(value.strip(), place), number)
    return found


def _unquoted(value: str, place: str) -> str:
    quote = value[:1]
    if quote not in ("'", '"'):
        return value
    inner = value[1:-1]
    if len(value) < 2 or value[-1] != quote or quote in inner or (quote == '"' and "\\" in inner):
        raise SettingsError(place, "has quotes that are not around the whole value, or escapes", _NEXT_STEP)
    return inner


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes() if path.stat().st_size <= _MOST else b"\0"
        text = raw.decode()
    except OSError as error:
        cause = f"cannot be read ({error.strerror})"
        raise SettingsError(f"the env file {path}", cause, "Check the path and its permissions.") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"the env file {path}", "is not UTF-8 text", "Write it as UTF-8.") from error
    if "\0" in text:
        raise SettingsError(f"the env file {path}", "is no text of at most 1 MiB", "Check the path.")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")
