"""From a model's text to a typed answer: JSON as models write it, taken leniently and checked strictly.

Small models put prose or a fence around JSON, leave a comma too many, do not escape the backslashes of a regular
expression, and stop in the middle when their tokens are spent. All of that is repaired here, in one pass over the text;
what then does not have the form that was asked for is refused, with a reason that the model is given.

Not json-repair (0.64 was tried): it completes what was cut off, so that half a pattern becomes a wider one, takes NaN
and doubled keys, and needs 18 s for 32 kB of `{` (law 9).
"""

import json
import re
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from logdoctor.errors import ModelNonsense

Form = TypeVar("Form")

MAX_ANSWER = 256 << 10
"""Characters of an answer; more is no answer to anything that is asked here."""

MAX_DEPTH = 16
_TRIES = 8
_THOUGHT = re.compile(r"\A\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.S | re.I)
_FENCE = re.compile(r"```[A-Za-z0-9_]{0,20}\s{0,8}(?=[\[{])")
_OPENING = re.compile(r"[\[{]")
_PART = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]|[^"\[\]{},]+|"', re.S)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_REFUSAL = re.compile(
    r"\b(?:i(?: a|['\u2019])m sorry|i (?:can(?:not|['\u2019]t)|am unable|won['\u2019]t|must decline)|as an ai\b)", re.I
)


class Parsed(NamedTuple, Generic[Form]):
    """An answer in its form; `cut` when the text ended too early and only its whole items were taken."""

    value: Form
    cut: bool


class _Tidied(NamedTuple):
    """JSON made valid, where it ended in the text, and whether its end was missing."""

    text: str
    end: int
    cut: bool


def parse(text: str, form: type[Form]) -> Parsed[Form]:
    """Return the first JSON value in a text that has the form. Raise `ModelNonsense`, which says why there is none."""
    if len(text) > MAX_ANSWER:
        raise _nonsense(f"has {len(text)} characters, above the limit of {MAX_ANSWER}")
    text = _THOUGHT.sub("", text, count=1)
    if not text.strip():
        raise _nonsense("is empty")
    cause = ""
    seen: list[range] = []
    for start in _starts(text):
        if any(start in value for value in seen):
            continue  # inside a value that is whole and has another form
        try:
            tidied = _tidied(text, start)
            data = _loaded(tidied.text)
            seen.append(range(start, tidied.end))
            return Parsed(msgspec.convert(data, form, strict=False), tidied.cut)
        except (ValueError, RecursionError) as error:  # those of json and msgspec are ValueErrors
            cause = cause or str(error)[:300]
    if _REFUSAL.search(text[:400]) and not _FENCE.search(text):
        raise _nonsense("is a refusal")
    raise _nonsense(f"does not have the form asked for ({cause})" if cause else "is not JSON")


def schema(form: type) -> dict[str, Any]:
    """Return the JSON Schema of a form without references, as strict as servers want: every key required, no other."""
    (top,), parts = msgspec.json.schema_components([form], ref_template="{name}")
    return {"title": form.__name__, **_inlined(top, parts)}


def _inlined(node: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        return _inlined(parts[node["$ref"]], parts)
    kept = {key: value for key, value in node.items() if key in ("type", "enum", "minimum", "maximum", "description")}
    if "enum" in node:
        kept["type"] = "string"  # some servers want it beside
    if node.get("type") == "object":
        kept["properties"] = {name: _inlined(part, parts) for name, part in node["properties"].items()}
        kept |= {"required": list(kept["properties"]), "additionalProperties": False}
        kept.pop("description", None)
    if "items" in node:
        kept["items"] = _inlined(node["items"], parts)
    return kept


def _starts(text: str) -> list[int]:
    """Return where the answer may begin: behind fences first, then at brackets; few, so that time is bounded."""
    fenced = [match.end() for match in islice(_FENCE.finditer(text), _TRIES)]
    return fenced + [match.start() for match in islice(_OPENING.finditer(text), _TRIES)]


def _tidied(text: str, start: int) -> _Tidied:
    """Return the JSON value from `start` on: without trailing commas, lone backslashes doubled, closed if cut off.

    A value that is cut off keeps the whole items of its outermost list. Raise `ValueError` when none is whole, or when
    it is nested too deep.
    """
    out: list[str] = []
    closers: list[str] = []
    whole: tuple[int, str] | None = None
    for match in _PART.finditer(text, start):
        part = match.group()
        if part == '"':
            break  # a string without its end
        if part in ("]", "}"):
            _drop_comma(out)
            if closers.pop() != part:
                raise ValueError(f"a bracket is closed by {part} that was opened by another")
            out.append(part)
            if not closers:
                return _Tidied("".join(out), match.end(), False)
        elif part in ("[", "{"):
            closers.append("]" if part == "[" else "}")
            if len(closers) > MAX_DEPTH:
                raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
            out.append(part)
        else:
            if part == "," and closers[-1] == "]" and closers.count("]") == 1:
                whole = len(out), "".join(reversed(closers))
            out.append(_ESCAPE.sub(_escaped, part) if "\\" in part else part)
            continue
        if closers and closers[-1] == "]" and closers.count("]") == 1 and part in ("]", "}"):
            whole = len(out), "".join(reversed(closers))
    if whole is None:
        raise ValueError("it is cut off before its first item is whole")
    return _Tidied("".join(out[: whole[0]]) + whole[1], len(text), True)


def _escaped(match: re.Match[str]) -> str:
    return match.group() if len(match.group()) > 1 else r"\\"


def _drop_comma(out: list[str]) -> None:
    """Remove a comma before a closing bracket."""
    last = len(out) - 1
    while last >= 0 and not out[last].strip():
        last -= 1
    if last >= 0 and out[last] == ",":
        del out[last:]


def _loaded(text: str) -> Any:
    return json.loads(text, strict=False, object_pairs_hook=_object, parse_constant=_no_constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)[:40]!r} stands there twice")
    return dict(pairs)


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no value")


def _nonsense(cause: str) -> ModelNonsense:
    return ModelNonsense("the answer of the model", cause, "It is not used.")
