"""Two answers to one failure: what the rules say, and what a model says that saw their doubt.

Who is surer names the reason. Where they would have different things done, the cheaper safe action stands, or a person
decides; the verdict says what speaks for each.
"""

import msgspec

from logdoctor import taxonomy
from logdoctor.types import Alternative, Verdict, names_node

_UNCONFIRMED = 0.8
"""What is left of the confidence of rules that a model did not confirm."""
_CHEAPER = {frozenset({"restart", "isolate_and_restart"}): "restart"}
"""What is done where two differ and one is a part of the other."""


def weighed(by_rules: Verdict, by_model: Verdict | None) -> Verdict:
    """Return the verdict that stands when the rules were in doubt; None means that the model knows no cause."""
    if by_model is None:
        why = f"{by_rules.why} A model could not confirm it.".strip()
        confidence = round(by_rules.confidence * _UNCONFIRMED, 2)
        return msgspec.structs.replace(by_rules, confidence=confidence, why=why)
    if by_model.reason == by_rules.reason:
        return _agreed(by_rules, by_model)
    stands, other = (by_rules, by_model) if by_rules.confidence > by_model.confidence else (by_model, by_rules)
    recovery = _safe(stands.recovery, other.recovery)
    said = f"{_who(other)}: {other.evidence[0].quote[:200]}" if other.evidence else _who(other)
    others = tuple(one for one in stands.alternatives if one.reason != other.reason)
    why = f"{stands.why} {_who(other)} names {other.reason} instead.".strip()
    return msgspec.structs.replace(
        stands,
        recovery=recovery,
        fault=stands.fault if recovery == stands.recovery else "unknown",
        why=why,
        suggestion=stands.suggestion if recovery == stands.recovery else _step(recovery, stands),
        suspects=stands.suspects if recovery == "isolate_and_restart" else (),
        alternatives=(Alternative(other.reason, said), *others)[:4],
    )


def _agreed(by_rules: Verdict, by_model: Verdict) -> Verdict:
    """Return the verdict by rules, surer now: each may err, but rarely both alike."""
    both = 1 - (1 - by_rules.confidence) * (1 - by_model.confidence)
    recovery = _safe(by_rules.recovery, by_model.recovery)
    return msgspec.structs.replace(
        by_rules,
        recovery=recovery,
        confidence=round(min(both, 0.95), 2),
        why=f"{by_rules.why} A model agrees.".strip(),
        suggestion=by_rules.suggestion if recovery == by_rules.recovery else _step(recovery, by_rules),
        suspects=by_rules.suspects if recovery == "isolate_and_restart" else (),
    )


def _safe(one: str, other: str) -> str:
    return one if one == other else _CHEAPER.get(frozenset({one, other}), "ask_human")


def _who(verdict: Verdict) -> str:
    return f"the model {verdict.decided_by.model}".strip() if verdict.decided_by.kind == "agent" else "a rule"


def _step(recovery: str, verdict: Verdict) -> str:
    if recovery == "ask_human":
        words = taxonomy.advice(verdict.recovery, names_node(verdict))
        return f"Decide what to do: {words}, or what the other verdict recommends."
    rest = f"{verdict.suggestion[:1].lower()}{verdict.suggestion[1:]}"
    return f"First {taxonomy.ADVICE[recovery]}; if it fails again, {rest}"
