"""Which targets get which incident: a table of routes with conditions on the newest attempt."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

FIELDS = ("job", "user", "team", "kind", "category", "reason", "node")
"""Fields that a route may match; `team` is a label of the job, `kind` that of its rules."""


class Route(NamedTuple):
    """A target and its patterns (`*`, `?`, `[ab]`), all of which must match."""

    target: str
    wanted: tuple[tuple[str, str], ...]

    def fits(self, told: Mapping[str, str]) -> bool:
        """Return whether all patterns match an incident."""
        return all(fnmatchcase(told.get(field, ""), pattern) for field, pattern in self.wanted)


def read_routes(text: str) -> list[Route]:
    """Parse routes such as `TARGET=job:llama-*,user:anna TARGET=team:rl`; `ValueError` says what is wrong."""
    routes = []
    for at, part in enumerate(text.split(), 1):
        target, sign, conditions = part.partition("=")
        pairs = [one.partition(":") for one in conditions.split(",")]
        if not target or not sign or any(not colon or not pattern for _, colon, pattern in pairs):
            raise ValueError(f"part {at} is not in the form TARGET=FIELD:PATTERN,FIELD:PATTERN")
        if unknown := next((field for field, _, _ in pairs if field not in FIELDS), None):
            raise ValueError(f"part {at} asks for {unknown[:40]!a}; known are {', '.join(FIELDS)}")
        routes.append(Route(target, tuple((field, pattern) for field, _, pattern in pairs)))
    return routes


def chosen(routes: Sequence[Route], targets: Sequence[str], told: Mapping[str, str]) -> list[str]:
    """Return the targets of an incident, in order: those with a matching route, and those without any route. If there
    are none, all get it: a gap in the table must not lose an incident."""
    routed = {route.target for route in routes}
    fitting = {route.target for route in routes if route.fits(told)}
    found = [name for name in targets if name in fitting or name not in routed]
    return found or list(targets)
