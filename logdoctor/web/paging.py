"""Pages of the visible items of a list."""

from collections.abc import Callable
from typing import TypeVar

from logdoctor.web.parameters import WantedPage

_LOOKS = 40  # pages searched for items visible to a token that is bound to jobs

Item = TypeVar("Item")
Fetch = Callable[[str | None, int], tuple[list[Item], str | None]]
"""Returns items from a cursor on, at most as many as asked for, and the next cursor."""


def visible_page(fetch: "Fetch[Item]", page: WantedPage, seen: Callable[[Item], bool]) -> dict[str, object]:
    """Return a page of the items that the caller may see. It may be short, even empty, and have a next one."""
    cursor, limit = page
    items: list[Item] = []
    for _ in range(_LOOKS):
        found, cursor = fetch(cursor, limit - len(items))
        items += [one for one in found if seen(one)]
        if cursor is None or len(items) == limit:
            break
    return {"items": items, "next": cursor}
