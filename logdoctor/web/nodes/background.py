"""Background operations for pages: slow node actions, and a cluster that is slow to answer."""

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
_FRESH = 3.0  # seconds for which the cluster's answer is cached
_AT_WORK = 16  # operations at once
_REMEMBERED = 200  # operations whose pages are kept
T = TypeVar("T")
DeedKey = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{16}$")]


class Deed(NamedTuple):
    """A background operation: its description, the page it started from, and its result's URL."""

    what: str
    back: str
    done: "Future[str]"


class Deeds:
    """Operations that continue in the background when they take long. `prefix` is the path of their pages."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: OrderedDict[str, Deed] = OrderedDict()

    async def begin(self, what: str, back: str, act: Callable[[], str]) -> str:
        """Return the next URL: the result of `act` if it is quick, else a progress page.

        What it raises in that time is raised here. `Busy` when too many are running.
        """
        if sum(not deed.done.done() for deed in self._known.values()) >= _AT_WORK:
            raise Busy("nodes", f"{_AT_WORK} acts are in progress", "Try again in a moment.")
        key, deed = secrets.token_urlsafe(12), Deed(what, back, in_background(act))
        self._known[key] = deed  # before the wait, so that simultaneous ones are counted, too
        waited = asyncio.wrap_future(deed.done)
        waited.add_done_callback(lambda one: one.cancelled() or one.exception())  # read below, or later
        finished, _ = await asyncio.wait([waited], timeout=_SOON)
        if finished:
            self._known.pop(key, None)
            return deed.done.result()
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return f"{self._prefix}/under-way/{key}"

    def page(self, request: Request, key: str) -> Response:
        """Return the page of a background operation: its progress, or a redirect to its result."""
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
    """The states of nodes in the cluster; None without an answer, with the reason `why`."""

    states: list[NodeState] | None
    why: str = ""

    def of(self, node: str) -> NodeState | None:
        """Return the state of one node in the cluster."""
        return next((state for state in self.states or () if state.name == node), None)


class Fleet:
    """The states of nodes in the cluster, read in the background with a short wait. A page that comes too early says
    so, and has the answer when it is reloaded."""

    def __init__(self, actor: Actor | None) -> None:
        self._actor = actor
        self._lock = threading.Lock()
        self._asked: Future[list[NodeState]] | None = None
        self._at = 0.0

    def ask(self) -> FleetAnswer:
        """Return the cluster's answer, at most a few seconds old."""
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
        """Drop the cached answer, after a change."""
        self._at = 0.0


def unreached(actor: Actor, nodes: Sequence[str], launcher: str) -> LogdoctorError | None:
    """Return why a launcher cannot test these nodes. None when it can, or does not answer in time for a page."""
    try:
        in_background(lambda: actor.look(nodes, launcher)).result(_SOON)
    except TimeoutError:
        return None  # it is asked again before anything is done
    except LogdoctorError as error:
        return error
    return None


def in_background(act: Callable[[], T]) -> "Future[T]":
    """Run `act` in a daemon thread, and return its future result."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(act())
        except LogdoctorError as error:
            future.set_exception(error)
        except Exception as error:  # raised again by whoever waits for it
            log.exception("act failed")
            failed = ActionRefused("your request", "it failed unexpectedly", "Check the log of the service.")
            failed.__cause__ = error
            future.set_exception(failed)

    threading.Thread(target=work, name="page", daemon=True).start()
    return future
