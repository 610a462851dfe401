"""What the Log Agent hands around: samples, proposals, votes."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol


class Sample(NamedTuple):
    """Lines of one attempt that no rule explains. None is evidence; what looks like trouble is among them only if it
    repeats often.

    `lines` are raw lines without colours and newline. Lines of one group differ in their numbers only:
    `groups[i]` is the group of line i, `counts[g]` how many lines of the attempt were seen of group g.
    `places[i]` is (stream, line number) of line i. Groups are ordered by count, the largest first.
    """

    kind: str
    job: str
    attempt: int
    lines: tuple[str, ...]
    places: tuple[tuple[str, int], ...]
    groups: tuple[int, ...]
    counts: tuple[int, ...]


class Proposal(NamedTuple):
    """A pattern in the form of `rules.schema` (`^` is the start of the message) and what its lines are."""

    pattern: str
    title: str


class Answer(NamedTuple):
    """What one run of an agent says about a sample: patterns, and the places in `Sample.lines` of error lines."""

    proposals: tuple[Proposal, ...]
    errors: tuple[int, ...] = ()


class FilterCandidate(NamedTuple):
    """Proposals of several runs that match the same lines: one of them, what it matches, and who voted for it.

    `takes` are places in `Sample.lines`; `runs` the numbers of the runs that proposed something that matches the same.
    `others` are what they proposed in other words, each as good as `proposal` should that be refused.
    """

    proposal: Proposal
    takes: frozenset[int]
    runs: tuple[int, ...]
    others: tuple[Proposal, ...] = ()


class Judgement(NamedTuple):
    """What the judge says of a candidate, with the reason in a sentence."""

    keep: bool
    why: str


class Agent(Protocol):
    """Who proposes filter rules. `name` tells who it was, for provenance; `room` is how many characters of lines and
    `groups` how many groups it can be shown at once.

    `propose` raises `ModelError` when no answer can be had of this run. `runs` beyond the first vary what they see
    or how they look at it, so that agreement means something.
    """

    name: str
    room: int
    groups: int
    free: bool
    """Whether asking it costs nothing but time."""

    def propose(self, sample: Sample, run: int) -> Answer:
        """Return the patterns that this run finds."""
        ...

    def singly(self, sample: Sample, places: Collection[int]) -> list[Proposal]:
        """Return patterns of one group of lines each, for the lines at these places, which no other pattern takes."""
        ...

    def judge(self, sample: Sample, candidates: Sequence[FilterCandidate], runs: int) -> list[Judgement]:
        """Return one judgement for each candidate, in their order; `runs` is how many runs answered."""
        ...
