"""What pages do not wait for: acts on nodes that take their time, and a cluster that is slow to answer."""

import asyncio
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Annotated, NamedTuple, TypeVar

import structlog
from fastapi import Path, Request
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import ActionRefused, Busy, LogdoctorError
from logdoctor.service.acting import Actor
from logdoctor.types.nodes import NodeState
from logdoctor.web.problems import not_found
from logdoctor.web.rendering import page

log = structlog.get_logger()

_SOON = 0.3  # seconds that a page waits
_FRESH = 3.0  # seconds for which the cluster is not asked again
_AT_WORK = 16  # acts at once
_REMEMBERED = 200  # acts that can be asked for
T = TypeVar("T")
DeedKey = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{16}$")]


class Deed(NamedTuple):
    """An act that somebody began: what it does, the page it was begun from, and where it leads when it is done."""

    what: str
    back: str
    done: "Future[str]"


class Deeds:
    """Acts that are done in the background once they take longer than a page may. `prefix` is where their pages are."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: OrderedDict[str, Deed] = OrderedDict()

    async def begin(self, what: str, back: str, act: Callable[[], str]) -> str:
        """Return where to go next: what the act gives if it is done soon, otherwise a page that tells how it goes on.

        What the act raises in that time is raised here. `Busy` when too many are at work.
        """
        if sum(not deed.done.done() for deed in self._known.values()) >= _AT_WORK:
            raise Busy("nodes", f"{_AT_WORK} acts are in progress", "Try again in a moment.")
        key, deed = secrets.token_urlsafe(12), Deed(what, back, in_background(act))
        self._known[key] = deed  # before it is waited for: those that came with it are counted, too
        waited = asyncio.wrap_future(deed.done)
        waited.add_done_callback(lambda one: one.cancelled() or one.exception())  # it is asked for below, or later
        finished, _ = await asyncio.wait([waited], timeout=_SOON)
        if finished:
            self._known.pop(key, None)
            return deed.done.result()
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return f"{self._prefix}/under-way/{key}"

    def page(self, request: Request, key: str) -> Response:
        """Return the page of an act that takes its time: how it goes on, and where it leads once it is done."""
        deed = self._known.get(key)
        if deed is None:
            raise not_found("this act")
        error: LogdoctorError | None = None
        if deed.done.done():
            try:
                return RedirectResponse(deed.done.result(), 303)
            except LogdoctorError as refusal:
                error = refusal
        shown = page(request, "deed.html", {"deed": deed, "error": error}, 409 if error else 200)
        if error is None:
            shown.headers["Refresh"] = "1"
        return shown


class FleetAnswer(NamedTuple):
    """How the cluster knows its nodes, None when it does not say; then `why`."""

    states: list[NodeState] | None
    why: str = ""

    def of(self, node: str) -> NodeState | None:
        """Return one node, as the cluster knows it."""
        return next((state for state in self.states or () if state.name == node), None)


class Fleet:
    """How the cluster knows its nodes. It is asked in the background and waited for shortly: a page that comes too
    early says so, and has the answer when it is loaded again."""

    def __init__(self, actor: Actor | None) -> None:
        self._actor = actor
        self._lock = threading.Lock()
        self._asked: Future[list[NodeState]] | None = None
        self._at = 0.0

    def ask(self) -> FleetAnswer:
        """Return what the cluster says now, or said seconds ago."""
        if self._actor is None:
            return FleetAnswer(None, "this service does not act on nodes")
        with self._lock:
            old = time.monotonic() - self._at > _FRESH
            if self._asked is None or (self._asked.done() and old):
                self._asked, self._at = in_background(self._actor.nodes), time.monotonic()
            asked = self._asked
        try:
            return FleetAnswer(asked.result(_SOON))
        except TimeoutError:
            return FleetAnswer(None, "the cluster has not answered yet: reload the page in a moment")
        except LogdoctorError as error:
            return FleetAnswer(None, str(error))

    def forget(self) -> None:
        """Ask again next time: something was changed."""
        self._at = 0.0


def unreached(actor: Actor, nodes: Sequence[str], launcher: str) -> LogdoctorError | None:
    """Return why a launcher cannot test these nodes; None when it can, or has not said so in the time of a page."""
    try:
        in_background(lambda: actor.look(nodes, launcher)).result(_SOON)
    except TimeoutError:
        return None  # it is asked again before anything is done
    except LogdoctorError as error:
        return error
    return None


def in_background(act: Callable[[], T]) -> "Future[T]":
    """Return what an act will have come to, in a thread that keeps no process from ending."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(act())
        except LogdoctorError as error:
            future.set_exception(error)
        except Exception as error:  # it is raised where it is waited for
            log.exception("act failed")
            failed = ActionRefused("your request", "it failed unexpectedly", "Check the log of the service.")
            failed.__cause__ = error
            future.set_exception(failed)

    threading.Thread(target=work, name="page", daemon=True).start()
    return future
