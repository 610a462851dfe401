"""From a sample to rules: proposals are voted on, guarded, judged, and get examples."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from logdoctor.learning.filters.guards import Approval, FilterGuards, Outcome
from logdoctor.learning.filters.matching import taken
from logdoctor.learning.filters.metrics import metrics
from logdoctor.learning.filters.proposal import Agent, FilterCandidate, Judgement, Sample
from logdoctor.learning.filters.vote import Poll, poll
from logdoctor.learning.proposed import Refusal, refusal
from logdoctor.llm.masking import mask
from logdoctor.rules import marks
from logdoctor.store.learning.learned import ERROR_WORD, NewRule, Source
from logdoctor.store.learning.noticed import Noticed
from logdoctor.store.learning.refusals import Votes

_EXAMPLES = 4


class FilterLesson(NamedTuple):
    """The result of a sample: rules to enter, refusals, error lines that most runs noticed, and why runs failed."""

    rules: list[NewRule]
    refused: list[tuple[Refusal, Votes | None]]
    noticed: list[Noticed]
    failures: list[str]


def lesson(
    sample: Sample,
    agent: Agent,
    runs: int,
    guards: FilterGuards,
    live: Collection[str],
    source: Source,
    stopped: Callable[[], bool] = lambda: False,
) -> FilterLesson:
    """Return what an agent learns from a sample. `live` are the patterns of the kind. `ModelError` when the agent does
    not answer or must stop; then nothing was learned."""
    polled = poll(agent, sample, runs, stopped)
    errors = {place for place, count in polled.noticed.items() if count > runs // 2}
    candidates = [one for one in polled.candidates if not one.takes & errors]
    refused = polled.refused + [
        refusal(one.proposal.pattern, "noticed", "the agent considers one of its lines an error")
        for one in polled.candidates
        if one.takes & errors
    ]
    passed = _guarded(candidates, sample, guards, live, refused)
    passed += _alone(agent, sample, guards, live, passed, errors, polled.answered, refused)
    judged = agent.judge(sample, [one for one, _ in passed], polled.answered) if passed else []
    rules: list[NewRule] = []
    for (one, outcome), judgement in zip(passed, judged, strict=True):
        rule = _rule(sample, agent, polled, one, outcome, judgement, source)
        if isinstance(rule, Refusal):
            refused.append(rule)
        else:
            rules.append(rule)
    votes = {one.proposal.pattern: Votes(polled.answered, one.runs, "") for one in polled.candidates}
    noticed = [Noticed(*sample.places[at], mask(sample.lines[at]), polled.noticed[at]) for at in sorted(errors)]
    return FilterLesson(rules, [(one, votes.get(one.pattern)) for one in refused], noticed, polled.failures)


def _alone(
    agent: Agent,
    sample: Sample,
    guards: FilterGuards,
    live: Collection[str],
    passed: Sequence[tuple[FilterCandidate, Outcome]],
    errors: set[int],
    runs: int,
    refused: list[Refusal],
) -> list[tuple[FilterCandidate, Outcome]]:
    """Return the agent's patterns for single, still unmatched groups that pass the guards. They follow from the lines
    alone, so every run would propose the same. New refusals are recorded."""
    explained = {place for one, _ in passed for place in one.takes}
    proposals = agent.singly(sample, set(range(len(sample.lines))) - explained - set(errors))
    matched = taken([proposal.pattern for proposal in proposals], sample.lines)
    candidates = [
        FilterCandidate(proposal, frozenset(places), tuple(range(runs)))
        for proposal, places in zip(proposals, matched, strict=True)
        if places and not errors & set(places)
    ]
    outcomes = guards.outcomes(candidates, sample, live, explained)
    told = {one.pattern for one in refused} | {"duplicate"}
    refused += [said for said in outcomes if isinstance(said, Refusal) and told.isdisjoint((said.pattern, said.guard))]
    return [(one, said) for one, said in zip(candidates, outcomes, strict=True) if not isinstance(said, Refusal)]


def _guarded(
    candidates: list[FilterCandidate],
    sample: Sample,
    guards: FilterGuards,
    live: Collection[str],
    refused: list[Refusal],
) -> list[tuple[FilterCandidate, Outcome]]:
    """Return the candidates that pass the guards, if necessary in another wording; of others the first refusal is
    recorded."""
    passed: list[tuple[FilterCandidate, Outcome]] = []
    first: dict[object, Refusal] = {}  # by the lines taken, or by the pattern if there are none
    while candidates:
        again = []
        explained = {place for one, _ in passed for place in one.takes}
        for one, outcome in zip(candidates, guards.outcomes(candidates, sample, live, explained), strict=True):
            if not isinstance(outcome, Refusal):
                passed.append((one, outcome))
                first.pop(one.takes, None)
                continue
            first.setdefault(one.takes or one.proposal.pattern, outcome)
            if one.others:
                again.append(one._replace(proposal=one.others[0], others=one.others[1:]))
        candidates = again
    refused += first.values()
    return passed


def _rule(
    sample: Sample,
    agent: Agent,
    polled: Poll,
    one: FilterCandidate,
    outcome: Outcome,
    judgement: Judgement,
    source: Source,
) -> NewRule | Refusal:
    """Return a rule with its examples, or its refusal."""
    pattern, title = one.proposal
    if isinstance(outcome, Approval) and any(marks.is_report(sample.lines[at]) for at in one.takes):
        return refusal(pattern, "evidence", "it removes lines of the report of a crash or a watchdog")
    if not judgement.keep:
        return refusal(pattern, "judge", judgement.why)
    examples = _examples(pattern, [sample.lines[at] for at in sorted(one.takes)])
    if not examples:
        return refusal(pattern, "secret", "its lines hold secrets, and without these it does not match them")
    waits = f"{ERROR_WORD}: {outcome.cause}" if isinstance(outcome, Approval) else ""
    return NewRule(
        sample.kind,
        pattern,
        title,
        examples,
        metrics([(*sample.places[at], sample.lines[at]) for at in one.takes]),
        "proposed" if waits else "shadow",
        waits,
        agent.name,
        source,
        Votes(polled.answered, one.runs, judgement.why),
        sum(sample.counts[group] for group in {sample.groups[at] for at in one.takes}),
    )


def _examples(pattern: str, lines: Sequence[str]) -> tuple[str, ...]:
    """Return some of the lines, masked, as far as the pattern still matches them."""
    masked = {mask(line): line for line in lines}
    changed = [line for line, before in masked.items() if line != before]
    matched = {changed[at] for at in taken([pattern], changed)[0]} if changed else set()
    return tuple(line for line, before in masked.items() if line == before or line in matched)[:_EXAMPLES]
