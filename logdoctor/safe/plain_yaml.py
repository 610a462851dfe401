"""YAML as texts, lists and mappings; the target type decides what is a number, a date or a yes.

YAML's own types cost more than their length (`1:1:1` is a base-60 number, and all multiples of 2^61-1 are one key to a
hash), and turn `NO` and `1e3` into what nobody meant. One pass over the parser's events builds the values, so that
limits hold before anything grows: aliases, tags and depth are refused.
"""

import re
from collections.abc import Iterator
from typing import Any

_DEEPEST = 12  # levels of lists and mappings; a rule has four
_NOTHING = ("", "~", "null")
_DIRECTIVE = re.compile("(?:\\A|[\r\n\x85\u2028\u2029])\ufeff?%")
"""A line that begins so is a directive, which the parser compares with all others: none of our files has one."""


class NotPlain(ValueError):
    """A text is not YAML, or not the kind that is read; the message says why."""


def documents(text: str, most: int = 500_000) -> Iterator[Any]:
    """Yield each document in a text, None for an empty one; `NotPlain` when it is invalid, or holds more than `most`
    names, values, lists and mappings."""
    import yaml  # slow to import, and rules are cached

    if _DIRECTIVE.search(text):
        raise NotPlain("it holds a directive (%): leave it away")
    open_: list[list[Any]] = [[]]
    try:
        for count, event in enumerate(yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))):
            if count > most or len(open_) > _DEEPEST:
                raise NotPlain(f"it has more than {most} parts" if count > most else "it is nested too deeply")
            if isinstance(event, yaml.AliasEvent):
                raise NotPlain("it holds an alias (*name): write out its value")
            if getattr(event, "tag", None) is not None:
                raise NotPlain("it holds a tag (!name): leave it away")
            if isinstance(event, yaml.ScalarEvent):
                bare = event.implicit[0] and event.value in _NOTHING
                open_[-1].append(None if bare else event.value)
            elif isinstance(event, yaml.CollectionStartEvent):
                open_.append([])
            elif isinstance(event, yaml.CollectionEndEvent):
                found = open_.pop()
                open_[-1].append(found if isinstance(event, yaml.SequenceEndEvent) else _mapping(found))
            elif isinstance(event, yaml.DocumentEndEvent):
                yield open_[0].pop()
    except yaml.YAMLError as error:
        raise NotPlain(" ".join(str(error).split())) from error
    except UnicodeEncodeError as error:
        raise NotPlain("it is no Unicode") from error


def document(text: str) -> Any:
    """Return the only document in a text; `NotPlain` when there are several."""
    found = list(documents(text))
    if len(found) > 1:
        raise NotPlain("it holds more than one document")
    return found[0] if found else None


def _mapping(parts: list[Any]) -> dict[str, Any]:
    """Return alternating names and values as a mapping."""
    names = parts[::2]
    if not all(isinstance(name, str) for name in names):
        raise NotPlain("a name in it is no text")
    return dict(zip(names, parts[1::2], strict=True))
