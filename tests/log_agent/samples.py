"""Samples, and an agent that says what it was told to say."""

from collections.abc import Collection, Sequence

from logdoctor.learning.filters.proposal import Answer, FilterCandidate, Judgement, Proposal, Sample
from logdoctor.store.learning.learned import NewRule, Source
from logdoctor.store.learning.refusals import Votes

KIND = "acme/train.py"
SOURCE = Source("job-1", 1, "acme", "acme:1", "python train.py", "user-17", "run-1")


def sample(*groups: Sequence[str], counts: Sequence[int] = ()) -> Sample:
    """A sample of these groups, whose lines stand one after the other in the stream `main`."""
    lines = tuple(line for group in groups for line in group)
    of = tuple(number for number, group in enumerate(groups) for _ in group)
    places = tuple(("main", number) for number in range(1, len(lines) + 1))
    return Sample(KIND, "job-1", 1, lines, places, of, tuple(counts or (max(len(group), 3) for group in groups)))


def said(*patterns: str, errors: Sequence[int] = ()) -> Answer:
    """An answer with these patterns, titled after themselves."""
    return Answer(tuple(Proposal(pattern, f"lines of {pattern}") for pattern in patterns), tuple(errors))


class Told:
    """An agent whose runs answer, or fail, as told; its judge drops what it was told to drop."""

    name = "told"
    room = 100_000
    groups = 100

    def __init__(self, *answers: Answer | Exception, drop: Sequence[str] = ()) -> None:
        self._answers, self._drop = answers, drop
        self.asked: list[int] = []
        self.judged: list[list[str]] = []

    free = False

    def singly(self, sample: Sample, places: Collection[int]) -> list[Proposal]:
        return []

    def propose(self, sample: Sample, run: int) -> Answer:
        self.asked.append(run)
        answer = self._answers[run]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def judge(self, sample: Sample, candidates: Sequence[FilterCandidate], runs: int) -> list[Judgement]:
        patterns = [one.proposal.pattern for one in candidates]
        self.judged.append(patterns)
        return [Judgement(pattern not in self._drop, "told so") for pattern in patterns]


def new_rule(pattern: str, kind: str = KIND, status: str = "shadow", lines: int = 30, waits_for: str = "") -> NewRule:
    """A rule to be entered, as if learned from job-1."""
    source = Source("job-1", 1)
    votes = Votes(5, (0, 1, 2), "")
    return NewRule(kind, pattern, "a title", ("an example",), (), status, waits_for, "miner", source, votes, lines)
