"""What a page tells right after somebody said what a failure was: that it is saved, and what comes of it."""

import time
from typing import NamedTuple

from starlette.responses import Response

from logdoctor.errors import RequestRefused
from logdoctor.live.service import Service
from logdoctor.store.confirmed import Confirmation
from logdoctor.store.learned import DIAGNOSIS, Learned
from logdoctor.store.records import StoredVerdict
from logdoctor.web.cases import visible_case
from logdoctor.web.gate import Caller

_SOON = 90.0  # seconds in which a correction is awaited
_REFRESH = "2"  # seconds until the page is loaded again


class Saved(NamedTuple):
    """A case that was entered, the verdict on its attempt by now, and the rule it taught so far. While it is `pending`,
    the verdict is being corrected; `stays` when it stays, because no line that is left proves the correction."""

    case: Confirmation
    stored: StoredVerdict
    rule: Learned | None
    pending: bool
    stays: bool


def saved(service: Service, caller: Caller, case: int | None) -> Saved | None:
    """What came of a case so far; None for one that the caller may not see, or that no verdict is left of."""
    try:
        said = None if case is None else visible_case(service, caller, case)
    except RequestRefused:
        return None
    stored = None if said is None else service.records.current(said.job, said.attempt)
    if said is None or stored is None:
        return None
    awaited = said.corrects and not said.withdrawn and stored.id == said.verdict
    soon = 0 <= time.time() - said.at < _SOON and service.casework.consultant is not None
    return Saved(said, stored, _taught(service, said), awaited and soon, awaited and not soon)


def moved(service: Service, caller: Caller, case: int, incident: int) -> str:
    """Where the attempt of a case is by now, when that is not in this incident; "" when it is."""
    said = saved(service, caller, case)
    if said is None:
        return ""
    number = service.incidents.of(said.case.job, said.case.attempt)
    if number == incident:
        return ""
    place = f"/verdicts/{said.stored.id}" if number is None else f"/incidents/{number}"
    return f"{place}?case={case}#confirmed"


def refreshed(response: Response, said: Saved | None, path: str) -> Response:
    """The page at a path, which is loaded again by itself while the verdict on it is being corrected."""
    if said is not None and said.pending:  # the address in full: one with a fragment would only be scrolled to
        response.headers["Refresh"] = f"{_REFRESH}; url={path}?case={said.case.id}"
    return response


def _taught(service: Service, said: Confirmation) -> Learned | None:
    """The rule that was learned from the attempt of a case since that was entered."""
    for rule in service.rules.list(DIAGNOSIS):
        if (rule.source.job, rule.source.attempt) == (said.job, said.attempt) and rule.created >= said.at - 1:
            return rule
    return None
