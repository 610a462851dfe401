"""A model whose replies are written down beforehand: for tests, and to replay a conversation without a server."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from logdoctor.errors import ModelError, ModelUnavailable
from logdoctor.llm.chat import Message, Reply, estimate


class ScriptedModel:
    """Gives its replies one after another and raises those that are errors; `asked` are the messages it was given.

    `ModelUnavailable` when nothing is left to say.
    """

    def __init__(self, replies: Iterable[str | Reply | ModelError], name: str = "scripted") -> None:
        self.name = name
        self.asked: list[tuple[Message, ...]] = []
        self.temperatures: list[float] = []
        self._replies = deque(replies)

    def ask(
        self,
        messages: Sequence[Message],
        *,
        temperature: float,
        schema: dict[str, Any] | None,
        max_tokens: int,
    ) -> Reply:
        """The next reply of the script."""
        self.asked.append(tuple(messages))
        self.temperatures.append(temperature)
        if not self._replies:
            raise ModelUnavailable(f"the model {self.name}", "its script is at its end", "Give it more replies.")
        reply = self._replies.popleft()
        if isinstance(reply, ModelError):
            raise reply
        if isinstance(reply, Reply):
            return reply
        return Reply(reply, sum(estimate(message.text) for message in messages), estimate(reply))
