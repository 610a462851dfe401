"""The run of a job as JSON and as a page: attempts, and lost time."""

import time
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from logdoctor.jobs.report import length
from logdoctor.jobs.scores import curves
from logdoctor.jobs.timeline import Run
from logdoctor.service.service import Service
from logdoctor.store.jobs.runs import stored_run
from logdoctor.store.names import checked
from logdoctor.web.dependencies import Reader, TheService
from logdoctor.web.jobs.excerpts import Viewer
from logdoctor.web.jobs.scores import scores_of
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import answers
from logdoctor.web.parameters import AttemptNumber, JobName
from logdoctor.web.problems import describe, existing, not_found
from logdoctor.web.rendering import page
from logdoctor.web.rendering import router as page_router

_MOST_CURVES = 300

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["jobs"])
pages = page_router()


@router.get("/jobs/{job}/run", responses=answers(Run) | describe(400, 404, 422))
def run(caller: Reader, service: TheService, job: JobName) -> Response:
    """Return the attempts of a job in order, with the time and steps lost. Losses are detection, restarts and repeated
    steps. Of more than 1,000 attempts, the newest are returned."""
    return Json(_run(service, job))


@pages.get("/jobs/{name}")
def run_page(request: Request, caller: Reader, service: TheService, name: JobName) -> Response:
    """Show the run of a job."""
    if not caller.may("read", name):
        raise not_found(f"job {name}")
    found = _run(service, name)
    viewers = {one.number: Viewer(name, one.number, service.streams(name, one.number)) for one in found.attempts[-50:]}
    drawn = curves(scores_of(service, name))[:_MOST_CURVES]
    return page(request, "run.html", {"run": found, "viewers": viewers, "length": length, "curves": drawn})


@pages.get("/jobs/{name}/attempts/{attempt}")
def attempt_page(caller: Reader, service: TheService, name: JobName, attempt: AttemptNumber) -> Response:
    """Lead to the verdict on an attempt; before there is one, to its log or its job."""
    if not caller.may("read", name) or service.records.attempt(checked("job", name), attempt) is None:
        raise not_found(f"attempt {name}/{attempt}")
    if stored := service.records.current(name, attempt):
        return RedirectResponse(f"/verdicts/{stored.id}", 303)
    viewer = Viewer(name, attempt, service.streams(name, attempt))
    job = f"/jobs/{quote(name, safe='')}"
    return RedirectResponse(viewer.page(viewer.streams[0]) if viewer.streams else job, 303)


def _run(service: Service, job: str) -> Run:
    existing(service.records.job(checked("job", job)), f"job {job}")
    return stored_run(service.records, job, time.time())
