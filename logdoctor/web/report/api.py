"""What failures cost over a period, as JSON and CSV."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from logdoctor.report import Report, as_csv, reckon
from logdoctor.service.service import Service
from logdoctor.store.report import Reports
from logdoctor.web.gate import Caller, Gate
from logdoctor.web.jobs.api import Time
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import answers
from logdoctor.web.problems import describe

_CSV: dict[int | str, dict[str, Any]] = {
    200: {"description": "a row for each reason", "content": {"text/csv": {"schema": {"type": "string"}}}}
}


def routes(service: Service, gate: Gate) -> APIRouter:
    """The routes for reports."""
    router = APIRouter(prefix="/v1", tags=["verdicts"])
    Reader = Annotated[Caller, Depends(gate.allows("read"))]
    reports = Reports(service.records.database)

    @router.get("/report", responses=answers(Report) | describe(422), response_class=Response)
    def report(caller: Reader, since: Time = None, until: Time = None) -> Response:
        """What failures cost, by reason, category and week, for jobs that failed at `since` <= time < `until`."""
        found = reckon(reports.failures(since, until, caller.prefixes), since, until)
        return Json(found)

    @router.get("/report.csv", responses=_CSV | describe(422), response_class=Response)
    def report_csv(caller: Reader, since: Time = None, until: Time = None) -> Response:
        """The same by reason, for a spreadsheet."""
        found = reckon(reports.failures(since, until, caller.prefixes), since, until)
        named = {"Content-Disposition": 'attachment; filename="logdoctor-report.csv"'}
        return Response(as_csv(found), media_type="text/csv", headers=named)

    return router
