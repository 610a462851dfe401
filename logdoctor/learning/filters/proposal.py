"""The data that the Log Agent works on: samples, proposals, votes."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol


class Sample(NamedTuple):
    """Unexplained lines of one attempt. None is evidence; those that look like trouble are included only if they repeat
    often.

    `lines` are raw lines without colours and newline. Lines of one group differ only in numbers: `groups[i]` is the
    group of line i, `counts[g]` how many lines of the attempt were seen of group g. `places[i]` is (stream, line
    number) of line i. Groups are ordered by count, the largest first.
    """

    kind: str
    job: str
    attempt: int
    lines: tuple[str, ...]
    places: tuple[tuple[str, int], ...]
    groups: tuple[int, ...]
    counts: tuple[int, ...]


class Proposal(NamedTuple):
    """A pattern in the form of `rules.schema` (`^` is the start of the message), and what its lines are."""

    pattern: str
    title: str


class Answer(NamedTuple):
    """One run's answer on a sample: patterns, and the indexes in `Sample.lines` of error lines."""

    proposals: tuple[Proposal, ...]
    errors: tuple[int, ...] = ()


class FilterCandidate(NamedTuple):
    """Proposals of several runs that match the same lines: one of them, what it matches, and who voted for it.

    `takes` are indexes in `Sample.lines`; `runs` the numbers of the runs that proposed something with the same matches.
    `others` are alternative wordings, equally good if `proposal` is refused.
    """

    proposal: Proposal
    takes: frozenset[int]
    runs: tuple[int, ...]
    others: tuple[Proposal, ...] = ()


class Judgement(NamedTuple):
    """The judge's decision on a candidate, with the reason in a sentence."""

    keep: bool
    why: str


class Agent(Protocol):
    """Proposes filter rules. `name` records its identity; `room` is how many characters of lines, and `groups` how many
    groups, it can be shown at once.

    `propose` raises `ModelError` when a run gets no answer. `runs` beyond the first vary what they see or how they look
    at it, so that agreement means something.
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
        """Return patterns for single groups, for lines that no other pattern takes."""
        ...

    def judge(self, sample: Sample, candidates: Sequence[FilterCandidate], runs: int) -> list[Judgement]:
        """Return one judgement per candidate, in order; `runs` is how many runs answered."""
        ...
