"""Whoever asks and whatever is said: no secret reaches the server of a model."""

import json
from functools import partial
from typing import Annotated

import msgspec
import pytest

from logdoctor.errors import InputError
from logdoctor.llm.chat import Message, Tool, ToolCall
from logdoctor.llm.langchain import LangChainModel
from logdoctor.llm.masking import Masker
from logdoctor.llm.prompts import load
from logdoctor.llm.scripted import ScriptedModel
from logdoctor.llm.spending import Guarded, MemoryLedger
from tests.failure_agent.test_agent import PROMPTS
from tests.llm import server as ways
from tests.llm.server import model_server

KEY = "sk-test-0123456789abcdefghij"
SECRETS = {
    "password=hunter2xyz": "hunter2xyz",
    "push with hf_abcdefghijklmnopqrstuvwx": "hf_abcdefghijklmnopqrstuvwx",
    "key AKIAIOSFODNN7EXAMPLE": "AKIAIOSFODNN7EXAMPLE",
    "wandb: key 0123456789abcdef0123456789abcdef01234567": "0123456789abcdef0123456789abcdef01234567",
    "mail to jane.doe@example.org": "jane.doe@example.org",
    "-----BEGIN RSA PRIVATE KEY-----\nshortAndSecret17\n-----END RSA PRIVATE KEY-----": "shortAndSecret17",
    f"the key of the server {KEY}": KEY,
}
SAID = "\n".join(SECRETS)


class Answer(msgspec.Struct):
    """An answer."""

    text: Annotated[str, msgspec.Meta(description=SAID)]


TOOLS = (
    Tool("grep", SAID, {"type": "object", "properties": {"pattern": {"type": "string", "description": SAID}}}),
    Tool("fail", "fails", {"type": "object", "properties": {}}),
)


def look(call: ToolCall) -> str:
    if call.name == "fail":
        raise InputError("the log", SAID, "Wait.")
    return SAID


def test_no_secret_reaches_the_server() -> None:
    with model_server() as server:
        server.behave(ways.saying(lambda body: json.dumps({"txet": SAID})))
        guarded = Guarded(LangChainModel(server.url, "m", KEY, seconds=300.0), MemoryLedger(), key=KEY)
        with pytest.raises(Exception, match="text"):
            guarded.answer("j", "t", [Message("user", SAID)], Answer, temperature=0, max_tokens=50, tools=TOOLS)
        sent = [json.dumps(body) for body in server.bodies]
    assert len(sent) == 2, "asked, and asked again because the answer had no form"
    assert not [secret for body in sent for secret in SECRETS.values() if secret in body]


@pytest.mark.parametrize("tool", ["grep", "fail"])
def test_nor_does_one_that_a_tool_found_or_a_model_said(tool: str) -> None:
    model = ScriptedModel([ToolCall("1", tool, {"pattern": SAID[:90]}), '{"text": "fine"}'])
    guarded = Guarded(model, MemoryLedger(), key=KEY)
    given = {"temperature": 0, "max_tokens": 50, "tools": TOOLS, "run": look, "most_tool_calls": 3}
    guarded.answer("j", "t", [Message("user", "hi")], Answer, **given)  # type: ignore[arg-type]
    assert len(model.asked) == 2 and "<secret-1>" in str(model.asked[1])
    sent = str([*model.asked, *model.offered])
    assert not [secret for secret in SECRETS.values() if secret in sent]


def test_what_was_masked_is_sent_as_it_is() -> None:
    """Marks stay what they are, so that a quote of the model is found where it was shown."""
    masker = Masker(hosts=True)
    lines = [text for text in SECRETS if "\n" not in text]
    text = "\n".join(map(masker.mask, [*lines, "marks of a log: <secret-1>", "node: nid007 is down"]))
    model = ScriptedModel(['{"text": "fine"}'])
    guarded = Guarded(model, MemoryLedger())
    guarded.answer("j", "t", [Message("user", text)], Answer, temperature=0, max_tokens=50, masker=masker)
    assert model.asked[0][0].text == text


def test_a_server_that_may_see_all_sees_all() -> None:
    model = ScriptedModel(['{"text": "fine"}'])
    guarded = Guarded(model, MemoryLedger(), masker=partial(Masker, secrets=False))
    guarded.answer("j", "t", [Message("user", SAID)], Answer, temperature=0, max_tokens=50)
    assert model.asked[0][0].text == SAID


@pytest.mark.parametrize("name", ["diagnose", "judge", "write-diagnosis", "write-filter"])
def test_no_prompt_holds_what_looks_like_a_secret(name: str) -> None:
    load(PROMPTS, name)
    text = (PROMPTS / f"{name}.md").read_text()
    assert Masker(hosts=True, ips=True).mask_rest(text) == text
