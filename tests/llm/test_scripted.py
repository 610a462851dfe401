"""The contract of a chat model, held by both that there are."""

import json
from collections.abc import Callable, Iterator

import pytest

from logdoctor.errors import ModelNonsense, ModelUnavailable
from logdoctor.llm.chat import ChatModel, Message, Reply, Tool, ToolCall
from logdoctor.llm.langchain import LangChainModel
from logdoctor.llm.scripted import ScriptedModel
from tests.llm import server as ways
from tests.llm.server import model_server

CALLS = ways.calling("grep", {"pattern": "x"}, then=ways.saying("{}"))
GREP = Tool("grep", "Looks for a pattern.", {"type": "object", "properties": {"pattern": {"type": "string"}}})

Make = Callable[[str], ChatModel]


@pytest.fixture(params=["scripted", "langchain"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes a model that says a text, is down, or refuses."""
    with model_server() as server:

        def made(way: str) -> ChatModel:
            if request.param == "scripted":
                errors = {
                    "down": ModelUnavailable("m", "is down", "Wait."),
                    "refuses": ModelNonsense("m", "no", "Ask."),
                }
                calls = {"calls": ToolCall("1", "grep", {"pattern": "x"})}
                return ScriptedModel([errors.get(way) or calls.get(way) or way, "{}"], "m")
            server.behave(
                {"down": ways.status(500), "refuses": ways.refusal, "calls": CALLS}.get(way) or ways.saying(way)
            )
            return LangChainModel(server.url, "m", "", "text", 300.0)

        yield made


def ask(model: ChatModel) -> Reply:
    return model.ask([Message("user", "a b c")], temperature=0.0, schema={"title": "X"}, max_tokens=5)


def test_a_reply_has_text_and_tokens(make: Make) -> None:
    model = make(json.dumps({"x": 1}))
    assert model.name == "m"
    text, tokens_in, tokens_out, calls = ask(model)
    assert text == '{"x": 1}' and tokens_in > 0 and tokens_out > 0 and calls == ()


def test_faults_are_model_errors(make: Make) -> None:
    with pytest.raises(ModelUnavailable):
        ask(make("down"))
    with pytest.raises(ModelNonsense):
        ask(make("refuses"))


def test_a_tool_is_called_when_it_is_on_offer(make: Make) -> None:
    asked = [Message("user", "a b c")]
    offered = make("calls").ask(asked, temperature=0.0, schema={"title": "X"}, max_tokens=5, tools=[GREP])
    assert [(call.name, call.arguments) for call in offered.calls] == [("grep", {"pattern": "x"})]
    assert offered.tokens_in > 0 and offered.tokens_out > 0 and not offered.text
    assert ask(make("calls")).text == "{}" and ask(make("calls")).calls == ()


def test_a_script_ends() -> None:
    with pytest.raises(ModelUnavailable, match="at its end"):
        ask(ScriptedModel([]))
