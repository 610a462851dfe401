"""The steps that code takes with a learned rule: proposed, shadow, active, retired. Each is stored with its reason."""

import structlog

from logdoctor.errors import RuleRefused
from logdoctor.llm.masking import mask
from logdoctor.store.learning.learned import LearnedRules

log = structlog.get_logger()

BY = "logdoctor"
"""Who takes the steps that nobody else takes."""


def take(rules: LearnedRules, rule_id: str, before: str, status: str, step: str, why: str, at: float) -> bool:
    """Take a step with a rule that has the status `before`. Return False when somebody else was quicker."""
    try:
        rules.move(rule_id, status, BY, mask(why), at, step, expected=before)
    except RuleRefused as error:
        log.info("step not taken", rule=rule_id, step=step, cause=error.cause)
        return False
    log.info("rule moved", rule=rule_id, step=step, status=status)
    return True


def may_rise(rules: LearnedRules, rule_id: str) -> bool:
    """Return whether a rule is on its way up: who put it back, or took back its rise, meant it to stay."""
    undone: set[int | None] = set()
    for event in rules.events(rule_id):
        if event.step == "undo":
            undone.add(event.undoes)
        elif event.id not in undone:
            return event.step in ("added", "import", "approve")
        elif event.step in ("promote", "approve"):
            return False
    return False
