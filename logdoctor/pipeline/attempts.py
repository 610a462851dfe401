"""Finds the files of an attempt: one file, standard input, or a folder with one file per rank."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from logdoctor.errors import InputError
from logdoctor.pipeline import LogFile
from logdoctor.text import natural

LOG_NAME = re.compile(
    r"(?:\.(?:log|txt|out|err|stdout|stderr)(?:\.\d+)?|^(?:stdout|stderr|log|output)|(?:^|[._-])rank[._-]?\d+)(?:\.gz|\.zst)?$",
    re.I,
)
"""Names of logs in a folder; other files in it are not read."""
ATTEMPT = re.compile(r"attempt_(\d+)$")
"""The name of torchrun's folder of an attempt."""


class AttemptFiles(NamedTuple):
    """The files of one attempt: its name for people, and its streams in name order."""

    name: str
    streams: tuple[LogFile, ...]


def attempts(path: Path) -> list[AttemptFiles]:
    """Return the attempts in a path.

    A file, or `-` for standard input, is one attempt with the stream "main". A folder is one attempt with a stream for
    each log below it; below torchrun's folders `attempt_0`, `attempt_1`, ... it is one for each of these. `InputError`
    when the path does not exist or a folder has no logs.
    """
    if str(path) == "-":
        return [AttemptFiles("standard input", (LogFile("main", path),))]
    if not path.is_dir():
        if not path.exists():
            raise InputError(str(path), "does not exist", "Check the path.")
        return [AttemptFiles(str(path), (LogFile("main", path),))]
    groups: dict[str, list[Path]] = {}
    for file in _logs(path):
        groups.setdefault(_attempt_of(path, file), []).append(file)
    if not groups:
        raise no_logs(str(path))
    return [
        AttemptFiles(
            f"{path}{f' ({name})' if name else ''}",
            tuple(LogFile(str(file.relative_to(path)), file) for file in files),
        )
        for name, files in sorted(groups.items(), key=lambda group: natural(group[0]))
    ]


def no_logs(folder: str) -> InputError:
    """Return the error for a folder in which no file is named like a log."""
    advice = "Give it files named *.log, *.txt, *.out or *.err, or name the files."
    return InputError(folder, "is a folder without logs", advice)


def _logs(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise InputError(str(error.filename), f"cannot be read ({error.strerror})", "Check its permissions.") from error

    found = [
        Path(root, name)
        for root, folders, names in os.walk(folder, onerror=fail)
        for name in names
        if LOG_NAME.search(name) and os.path.isfile(os.path.join(root, name))
    ]
    return iter(sorted(found, key=lambda file: natural(str(file))))


def _attempt_of(folder: Path, file: Path) -> str:
    names = file.relative_to(folder).parts[:-1]
    return (
        "/".join(names[: i + 1])
        if (i := next((i for i, name in enumerate(names) if ATTEMPT.search(name)), None)) is not None
        else ""
    )
