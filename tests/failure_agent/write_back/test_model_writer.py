"""A model may write the pattern; the guards judge it, secrets stay at home, and without an answer nothing is lost."""

import json
from pathlib import Path

import pytest

from logdoctor.errors import BudgetSpent, ModelError, ModelUnavailable
from logdoctor.learning.diagnoses.model_writer import WRITE, ModelWriter
from logdoctor.learning.diagnoses.teacher import TeachingTerms
from logdoctor.learning.diagnoses.writer import OfflineWriter, Task
from logdoctor.llm.chat import estimate
from logdoctor.llm.prompts import load
from logdoctor.llm.scripted import ScriptedModel
from logdoctor.llm.spending import Guarded, MemoryLedger
from tests.failure_agent.write_back.conftest import HEAD, LEASE, LEASE_AGAIN, MakeWorld

PROMPTS = Path(__file__).parents[3] / "prompts"
GOOD = json.dumps({"pattern": r"^quota service refused the lease of team \S+ for \d+ nodes", "what": "no quota"})
TASK = Task("a", 1, LEASE, (), ("near it",), ("another failure",), "OS Error")


def writer(*replies: str | ModelError) -> tuple[ModelWriter, ScriptedModel]:
    model = ScriptedModel(replies)
    return ModelWriter(Guarded(model, MemoryLedger(), chance=lambda: 0.0), PROMPTS), model


def test_the_pattern_of_the_model_is_tried_first(make_world: MakeWorld) -> None:
    asked, model = writer(GOOD)
    world = make_world(TeachingTerms(2, 3), asked)
    lesson = world.teach("a", HEAD + LEASE, "OS Error", 41)
    rule = world.rules.one(lesson.rule)
    assert (rule.title, rule.agent) == ("no quota", asked.name) and r"\d+ nodes" in rule.pattern
    assert world.settle("b", HEAD + LEASE_AGAIN).promoted == (rule.id,) and len(model.asked) == 1


@pytest.mark.parametrize(
    "reply",
    [
        '{"pattern": "^.*$", "what": "all"}',
        '{"pattern": "", "what": ""}',
        '{"pattern": "^(?=x)quota", "what": ""}',
        '{"pattern": "^RuntimeError", "what": ""}',
        json.dumps({"pattern": "^" + "quota " * 40_000, "what": "x" * 200_000}),
        "I cannot help with that.",
        ModelUnavailable("the model", "is down", "Wait."),
        BudgetSpent("the budget", "is spent", "Wait."),
    ],
)
def test_a_bad_answer_costs_a_call_and_no_more(make_world: MakeWorld, reply: str | ModelError) -> None:
    asked, _ = writer(reply, reply)
    world = make_world(TeachingTerms(2, 3), asked)
    lesson = world.teach("a", HEAD + LEASE, "OS Error", 41)
    rule = world.rules.one(lesson.rule)
    assert rule.agent == OfflineWriter.name and world.settle("b", HEAD + LEASE_AGAIN).promoted == (rule.id,)


def test_what_is_sent_fits(make_world: MakeWorld) -> None:
    asked, model = writer(GOOD)
    hidden = "password=hunter2-XYZ"
    long = [f"{'word ' * 300}{hidden} {number}" for number in range(50)]
    asked.write(Task("a", 1, f"{LEASE} {hidden}", tuple(long), tuple(long), tuple(long), "OS Error"))
    text = model.asked[0][0].text
    assert "hunter2" not in text and estimate(text) <= load(PROMPTS, WRITE).head.max_tokens_in
    assert "quota service refused the lease" in text


def test_a_mark_of_what_was_hidden_becomes_a_field() -> None:
    asked, _ = writer(json.dumps({"pattern": r"^login of svc at <host-1> with <secret> failed", "what": ""}))
    assert asked.write(TASK)[0].pattern == r"^login of svc at \S+ with \S+ failed"


def test_a_routine_line_is_no_question_for_a_model() -> None:
    asked, model = writer(GOOD)
    assert asked.write(TASK._replace(marked=False)) and model.asked == []
