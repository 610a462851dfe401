"""What the routes of nodes, their tests and actions share: who acts, and how it is told that something was not done."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Query

from logdoctor.errors import (
    ActionRefused,
    CordonError,
    CordonRefused,
    LaunchError,
    NodeTestRefused,
    RequestRefused,
)
from logdoctor.node_types import PastCordon
from logdoctor.service.acting import Actor
from logdoctor.service.service import Service
from logdoctor.web.problems import refusal

REFUSED = refusal(409, "this may not be done, or not now")
CLUSTER = refusal(502, "the cluster was asked and did not do it")
OfNode = Annotated[str | None, Query(max_length=253, description="only what concerns this node")]
Done = TypeVar("Done")


def actor_of(service: Service) -> Actor:
    """What acts on nodes; `ActionRefused` when the service acts on none."""
    if service.actor is None:
        raise ActionRefused("nodes", "this service does not act on nodes", "Start it with `logdoctor serve`.")
    return service.actor


def cordoned(
    actor: Actor, node: str, by: str, reason: str, verdict: int | None = None, test: int | None = None
) -> PastCordon:
    """The cordon of a node that is taken out; `RequestRefused`, with 404 when the cluster does not know the node."""
    try:
        return performed(lambda: actor.cordon(node, by, reason, verdict, test))
    except RequestRefused as error:
        if error.status == 502 and node not in {state.name for state in performed(actor.nodes)}:
            cause, step = "the cluster knows no node of this name", "Check the name."
            raise RequestRefused(404, "not_found", f"node {node}", cause, step) from error
        raise


def performed(act: Callable[[], Done]) -> Done:
    """What an act gives; its refusal as `RequestRefused`."""
    try:
        return act()
    except (ActionRefused, CordonRefused, NodeTestRefused) as error:
        raise RequestRefused(409, "refused", error.thing, error.cause, error.next_step) from error
    except LaunchError as error:
        raise RequestRefused(422, "cannot_test", error.thing, error.cause, error.next_step) from error
    except CordonError as error:
        raise RequestRefused(502, "cluster_failed", error.thing, error.cause, error.next_step) from error
