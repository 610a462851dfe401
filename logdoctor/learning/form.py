"""Learned rules in the form of rule files, with open parts of claims filled from the taxonomy."""

import datetime
import re
from collections.abc import Sequence
from typing import Any

from logdoctor import taxonomy
from logdoctor.rules.schema import Claim, DiagnosisRule, Example, FilterRule, Origin, OverrideRule, Retirement, When
from logdoctor.store.learning.learned import CORDON, Learned, StoredClaim
from logdoctor.store.learning.overrides import PREFIX, NewOverride, StoredOverride


def as_filter(rule: Learned) -> FilterRule:
    """Return a learned filter rule in the form of a rule file."""
    return FilterRule(
        id=rule.id,
        title=rule.title,
        patterns=(rule.pattern,),
        must_match=rule.examples,
        scope={"kind": rule.kind},
        harmless=rule.harmless,
        metrics=tuple(metric for metric in rule.metrics if _is_sound(metric)),
        **_life(rule),
    )


def as_diagnosis(rule: Learned) -> DiagnosisRule:
    """Return a learned diagnosis rule in the form of a rule file; its line is the cause."""
    assert rule.claim is not None
    return diagnosis(rule.id, rule.pattern, rule.claim, rule.examples, rule.title, **_life(rule))


def diagnosis(
    id: str, pattern: str, claim: StoredClaim, examples: Sequence[str], title: str, **life: Any
) -> DiagnosisRule:
    """Return a diagnosis rule of one pattern, active unless `life` says otherwise; the taxonomy completes its claim."""
    whole = full_claim(claim.reason, claim.fault, claim.recovery, claim.suggestion)
    fields: dict[str, Any] = {"status": "active", "origin": Origin("", day(0.0), "")} | life
    return DiagnosisRule(
        id=id,
        title=title,
        when=When((pattern,)),
        verdict=Claim(whole.reason, "cause", whole.recovery, whole.fault),
        must_match=tuple(Example(text) for text in examples),
        suggestion=whole.suggestion,
        **fields,
    )


def as_override(stored: StoredOverride) -> OverrideRule:
    """Return a stored override in the form of a rule file."""
    source = f"verdict {stored.verdict}" if stored.verdict else "entered by hand"
    retired = None
    if stored.withdrawn:
        retired = Retirement(day(stored.withdrawn_at or stored.at), stored.withdrawn_by, stored.withdrawn_why)
    return overriding(
        stored,
        f"{PREFIX}{stored.id}",
        status="retired" if stored.withdrawn else "active",
        origin=Origin(stored.by, day(stored.at), f"{source}: {stored.why}" if stored.why else source),
        retired=retired,
    )


def overriding(new: NewOverride, id: str, **life: Any) -> OverrideRule:
    """Return an override in the form of a rule file, active unless `life` says otherwise; the taxonomy completes it."""
    fields: dict[str, Any] = {"status": "active", "origin": Origin("", day(0.0), "")} | life
    claim = None
    if new.reason:
        whole = full_claim(new.reason, new.fault, new.recovery, new.suggestion)
        claim = Claim(whole.reason, "cause", whole.recovery, whole.fault)
    return OverrideRule(
        id=id,
        title=f"{new.rule} {f'means {new.reason}' if new.reason else 'is muted'}",
        rule=new.rule,
        scope={} if new.scope == "fleet" else {new.scope: new.whose},
        verdict=claim,
        suggestion=new.suggestion,
        expires=new.expires,
        **fields,
    )


def full_claim(reason: str, fault: str, recovery: str, suggestion: str) -> StoredClaim:
    """Return a complete claim, with defaults from the taxonomy."""
    default = taxonomy.REASONS[reason]
    return StoredClaim(reason, fault or default.fault, recovery or default.recovery, suggestion)


def awaited(claim: StoredClaim) -> str:
    """Return why a rule with this claim waits for a person; "" when it does not."""
    return f"{CORDON}: {claim.reason} can cordon a node" if claim.cordons else ""


def day(seconds: float) -> datetime.date:
    """Return the day (UTC) of a time; the earliest date for an invalid one."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date()
    except (OverflowError, OSError, ValueError):
        return datetime.date.min


def _life(rule: Learned) -> dict[str, Any]:
    """Return the fields of a rule file about the rule's origin and status."""
    source = f"{rule.source.job}/{rule.source.attempt}" if rule.source.job else "imported"
    retired = Retirement(day(rule.changed), rule.agent, "see its events") if rule.status == "retired" else None
    return {"status": rule.status, "origin": Origin(rule.agent, day(rule.created), source), "retired": retired}


def _is_sound(metric: str) -> bool:
    try:
        re.compile(metric.encode())
    except (re.error, OverflowError, UnicodeEncodeError):
        return False
    return True
