"""Where the rules are in doubt, the model is asked, and two answers become one that nobody regrets."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from logdoctor.diagnose.conclude import RootCause
from logdoctor.diagnose.decide import diagnose
from logdoctor.diagnose.ending import FAILED
from logdoctor.errors import ModelUnavailable
from logdoctor.failure_agent.doubt import is_confirmed, weighed
from logdoctor.failure_agent.ladder import Ladder
from logdoctor.failure_agent.question import Question
from logdoctor.types import Alternative, DecidedBy, Suspect, Verdict
from tests.diagnose.logs import ECC, steps
from tests.failure_agent.conftest import Ask

REMOTE = "NCCL WARN Net : Connection closed by remote peer gpu-7<41234>"
LOG = steps(1, 30) + REMOTE + "\n"
"""A failure of which a rule names the cause, and is not sure."""
BELOW = 0.7


@pytest.fixture
def doubtful(ask: Ask) -> Question:
    question = ask(LOG)
    assert (question.verdict.reason, question.verdict.decided_by.kind) == ("NCCL Remote Error", "rule")
    assert 0 < question.verdict.confidence < BELOW
    return question


def verdict(question: Question, **changed: Any) -> Verdict:
    """What the rules say of it, changed."""
    return msgspec.structs.replace(question.verdict, **changed)


def by_model(question: Question, reason: str, recovery: str, confidence: float = 0.9) -> Verdict:
    by = DecidedBy("agent", "agent", model="tiny")
    return verdict(question, reason=reason, recovery=recovery, confidence=confidence, decided_by=by, why="It says so.")


def said(reason: str, recovery: str = "", confidence: float = 0.9) -> RootCause:
    place = (("main", 30),)
    return RootCause(reason, recovery, "", confidence, "It says so.", "", place, "agent", "agent", "tiny")


def climbed(
    question: Question, conclusion: RootCause | None, below: float = BELOW, new: bool | None = None
) -> tuple[Verdict, int]:
    """The verdict when a model concludes this, and how often it was asked; as a second reader of what is `new`."""
    asked: list[Question] = []

    def agent(question: Question) -> RootCause | None:
        asked.append(question)
        return conclusion

    is_new = None if new is None else lambda _: new
    return Ladder(None, 0.8, 2, agent, below, is_new, "tiny").climb(question), len(asked)


def test_who_agrees_makes_the_rules_surer(doubtful: Question) -> None:
    found, asked = climbed(doubtful, said("NCCL Remote Error"))
    by = msgspec.structs.replace(doubtful.verdict.decided_by, model="tiny")
    assert asked == 1 and found.confidence == 0.95 and found.decided_by == by
    assert is_confirmed(doubtful.verdict, found) and not is_confirmed(doubtful.verdict, doubtful.verdict)
    assert found.reason == "NCCL Remote Error" and found.recovery == doubtful.verdict.recovery
    assert found.evidence == doubtful.verdict.evidence and "A model agrees" in found.why
    both = weighed(verdict(doubtful, confidence=0.5), by_model(doubtful, "NCCL Remote Error", "restart", 0.6))
    assert both.confidence == 0.8
    certain = verdict(doubtful, confidence=0.97)
    assert weighed(certain, by_model(doubtful, "NCCL Remote Error", "restart")).confidence == 0.97


def test_who_agrees_on_the_reason_and_not_on_what_to_do_takes_no_node_out(doubtful: Question) -> None:
    rules = verdict(doubtful, recovery="isolate_and_restart", suspects=(Suspect("gpu-7", None, None, "its log"),))
    found = weighed(rules, by_model(doubtful, rules.reason, "restart"))
    assert (found.recovery, found.suspects) == ("restart", ())
    assert found.suggestion.startswith("First restart from the last checkpoint; if it fails again, ")
    assert weighed(rules, by_model(doubtful, rules.reason, "isolate_and_restart")).suspects == rules.suspects


@pytest.mark.parametrize(
    ("rules", "model", "stands"),
    [
        ("isolate_and_restart", "restart", "restart"),
        ("restart", "isolate_and_restart", "restart"),
        ("restart", "fix_first", "ask_human"),
        ("isolate_and_restart", "fix_first", "ask_human"),
        ("fix_first", "rollback_and_skip", "ask_human"),
        ("restart", "restart", "restart"),
        ("isolate_and_restart", "isolate_and_restart", "isolate_and_restart"),
    ],
)
@pytest.mark.parametrize("surer", ["rules", "model"])
def test_who_is_surer_names_the_reason_and_what_is_done_is_safe(
    doubtful: Question, rules: str, model: str, stands: str, surer: str
) -> None:
    suspects = (Suspect("gpu-7", None, None, "its log"),)
    by_rules = verdict(doubtful, recovery=rules, suspects=suspects, alternatives=(Alternative("Hang", "perhaps"),))
    other = by_model(doubtful, "Connection Error", model, 0.9 if surer == "model" else 0.3)
    found = weighed(by_rules, msgspec.structs.replace(other, suspects=suspects))
    first, second = (by_rules, other) if surer == "rules" else (other, by_rules)
    assert (found.reason, found.recovery) == (first.reason, stands)
    assert found.confidence < first.confidence and not is_confirmed(by_rules, found)
    assert found.suspects == (suspects if stands == "isolate_and_restart" else ())
    assert found.alternatives[0].reason == second.reason and REMOTE in found.alternatives[0].why
    assert f"names {second.reason} instead." in found.why
    assert found.decided_by.kind == first.decided_by.kind and found.decided_by.model
    assert (found.suggestion == first.suggestion) == (stands == first.recovery)


def test_nobody_else_is_told_twice(doubtful: Question) -> None:
    other = by_model(doubtful, "Connection Error", "restart", 0.3)
    rivals = tuple(Alternative(reason, "") for reason in ("Connection Error", "Hang", "Key Error", "OS Error", "x"))
    found = weighed(verdict(doubtful, alternatives=rivals), other)
    assert [one.reason for one in found.alternatives] == ["Connection Error", "Hang", "Key Error", "OS Error"]
    assert (
        weighed(doubtful.verdict, msgspec.structs.replace(other, evidence=())).alternatives[0].why == "The model tiny"
    )


@pytest.mark.parametrize("conclusion", [None, said("NCCL Remote Error")._replace(places=(("main", 9999),))])
def test_a_model_that_knows_no_cause_leaves_the_rule_less_sure(
    doubtful: Question, conclusion: RootCause | None
) -> None:
    found, asked = climbed(doubtful, conclusion)
    assert asked == 1 and found.confidence == round(doubtful.verdict.confidence * 0.8, 2)
    assert "could not confirm" in found.why
    of_rules = doubtful.verdict
    same = verdict(doubtful, confidence=found.confidence, why=found.why, decided_by=found.decided_by)
    assert same == found and found.decided_by.rule == of_rules.decided_by.rule and found.decided_by.model == "tiny"


def test_another_reason_is_proved_by_its_line_and_keeps_what_is_known_of_the_log(doubtful: Question) -> None:
    question = replace(doubtful, verdict=verdict(doubtful, problems=("main: cut off",), seconds=7.0))
    found, _ = climbed(question, said("Connection Error", "restart"))
    assert (found.reason, found.recovery, found.decided_by.kind) == ("Connection Error", "restart", "agent")
    assert found.evidence[0].quote == REMOTE and found.alternatives[0].reason == "NCCL Remote Error"
    assert (found.problems, found.seconds, found.suspects) == (("main: cut off",), 7.0, ())


def test_nothing_is_asked_at_or_above_the_threshold(doubtful: Question, ask: Ask) -> None:
    confidence = doubtful.verdict.confidence
    for below in (0.0, confidence):
        assert climbed(doubtful, said("Connection Error"), below) == (doubtful.verdict, 0)
    sure = ask(steps(1, 30) + ECC)
    assert climbed(sure, said("Connection Error")) == (sure.verdict, 0)
    assert climbed(doubtful, said("Connection Error"), confidence + 0.01)[1] == 1


@pytest.mark.parametrize("kind", ["case", "agent"])
def test_what_others_than_rules_said_is_not_doubted(doubtful: Question, kind: Any) -> None:
    question = replace(doubtful, verdict=verdict(doubtful, decided_by=DecidedBy(kind)))
    assert climbed(question, said("Connection Error")) == (question.verdict, 0)


def test_a_job_that_did_not_fail_is_nobodys_question(doubtful: Question) -> None:
    for outcome in ("recovered", "unknown", "running"):
        question = replace(doubtful, verdict=verdict(doubtful, outcome=outcome, reason="None", confidence=0.0))
        assert climbed(question, said("Connection Error")) == (question.verdict, 0)


def test_a_model_that_is_away_is_no_answer(doubtful: Question) -> None:
    def away(question: Question) -> RootCause | None:
        raise ModelUnavailable("the model", "is away", "Wait.")

    with pytest.raises(ModelUnavailable):
        Ladder(None, 0.8, 2, away, BELOW).climb(doubtful)
    assert Ladder(None, 0.8, 2, None, BELOW).climb(doubtful) is doubtful.verdict


def test_what_is_new_is_read_though_rules_are_sure(ask: Ask) -> None:
    sure = ask(steps(1, 30) + ECC)
    same = said(sure.verdict.reason, sure.verdict.recovery)
    assert climbed(sure, same, new=False) == (sure.verdict, 0)
    found, asked = climbed(sure, same, new=True)
    assert asked == 1 and is_confirmed(sure.verdict, found) and found.decided_by.model == "tiny"
    assert (found.decided_by.kind, found.suspects) == ("rule", sure.verdict.suspects)
    other, _ = climbed(sure, said("Connection Error", "fix_first"), new=True)
    assert (other.reason, other.recovery, other.suspects) == (sure.verdict.reason, "ask_human", ())
    assert other.confidence < sure.verdict.confidence and other.alternatives[0].reason == "Connection Error"
    assert not is_confirmed(sure.verdict, other)


WORK = "step 31/100 | lm loss: 2.10"


def test_a_job_that_did_not_fail_is_acquitted_by_a_line_and_a_surer_reader_only(ask: Ask) -> None:
    question = ask(
        steps(1, 30) + 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n' + "KeyError: 'x'\n"
    )
    assert question.verdict.outcome == "failed"
    found, _ = climbed(question, said("None", "none", 0.95), new=True)
    assert (found.reason, found.recovery, found.outcome) == ("None", "none", "running")
    assert found.evidence[0].line == 30 and "A rule names Key Error instead" in found.why
    assert found.alternatives[0].reason == "Key Error"
    less, _ = climbed(question, said("None", "none", 0.5), new=True)
    assert (less.reason, less.recovery, less.outcome) == ("Key Error", "ask_human", "failed")
    assert less.confidence < question.verdict.confidence and "did not fail: " in less.why and not less.alternatives
    unquoted, _ = climbed(question, said("None")._replace(places=(("main", 9999),)), new=True)
    assert unquoted.outcome == "failed" and unquoted.reason == "Key Error"


@pytest.mark.parametrize("new", [True, None])
def test_nobody_acquits_a_job_that_was_reported_as_failed(ask: Ask, new: bool | None) -> None:
    log = steps(1, 30) + ("KeyError: 'x'\n" if new else "loom 7 is jammed: ERROR\n")
    question = replace(ask(log), reported=FAILED)
    question = replace(question, verdict=diagnose(question.records, question.book, reported=FAILED))
    found, asked = climbed(question, said("None", "none", 0.95), new=new)
    assert (found.outcome, found.reason, asked) == ("failed", question.verdict.reason, 1)
