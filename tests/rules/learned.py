"""Learned rules for tests, put directly into a scanner, past all guards."""

import datetime
from typing import Any

from logdoctor.rules.schema import FilterRule, Origin
from logdoctor.types import LEARNED

KIND = "acme/train.py"
ORIGIN = Origin("miner", datetime.date(2026, 1, 1), "job-1/1")


def learned_rule(pattern: str, name: str = "one", status: str = "active", **more: Any) -> FilterRule:
    """A learned rule with this pattern."""
    rule_id, examples = f"{LEARNED}{KIND}/{name}", ("an example",)
    return FilterRule(rule_id, status, name, (pattern,), examples, ORIGIN, **more)  # type: ignore[arg-type]
