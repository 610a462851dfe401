"""The queries of pages' URLs."""

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
    """The parameters of a URL. Empty ones count as unset, because forms send empty fields."""

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value != ""}


class ListQuery(UrlQuery):
    """The filters of a list whose page is at `path`."""

    path: ClassVar[str]

    cursor: Annotated[str | None, Field(max_length=2000)] = None

    def url(self, **changes: str | int | None) -> str:
        """Return the first page's URL with some filters changed; None removes one."""
        given = {**self.model_dump(exclude={"cursor", "page"}), **changes}
        query = urlencode({name: value for name, value in given.items() if value}, safe=":*")
        return f"{self.path}?{query}" if query else self.path
