"""The Failure Agent: asks a model why an attempt failed, and makes of its answers a conclusion that can be proved.

One call in the usual case: an answer whose first claim is established, and stands on a lasting error of the log, needs
no other. Else more answers vote. Nothing that the model says is done: it names a reason, code decides what follows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import regex

from logdoctor import taxonomy
from logdoctor.diagnose.conclude import RootCause
from logdoctor.diagnose.episodes import summary
from logdoctor.errors import LogdoctorError, ModelError
from logdoctor.failure_agent import brief as briefs
from logdoctor.failure_agent.brief import Brief, Pages, Search, shortened
from logdoctor.failure_agent.cases.cases import Neighbour
from logdoctor.failure_agent.cases.embedding import Embedder
from logdoctor.failure_agent.cases.vectors import Chunk, LogQuery
from logdoctor.failure_agent.forms import Findings, Rejected, named
from logdoctor.failure_agent.grounding import complaint, ground
from logdoctor.failure_agent.query_engine import Toolbox, room, tools
from logdoctor.failure_agent.question import Question
from logdoctor.failure_agent.vote import AgentClaim, claim, decided, settled
from logdoctor.llm.chat import Message, weight
from logdoctor.llm.masking import Masker
from logdoctor.llm.prompts import load
from logdoctor.llm.spending import Guarded
from logdoctor.text import harmless
from logdoctor.types import Alternative

DIAGNOSE = "diagnose"
"""The prompt, and the purpose of its calls in the ledger."""

Similar = Callable[[str, Sequence[str], int, tuple[str, int]], Sequence[Neighbour]]
"""The confirmed failures that are like a summary or share a digest, at most so many, an attempt's own left out, with
as much of each as the readers of that attempt may see."""

_CASES = 3
_AGAIN = 2000  # tokens for an answer that is sent back, and what is wrong with it
_WORDS = 400  # characters of what the model says that are kept
_OF_CASE = 200
_DETAIL = 40  # tokens
_ALTERNATIVES = 4
_REPEATED = 48  # characters in a row that are no chance
_MARK = regex.compile(r"<(?:host|ip)-\d{1,6}>")
_COMMAND = regex.compile(r"://|\b(?:curl|wget|sudo|eval|chmod|bash|sh)\b|\brm\s+-|[`|;<>]|\$[({]")
"""Signs of a command or address in what a person should do: such advice is left out, whoever put it into the log."""


class AgentLimits(NamedTuple):
    """How many answers may vote, how sure they must be, how often the model may look into the log for each, and of how
    many tokens the first message is."""

    samples: int = 3
    confidence: float = 0.6
    tool_calls: int = 6
    tokens: int = briefs.TOKENS


class FailureAgent:
    """Asks a model; any thread may call. `PromptError` when its prompt cannot be used.

    Without `similar` the model is shown no earlier failures, without an embedder the lines that it sees are chosen by
    their suspicion alone.
    """

    def __init__(
        self,
        model: Guarded,
        prompts: Path,
        similar: Similar | None,
        embedder: Embedder | None,
        limits: AgentLimits | None = None,
    ) -> None:
        self.model = model
        self.prompt = load(prompts, DIAGNOSE)
        self.limits = limits or AgentLimits()
        briefs.check(self.prompt, self.limits.tokens)
        self._own = " ".join(briefs.bare(self.prompt).split())
        self._similar = similar
        self._embedder = embedder

    def conclude(self, question: Question) -> RootCause | None:
        """Return what the model's answers amount to; None, which means Unknown, when they agree on nothing that is
        proved.

        `ModelError` when there is no first answer.
        """
        masker = self.model.masker()
        asked = _Asked(self, question, masker)
        first = asked.answer(0)
        answers, votes = [first], [asked.vote(first)]
        while not settled(votes, self.limits.samples):
            try:
                answers.append(asked.answer(len(votes)))
            except ModelError:
                votes.append(None)
                break
            votes.append(asked.vote(answers[-1]))
        outcome = decided(votes, self.limits.confidence)
        if outcome is None:
            return None
        taken = outcome.claim
        rejected = [one for answer in answers for one in _others(answer)]
        return RootCause(
            reason=taken.reason,
            recovery=taken.recovery,
            fault=taken.fault,
            confidence=outcome.confidence,
            why=_words(self._not_ours(taken.why), masker) or "The model names no more than the lines quoted.",
            suggestion=_advice(self._not_ours(taken.mitigation), masker),
            places=taken.places,
            kind="agent",
            decided="agent",
            model=self.model.name,
            prompt=self.prompt.version,
            alternatives=_alternatives(rejected, taken.reason, masker),
            detail=shortened(_advice(self._not_ours(taken.detail), masker), _DETAIL),
        )

    def prompt_for(self, question: Question) -> str:
        """Return the first message to the model about a question, as it is sent."""
        masker = self.model.masker()
        return masker.mask_rest(_Asked(self, question, masker).brief.prompt)

    def _not_ours(self, said: str) -> str:
        """Return words of the model, or "" where they repeat the prompt: a log may ask for it."""
        plain = " ".join(said[: 4 * _WORDS].split())
        pieces = (plain[at : at + _REPEATED] for at in range(0, max(1, len(plain) - _REPEATED + 1), _REPEATED // 4))
        return "" if any(len(piece) == _REPEATED and piece in self._own for piece in pieces) else said

    def cases(self, question: Question, text: str = "") -> list[str]:
        """Return confirmed failures like this one, or like a text, a line each; none when they cannot be looked up."""
        if self._similar is None:
            return []
        lasting = [episode for episode in question.episodes if not episode.survived]
        digests = [] if text else [episode.digest for episode in lasting if episode.role not in ("teardown", "note")]
        try:
            found = self._similar(text or summary(lasting), digests, _CASES, (question.job, question.attempt))
        except LogdoctorError:
            return []
        return [_case(neighbour) for neighbour in found[:_CASES]]

    def search(self) -> Search | None:
        """Search by meaning among passages of a log, where there is an embedder."""
        if self._embedder is None:
            return None
        embedder = self._embedder

        def search(question: str, texts: Sequence[str], k: int) -> list[int]:
            try:
                chunks = [Chunk(str(place), text) for place, text in enumerate(texts)]
                return [int(hit.id) for hit in LogQuery(chunks, embedder).search(question, k)]
            except LogdoctorError:
                return []

        return search

    @property
    def knows_cases(self) -> bool:
        """Return whether there are earlier failures to be looked up."""
        return self._similar is not None


class _Asked:
    """One question as it is asked: the same prompt for every answer."""

    def __init__(self, agent: FailureAgent, question: Question, masker: Masker) -> None:
        self._agent = agent
        self._question = question
        self._masker = masker
        self._pages = Pages(question, masker.mask)
        self._calls = 0
        self.brief = self._written()

    def _written(self) -> Brief:
        """Return the prompt; a search, and looks, only where not all lines that were kept of the log have room."""
        agent, cases = self._agent, self._agent.cases(self._question)
        tokens = agent.limits.tokens
        plain = briefs.write(agent.prompt, self._pages, tokens, cases)
        if plain.whole:
            return plain
        self._calls = agent.limits.tool_calls if self._question.log is not None else 0
        tokens -= weight((), tools(agent.knows_cases)) if self._calls else 0
        return briefs.write(agent.prompt, self._pages, tokens, cases, agent.search(), self._calls)

    def answer(self, sample: int) -> Findings:
        """Return one answer of the model. When its first claim does not stand it is told so, once."""
        agent, question, prompt = self._agent, self._question, self._agent.prompt
        seen: list[Findings] = []

        def check(findings: Findings) -> str:
            seen.append(findings)
            return complaint(findings, self.brief.shown, question.log, self._masker) if len(seen) == 1 else ""

        box = self._toolbox()
        try:
            return agent.model.answer(
                question.job,
                DIAGNOSE,
                [Message("user", self.brief.prompt)],
                Findings,
                temperature=prompt.head.temperature if sample else 0.0,
                max_tokens=prompt.head.max_tokens,
                attempt=question.attempt,
                sample=sample,
                prompt=prompt.version,
                tools=box.tools if box else (),
                run=box.run if box else None,
                most_tool_calls=self._calls,
                most_tokens_in=agent.limits.tokens + room(self._calls) + _AGAIN,
                check=check,
                masker=self._masker,
            )
        except ModelError:
            if not seen:
                raise
            return seen[0]  # it cannot be repaired; what stands of it stands

    def vote(self, findings: Findings) -> AgentClaim | None:
        """Return what code takes of an answer."""
        grounded = ground(findings, self.brief.shown, self._question.log, self._masker)
        doubted = "" if self._question.is_blind else self._question.verdict.reason
        return claim(grounded, self._question.episodes, findings.mitigation, doubted)

    def _toolbox(self) -> Toolbox | None:
        log, agent = self._question.log, self._agent
        if log is None or not self._calls:
            return None
        similar = partial(agent.cases, self._question) if agent.knows_cases else None
        return Toolbox(log, self._pages, self.brief, similar)


def _case(neighbour: Neighbour) -> str:
    case = neighbour.case
    same = ", the same error" if neighbour.same else ""
    fix = f"; what helped: {harmless(case.fix, _OF_CASE)}" if case.fix else ""
    line = f"; its line: {harmless(case.quote, _OF_CASE)}" if case.quote else ""
    return f"likeness {neighbour.similarity:.2f}{same}: {case.reason}, {case.recovery}{fix}{line}"


def _words(said: str, masker: Masker) -> str:
    """Return words of the model for people: short, and with hosts by their names; secrets stay hidden."""
    plain = harmless(" ".join(said[: 4 * _WORDS].split()), _WORDS)
    return _MARK.sub(lambda mark: masker.unmask(mark.group()), plain)


def _advice(said: str, masker: Masker) -> str:
    """Return what a person should do; "" for anything that looks like a command or an address."""
    return "" if _COMMAND.search(_MARK.sub("", said)) else _words(said, masker)


def _others(answer: Findings) -> list[Rejected]:
    """Return what an answer considered beside its first claim."""
    return [*answer.rejected, *(Rejected(one.reason, one.why) for one in answer.candidates[1:])]


def _alternatives(rejected: Sequence[Rejected], reason: str, masker: Masker) -> tuple[Alternative, ...]:
    """Return the reasons of the taxonomy that were considered and are not the one, each once."""
    others: dict[str, Alternative] = {}
    for one in rejected[:50]:
        name = named(one.reason, taxonomy.REASONS)
        if name not in ("", "Unknown", reason):
            others.setdefault(name, Alternative(name, _words(one.why, masker)))
    return tuple(others.values())[:_ALTERNATIVES]
