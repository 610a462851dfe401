"""Matches patterns on many lines at once, through the real matcher."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logdoctor.rules.match import Matcher


class Lines(NamedTuple):
    """Lines joined into one buffer, with the offsets of the newlines between them."""

    texts: tuple[str, ...]
    buffer: bytes
    newlines: npt.NDArray[np.int64]


def joined(texts: Iterable[str]) -> Lines:
    """Join lines into one buffer; newlines inside a line become blanks, so that lines keep their numbers."""
    kept = tuple(text.replace("\n", " ") for text in texts)
    raw = [text.encode("utf-8", "replace") for text in kept]
    newlines = np.cumsum([len(line) + 1 for line in raw], dtype=np.int64)[:-1] - 1
    return Lines(kept, b"\n".join(raw), newlines)


def hits(matcher: Matcher, lines: Lines) -> list[set[int]]:
    """Return for each pattern of the matcher the numbers of the lines it matches."""
    found: list[set[int]] = [set() for _ in range(matcher.size)]
    patterns, ends = matcher.scan(lines.buffer)
    for pattern, line in zip(patterns.tolist(), np.searchsorted(lines.newlines, ends - 1).tolist(), strict=True):
        found[pattern].add(line)
    return found
