"""Where the frames of an archived stream stand, in a small file beside it: 10 GB have 10,000 headers, and reading them
all takes longer than a person waits.

It is made from the stream and may be lost, torn or old: whoever reads it holds it against the stream.
"""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

EVERY = 256
"""Frames that may be missing at its end before it is written again."""
_ROW = 24  # bytes: where the frame begins in the file, the offset and the number of the line of its first byte

Rows = npt.NDArray[np.int64]
"""One row for each frame: where it begins, offset of its first byte, number of the line of that byte."""


def load(path: Path, size: int) -> Rows:
    """The rows of the frames that begin before byte `size` of the stream's file; none when they cannot all be true."""
    with suppress(OSError):
        kept = path.read_bytes()
        rows = np.frombuffer(kept[: len(kept) // _ROW * _ROW], "<i8").astype(np.int64).reshape(-1, 3)
        if _is_sound(rows):
            return rows[rows[:, 0] < size]
    return np.empty((0, 3), np.int64)


def _is_sound(rows: Rows) -> bool:
    """Whether rows can stand for frames of one file, from its first on."""
    if not len(rows) or rows[0].tolist() != [0, 0, 1]:
        return False
    begin, offset, line = (rows[1:] - rows[:-1]).T
    return bool(((begin > 0) & (offset > 0) & (line >= 0)).all())


def extend(path: Path, first: int, rows: Rows, like: Path) -> None:
    """Write the rows from number `first` on, which end the index; an index that cannot be written is no error.

    It takes the age of the stream's file (`like`), because the age of the newest file is the age of the attempt.
    """
    with suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            data = rows.astype("<i8").tobytes()
            os.pwrite(descriptor, data, first * _ROW)
            os.ftruncate(descriptor, first * _ROW + len(data))
            age = like.stat()
            os.utime(descriptor, ns=(age.st_atime_ns, age.st_mtime_ns))
        finally:
            os.close(descriptor)
