"""Shared by the routes of nodes, tests and actions: the actor, and its refusals."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Query

from logdoctor.errors import ActionRefused, CordonError, CordonRefused, LaunchError, NodeTestRefused, RequestRefused
from logdoctor.service.acting import Actor
from logdoctor.service.service import Service
from logdoctor.types.nodes import PastCordon
from logdoctor.web.problems import as_refusal, refusal

REFUSED = refusal(409, "this may not be done, or not now")
CLUSTER = refusal(502, "the cluster was asked and did not do it")
OfNode = Annotated[str | None, Query(max_length=253, description="only what concerns this node")]
Done = TypeVar("Done")


def actor_of(service: Service) -> Actor:
    """Return the actor of the service; `ActionRefused` without one."""
    if service.actor is None:
        raise ActionRefused("nodes", "this service does not act on nodes", "Start it with `logdoctor serve`.")
    return service.actor


def cordoned(
    actor: Actor, node: str, by: str, reason: str, verdict: int | None = None, test: int | None = None
) -> PastCordon:
    """Cordon a node and return the cordon. `RequestRefused`, with 404 when the cluster does not know the node."""
    try:
        return performed(lambda: actor.cordon(node, by, reason, verdict, test))
    except RequestRefused as error:
        if error.status == 502 and node not in {state.name for state in performed(actor.nodes)}:
            cause, step = "the cluster knows no node of this name", "Check the name."
            raise RequestRefused(404, "not_found", f"node {node}", cause, step) from error
        raise


def performed(act: Callable[[], Done]) -> Done:
    """Return the result of `act`; raise its refusals as `RequestRefused`."""
    try:
        return act()
    except (ActionRefused, CordonRefused, NodeTestRefused) as error:
        raise as_refusal(error) from error
    except LaunchError as error:
        raise as_refusal(error, 422, "cannot_test") from error
    except CordonError as error:
        raise as_refusal(error, 502, "cluster_failed") from error
