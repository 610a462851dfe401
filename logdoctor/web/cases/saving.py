"""The notice right after a ruling: that it is saved, and its effects so far."""

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
    """A rule that decides a line, whatever cases say, and its reason for it."""

    rule: str
    reason: str
    recovery: str
    line: str


class Saved(NamedTuple):
    """An entered case, the current verdict on its attempt, and the rule it has taught. While it is `pending`, the
    verdict is being corrected; `stays` when it stays, because no line that is left proves the correction. `ruled` is
    the rule that still contradicts it."""

    case: Confirmation
    stored: StoredVerdict
    rule: Learned | None
    pending: bool
    stays: bool
    ruled: Ruled | None = None


def saved(service: Service, caller: Caller, case: int | None) -> Saved | None:
    """Return the effects of a case so far. None if it, or its verdict, is hidden."""
    known = _known(service, caller, case)
    if known is None:
        return None
    said, stored = known
    awaited = said.corrects and not said.withdrawn and stored.id == said.verdict
    soon = 0 <= time.time() - said.at < _SOON and service.casework.consultant is not None
    still = still_ruled(service, said)
    return Saved(said, stored, _taught(service, said), awaited and soon, awaited and not soon, still)


def still_ruled(service: Service, said: Confirmation) -> Ruled | None:
    """Return the rule that still contradicts a corrected failure's case."""
    before = service.records.verdict(said.verdict) if said.corrects and said.verdict else None
    return ruled(service, said, before.verdict) if before else None


def ruled(service: Service, said: NewConfirmation, before: Verdict, put_back: Collection[str] = ()) -> Ruled | None:
    """Return the rule that still contradicts a case, on its lines or the verdict's, or None. Rules that are `put_back`
    are left out: they no longer decide anything."""
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
    """Return what a correction changed, to follow its author's name; "" without a correction."""
    before = service.records.verdict(said.verdict) if said.corrects and said.verdict else None
    return correction(said, before.verdict if before else None) if said.corrects else ""


def moved(service: Service, caller: Caller, case: int, incident: int) -> str:
    """Return the URL of a case's attempt; "" if it is in this incident."""
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
    """Return the page at a path, which reloads itself while its verdict is being corrected."""
    if said is not None and said.pending:  # the full address: one with only a new fragment would scroll
        response.headers["Refresh"] = f"{_REFRESH}; url={path}?case={said.case.id}"
    return response


def _known(service: Service, caller: Caller, case: int | None) -> tuple[Confirmation, StoredVerdict] | None:
    """Return a case and the current verdict on its attempt; None if either is hidden."""
    try:
        said = None if case is None else visible_case(service, caller, case)
    except RequestRefused:
        return None
    stored = None if said is None else service.records.current(said.job, said.attempt)
    return None if said is None or stored is None else (said, stored)


def _taught(service: Service, said: Confirmation) -> Learned | None:
    """Return the rule learned from the attempt of a case since it was entered."""
    for rule in service.rules.list(DIAGNOSIS):
        if (rule.source.job, rule.source.attempt) == (said.job, said.attempt) and rule.created >= said.at - 1:
            return rule
    return None
