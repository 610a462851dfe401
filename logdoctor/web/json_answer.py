"""Answers as JSON, made by msgspec from what the layers below give."""

import msgspec
from starlette.responses import Response


class Json(Response):
    """The JSON of a struct, a model's fields or plain content."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """The bytes of the body."""
        return msgspec.json.encode(content)
