"""The form of the model's answer: claims about the cause, each with what it rests on.

Words of the taxonomy stand in the schema that servers are given. They are not enforced here: what a model nearly wrote
(`KeyError` for `Key Error`) is taken as meant, what it made up is found by code and named to it.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from logdoctor import taxonomy

NOT_FAILED = "None"
"""What stands for a reason where the job did not fail."""

STATUSES = ("established", "supported", "hypothesis")
"""How sure the reason of a claim is: a quoted line says so itself; it fits better than any other; a guess."""

_REASON = msgspec.Meta(extra_json_schema={"enum": [*taxonomy.REASONS, NOT_FAILED]})
_FAULT = msgspec.Meta(extra_json_schema={"enum": list(taxonomy.FAULTS)})
_RECOVERY = msgspec.Meta(extra_json_schema={"enum": [name for name in taxonomy.RECOVERIES if name != "none"]})
_STATUS = msgspec.Meta(extra_json_schema={"enum": list(STATUSES)})


class Quote(msgspec.Struct):
    """A line that was shown: its number as shown (`0:123`), and its text or a part of it."""

    line: str
    text: str


class Candidate(msgspec.Struct):
    """A claim about the cause; `detail` is a finer word than the reason for what failed."""

    reason: Annotated[str, _REASON]
    quotes: list[Quote] = []
    status: Annotated[str, _STATUS] = "hypothesis"
    recovery: Annotated[str, _RECOVERY] = ""
    fault: Annotated[str, _FAULT] = ""
    why: str = ""
    detail: str = ""


class Rejected(msgspec.Struct):
    """A reason that is not the one, and why not."""

    reason: Annotated[str, _REASON]
    why: str = ""


class Findings(msgspec.Struct):
    """The answer to `diagnose`: candidates, the likeliest first; none of them means Unknown."""

    candidates: list[Candidate]
    rejected: list[Rejected] = []
    mitigation: str = ""


def named(word: str, words: Iterable[str]) -> str:
    """Return the one of the words that is meant, whatever its capitals, blanks and underscores; "" when none is."""
    meant = _letters(word[:60])
    return next((name for name in words if _letters(name) == meant), "")


def _letters(word: str) -> str:
    return "".join(c for c in word.casefold() if c.isalnum())
