"""Names from outside, and the file names made from them."""

from typing import NamedTuple
from urllib.parse import quote, unquote

from logdoctor.errors import NameRefused

MAX_NAME = 200
"""Characters of a job or stream name."""
MAX_ATTEMPT = 999_999
IDENTITY = "logdoctor.id"
"""The object that names the database of an archive; no job has its file name."""
_MAX_FILE_NAME = 240  # bytes; file systems allow 255, and suffixes are added


class Key(NamedTuple):
    """A stream: its job, its attempt and its name."""

    job: str
    attempt: int
    stream: str

    def __str__(self) -> str:
        return f"{self.job}/{self.attempt}/{self.stream}"


def key(job: str, attempt: int, stream: str) -> Key:
    """Return a checked key; `NameRefused` for invalid names."""
    return Key(checked("job", job), checked_attempt(attempt), checked("stream", stream))


def checked_attempt(attempt: int) -> int:
    """Return the number of an attempt; `NameRefused` when it is out of range."""
    if not 0 <= attempt <= MAX_ATTEMPT:
        raise NameRefused(f"attempt {attempt}", "it is out of range", f"Use 0 to {MAX_ATTEMPT}.")
    return attempt


def checked(kind: str, name: str) -> str:
    """Return the name of a job or stream (`kind`); `NameRefused` when it is empty, too long or not printable."""
    if not name or len(name) > MAX_NAME:
        raise NameRefused(f"{kind} name", f"it has {len(name)} characters", f"Use 1 to {MAX_NAME}.")
    shown = name.encode("ascii", "backslashreplace").decode()
    if name in (".", "..") or name != name.strip():
        raise NameRefused(f"{kind} name '{shown}'", "it is a dot, or starts or ends with a space", "Use another one.")
    if bad := next((c for c in name if c in "/\\\N{REPLACEMENT CHARACTER}" or not c.isprintable()), None):
        cause = f"it contains {bad.encode('ascii', 'backslashreplace').decode()!r}"
        raise NameRefused(f"{kind} name '{shown}'", cause, "Use printable characters (UTF-8) without / and \\.")
    if len(file_name(name)) > _MAX_FILE_NAME:
        raise NameRefused(f"{kind} name '{shown}'", "its file name would be too long", "Use a shorter one.")
    return name


def file_name(name: str) -> str:
    """Return a file name for a name: letters, digits, `-`, `_`, inner dots; the rest percent-encoded.

    Different names give different file names, and none is hidden or leaves its folder.
    """
    quoted = quote(name, safe="").replace("~", "%7E")
    if quoted == IDENTITY:
        return quoted.replace(".", "%2E")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def named(file: str) -> str:
    """Return the name that a file name stands for."""
    return unquote(file, errors="replace")
