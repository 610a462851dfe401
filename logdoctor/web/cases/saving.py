"""What a page tells right after somebody said what a failure was: that it is saved, and what comes of it."""

import time
from collections.abc import Collection
from typing import NamedTuple

from starlette.responses import Response

from logdoctor import taxonomy
from logdoctor.errors import RequestRefused
from logdoctor.learning.files.trial import verdict as verdict_on
from logdoctor.service.confirming import correction
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.store.learning.confirmed import Confirmation, NewConfirmation
from logdoctor.store.learning.learned import Learned
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from logdoctor.types import Verdict
from logdoctor.web.cases.api import visible_case
from logdoctor.web.gate import Caller

_SOON = 90.0  # seconds in which a correction is awaited
_REFRESH = "2"  # seconds until the page is loaded again


class Ruled(NamedTuple):
    """A rule that decides a line, whatever cases say, and what it calls it."""

    rule: str
    reason: str
    recovery: str
    line: str


class Saved(NamedTuple):
    """A case that was entered, the verdict on its attempt by now, and the rule it taught so far. While it is `pending`,
    the verdict is being corrected; `stays` when it stays, because no line that is left proves the correction. `ruled`
    is the rule that still says something else of its lines."""

    case: Confirmation
    stored: StoredVerdict
    rule: Learned | None
    pending: bool
    stays: bool
    ruled: Ruled | None = None


def saved(service: Service, caller: Caller, case: int | None) -> Saved | None:
    """Return what came of a case so far; None for one that the caller may not see, or that no verdict is left of."""
    known = _known(service, caller, case)
    if known is None:
        return None
    said, stored = known
    awaited = said.corrects and not said.withdrawn and stored.id == said.verdict
    soon = 0 <= time.time() - said.at < _SOON and service.casework.consultant is not None
    still = still_ruled(service, said)
    return Saved(said, stored, _taught(service, said), awaited and soon, awaited and not soon, still)


def still_ruled(service: Service, said: Confirmation) -> Ruled | None:
    """Return the rule that says something else of a corrected failure than its case does, today as before."""
    before = service.records.verdict(said.verdict) if said.corrects and said.verdict else None
    return ruled(service, said, before.verdict) if before else None


def ruled(service: Service, said: NewConfirmation, before: Verdict, put_back: Collection[str] = ()) -> Ruled | None:
    """Return the rule that still names something else in the lines of a case, or in those of the verdict that it
    corrects; None when none does. Rules that are `put_back` are left out: they decide nothing any more."""
    lines = list(dict.fromkeys([*(one.quote for one in said.evidence), *(one.quote for one in before.evidence)]))
    rules = [rule for rule in service.rules.list(DIAGNOSIS) if rule.id not in put_back]
    if not lines:
        return None
    book = service.overruling.book(service.scanner.book, said.job)
    made = verdict_on(service.scanner, rules, lines, book)
    wanted = said.recovery or taxonomy.REASONS[said.reason].recovery
    if made.decided_by.kind != "rule" or (made.reason, made.recovery) == (said.reason, wanted):
        return None
    return Ruled(made.decided_by.rule, made.reason, made.recovery, made.evidence[0].quote if made.evidence else "")


def corrected(service: Service, said: Confirmation) -> str:
    """Return what a correction changed, in words behind the name of who made it; "" for what is none."""
    before = service.records.verdict(said.verdict) if said.corrects and said.verdict else None
    return correction(said, before.verdict if before else None) if said.corrects else ""


def moved(service: Service, caller: Caller, case: int, incident: int) -> str:
    """Return where the attempt of a case is by now, when that is not in this incident; "" when it is."""
    known = _known(service, caller, case)
    if known is None:
        return ""
    said, stored = known
    number = service.incidents.of(said.job, said.attempt)
    if number == incident:
        return ""
    place = f"/verdicts/{stored.id}" if number is None else f"/incidents/{number}"
    return f"{place}?case={case}#confirmed"


def refreshed(response: Response, said: Saved | None, path: str) -> Response:
    """Return the page at a path, which is loaded again by itself while the verdict on it is being corrected."""
    if said is not None and said.pending:  # the address in full: one with a fragment would only be scrolled to
        response.headers["Refresh"] = f"{_REFRESH}; url={path}?case={said.case.id}"
    return response


def _known(service: Service, caller: Caller, case: int | None) -> tuple[Confirmation, StoredVerdict] | None:
    """Return a case and the verdict on its attempt by now; None when either is not to be seen."""
    try:
        said = None if case is None else visible_case(service, caller, case)
    except RequestRefused:
        return None
    stored = None if said is None else service.records.current(said.job, said.attempt)
    return None if said is None or stored is None else (said, stored)


def _taught(service: Service, said: Confirmation) -> Learned | None:
    """Return the rule that was learned from the attempt of a case since that was entered."""
    for rule in service.rules.list(DIAGNOSIS):
        if (rule.source.job, rule.source.attempt) == (said.job, said.attempt) and rule.created >= said.at - 1:
            return rule
    return None
