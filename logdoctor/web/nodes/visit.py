"""A request for a page about nodes, tests or actions, with their common needs."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Request
from starlette.responses import Response

from logdoctor.errors import RequestRefused
from logdoctor.service.acting import Actor
from logdoctor.service.service import Service
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.web.dependencies import (
    Admit,
    TheNodeRecords,
    TheService,
    admit_node_form_operator,
    admit_node_reader,
    once,
)
from logdoctor.web.gate import Caller, form_key, named
from logdoctor.web.nodes import words
from logdoctor.web.nodes.background import Fleet
from logdoctor.web.rendering import page


class Visit(NamedTuple):
    """A request for a page by an admitted caller, with the records of nodes."""

    request: Request
    caller: Caller
    service: Service
    kept: NodeRecords
    fleet: Fleet

    def actor(self) -> Actor:
        """Return the actor of the service; `RequestRefused` without one."""
        if self.service.actor is None:
            next_step = f"Start it with `logdoctor serve`: {words.DOCUMENT}."
            raise RequestRefused(409, "refused", "nodes", "this service does not act on nodes", next_step)
        return self.service.actor

    def by(self, form: Mapping[str, str]) -> "Visit":
        """Return the visit under the name entered in the form, if it asked for one."""
        return self._replace(caller=named(self.request, self.caller, form.get("who", "")))

    def show(self, name: str, content: dict[str, Any], status: int = 200) -> Response:
        """Return a page with the common content of all pages about nodes."""
        actor = self.service.actor
        common = {
            "tell": words,
            "key": form_key(self.request),
            "may_act": self.caller.may("operate", ""),
            "acts": actor is not None,
            "launcher": actor.launcher if actor else "",
            "cordons_with": actor.cordons_with if actor else "",
        }
        return page(self.request, name, common | content, status)


TheFleet = Annotated[Fleet, Depends(once(lambda state: Fleet(state.service.actor)))]


def _visits(admit: Admit) -> Callable[..., Awaitable[Visit]]:
    async def visit(
        request: Request,
        caller: Annotated[Caller, Depends(admit)],
        service: TheService,
        kept: TheNodeRecords,
        fleet: TheFleet,
    ) -> Visit:
        return Visit(request, caller, service, kept, fleet)

    return visit


NodeVisit = Annotated[Visit, Depends(_visits(admit_node_reader))]
"""By a caller who may see nodes: a token without prefixes."""
NodeOperatorVisit = Annotated[Visit, Depends(_visits(admit_node_form_operator))]
