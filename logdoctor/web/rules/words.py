"""Rules and the effects of their steps, in words for people."""

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
    """Return what an override does to its rule."""
    if not one.reason:
        return "muted: its lines name no cause"
    return f"says {one.reason}: {recovery(StoredClaim(one.reason, one.fault, one.recovery))}"


def whose(one: NewOverride) -> str:
    """Return the jobs to which an override applies."""
    return {"job": f"the job {one.whose}", "kind": f"jobs of the kind {one.whose}"}.get(one.scope, "all jobs")


def holds(one: StoredOverride) -> str:
    """Return the state of an override: in force, ended or withdrawn."""
    if one.withdrawn:
        return "withdrawn"
    return "in force" if one.holds(datetime.datetime.now(datetime.UTC).date()) else "ended"


def step(event: Event) -> str:
    """Return a past step in words."""
    return _STEPS.get(event.step, event.step)


def does(word: str) -> str:
    """Return the verb for a finding of `rules.why`."""
    return _WORDS.get(word, word)


def waits_for(rule: Learned) -> str:
    """Return what a waiting rule needs from a person."""
    if rule.waits_for.startswith(ERROR_WORD):
        what = "a person must confirm that lines which look like errors are harmless"
    elif rule.waits_for.startswith(CORDON):
        what = "it can cordon nodes, so a person must approve it"
    else:
        what = "a person must approve it"
    return what


def recovery(claim: StoredClaim) -> str:
    """Return the recovery that a learned rule advises."""
    return taxonomy.ADVICE[claim.recovery or taxonomy.REASONS[claim.reason].recovery]


def category(claim: StoredClaim) -> str:
    """Return a learned rule's category, as the usual one if the fault contradicts it."""
    default = taxonomy.REASONS[claim.reason]
    return taxonomy.category_words(default.category, claim.fault or default.fault)


def fault(claim: StoredClaim) -> str:
    """Return the fault that a learned rule names."""
    return taxonomy.FAULT_WORDS[claim.fault or taxonomy.REASONS[claim.reason].fault]


def last_step(events: Sequence[Event]) -> Event | None:
    """Return the latest step that is neither an entry, nor an undo, nor undone. `events` begin with the newest."""
    undone = {event.undoes for event in events}
    return next((one for one in events if one.from_status and one.undoes is None and one.id not in undone), None)


def leads_to(rule: Learned, name: str, last: Event | None) -> str | None:
    """Return the status after a step; None when the rule cannot take it."""
    if name == "approve":
        return {"proposed": "shadow", "retired": "shadow", "shadow": "active"}.get(rule.status)
    if name == "retire":
        return "retired" if rule.status != "retired" else None
    return last.from_status if name == "undo" and last is not None else None


def consequences(rule: Learned, name: str, last: Event | None) -> list[str]:
    """Return the effects of a step, a sentence each."""
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
    """Return the effect of the new status. A rule whose promotion was undone `stays` in shadow (`steps.may_rise`)."""
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
