"""What failures cost over a period, as JSON and CSV."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from logdoctor.jobs.report import Report, as_csv, reckon
from logdoctor.store.jobs.report import Reports
from logdoctor.web.dependencies import Reader, once
from logdoctor.web.jobs.api import Time
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import answers
from logdoctor.web.problems import describe

_CSV: dict[int | str, dict[str, Any]] = {
    200: {"description": "a row for each reason", "content": {"text/csv": {"schema": {"type": "string"}}}}
}


TheReports = Annotated[Reports, Depends(once(lambda state: Reports(state.service.records.database)))]

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["report"])


@router.get("/report", responses=answers(Report) | describe(422))
def report(caller: Reader, reports: TheReports, since: Time = None, until: Time = None) -> Response:
    """Return the costs of failures at `since` <= time < `until`, by reason, category, week."""
    found = reckon(reports.failures(since, until, caller.prefixes), since, until)
    return Json(found)


@router.get("/report.csv", responses=_CSV | describe(422))
def report_csv(caller: Reader, reports: TheReports, since: Time = None, until: Time = None) -> Response:
    """Return the same by reason, for a spreadsheet."""
    found = reckon(reports.failures(since, until, caller.prefixes), since, until)
    named = {"Content-Disposition": 'attachment; filename="logdoctor-report.csv"'}
    return Response(as_csv(found), media_type="text/csv", headers=named)
