"""Steps that code takes with a learned rule: proposed, shadow, active, retired. Each is stored with its reason."""

import structlog

from logdoctor.errors import RuleRefused
from logdoctor.llm.masking import mask
from logdoctor.store.learning.learned import LearnedRules

log = structlog.get_logger()

BY = "logdoctor"
"""The recorded author of automatic steps."""


def take(rules: LearnedRules, rule_id: str, before: str, status: str, step: str, why: str, at: float) -> bool:
    """Take a step with a rule whose status is `before`; return False when somebody else was faster."""
    try:
        rules.move(rule_id, status, BY, mask(why), at, step, expected=before)
    except RuleRefused as error:
        log.info("step not taken", rule=rule_id, step=step, cause=error.cause)
        return False
    log.info("rule moved", rule=rule_id, step=step, status=status)
    return True


def may_rise(rules: LearnedRules, rule_id: str) -> bool:
    """Return whether a rule may still be promoted: nobody has demoted it or undone a promotion."""
    undone: set[int | None] = set()
    for event in rules.events(rule_id):
        if event.step == "undo":
            undone.add(event.undoes)
        elif event.id not in undone:
            return event.step in ("added", "import", "approve")
        elif event.step in ("promote", "approve"):
            return False
    return False
