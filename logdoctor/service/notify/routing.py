"""Who is told of which incident: a table of routes, each with a target and what must hold of the newest attempt."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

FIELDS = ("job", "user", "team", "kind", "category", "reason", "node")
"""What a route may ask for; `team` is a label of the job, `kind` that of its rules."""


class Route(NamedTuple):
    """A target, and the patterns (`*`, `?`, `[ab]`) that all must fit for it to be told."""

    target: str
    wanted: tuple[tuple[str, str], ...]

    def fits(self, told: Mapping[str, str]) -> bool:
        """Return whether an incident goes this way."""
        return all(fnmatchcase(told.get(field, ""), pattern) for field, pattern in self.wanted)


def read_routes(text: str) -> list[Route]:
    """Return the routes of `TARGET=job:llama-*,user:anna TARGET=team:rl`; `ValueError` says what is wrong."""
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
    """Return the targets that are told of an incident, in order: those one of whose routes fits, and those that have no
    route. When that is nobody, all are told: a hole in the table must not swallow an incident."""
    routed = {route.target for route in routes}
    fitting = {route.target for route in routes if route.fits(told)}
    found = [name for name in targets if name in fitting or name not in routed]
    return found or list(targets)
