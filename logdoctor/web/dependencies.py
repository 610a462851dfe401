"""Dependencies of endpoints: the service, the caller, and the state of the application.

An endpoint is a function of its module; its dependencies are its parameters, as in `def nodes(caller: Reader, service:
TheService)`. All of these functions are `async`, because FastAPI runs others in a thread each.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Depends, Request

from logdoctor.pipeline import ReadLimits
from logdoctor.service.service import Service
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.web.bodies import Allowed
from logdoctor.web.events import Hubs
from logdoctor.web.gate import Caller, Gate
from logdoctor.web.push.labels import LabelMap
from logdoctor.web.single_sign_on import SingleSignOn
from logdoctor.web.traffic import Traffic

OF_ALL = "nodes are shared by all jobs"
"""Why a token that is bound to jobs neither sees nodes nor acts on them."""

Made = TypeVar("Made")
Admit = Callable[[Request], Awaitable[Caller]]


class BirthLimits(NamedTuple):
    """Most attempts that may begin with one push, and in a minute with one token. 0: any number."""

    push: int = 0
    minute: int = 0


class AppOptions(NamedTuple):
    """Options of an application. They are whether it wants tokens, requests per second, limits of bodies and logs,
    labels of pushes, the key that signs browser sessions, whether browsers use HTTPS, the log lines of known causes,
    which no imported filter rule may take, the sign-in through a proxy, limits on new attempts, and the clock of rate
    limits and token caches."""

    wants_token: bool
    rate: int
    allowed: Allowed
    limits: ReadLimits
    labels: LabelMap
    session_key: str
    over_https: bool = False
    causes: tuple[str, ...] = ()
    sign_on: SingleSignOn | None = None
    births: BirthLimits = BirthLimits()
    clock: Callable[[], float] = time.monotonic


@dataclass
class AppState:
    """The state of an application, as `app.state.logdoctor`. It is `ready` while it takes requests; `traffic` counts
    responses, `made` caches the results of `once`."""

    service: Service
    gate: Gate
    options: AppOptions
    hubs: Hubs = field(default_factory=Hubs)
    traffic: Traffic = field(default_factory=Traffic)
    ready: bool = False
    made: dict[object, Any] = field(default_factory=dict)

    def once(self, make: "Callable[[AppState], Made]") -> Made:
        """Return the result of `make`, called only once."""
        if make not in self.made:
            self.made[make] = make(self)
        found: Made = self.made[make]
        return found


def state_of(request: Request) -> AppState:
    """Return the state of the application that a request belongs to."""
    state: AppState = request.app.state.logdoctor
    return state


def once(make: Callable[[AppState], Made]) -> Callable[[Request], Awaitable[Made]]:
    """Return a dependency with the result of `make`, called once for each application."""

    async def given(request: Request) -> Made:
        return state_of(request).once(make)

    return given


def allows(scope: str, by_form: bool = False) -> Admit:
    """Return a dependency that admits callers with the scope, for the job in the path.

    `by_form` is for pages and their forms: there a browser's session counts, too, the caller must also have `read`, and
    `check_form` must follow.
    """

    async def admit(request: Request) -> Caller:
        return await state_of(request).gate.admit(request, scope, by_form)

    return admit


def allows_unbound(scope: str, why: str, by_form: bool = False) -> Admit:
    """Return a dependency like `allows` that refuses tokens bound to jobs, with the reason `why`."""

    async def admit(request: Request) -> Caller:
        return (await state_of(request).gate.admit(request, scope, by_form)).unbound(why)

    return admit


async def _service(request: Request) -> Service:
    return state_of(request).service


async def _hubs(request: Request) -> Hubs:
    return state_of(request).hubs


TheService = Annotated[Service, Depends(_service)]
TheHubs = Annotated[Hubs, Depends(_hubs)]
TheNodeRecords = Annotated[NodeRecords, Depends(once(lambda state: NodeRecords(state.service.records.database)))]

admit_reader = allows("read")
admit_node_reader = allows_unbound("read", OF_ALL)
admit_node_form_operator = allows_unbound("operate", OF_ALL, by_form=True)

Sender = Annotated[Caller, Depends(allows("ingest"))]
"""The sender of logs."""
Reader = Annotated[Caller, Depends(admit_reader)]
Operator = Annotated[Caller, Depends(allows("operate"))]
FormReader = Annotated[Caller, Depends(allows("read", by_form=True))]
FormOperator = Annotated[Caller, Depends(allows("operate", by_form=True))]
NodeReader = Annotated[Caller, Depends(admit_node_reader)]
"""A reader of nodes: a token without prefixes."""
NodeOperator = Annotated[Caller, Depends(allows_unbound("operate", OF_ALL))]
