"""What rules are called on pages, and what a step of one will do, in words for people."""

import datetime
from collections.abc import Sequence

from logdoctor import taxonomy
from logdoctor.store.learning.learned import CORDON, ERROR_WORD, Event, Learned, StoredClaim
from logdoctor.store.learning.overrides import NewOverride, StoredOverride

_STEPS = {
    "added": "learned",
    "import": "imported",
    "approve": "approved",
    "retire": "retired",
    "undo": "undid a step",
    "promote": "promoted it",
    "demote": "demoted it",
}
_WORDS = {
    "taken by": "removes the line",
    "would take": "would remove it (in shadow)",
    "evidence": "evidence",
    "named by": "names the cause",
    "would name": "would name it (in shadow)",
    "in vain": "matches without effect",
    "marks": "looks like an error",
    "kept": "kept",
    "because": "because",
}
_RISES = ("promote", "approve")
_LOOKED_AT = "failures of all jobs with a suspicious line that matches"


def overrides(one: NewOverride) -> str:
    """Return what an override makes of its rule."""
    if not one.reason:
        return "muted: its lines name no cause"
    return f"says {one.reason}: {recovery(StoredClaim(one.reason, one.fault, one.recovery))}"


def whose(one: NewOverride) -> str:
    """Return for which jobs an override holds."""
    return {"job": f"the job {one.whose}", "kind": f"jobs of the kind {one.whose}"}.get(one.scope, "all jobs")


def holds(one: StoredOverride) -> str:
    """Return whether an override holds now: in force, ended or withdrawn."""
    if one.withdrawn:
        return "withdrawn"
    return "in force" if one.holds(datetime.datetime.now(datetime.UTC).date()) else "ended"


def step(event: Event) -> str:
    """Return what was done with a rule."""
    return _STEPS.get(event.step, event.step)


def does(word: str) -> str:
    """Return what a finding of `review.why` says that a rule does."""
    return _WORDS.get(word, word)


def waits_for(rule: Learned) -> str:
    """Return what a rule that waits for a person waits for."""
    if rule.waits_for.startswith(ERROR_WORD):
        what = "a person must confirm that lines which look like errors are harmless"
    elif rule.waits_for.startswith(CORDON):
        what = "it can cordon nodes, so a person must approve it"
    else:
        what = "a person must approve it"
    return what


def recovery(claim: StoredClaim) -> str:
    """Return what to do about a failure that a learned rule names."""
    return taxonomy.ADVICE[claim.recovery or taxonomy.REASONS[claim.reason].recovery]


def category(claim: StoredClaim) -> str:
    """Return the category of the failure that a learned rule names, as what is usual where its fault is another's."""
    default = taxonomy.REASONS[claim.reason]
    return taxonomy.category_words(default.category, claim.fault or default.fault)


def fault(claim: StoredClaim) -> str:
    """Return whose fault a failure is that a learned rule names."""
    return taxonomy.FAULT_WORDS[claim.fault or taxonomy.REASONS[claim.reason].fault]


def last_step(events: Sequence[Event]) -> Event | None:
    """Return the latest step, of events that begin with the newest, that is no entry, no undoing and not undone."""
    undone = {event.undoes for event in events}
    return next((one for one in events if one.from_status and one.undoes is None and one.id not in undone), None)


def leads_to(rule: Learned, name: str, last: Event | None) -> str | None:
    """Return the status to which a step leads; None when the rule cannot take it."""
    if name == "approve":
        return {"proposed": "shadow", "retired": "shadow", "shadow": "active"}.get(rule.status)
    if name == "retire":
        return "retired" if rule.status != "retired" else None
    return last.from_status if name == "undo" and last is not None else None


def consequences(rule: Learned, name: str, last: Event | None) -> list[str]:
    """Return what will be so after a step, a sentence each."""
    status = leads_to(rule, name, last)
    said = []
    if name == "undo" and last is not None:
        said.append(f"The step that {last.by} took is undone: it {_way(last)}.")
    said.append(_effect(rule, status or rule.status, name == "undo" and last is not None and last.step in _RISES))
    if name == "approve" and rule.waits_for.startswith(ERROR_WORD) and not rule.harmless:
        said.append("By approving it you confirm that its lines are harmless, although they look like errors.")
    if status == "active" and rule.claim is not None and rule.claim.cordons:
        said.append("Its verdicts ask to cordon nodes; the action policy decides what is done.")
    said.append("The step is recorded with your name and can be undone.")
    if name == "undo":
        said[-1] = "The step is recorded with your name. An undo cannot be undone: approve or retire the rule instead."
    return said


def _way(event: Event) -> str:
    if event.from_status == event.to_status:
        return f"left the rule {event.to_status}"
    return f"led from {event.from_status} to {event.to_status}"


def _effect(rule: Learned, status: str, stays: bool) -> str:
    """Return what is so from a step on; a rule whose rise was taken back `stays` in shadow (see `life.may_rise`)."""
    if rule.claim is not None:
        named = f"named {rule.claim.reason} ({recovery(rule.claim)}), unless a more specific rule names them"
        return {
            "active": f"From now on {_LOOKED_AT} are {named}.",
            "shadow": f"From now on it counts {_LOOKED_AT}, but decides nothing.{_rise(rule, stays)}",
            "retired": "From now on it counts and decides nothing. The verdicts it made stay as they are.",
            "proposed": "From now on it counts and decides nothing until a person approves it.",
        }[status]
    where = f"jobs of the kind {rule.kind}"
    return {
        "active": f"From now on it removes lines of {where}: they are counted but no longer read.",
        "shadow": f"From now on it counts lines of {where}, but removes none.{_rise(rule, stays)}",
        "retired": f"From now on it neither counts nor removes lines of {where}. They are read again.",
        "proposed": "From now on it counts and removes nothing until a person approves it.",
    }[status]


def _rise(rule: Learned, stays: bool) -> str:
    if stays or (rule.claim is not None and rule.claim.cordons):
        return " It becomes active only when a person approves it again."
    return " It becomes active after it was watched in enough attempts, or when a person approves it again."
