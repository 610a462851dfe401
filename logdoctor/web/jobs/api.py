"""Verdicts, jobs, and the lines of their logs over HTTP."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from logdoctor import taxonomy
from logdoctor.errors import RequestRefused
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import Attempt, Job, StoredVerdict, Wanted
from logdoctor.store.names import Key, checked, checked_attempt, key
from logdoctor.text import decode
from logdoctor.types import Evidence
from logdoctor.web.dependencies import Reader, TheService
from logdoctor.web.gate import Caller
from logdoctor.web.jobs.answers import AttemptOut, JobOut, JobPageOut, VerdictDetail, VerdictOut, VerdictPage
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import TEXT, TEXTS, answers, shows
from logdoctor.web.parameters import AttemptNumber, JobName, LineRange, StreamName, ThePage, VerdictId
from logdoctor.web.problems import describe, existing, not_found

CONTEXT = 8
"""Context lines around a piece of evidence."""
_MOST_LINES = 10_000
_MOST_BYTES = 8 << 20
_SHOWN = 4000  # characters of a line in JSON

Filter = Annotated[str | None, Query(max_length=300, description="only those of this one")]
Time = Annotated[float | None, Query(ge=0, le=1e11, description="seconds since the epoch")]


class Context(msgspec.Struct):
    """The lines around one piece of evidence, as (number, text)."""

    evidence: Evidence
    lines: list[tuple[int, str]]


def context(service: Service, stored: StoredVerdict) -> list[Context]:
    """Return each piece of evidence with its context, the verdict's own without a log."""
    return [Context(one, _around(service, stored, one)) for one in stored.verdict.evidence]


def _around(service: Service, stored: StoredVerdict, evidence: Evidence) -> list[tuple[int, str]]:
    first = max(evidence.line - CONTEXT, 1)
    name = Key(stored.job, stored.attempt, evidence.stream)
    found = service.logs.lines(name, first, evidence.line + CONTEXT, _MOST_BYTES).lines
    if len(found) > evidence.line - first and evidence.quote in decode(found[evidence.line - first]):
        return [(first + n, decode(line[: 4 * _SHOWN])[:_SHOWN]) for n, line in enumerate(found)]
    kept = (*evidence.before, evidence.quote, *evidence.after)
    return [(evidence.line - len(evidence.before) + n, text) for n, text in enumerate(kept)]


_BY_REASON = {"type": "object", "additionalProperties": TEXTS}

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["jobs"])


@router.get("/verdicts", responses=answers(VerdictPage) | describe(400, 422))
def search(
    caller: Reader,
    service: TheService,
    page: ThePage,
    reason: Filter = None,
    category: Filter = None,
    node: Filter = None,
    user: Filter = None,
    job: Filter = None,
    outcome: Filter = None,
    recovery: Filter = None,
    fingerprint: Filter = None,
    since: Time = None,
    until: Time = None,
) -> Response:
    """List current verdicts that match all given filters, newest first."""
    outcomes = (outcome,) if outcome else ()
    wanted = Wanted(reason, category, node, user, job, outcomes, recovery, fingerprint, since, until, caller.prefixes)
    return Json(service.records.search(wanted, *page))


@router.get("/verdicts/{id}", responses=answers(VerdictDetail) | describe(404, 422))
def verdict(caller: Reader, service: TheService, id: VerdictId) -> Response:
    """Return one verdict, its evidence in context, and the ids of the attempt's verdicts."""
    stored = visible(caller, service.records.verdict(id), f"verdict {id}")
    around = [
        {"stream": c.evidence.stream, "line": c.evidence.line, "lines": [_line(*line) for line in c.lines]}
        for c in context(service, stored)
    ]
    history = [one.id for one in service.records.history(stored.job, stored.attempt)]
    return Json(msgspec.structs.asdict(stored) | {"context": around, "history": history})


