"""What a model may look up before it answers, through the guard: bounded in calls, tokens and time."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from logdoctor.errors import BudgetSpent, InputError, ModelError, ModelNonsense
from logdoctor.learning.filters.model import Patterns
from logdoctor.llm.chat import Message, Reply, Tool, ToolCall, weight
from logdoctor.llm.scripted import ScriptedModel
from logdoctor.llm.spending import LOOKING_SECONDS, Budget, Guarded, MemoryLedger

GOOD = '{"patterns": [], "errors": [3]}'
BAD = '{"patterns": 3}'
PATTERN = {"type": "object", "properties": {"pattern": {"type": "string"}}, "required": ["pattern"]}
TOOLS = (Tool("grep", "Looks for a pattern.", PATTERN), Tool("overview", "Tells all.", {"type": "object"}))
ASKED = [Message("user", "Why did it fail?")]


def grep(pattern: str, name: str = "grep") -> ToolCall:
    return ToolCall("theirs", name, {"pattern": pattern})


class World:
    """A guarded model with its script, and a log to look into."""

    def __init__(self, *replies: str | Reply | ToolCall | ModelError, budget: Budget | None = None) -> None:
        self.now = 1_000_000.0
        self.ran: list[ToolCall] = []
        self.log = "line one\nline two"
        self.model = ScriptedModel(replies)
        self.ledger = MemoryLedger()
        self.guarded = Guarded(self.model, self.ledger, budget, lambda: self.now, lambda: 0.0)

    def run(self, call: ToolCall) -> str:
        self.ran.append(call)
        return self.log

    def ask(self, most: int = 6, tokens: int = 6000) -> Patterns:
        return self.guarded.answer(
            "j", "t", ASKED, Patterns, temperature=0, max_tokens=10, tools=TOOLS, run=self.run, most_tool_calls=most,
            most_tokens_in=tokens,
        )  # fmt: skip


def test_what_is_looked_up_is_told_and_then_answered() -> None:
    world = World(grep("a"), GOOD)
    assert world.ask().errors == [3]
    assert world.ran == [ToolCall("call00001", "grep", {"pattern": "a"})]
    assert world.model.asked[1] == (
        *ASKED,
        Message("assistant", "", (world.ran[0],)),
        Message("tool", world.log, answers="call00001"),
    )
    assert world.model.offered == [TOOLS, TOOLS] and world.guarded.counts().calls == {"answered": 2}


def test_after_the_last_look_the_model_is_to_answer() -> None:
    world = World(grep("a"), grep("b"), GOOD)
    world.ask(most=2)
    assert world.model.offered == [TOOLS, TOOLS, ()] and len(world.ran) == 2
    last = world.model.asked[2]
    assert [message.role for message in last] == ["user", "assistant", "user", "assistant", "user"]
    assert not any(message.calls for message in last) and last[-1].text.startswith("line one")
    assert "no more looks" in last[-1].text


def test_a_model_that_only_looks_is_told_to_answer_and_then_given_up() -> None:
    endless = Reply("", 5, 5, (grep("a"),) * 50)
    world = World(*[endless] * 20)
    with pytest.raises(ModelNonsense, match="is empty"):
        world.ask(most=6)
    assert len(world.model.asked) == 2 and len(world.ran) == 1, "the same call is made once"


def test_many_calls_at_once_are_cut_to_what_may_be() -> None:
    world = World(Reply("", 5, 5, tuple(grep(str(n)) for n in range(1000))), GOOD)
    world.ask(most=3)
    assert [call.arguments["pattern"] for call in world.ran] == ["0", "1", "2"]


class Curious(ScriptedModel):
    """Looks as long as it may, at two things at once, with many words."""

    def ask(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), **terms: Any) -> Reply:
        number = len(self.asked)
        calls = grep(f"{number}"), grep(f"{number}{'y' * 380}")
        self._replies.append(Reply("x" * 9000, 5, 5, calls) if tools else GOOD)
        return super().ask(messages, tools=tools, **terms)


@pytest.mark.parametrize("tokens", [300, 600, 1500, 6000])
def test_what_is_sent_keeps_to_its_tokens_in_whole_lines(tokens: int) -> None:
    world = World()
    world.guarded._model = world.model = Curious([])
    lines = [f"line {n} of a long log" for n in range(9000)]
    world.log = "\n".join(lines)
    world.ask(most=99, tokens=tokens)
    assert (world.ran or tokens == 300) and world.model.offered[-1] == ()
    for messages, tools in zip(world.model.asked, world.model.offered, strict=True):
        assert weight(messages, tools) <= tokens
    told = [message.text for messages in world.model.asked for message in messages if message.role == "tool"]
    assert {line for text in told for line in text.split("\n")} <= {*lines, "[the rest has no room]"}


def test_a_prompt_without_room_offers_no_tools() -> None:
    world = World(GOOD)
    world.ask(tokens=100)
    assert world.model.offered == [()] and world.model.asked == [tuple(ASKED)]


def test_nothing_is_offered_when_nothing_may_be_called() -> None:
    world = World(grep("a"), GOOD)
    world.ask(most=0)
    assert world.model.offered[-1] == () and world.ran == []


def test_wrong_calls_are_answered_in_words() -> None:
    long = ToolCall("1", "grep", {"pattern": "x" * 100_000})
    broken = ToolCall("", "grep", {"pattern": "\ud800", "n": float("nan")})
    world = World(grep("a", "rm -rf"), grep("a"), grep("a"), long, broken, GOOD)
    assert world.ask().errors == [3]
    told = [message.text for message in world.model.asked[-1] if message.role == "tool"]
    assert told[0] == "There is no such tool; there are grep, overview." and "before" in told[2]
    assert [call.arguments.get("pattern") for call in world.ran] == ["a", None, "?"]
    assert json.dumps([message._asdict() for message in world.model.asked[-1]]).isascii()


def test_a_tool_that_fails_says_so_without_secrets() -> None:
    world = World(grep("a"), GOOD)

    def run(call: ToolCall) -> str:
        raise InputError("the log", "password=hunter2 is gone", "Wait.")

    world.run = run  # type: ignore[method-assign]
    world.ask()
    told = world.model.asked[1][-1].text
    assert told.startswith("That cannot be done: the log") and "hunter2" not in told


def test_nothing_found_is_said() -> None:
    world = World(grep("a"), GOOD)
    world.log = ""
    world.ask()
    assert world.model.asked[1][-1].text == "Nothing was found."


def test_looking_ends_with_its_time() -> None:
    world = World(*[grep(str(n)) for n in range(5)], GOOD)

    def run(call: ToolCall) -> str:
        world.now += LOOKING_SECONDS / 2 + 1
        return "slow"

    world.run = run  # type: ignore[method-assign]
    world.ask()
    assert world.model.offered == [TOOLS, TOOLS, ()]


def test_each_look_counts_in_the_budget() -> None:
    world = World(*[grep(str(n)) for n in range(9)], budget=Budget(calls_per_job=3))
    with pytest.raises(BudgetSpent):
        world.ask()
    assert len(world.model.asked) == 3 == len(world.ledger.entries())


def test_an_answer_after_looks_may_be_repaired_once() -> None:
    world = World(grep("a"), BAD, GOOD)
    assert world.ask().errors == [3]
    assert world.model.offered == [TOOLS, TOOLS, ()]
    assert world.model.asked[2][-2].text == BAD and "no more looks" in world.model.asked[2][-3].text
    world = World(grep("a"), BAD, grep("b"), BAD)
    with pytest.raises(ModelNonsense):
        world.ask()
    assert len(world.ran) == 1


def checked(world: World, *said: str) -> Patterns:
    answers = iter(said)
    return world.guarded.answer(
        "j", "t", ASKED, Patterns, temperature=0, max_tokens=10, check=lambda value: next(answers)
    )


def test_what_is_wrong_by_content_is_sent_back_once() -> None:
    world = World(GOOD, '{"patterns": []}')
    assert checked(world, "quotes nothing", "").errors == []
    assert "it quotes nothing. Answer again" in world.model.asked[1][-1].text
    assert [entry.failure for entry in world.ledger.entries()] == ["", ""]
    world = World(GOOD, GOOD)
    with pytest.raises(ModelNonsense, match="quotes nothing again"):
        checked(world, "quotes nothing", "quotes nothing again")
    world = World(BAD, GOOD)
    with pytest.raises(ModelNonsense, match="quotes nothing"):
        checked(world, "quotes nothing")
    assert len(world.model.asked) == 2
