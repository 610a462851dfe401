"""The ladder: by rule, by case, by agent, Unknown. The first sure answer stops.

A verdict by rules that is in doubt climbs, too, or one of a failure that was never seen before: what the rungs above
say is weighed against it. A rung that fails (its store is damaged, its model is down) is passed over: what is left is
what the rules say, never a guess.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import msgspec
import structlog

from logdoctor.diagnose.conclude import RootCause, conclude
from logdoctor.errors import LogdoctorError
from logdoctor.failure_agent.by_case import by_case
from logdoctor.failure_agent.cases.cases import Neighbour
from logdoctor.failure_agent.doubt import weighed
from logdoctor.failure_agent.forms import NOT_FAILED
from logdoctor.failure_agent.question import Question
from logdoctor.types import Verdict

log = structlog.get_logger()

Similar = Callable[[Question], Iterator[list[Neighbour]]]
"""Past cases that are like a failure, its own left out: what is found at once, then what takes longer."""


class Ladder:
    """The rungs above the rules. `similar` finds past cases; `agent` asks a model (named `model`) and may raise
    `ModelError`; it is asked about verdicts whose confidence is `below`, and as a second reader about failures that are
    `new`."""

    def __init__(
        self,
        similar: Similar | None,
        similarity: float,
        agreement: int,
        agent: Callable[[Question], RootCause | None] | None = None,
        below: float = 0.0,
        new: Callable[[Question], bool] | None = None,
        model: str = "",
    ) -> None:
        self._similar, self._terms, self._agent = similar, (similarity, agreement), agent
        self._below, self._new, self._model = below, new, model

    def doubts(self, verdict: Verdict) -> bool:
        """Return whether a model is to be asked: the cause is open, or the rules are not sure enough of it."""
        return is_open(verdict) or (_is_by_rules(verdict) and verdict.confidence < self._below)

    def may_climb(self, verdict: Verdict) -> bool:
        """Return whether past cases or a model may improve on a verdict; whether a failure is new is not looked up."""
        is_read = self._new is not None and self._agent is not None and _is_by_rules(verdict)
        return is_unsure(verdict) or self.doubts(verdict) or is_read

    def is_for_model(self, question: Question) -> bool:
        """Return whether a model is to be asked: in doubt, or as a second reader of a failure that is new."""
        if self.doubts(question.verdict):
            return True
        return self._new is not None and _is_by_rules(question.verdict) and self._new(question)

    @property
    def asks_a_model(self) -> bool:
        """Return whether there is a model to ask."""
        return self._agent is not None

    def by_case(self, question: Question) -> Verdict:
        """Return the verdict of a past case where the one that was given is not sure; else that one.

        One by structure, by the class of an exception alone, or in doubt, yields only to a case of the very same
        failure.
        """
        if not (is_unsure(question.verdict) or self.doubts(question.verdict)) or self._similar is None:
            return question.verdict
        streams = [record.stream for record in question.records]
        looks = None if is_open(question.verdict) else 1
        try:
            for neighbours in islice(self._similar(question), looks):
                if found := by_case(question.episodes, neighbours, *self._terms, streams):
                    return _concluded(question, found)
        except LogdoctorError as error:
            log.warning("past cases not searched", job=question.job, cause=str(error))
        return question.verdict

    def by_agent(self, question: Question) -> Verdict:
        """Return the verdict that was given if that is sure, else what the model's findings come to, weighed against
        what the rules say. `ModelError` when it cannot be asked or talks nonsense."""
        if self._agent is None or not self.is_for_model(question):
            return question.verdict
        is_second = not self.doubts(question.verdict)
        conclusion = self._agent(replace(question, is_blind=True) if is_second else question)
        if conclusion is not None and conclusion.reason == NOT_FAILED and question.reported.failed:
            conclusion = None
        if is_open(question.verdict):
            return _concluded(question, conclusion)
        found = None if conclusion is None else conclude(question.records, question.book, conclusion)
        found = None if found is None or is_open(found) else found
        return _kept(question, weighed(question.verdict, found, self._model))

    def climb(self, question: Question) -> Verdict:
        """Return the first sure verdict, or the one that was given; `ModelError` as in `by_agent`."""
        verdict = self.by_case(question)
        return self.by_agent(question) if verdict is question.verdict else verdict


def is_unsure(verdict: Verdict) -> bool:
    """Return whether a past case may say otherwise of a failure: its cause is open, or its structure alone spoke."""
    return is_open(verdict) or (verdict.outcome == "failed" and verdict.decided_by.kind == "structure")


def _is_by_rules(verdict: Verdict) -> bool:
    return verdict.outcome == "failed" and verdict.decided_by.kind in ("rule", "structure")


def is_open(verdict: Verdict) -> bool:
    """Return whether a verdict leaves the cause of a failure open."""
    return verdict.outcome == "failed" and verdict.reason == "Unknown"


def _concluded(question: Question, conclusion: RootCause | None) -> Verdict:
    """Return the verdict of a conclusion, unless there is none or it cannot be proved (law 3)."""
    if conclusion is None:
        return question.verdict
    said = question.verdict.reason, question.verdict.recovery
    verdict = conclude(question.records, question.book, conclusion)
    if is_open(verdict) or (verdict.reason, verdict.recovery) == said:
        return question.verdict
    return _kept(question, verdict)


def _kept(question: Question, verdict: Verdict) -> Verdict:
    """Return a verdict with what is known of the log whoever judges it."""
    before = question.verdict
    return msgspec.structs.replace(
        verdict,
        problems=before.problems,
        file=before.file,
        seconds=before.seconds,
        runs=before.runs,
        courses=before.courses,
        coverage=before.coverage,
        fates=before.fates,
    )
