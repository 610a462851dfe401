"""The seam to language models: messages go in, text and the tokens it took come out."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol


class Tool(NamedTuple):
    """Something that a model may ask for by name; `schema` (JSON Schema) is the form of its arguments, an object."""

    name: str
    description: str
    schema: dict[str, Any]


class ToolCall(NamedTuple):
    """A model's wish to use a tool; whether there is such a tool, and whether the arguments fit, is to be seen."""

    id: str
    name: str
    arguments: dict[str, Any]


class Message(NamedTuple):
    """One turn of a conversation with a model.

    `calls` are the tools that an assistant asked for; a `tool` message is the result of the call whose id is `answers`.
    """

    role: Literal["user", "assistant", "tool"]
    text: str
    calls: tuple[ToolCall, ...] = ()
    answers: str = ""


class Reply(NamedTuple):
    """What a model said, the tokens that were read and written for it, and the tools that it wants to use first."""

    text: str
    tokens_in: int
    tokens_out: int
    calls: tuple[ToolCall, ...] = ()


class ChatModel(Protocol):
    """A language model that can be asked. `name` tells which, for provenance.

    There is no role for a system: the chat templates of several small models refuse one.
    """

    name: str

    def ask(
        self,
        messages: Sequence[Message],
        *,
        temperature: float,
        schema: dict[str, Any] | None,
        max_tokens: int,
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """Return the model's reply, after one try; with a `schema` (JSON Schema) it is told to answer in JSON of this
        form.

        `ModelUnavailable` when it does not answer, `ModelNonsense` when its answer is empty or a refusal.
        The text is what the model wrote: whether it keeps to the schema is for the caller to see.
        With `tools` it may call some instead of answering; one that knows of none answers without.
        """
        ...


def flat(messages: Iterable[Message]) -> list[Message]:
    """Return the conversation without tools: calls and their results as words, turns of one role joined.

    Servers refuse calls in a conversation that offers no tools, and templates refuse two turns of one role in a row.
    """
    plain: list[Message] = []
    for message in messages:
        role: Literal["user", "assistant"] = "assistant" if message.role == "assistant" else "user"
        text = "\n".join([message.text] * bool(message.text) + [as_words(call) for call in message.calls])
        if plain and plain[-1].role == role:
            plain[-1] = Message(role, f"{plain[-1].text}\n\n{text}")
        else:
            plain.append(Message(role, text))
    return plain


def as_words(call: ToolCall) -> str:
    """Return a call as one would write it: `grep({"pattern": "x"})`."""
    return f"{call.name}({json.dumps(call.arguments, ensure_ascii=False)})"


def weight(messages: Iterable[Message], tools: Iterable[Tool] = ()) -> int:
    """Return about how many tokens a model reads when it is given these; rather too many, see `estimate`."""
    said = sum(estimate(message.text) + sum(estimate(as_words(call)) for call in message.calls) for message in messages)
    return said + sum(estimate(f"{tool.name} {tool.description} {json.dumps(tool.schema)}") for tool in tools)


_PIECE = re.compile(r"[A-Za-z]{1,4}|[^A-Za-z\s]| {2,16}|[\n\t\r]")


def estimate(text: str) -> int:
    """Return about how many tokens a text has; rather too many, so that a budget holds with any tokenizer.

    Log lines are digits and signs, which many tokenizers take one by one; four letters count as one token, a
    character outside ASCII as its bytes. Texts joined by a newline have the sum of their tokens, and one.
    """
    return sum(1 for _ in _PIECE.finditer(text)) + len(text.encode("utf-8", "replace")) - len(text)
