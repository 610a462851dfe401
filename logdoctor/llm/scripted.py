"""A model whose replies are written down beforehand: for tests, and to replay a conversation without a server."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from logdoctor.errors import ModelError, ModelUnavailable
from logdoctor.llm.chat import Message, Reply, Tool, ToolCall, as_words, estimate, weight


class ScriptedModel:
    """Gives its replies one after another and raises those that are errors; `asked` are the messages it was given.

    A reply that is a `ToolCall` is made when tools are offered; a model without them (`tools` False) leaves it out.
    `ModelUnavailable` when nothing is left to say.
    """

    def __init__(
        self, replies: Iterable[str | Reply | ToolCall | ModelError], name: str = "scripted", tools: bool = True
    ) -> None:
        self.name = name
        self.asked: list[tuple[Message, ...]] = []
        self.temperatures: list[float] = []
        self.offered: list[tuple[Tool, ...]] = []
        self._tools = tools
        self._replies = deque(replies)

    def ask(
        self,
        messages: Sequence[Message],
        *,
        temperature: float,
        schema: dict[str, Any] | None,
        max_tokens: int,
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """Return the next reply of the script."""
        self.asked.append(tuple(messages))
        self.temperatures.append(temperature)
        self.offered.append(tuple(tools))
        while self._replies and isinstance(self._replies[0], ToolCall) and not (tools and self._tools):
            self._replies.popleft()
        if not self._replies:
            raise ModelUnavailable(f"the model {self.name}", "its script is at its end", "Give it more replies.")
        reply = self._replies.popleft()
        if isinstance(reply, ModelError):
            raise reply
        if isinstance(reply, Reply):
            return reply
        if isinstance(reply, ToolCall):
            return Reply("", weight(messages, tools), estimate(as_words(reply)), (reply,))
        return Reply(reply, weight(messages, tools), estimate(reply))
