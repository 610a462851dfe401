"""The overrides that a correction may enter for contradicting rules: their scope and effect."""

import datetime
from functools import partial
from typing import Any

from logdoctor import taxonomy
from logdoctor.errors import RequestRefused
from logdoctor.learning.files.overriding import retried
from logdoctor.learning.form import overriding
from logdoctor.rules.overrides import last_day_of
from logdoctor.service.confirming import Foreseen, Overrule, overruling
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.store.learning.overrides import Scope
from logdoctor.web.gate import Caller

DAYS = 90
"""Default days for which an override is in force."""

MOST_DAYS = 3650
_SECONDS = 2.0  # of a back-test
_SCOPES: dict[str, Scope] = {"job": "job", "kind": "kind", "fleet": "fleet"}


def chosen_overrule(scope: str, days: str) -> Overrule | None:
    """Return the override that a form asks for; None where the rules stay. `RequestRefused` for an invalid scope."""
    if not scope:
        return None
    if scope not in _SCOPES:
        raise RequestRefused(422, "bad_scope", f"the scope {scope[:40]!a}", "is none", "Choose job, kind or fleet.")
    return Overrule(_SCOPES[scope], last_day(days))


def last_day(days: str) -> datetime.date | None:
    """Return the last of `days` days from today (UTC), or None for ""."""
    if not days.strip():
        return None
    days = days.strip()
    if not days.isascii() or not days.isdecimal() or len(days) > 9 or not 1 <= int(days) <= MOST_DAYS:
        cause = f"is not a number from 1 to {MOST_DAYS:,}"
        raise RequestRefused(422, "bad_days", f"the days {days[:40]!a}", cause, "Give days, or nothing for no end.")
    return last_day_of(int(days))


def overruling_content(service: Service, caller: Caller, stored: StoredVerdict, foreseen: Foreseen) -> Any:
    """Return the page's content about contradicting rules and the effect of overriding them, or None."""
    found, said = foreseen.objections, foreseen.confirmation
    if found is None or not found.rules:
        return None
    overrides = overruling(said, Overrule("fleet"), found, "")
    sees = partial(caller.may, "read")
    kind_of, own = service.overruling.kind, (stored.job, stored.attempt)
    rules = [overriding(one, one.rule) for one in overrides]
    confirmed = service.casework.confirmed
    tried = retried(rules, service.scanner, confirmed, kind_of, sees, stored.job, _SECONDS, own)
    wanted = said.recovery or taxonomy.REASONS[said.reason].recovery
    right = (found.verdict.reason, found.verdict.recovery) == (said.reason, wanted)
    return {"found": found, "tried": tried, "kind": kind_of(stored.job), "right": right}
