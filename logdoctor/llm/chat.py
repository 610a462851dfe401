"""The seam to language models: messages go in, text and the tokens it took come out."""

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol


class Message(NamedTuple):
    """One turn of a conversation with a model."""

    role: Literal["user", "assistant"]
    text: str


class Reply(NamedTuple):
    """What a model said, and the tokens that were read and written for it."""

    text: str
    tokens_in: int
    tokens_out: int


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
    ) -> Reply:
        """The model's reply, after one try; with a `schema` (JSON Schema) it is told to answer in JSON of this form.

        `ModelUnavailable` when it does not answer, `ModelNonsense` when its answer is empty or a refusal.
        The text is what the model wrote: whether it keeps to the schema is for the caller to see.
        """
        ...


_PIECE = re.compile(r"[A-Za-z]{1,4}|[^A-Za-z\s]| {2,16}|[\n\t\r]")


def estimate(text: str) -> int:
    """About how many tokens a text has; rather too many, so that a budget holds with any tokenizer.

    Log lines are digits and signs, which many tokenizers take one by one; four letters count as one token, a
    character outside ASCII as its bytes. Texts joined by a newline have the sum of their tokens, and one.
    """
    return sum(1 for _ in _PIECE.finditer(text)) + len(text.encode("utf-8", "replace")) - len(text)