@router.get("/jobs", responses=answers(JobPageOut) | describe(400, 422))
def jobs(caller: Reader, service: TheService, page: ThePage) -> Response:
    """List jobs, newest first."""
    return Json(service.records.jobs(*page, caller.prefixes))


@router.get("/jobs/{job}", responses=answers(JobOut) | describe(400, 404, 422))
def job(caller: Reader, service: TheService, job: JobName) -> Response:
    """Return a job and its attempts."""
    known = existing(service.records.job(checked("job", job)), f"job {job}")
    return Json(_job(known, [_attempt(service, attempt) for attempt in service.records.attempts(job)]))


@router.get("/jobs/{job}/attempts/{attempt}", responses=answers(AttemptOut) | describe(400, 404, 422))
def attempt(caller: Reader, service: TheService, job: JobName, attempt: AttemptNumber) -> Response:
    """Return an attempt, how it ended, and its streams."""
    known = service.records.attempt(checked("job", job), checked_attempt(attempt))
    return Json(_attempt(service, existing(known, f"attempt {job}/{attempt}")))


@router.get("/jobs/{job}/attempts/{attempt}/verdict", responses=answers(VerdictOut) | describe(400, 404, 422))
def current(caller: Reader, service: TheService, job: JobName, attempt: AttemptNumber) -> Response:
    """Return the current verdict on an attempt; 404 without one."""
    stored = service.records.current(checked("job", job), checked_attempt(attempt))
    return Json(existing(stored, f"verdict on {job}/{attempt}"))


@router.get(
    "/jobs/{job}/attempts/{attempt}/streams/{stream}/log",
    responses={**describe(400, 404, 422), 200: {"content": {"text/plain": TEXT}}},
)
def log(
    caller: Reader, service: TheService, job: JobName, attempt: AttemptNumber, stream: StreamName, line: LineRange
) -> Response:
    """Return raw lines `A-B` of a stream, counted from 1. They are at most 10,000 lines or 8 MiB (see X-Complete)."""
    name = key(job, attempt, stream)
    if not service.has_stream(name):
        raise not_found(f"stream {name}")
    first, last = _range(line)
    found = service.logs.lines(name, first, min(last, first + _MOST_LINES - 1), _MOST_BYTES)
    complete = found.complete and (last < first + _MOST_LINES or len(found.lines) < _MOST_LINES)
    headers = {"X-First-Line": str(first), "X-Complete": str(complete).lower()}
    body = b"".join(text + b"\n" for text in found.lines)
    return Response(body, media_type="text/plain; charset=utf-8", headers=headers)


@router.get("/taxonomy", responses=describe() | shows({"Hang": taxonomy.REASONS["Hang"]._asdict()}, schema=_BY_REASON))
def reasons(caller: Reader) -> Response:
    """Return all reasons with category, fault, recovery and next step."""
    return Json({reason: row._asdict() for reason, row in taxonomy.REASONS.items()})


def _attempt(service: Service, kept: Attempt) -> dict[str, object]:
    stored = service.records.current(kept.job, kept.number)
    streams = service.streams(kept.job, kept.number)
    return msgspec.structs.asdict(kept) | {"streams": streams, "verdict": stored.id if stored else None}


def visible(caller: Caller, stored: StoredVerdict | None, thing: str) -> StoredVerdict:
    """Return the verdict, if the caller may see its job; otherwise it is not found."""
    if stored is None or not caller.may("read", stored.job):
        raise not_found(thing)
    return stored


def _job(kept: Job, attempts: list[dict[str, object]]) -> dict[str, object]:
    return msgspec.structs.asdict(kept) | {"attempts": attempts}


def _line(number: int, text: str) -> dict[str, object]:
    return {"line": number, "text": text}


def _range(line: str) -> tuple[int, int]:
    first, _, last = line.partition("-")
    begin, end = int(first), int(last or first)
    if not 1 <= begin <= end:
        raise RequestRefused(422, "invalid", "line", f"{line} is no range", "Use A-B with 1 <= A <= B.")
    return begin, end
