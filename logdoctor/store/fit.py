"""Outside input made to fit columns: texts of bounded length, numbers in range, cursors."""

import math
from typing import overload

from logdoctor.errors import CursorError

MAX_PAGE = 500
"""Items of a page, at most; a larger limit means this one."""
MAX_ID = 2**63 - 1


@overload
def plain(text: str) -> str: ...
@overload
def plain(text: None) -> None: ...
@overload
def plain(text: str | None) -> str | None: ...
def plain(text: str | None) -> str | None:
    """Return a text as columns hold it: NUL and lone surrogates, which databases refuse, are replaced.

    Search terms are treated the same, so they match.
    """
    if text is None:
        return None
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def fit(text: str, most: int) -> str:
    """Return a text as columns hold it, cut to `most` characters."""
    return plain(text[:most])


def fit_id(id: int) -> int:
    """Return the id; 0, which no row has, when it is out of range."""
    return id if 0 <= id <= MAX_ID else 0


def finite(value: float) -> float:
    """Return the value; 0 for NaN and infinity, which JSON lacks."""
    return value if math.isfinite(value) else 0.0


def fit_limit(limit: int) -> int:
    """Return the number of items of a page: at least one, at most `MAX_PAGE`."""
    return min(max(limit, 1), MAX_PAGE)


def below(cursor: str | None) -> int:
    """Return the id that all items of a page, newest first, are below; `CursorError` for an invalid cursor."""
    if cursor is None:
        return MAX_ID
    if cursor.isascii() and cursor.isdigit() and len(cursor) < 20 and int(cursor) <= MAX_ID:
        return int(cursor)
    raise CursorError("the cursor", "does not come from a page of this list", "Start again without a cursor.")
