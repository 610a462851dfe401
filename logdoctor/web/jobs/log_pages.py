"""The log of a stream: its pages, raw or compressed, and searches in it."""

import threading
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from pydantic import BaseModel, Field, model_validator
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import Busy, RuleError
from logdoctor.service import log_page, sifting
from logdoctor.service.service import Service
from logdoctor.service.view import StreamView
from logdoctor.store.incidents.table import Incident
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.store.names import Key, key
from logdoctor.web.dependencies import Reader, TheService
from logdoctor.web.gate import Caller
from logdoctor.web.jobs.log_rows import LogRow, kept_rows, log_url, page_rows, sifted_runs, streams_of
from logdoctor.web.parameters import AttemptNumber, JobName, StreamName
from logdoctor.web.problems import not_found
from logdoctor.web.rendering import page, prepare, router

_HITS = 100
_RANK_LINES = 500
_SECONDS = 1.5  # of one search; the next request continues it
_AT_ONCE = 4  # searches, because each keeps a processor busy
_PATIENCE = 2.0  # seconds that a search waits for its turn
_TURNS = threading.BoundedSemaphore(_AT_ONCE)
_OPENED = 200  # lines of a fold that are opened at once
Number = Annotated[int | None, Field(default=None, ge=1, le=10**15)]


class Asked(BaseModel):
    """The query of a log's URL. Empty fields count as unset, because forms send them."""

    view: Literal["raw", "compressed"] = "raw"
    line: Number = None
    go: Number = None
    begin: Annotated[int | None, Field(default=None, ge=1, le=10**15, alias="from")] = None
    before: Number = None
    open: Annotated[str | None, Field(default=None, pattern=r"^[0-9]{1,15}-[0-9]{1,15}$")] = None
    q: Annotated[str, Field(default="", max_length=sifting.MAX_PATTERN)] = ""
    regex: bool = False
    case: bool = False
    rank: Annotated[int | None, Field(default=None, ge=0, le=10**9)] = None
    follow: bool = False

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value != ""}

    @property
    def sifts(self) -> bool:
        """Return whether this is a search."""
        return bool(self.q) or self.rank is not None

    @property
    def opened(self) -> tuple[int, int]:
        """Return the range of lines shown although rules remove them, at most `_OPENED`."""
        first, last = (int(number) for number in (self.open or "0-0").split("-"))
        return first, min(last, first + _OPENED - 1)

    @property
    def search(self) -> dict[str, object]:
        """Return the search, as in the URL."""
        given = {"q": self.q, "regex": "1" if self.regex else "", "case": "1" if self.case else "", "rank": self.rank}
        return {name: value for name, value in given.items() if value not in ("", None)}


pages = router()

prepare("log.html")


@pages.get("/jobs/{name}/attempts/{attempt}/streams/{stream}")
def log(
    request: Request,
    caller: Reader,
    service: TheService,
    name: JobName,
    attempt: AttemptNumber,
    stream: StreamName,
    asked: Annotated[Asked, Query()],
) -> Response:
    """Show a page of a log around a line, or the results of a search."""
    known = key(name, attempt, stream)
    if not caller.may("read", name):
        raise not_found(f"stream {known}")
    if asked.go:  # a form cannot set the anchor of its target
        where = {"view": asked.view if asked.view != "raw" else None, "line": asked.go}
        return RedirectResponse(f"{log_url(known, where)}#L{asked.go}", 303)
    # the incident first: the first verdict opens it, so a known incident implies a verdict
    incident = _incident(service, caller, known)
    stored = service.records.current(name, attempt)
    content = _common(service, known, stored, asked) | {"incident": incident if stored else None}
    if not service.has_stream(known):
        return page(request, "log.html", content | _deleted(service, known, stored))
    view = service.logs.view(known)
    content |= {"lines": view.count(), "bytes": view.bytes}
    if asked.sifts:
        if not _TURNS.acquire(timeout=_PATIENCE):
            raise Busy("the search", f"{_AT_ONCE} others run", "Try again in a moment.")
        try:
            content |= _sifted(view, known, asked, stored)
        finally:
            _TURNS.release()
        return page(request, "log.html", content)
    return page(request, "log.html", content | _paged(service, view, known, asked, stored))


def _incident(service: Service, caller: Caller, name: Key) -> Incident | None:
    """Return the incident of an attempt."""
    number = service.incidents.of(name.job, name.attempt)
    return None if number is None else service.incidents.one(number, caller.prefixes)


