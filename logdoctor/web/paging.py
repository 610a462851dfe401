"""Pages of what a caller may see, of lists that hold more than that."""

from collections.abc import Callable
from typing import TypeVar

from logdoctor.web.parameters import WantedPage

_LOOKS = 40  # pages that are looked through for one of a token that is bound to jobs

Item = TypeVar("Item")
Fetch = Callable[[str | None, int], tuple[list[Item], str | None]]
"""Gives some items from a cursor on, as many as asked for or fewer, and the cursor behind them."""


def visible_page(fetch: "Fetch[Item]", page: WantedPage, seen: Callable[[Item], bool]) -> dict[str, object]:
    """Return a page of what the caller may see, as JSON has it; it may be short, even empty, and have a next one."""
    cursor, limit = page
    items: list[Item] = []
    for _ in range(_LOOKS):
        found, cursor = fetch(cursor, limit - len(items))
        items += [one for one in found if seen(one)]
        if cursor is None or len(items) == limit:
            break
    return {"items": items, "next": cursor}
