"""Scores of a job's checkpoints: intake and API."""

import time

from fastapi import APIRouter
from starlette.responses import Response

from logdoctor.jobs.scores import Score
from logdoctor.service.service import Service
from logdoctor.store.jobs.scores import Scores
from logdoctor.store.names import checked
from logdoctor.web.dependencies import Reader, Sender, TheService
from logdoctor.web.jobs.answers import EnteredScores, ScoresOut
from logdoctor.web.jobs.requests import ScoresIn
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import answers
from logdoctor.web.parameters import JobName
from logdoctor.web.problems import describe, existing

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["jobs"])


@router.post("/jobs/{job}/scores", responses=answers(EnteredScores) | describe(400, 422))
def enter_scores(job: JobName, sent: ScoresIn, caller: Sender, service: TheService) -> Response:
    """Enter scores of a job's checkpoints: all, or none when one is invalid. The same metric of a set at the same step
    is replaced."""
    given = [Score(**one.model_dump()) for one in sent.scores]
    return Json(EnteredScores(Scores(service.records.database).enter(checked("job", job), given, time.time())))


@router.get("/jobs/{job}/scores", responses=answers(ScoresOut) | describe(400, 404, 422))
def scores(caller: Reader, service: TheService, job: JobName) -> Response:
    """Return the scores of a job's checkpoints by set, metric and step. Of more than 20,000, those of the newest steps
    are returned."""
    existing(service.records.job(checked("job", job)), f"job {job}")
    return Json(ScoresOut(job, scores_of(service, job)))


def scores_of(service: Service, job: str) -> list[Score]:
    """Return the scores of a job."""
    return Scores(service.records.database).of(job)
