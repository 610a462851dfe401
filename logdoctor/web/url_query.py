"""What the URL of a page asks for."""

from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlencode

from pydantic import BaseModel, BeforeValidator, Field, model_validator

PAGE = 50
"""Rows of a page of a list."""
WINDOWS = {"hour": 3600, "day": 86_400, "week": 7 * 86_400, "month": 30 * 86_400}
"""Seconds of the time windows of lists."""


def _stripped(value: str | None) -> str | None:
    return (value or "").strip() or None


Text = Annotated[Annotated[str, Field(max_length=300)] | None, BeforeValidator(_stripped)]
Window = Literal["hour", "day", "week", "month"] | None


class UrlQuery(BaseModel):
    """The parameters of a URL. What is empty counts as not given, because forms send empty fields."""

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value != ""}


class ListQuery(UrlQuery):
    """The filters of a list of pages, which stands at `path`."""

    path: ClassVar[str]

    cursor: Annotated[str | None, Field(max_length=2000)] = None

    def url(self, **changes: str | int | None) -> str:
        """Return the URL of this list with some filters changed (None takes one away), from its first page on."""
        given = {**self.model_dump(exclude={"cursor", "page"}), **changes}
        query = urlencode({name: value for name, value in given.items() if value})
        return f"{self.path}?{query}" if query else self.path
