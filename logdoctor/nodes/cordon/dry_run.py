"""Dry-run cordons: everything is checked and logged, and no node is touched."""

from collections.abc import Callable, Iterable

import structlog

from logdoctor.errors import CordonRefused
from logdoctor.nodes.cordon.cordoner import Cordoner, reason_text, unknown
from logdoctor.types.nodes import Mark, NodeState

HOW = "dry-run"

log = structlog.get_logger()


class DryRun:
    """Looks at nodes through the cordoner `beneath`, if any, and never changes them.

    Without one it knows only the names of the `fleet`, none cordoned. It stores nothing: a dry run leaves the node as
    it was.
    """

    how = HOW

    def __init__(self, beneath: Cordoner | None = None, fleet: Callable[[], Iterable[str]] = tuple) -> None:
        self._beneath = beneath
        self._fleet = fleet

    def nodes(self) -> list[NodeState]:
        """Return the whole fleet."""
        if self._beneath is not None:
            return self._beneath.nodes()
        return [NodeState(name, False) for name in dict.fromkeys(self._fleet())]

    def node(self, name: str) -> NodeState | None:
        """Return one node's state; None when unknown."""
        if self._beneath is not None:
            return self._beneath.node(name)
        return next((state for state in self.nodes() if state.name == name), None)

    def cordon(self, name: str, mark: Mark) -> None:
        """Log what would be written on the node, if it could be cordoned."""
        state = self.node(name)
        if state is None:
            raise unknown(name, "dry-run" if self._beneath is None else self._beneath.how)
        if state.cordoned:
            raise CordonRefused(f"node {name}", f"is cordoned by others ({state.reason[:200]!r})", "Leave it.")
        log.info("would cordon", node=name, reason=reason_text(mark))

    def uncordon(self, name: str, mark: Mark) -> None:
        """Log that the node would be uncordoned."""
        log.info("would uncordon", node=name, reason=reason_text(mark))
