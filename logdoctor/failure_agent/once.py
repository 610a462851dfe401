"""Ask once about the same failure: what the model said of one holds for those that are like it, where their own log has
the lines that prove it."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from logdoctor.diagnose.conclude import RootCause
from logdoctor.diagnose.episodes import digest_of
from logdoctor.failure_agent.question import Question
from logdoctor.types import Verdict

Agent = Callable[[Question], RootCause | None]


class Said(NamedTuple):
    """What was said of a failure, without its places in one log, and the digests of the episodes that it cited, in
    order."""

    cause: RootCause | None
    digests: tuple[str, ...]


class Memory(Iterable[tuple[str, Said]], Protocol):
    """What was said of failures before."""

    def append(self, item: tuple[str, Said], /) -> None:
        """Add what was said of one."""
        ...


class Once:
    """An agent that asks another one about each failure once. What is in a `memory` was asked before."""

    def __init__(self, agent: Agent, memory: Memory) -> None:
        self._agent, self._memory = agent, memory
        self._answers = dict(memory)

    def __call__(self, question: Question) -> RootCause | None:
        """Return what was said of the same failure before, proved by the lines of this log; else what the agent says
        now. `ModelError` as the agent."""
        failure = _failure(question.verdict)
        if (answer := self._answers.get(failure)) is not None:
            if answer.cause is None:
                return None
            if places := _places(question, answer.digests):
                return answer.cause._replace(places=places)
        cause = self._agent(question)
        if failure:
            said = Said(cause._replace(places=()), _digests(question, cause)) if cause else Said(None, ())
            self._answers[failure] = said
            self._memory.append((failure, said))
        return cause


def _failure(verdict: Verdict) -> str:
    """Return what is the same of failures that are: the fingerprint, and the line that was left unexplained where
    nothing decided, because failures that print no known error have one fingerprint in common."""
    if verdict.decided_by.kind != "nobody" or not verdict.evidence:
        return verdict.fingerprint
    return f"{verdict.fingerprint} {digest_of(verdict.evidence[0].quote)}"


def _digests(question: Question, cause: RootCause) -> tuple[str, ...]:
    """The digests of the episodes that a conclusion cites."""
    names = [record.stream for record in question.records]
    of_place = {(names[one.stream], line): one.digest for one in question.episodes for line in (one.line, *one.lines)}
    return tuple(dict.fromkeys(of_place[place] for place in cause.places if place in of_place))


def _places(question: Question, digests: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """The lines that name these episodes in another log; none when one of them is not there."""
    names = [record.stream for record in question.records]
    lines = {one.digest: (names[one.stream], one.line) for one in reversed(question.episodes) if not one.survived}
    return tuple(lines[digest] for digest in digests) if lines.keys() >= set(digests) else ()
