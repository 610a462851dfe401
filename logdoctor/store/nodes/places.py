"""Lists of nodes: filters, order, and where a page continues. Pure functions."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from logdoctor.errors import CursorError
from logdoctor.types.nodes import PastCordon, PastFailure, PastFinding

DRY_RUN = "dry-run"
"""The kind of cordon that touches no node."""

Shown = Literal["healthy", "faulty", "slow", "indeterminate", "untested"]
Service = Literal["in-service", "cordoned", "dry-run"]
Order = Literal["all", "recent", "name"]
_RANK = {"faulty": 0, "slow": 1, "indeterminate": 2}
_LONGEST = 400  # characters of a cursor; names are shorter


class NodeSummary(msgspec.Struct, frozen=True):
    """The summary of a node: how many current verdicts suspect it (`failures`), how many tests found it `faulty`, the
    last of each, our open cordon, how many failures and faults are of the last 30 days, and the `test` that runs on
    it now."""

    node: str
    failures: int = 0
    last_failure: PastFailure | None = None
    faulty: int = 0
    last_finding: PastFinding | None = None
    cordon: PastCordon | None = None
    recent_failures: int = 0
    recent_faulty: int = 0
    test: int | None = None


class WantedNodes(msgspec.Struct, frozen=True):
    """Which nodes on record to list: all given conditions must hold. `text` is a part of the name, ignoring case;
    `order` sorts by most failures in `all`, in the last 30 days (`recent`), or by name."""

    text: str | None = None
    standing: Shown | None = None
    service: Service | None = None
    testing: bool = False
    order: Order = "all"


class NodePage(msgspec.Struct, frozen=True):
    """A page of nodes, the cursor of the next page, if any, and numbers of nodes by `standing` and `service`, each
    ignoring its own filter."""

    items: list[NodeSummary]
    next: str | None
    counts: dict[str, dict[str, int]] = {}


class NodePlace(NamedTuple):
    """The sort and filter fields of a node. `standing` is the last finding, `how` the kind of the open cordon ("" for
    none), `test` the running one."""

    node: str
    failures: int
    recent_failures: int
    last: float
    faulty: int
    recent_faulty: int
    standing: str
    how: str
    test: int | None

    @property
    def shown(self) -> str:
        """Its health for display."""
        return self.standing or "untested"

    @property
    def service(self) -> str:
        """Whether it is cordoned; a dry run cordons nothing."""
        return "in-service" if not self.how else DRY_RUN if self.how == DRY_RUN else "cordoned"

    def key(self, order: Order) -> "PlaceKey":
        """Return its sort key."""
        if order == "name":
            return PlaceKey(0, 0, 0, 0.0, self.node)
        total = self.failures + self.faulty
        if order == "all":
            return PlaceKey(0, -total, 0, -self.last, self.node)
        return PlaceKey(
            -self.recent_failures - self.recent_faulty, -total, _RANK.get(self.standing, 9), -self.last, self.node
        )


class PlaceKey(NamedTuple):
    """A sort key; a page begins after one."""

    recent: int
    total: int
    rank: int
    last: float
    node: str


class Found(NamedTuple):
    """The nodes of a page, the cursor after them, and the counts of all that match."""

    items: list[NodePlace]
    next: str | None
    counts: dict[str, dict[str, int]]


def listed(places: Sequence[NodePlace], wanted: WantedNodes, after: PlaceKey | None, limit: int) -> Found:
    """Return a page of the wanted nodes after a sort key."""
    text = (wanted.text or "").lower()
    named = [place for place in places if text in place.node.lower() and (not wanted.testing or place.test is not None)]

    def fits(place: NodePlace, standing: str | None, service: str | None) -> bool:
        return standing in (None, place.shown) and service in (None, place.service)

    counts = {
        "standing": _counted(place.shown for place in named if fits(place, None, wanted.service)),
        "service": _counted(place.service for place in named if fits(place, wanted.standing, None)),
    }
    kept = ((place.key(wanted.order), place) for place in named if fits(place, wanted.standing, wanted.service))
    rest = sorted(pair for pair in kept if after is None or pair[0] > after)
    page = rest[: max(limit, 1)]
    return Found([place for _, place in page], _cursor(page[-1][0]) if len(rest) > len(page) else None, counts)


def place_after(cursor: str | None) -> PlaceKey | None:
    """Return the sort key that a page begins after, None for the first page; `CursorError` for an invalid cursor."""
    if cursor is None:
        return None
    try:
        recent, total, rank, last, node = cursor[:_LONGEST].split("_", 4)
        place = PlaceKey(int(recent), int(total), int(rank), float(last), node)
    except ValueError:
        place = PlaceKey(0, 0, 0, math.nan, "")
    if not math.isfinite(place.last):
        raise CursorError("the cursor", "does not come from a page of this list", "Start again without a cursor.")
    return place


def _cursor(key: PlaceKey) -> str:
    return f"{key.recent}_{key.total}_{key.rank}_{key.last!r}_{key.node}"


def _counted(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts
