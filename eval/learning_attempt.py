"""One attempt read and learned from by the service's code, without its threads, so that a run is repeatable."""

import time
from collections.abc import Collection, Sequence

from logdoctor.compress.excerpt import Recorder, excerpt
from logdoctor.compress.filter import Residual, compress
from logdoctor.compress.leftovers import Leftovers
from logdoctor.diagnose.decide import diagnose
from logdoctor.learning.filters.agent import Left, LogAgent
from logdoctor.learning.filters.proposal import Agent, Answer, FilterCandidate, Judgement, Proposal, Sample
from logdoctor.rules.scanner import Scanner
from logdoctor.store.learning.learned import Source
from logdoctor.types import Segment, Verdict


class CountingAgent:
    """An agent that counts its calls: each run and each judging would be a model call. Unless it is `free`, it is asked
    as sparingly as a model."""

    def __init__(self, agent: Agent, free: bool = False) -> None:
        self._agent, self.free = agent, free
        self.name, self.room, self.groups = agent.name, agent.room, agent.groups
        self.calls = 0

    def propose(self, sample: Sample, run: int) -> Answer:
        self.calls += 1
        return self._agent.propose(sample, run)

    def singly(self, sample: Sample, places: Collection[int]) -> list[Proposal]:
        return self._agent.singly(sample, places)

    def judge(self, sample: Sample, candidates: Sequence[FilterCandidate], runs: int) -> list[Judgement]:
        self.calls += 1
        return self._agent.judge(sample, candidates, runs)


class LearningAttempt:
    """One attempt that is read and learned from, as the service's watch and learner do together. `kind` is "" while
    unknown."""

    def __init__(self, kind: str, job: str, agent: LogAgent) -> None:
        self.lessons = 0
        self._attempt, self._agent = (job, 1), agent
        self._source = Source(job, 1, kind)
        self._begin(kind)
        self._adopt(agent.books.scanner(kind))
        self.recorder = Recorder("main", f"{job}/1/main", self.scanner)

    def _begin(self, kind: str) -> None:
        self.kind, self._leftovers = kind, Leftovers(self._agent.known(kind))

    def _adopt(self, scanner: Scanner) -> None:
        self.scanner = scanner

    def read(self, segment: Segment) -> Residual:
        """Return what the current rules leave of a segment."""
        if (scanner := self._agent.books.scanner(self.kind)) is not self.scanner:
            self._adopt(scanner)
            self.recorder.adopt(scanner)
        residual = compress(segment, self.scanner)
        self.recorder.add(excerpt(residual, self.scanner), 0)
        self._leftovers.add(residual)
        return residual

    def learn(self, over: bool) -> None:
        """Learn from the unexplained lines once there are enough."""
        self._agent.earn(self.kind, {rule: matched for rule, (matched, _) in self.recorder.hits().items()})
        left = self._leftovers
        found = Left(left.lines_in, left.unexplained, self.lessons, left.taught)
        due = self._agent.is_due(found, over) and self._agent.has_room(self.lessons)
        if not due and (self._agent.knows(self.kind) or not left.is_worth_a_look()):
            return
        groups = left.groups()
        kind = self._agent.recognised(self.kind, groups) or (
            self._agent.new_kind(self._attempt[0], groups) if due else ""
        )
        if kind != self.kind:
            self._begin(kind)
            due = due and (self._agent.agent.free or not self._agent.knows(kind))
        if not due:
            return
        self._leftovers.count_anew()
        self.lessons += 1
        self._agent.learn(self.kind, self._attempt, groups, self._source)

    def finish(self) -> Verdict:
        """Return the verdict, learn a last time, and record what the rules did."""
        verdict = diagnose([self.recorder.record()], self.scanner.book)
        hits = self.recorder.hits()
        self.learn(over=True)
        self._agent.carry(self.kind, self._leftovers.groups())
        self._agent.settle(self.kind, self._attempt, hits, verdict, True, time.time())
        return verdict
