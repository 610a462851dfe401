"""Two answers to one failure: what the rules say, and what a model says that read it, too.

Who is surer names the reason, less sure for the other one. Where they would have different things done, the cheaper
safe action stands, or a person decides; the verdict says what speaks for each.
"""

import msgspec

from logdoctor import taxonomy
from logdoctor.failure_agent.forms import NOT_FAILED
from logdoctor.types import Alternative, Verdict, names_node

_UNNAMED = "a model"
_UNCONFIRMED = 0.8
"""What is left of the confidence of rules that a model did not confirm."""
_CHEAPER = {frozenset({"restart", "isolate_and_restart"}): "restart"}
"""What is done where two differ and one is a part of the other."""


def weighed(by_rules: Verdict, by_model: Verdict | None, model: str = "") -> Verdict:
    """Return the verdict that stands when a model of this name read what the rules say; None means that it knows no
    cause."""
    by_rules = msgspec.structs.replace(
        by_rules, decided_by=msgspec.structs.replace(by_rules.decided_by, model=model or _UNNAMED)
    )
    if by_model is None:
        why = f"{by_rules.why} A model could not confirm it.".strip()
        confidence = round(by_rules.confidence * _UNCONFIRMED, 2)
        return msgspec.structs.replace(by_rules, confidence=confidence, why=why)
    if by_model.reason == by_rules.reason:
        return _agreed(by_rules, by_model)
    stands, other = (by_rules, by_model) if by_rules.confidence > by_model.confidence else (by_model, by_rules)
    recovery = "none" if stands.reason == NOT_FAILED else _safe(stands.recovery, other.recovery)
    quote = other.evidence[0].quote[:200] if other.evidence else ""
    said = f"{_who(other)}: {quote}" if quote else _who(other)
    others = tuple(one for one in stands.alternatives if one.reason != other.reason)
    if other.reason == NOT_FAILED:
        why = f"{stands.why} {_who(other)} takes the job for one that did not fail: {quote}".strip()
    else:
        why, others = (
            f"{stands.why} {_who(other)} names {other.reason} instead.".strip(),
            (Alternative(other.reason, said), *others),
        )
    return msgspec.structs.replace(
        stands,
        confidence=_confidence(stands.confidence, other.confidence),
        recovery=recovery,
        fault=stands.fault if recovery == stands.recovery else "unknown",
        why=why,
        suggestion=stands.suggestion if recovery == stands.recovery else _step(recovery, stands),
        suspects=stands.suspects if recovery == "isolate_and_restart" else (),
        alternatives=others[:4],
    )


def is_confirmed(by_rules: Verdict, stands: Verdict) -> bool:
    """Return whether a second reading found the same cause as the rules and would do the same."""
    same = (stands.reason, stands.recovery) == (by_rules.reason, by_rules.recovery)
    return same and stands.decided_by.model != "" and stands.confidence >= by_rules.confidence


def _confidence(one: float, other: float) -> float:
    """Return how sure an answer is that another one contradicts: half, if the other one is certain."""
    return round(one * (1 - other / 2), 2)


def _agreed(by_rules: Verdict, by_model: Verdict) -> Verdict:
    """Return the verdict by rules, surer now: each may err, but rarely both alike."""
    both = 1 - (1 - by_rules.confidence) * (1 - by_model.confidence)
    recovery = _safe(by_rules.recovery, by_model.recovery)
    return msgspec.structs.replace(
        by_rules,
        recovery=recovery,
        confidence=max(by_rules.confidence, round(min(both, 0.95), 2)),
        why=f"{by_rules.why} A model agrees.".strip(),
        suggestion=by_rules.suggestion if recovery == by_rules.recovery else _step(recovery, by_rules),
        suspects=by_rules.suspects if recovery == "isolate_and_restart" else (),
    )


def _safe(one: str, other: str) -> str:
    return one if one == other else _CHEAPER.get(frozenset({one, other}), "ask_human")


def _who(verdict: Verdict) -> str:
    return f"The model {verdict.decided_by.model}".strip() if verdict.decided_by.kind == "agent" else "A rule"


def _step(recovery: str, verdict: Verdict) -> str:
    if recovery == "ask_human":
        words = taxonomy.advice(verdict.recovery, names_node(verdict))
        return f"Decide what to do: {words}, or what the other verdict recommends."
    rest = f"{verdict.suggestion[:1].lower()}{verdict.suggestion[1:]}"
    return f"First {taxonomy.ADVICE[recovery]}; if it fails again, {rest}"