def _common(service: Service, name: Key, stored: StoredVerdict | None, asked: Asked) -> dict[str, Any]:
    """Return the content of every page of a log: its place, and the other streams."""
    attempt = service.records.attempt(name.job, name.attempt)

    def url(**changes: object) -> str:
        return log_url(name, {"view": asked.view if asked.view != "raw" else None, **changes})

    def log_at(view: str | None) -> str:
        """Return the URL of the same lines in another view."""
        where = {"line": asked.line, "from": asked.begin, "before": asked.before}
        return log_url(name, {"view": view, **where}) + (f"#L{asked.line}" if asked.line else "")

    def search_url(begin: int | None) -> str:
        """Return the URL that continues the search from a line."""
        return url(**asked.search, **{"from": begin})

    return {
        "search_url": search_url,
        "name": name,
        "query": asked,
        "log_at": log_at,
        "stored": stored,
        "ended": attempt is not None and (attempt.settled or attempt.ended is not None),
        "deleted": None,
        "streams": streams_of(service, name, stored),
        "url": url,
        "cited": _cited(name, stored),
        "rows": [],
        "runs": None,
        "problem": None,
    }


def _cited(name: Key, stored: StoredVerdict | None) -> list[int]:
    """Return the numbers of the lines of a stream that the verdict cites."""
    return sorted({one.line for one in stored.verdict.evidence if one.stream == name.stream}) if stored else []


def _paged(service: Service, view: StreamView, name: Key, asked: Asked, stored: StoredVerdict | None) -> dict[str, Any]:
    """Return the page with the requested line, else the beginning."""
    count = view.count()
    wanted = asked.line or asked.begin or 1
    at, before, after = min(wanted, max(count, 1)), log_page.LEAD if asked.line else 0, log_page.ROWS
    if asked.follow or asked.before or wanted > count:
        at, before = min(count + 1, asked.before or count + 1), log_page.ROWS
        after = 0
    if asked.view == "compressed":
        found = log_page.folded(view, service.casework.rules_for(name.job), at, before, after, asked.opened)
    else:
        found = log_page.raw(view, at, before, after)
    rows = page_rows(found, name, stored, asked.line, asked.opened)
    return {"rows": rows, "beyond": wanted if wanted > count else None} | _ways(
        found, count, asked, _cited(name, stored)
    )


def _ways(found: log_page.LogPage, count: int, asked: Asked, cited: Sequence[int]) -> dict[str, Any]:
    """Return the links of a page: other pages, and cited lines."""
    here = asked.line or found.first
    backward = asked.view == "raw" and bool(asked.before or asked.follow)
    return {
        "first": found.first,
        "last": found.last,
        "before": found.first if found.first > 1 else None,
        "next": found.last + 1 if found.rows and found.last < count else None,
        "spent": not found.full and found.last < count and asked.view == "compressed" and not asked.before,
        "long": len(found.rows) < log_page.ROWS and (found.full or (backward and found.first > 1)),
        "cited_before": max((line for line in cited if line < here), default=None),
        "cited_after": min((line for line in cited if line > here), default=None),
    }


def _sifted(view: StreamView, name: Key, asked: Asked, stored: StoredVerdict | None) -> dict[str, Any]:
    """Return the search results from a line on, or why the pattern is invalid."""
    try:
        sieve = sifting.sieve(asked.q, asked.regex, not asked.case, asked.rank, name.stream)
    except RuleError as error:
        return {"problem": error, "runs": [], "sifted": None}
    most, around = (_HITS, sifting.AROUND) if asked.q else (_RANK_LINES, 0)
    found = sifting.sift(view, asked.begin or 1, sieve, most, _SECONDS, around)
    words = "" if asked.regex else asked.q
    return {"sifted": found, "runs": sifted_runs(found, name, stored, words, not asked.case)}


def _deleted(service: Service, name: Key, stored: StoredVerdict | None) -> dict[str, Any]:
    """Return the lines that outlive a deleted log; `RequestRefused` when there never was one."""
    attempt = service.records.attempt(name.job, name.attempt)
    past = service.casework.confirmed.kept(name.job, name.attempt)
    rows: list[list[LogRow]] = kept_rows(name, past.lines if past else (), stored)
    if not rows and (attempt is None or attempt.deleted is None):
        raise not_found(f"stream {name}")
    gone = attempt.deleted if attempt else None
    return {"deleted": gone, "gone": True, "runs": rows, "sifted": None, "lines": 0, "bytes": 0}
