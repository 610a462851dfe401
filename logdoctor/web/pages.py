"""Pages for people: the list of incidents, one incident with its proof, and the way in."""

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

from logdoctor.live.service import Service
from logdoctor.web.gate import Caller, Gate

_HERE = Path(__file__).parent


def static_files() -> StaticFiles:
    """Style sheets and icons."""
    return StaticFiles(directory=_HERE / "static")


def routes(service: Service, gate: Gate) -> APIRouter:
    """The routes for browsers."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

    @router.get("/")
    def incidents(request: Request, caller: Annotated[Caller, Depends(gate.allows("read"))]) -> HTMLResponse:
        return HTMLResponse("")

    return router
