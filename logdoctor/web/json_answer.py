"""Answers as JSON, encoded by msgspec."""

from typing import Generic, TypeVar

import msgspec
from starlette.responses import Response

Item = TypeVar("Item")


class PageOf(msgspec.Struct, Generic[Item], frozen=True):
    """A page of a list; `next` is the cursor of the next page."""

    items: list[Item]
    next: str | None


class Json(Response):
    """The JSON of a struct, a model's fields or plain content."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Return the bytes of the body."""
        return msgspec.json.encode(content)
