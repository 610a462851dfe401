"""Self-consistency: what several runs over one sample agree on. Proposals are compared by what they match."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from logdoctor.errors import ModelError, ModelUnavailable
from logdoctor.learning.filters.matching import taken
from logdoctor.learning.filters.proposal import Agent, Answer, FilterCandidate, Proposal, Sample
from logdoctor.learning.proposed import Refusal, refusal

ALIKE = 0.8
"""Share of common lines, of those that either matches, from which proposals agree."""
_OTHERS = 2


class Poll(NamedTuple):
    """The result of asking an agent several times: candidates, the most agreed on first; those that too few agree on;
    how often each line was called an error; how many runs answered, and why others failed."""

    candidates: list[FilterCandidate]
    refused: list[Refusal]
    noticed: dict[int, int]
    answered: int
    failures: list[str]


def poll(agent: Agent, sample: Sample, runs: int, stopped: Callable[[], bool] = lambda: False) -> Poll:
    """Ask an agent `runs` times. A candidate needs the votes of most runs, failed ones included.

    `ModelError` when too few runs answer for that, or when stopped meanwhile.
    """
    answers: list[tuple[int, Answer]] = []
    failures: list[ModelError] = []
    for run in range(runs):
        if stopped():
            raise ModelUnavailable("the lesson", "was stopped", "Start the service again.")
        try:
            answers.append((run, agent.propose(sample, run)))
        except ModelError as error:
            failures.append(error)
            if len(failures) > runs - (runs // 2 + 1):
                raise  # no majority is possible
    noticed: dict[int, int] = {}
    for _, answer in answers:
        for place in set(answer.errors):
            noticed[place] = noticed.get(place, 0) + 1
    counted = count(sample, answers)
    most = runs // 2 + 1
    refused = [
        refusal(one.proposal.pattern, "vote", f"{len(one.runs)} of {runs} runs agree, {most} must")
        for one in counted
        if len(one.runs) < most
    ]
    kept = [one for one in counted if len(one.runs) >= most]
    return Poll(kept, refused, noticed, len(answers), [str(error) for error in failures])


def count(sample: Sample, answers: Sequence[tuple[int, Answer]]) -> list[FilterCandidate]:
    """Return candidates, one per set of lines matched by agreeing proposals, most agreed first.

    A proposal without matches is a separate candidate, so that the guards say why. Agreeing proposals are represented
    by those whose exact lines most runs match; of these by the one that most runs wrote, then the one named first.
    """
    authors: dict[Proposal, list[tuple[int, int]]] = {}
    for run, answer in answers:
        for place, proposal in enumerate(dict.fromkeys(answer.proposals)):
            authors.setdefault(proposal, []).append((run, place))
    matched = taken([proposal.pattern for proposal in authors], sample.lines)
    by_lines: dict[frozenset[int], list[Proposal]] = {}
    for proposal, found in zip(authors, matched, strict=True):
        by_lines.setdefault(frozenset(found), []).append(proposal)
    in_vain = by_lines.pop(frozenset(), [])
    voters = {lines: {run for one in proposals for run, _ in authors[one]} for lines, proposals in by_lines.items()}
    waiting = sorted(by_lines, key=lambda lines: (-len(voters[lines]), -len(lines), sorted(lines)))
    candidates = [FilterCandidate(one, frozenset(), tuple(run for run, _ in authors[one])) for one in in_vain]
    while waiting:
        lines = waiting[0]
        alike = [other for other in waiting if _agree(lines, other)]
        waiting = [other for other in waiting if other not in alike]
        runs: set[int] = set().union(*(voters[other] for other in alike))
        best = sorted(by_lines[lines], key=lambda one: (-len(authors[one]), min(p for _, p in authors[one]), one))
        candidates.append(FilterCandidate(best[0], lines, tuple(sorted(runs)), tuple(best[1 : 1 + _OTHERS])))
    return sorted(candidates, key=lambda one: (-len(one.runs), -len(one.takes), one.proposal))


def _agree(one: frozenset[int], other: frozenset[int]) -> bool:
    return len(one & other) >= ALIKE * len(one | other)
