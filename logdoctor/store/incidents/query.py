"""The query of a list of incidents, such as `is:new node:os-* reason:"ECC Error" gpus:>256 age:<2h`.

Terms stand beside each other, and all must hold; values and ranges of one field are alternatives. `-` before a term
excludes what it matches. A value in quotes is taken as it is; `*` and `?` of another stand for any characters. Words
without a field are searched.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from logdoctor import taxonomy
from logdoctor.errors import InputError
from logdoctor.store.fit import MAX_ID, plain
from logdoctor.store.incidents.severity import LEVELS

State = Literal["new", "acknowledged", "resolved"]
STATES: tuple[State, ...] = ("new", "acknowledged", "resolved")
OPEN: tuple[State, ...] = ("new", "acknowledged")
MAX_QUERY = 500
"""Characters of a query."""
FIELDS = {
    "is": "new, acknowledged, resolved, open, all, quiet, snoozed or muted",
    "reason": "the reason of the newest failure",
    "category": "the kind of reason, such as Script",
    "recovery": "what to do, such as isolate_and_restart",
    "fault": "user, infrastructure, nobody or unknown",
    "node": "a suspected node",
    "job": "the name of a job",
    "user": "the user of a job",
    "assignee": "who looks after it",
    "fingerprint": "the digest of the failure",
    "age": "the time since the newest failure, such as <2h or 1d..7d",
    "gpus": "GPUs of the largest attempt, such as >256",
    "hours": "GPU hours",
    "attempts": "failed attempts",
    "severity": "low, moderate, high, critical, or a number",
    "id": "its number; #12 is the same",
}
"""The fields, each with what its values are."""
STATE_SETS: dict[str, tuple[State, ...]] = {
    "new": ("new",),
    "acknowledged": ("acknowledged",),
    "resolved": ("resolved",),
    "open": OPEN,
    "all": STATES,
}
"""The states of an `is:` term; the other values of `is:` are about being quiet."""
CHOICES: dict[str, tuple[str, ...]] = {
    "is": (*STATE_SETS, "quiet", "snoozed", "muted"),
    "reason": tuple(taxonomy.REASONS),
    "category": taxonomy.CATEGORIES,
    "recovery": taxonomy.RECOVERIES,
    "fault": taxonomy.FAULTS,
}
"""All values of fields that have no others; case does not matter."""
NUMBERS = ("age", "gpus", "hours", "attempts", "severity", "id")
"""Fields whose values are numbers: `12`, `>12`, `>=12`, `<12`, `<=12` or `12..20`."""

_MAX_TERMS = 20
_MAX_WILD = 5  # wildcards of a value
_TERM = re.compile(r'(-?)(?:([A-Za-z_]+):(?=\S))?(?:"((?:[^"\\]|\\.)*)"(?!\S)|(\S+))')
_BOUND = re.compile(r"(>=|<=|>|<|=|)([0-9]{1,18}(?:\.[0-9]{1,6})?)(s|m|h|d|w|)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_ENDS = (float(MAX_ID), *(least for least, _ in LEVELS))
_LEVELS: dict[str, tuple[tuple[str, float], ...]] = {
    name: ((">=", least), ("<", end)) for (least, name), end in zip(LEVELS, _ENDS, strict=False)
}
_STRAIGHT = str.maketrans("\u201c\u201d\u201e", '"""')
_OPERATORS = ("OR", "AND", "NOT", "not", "||", "&&")
"""What stands between terms elsewhere."""
_VALUE, _WORD = re.compile(r'[^\s"*?\\]+'), re.compile(r'[^\s":#-][^\s":]*')


class Term(NamedTuple):
    """A term: its `text` as it was written, its field ("" for words), and its value, which may have wildcards. A number
    has `bounds`, such as `(">", 256.0)`, all of which must hold; an age is in seconds."""

    text: str
    field: str
    value: str
    excludes: bool = False
    wild: bool = False
    bounds: tuple[tuple[str, float], ...] = ()

    @property
    def is_limit(self) -> bool:
        """Return whether it is a least or greatest number, which must hold beside others of its field."""
        return len(self.bounds) == 1 and self.bounds[0][0] != "="


def parse(query: str) -> tuple[Term, ...]:
    """Return the terms of a query. `InputError`, which names the term, when it has no meaning or is too long."""
    if len(query) > MAX_QUERY:
        raise InputError("the query", f"it has {len(query)} characters", f"Use at most {MAX_QUERY}.")
    straight = plain(query).translate(_STRAIGHT)
    terms = tuple(_read(*found.group(0, 1, 2, 3, 4)) for found in _TERM.finditer(straight))
    if len(terms) > _MAX_TERMS:
        raise InputError("the query", f"it has {len(terms)} terms", f"Use at most {_MAX_TERMS}.")
    return terms


def states_of(terms: Iterable[Term]) -> tuple[State, ...]:
    """Return the states that `is:` terms ask for; none without such a term."""
    asked = {state for one in terms if is_state(one) and not one.excludes for state in STATE_SETS[one.value]}
    return tuple(state for state in STATES if state in asked)


def is_state(one: Term) -> bool:
    """Return whether a term is about the state."""
    return one.field == "is" and one.value in STATE_SETS


def is_flag(one: Term) -> bool:
    """Return whether a term is about being quiet."""
    return one.field == "is" and one.value not in STATE_SETS


def written(field: str, value: str) -> str:
    """Return the term for a value, or for a word without a field, in quotes where it needs them."""
    head = f"{field}:" if field else ""
    if (_VALUE if field else _WORD).fullmatch(value):
        return head + value
    return head + '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read(text: str, minus: str, field: str | None, quoted: str | None, bare: str | None) -> Term:
    excludes, field = bool(minus), (field or "").lower()
    if bare is not None and '"' in bare:
        raise InputError(f"the term {text}", "a quote has no end, or text after it", 'Write "two words" or "a \\" b".')
    if bare in _OPERATORS:
        step = f'Values of one field are alternatives, all fields hold; exclude with -field:value, search "{bare}".'
        raise InputError(f"the term {text}", "it is a word of other query languages", step)
    if bare is not None and not field and bare.endswith(":") and bare[:-1].lower() in FIELDS:
        raise InputError(f"the term {text}", "it has no value", f"Write the value right behind it, as in {bare}value.")
    value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare or ""
    if not field and bare is not None and re.fullmatch(r"#[0-9]{1,18}", bare):
        field, value = "id", bare[1:]
    if field and field not in FIELDS:
        near = difflib.get_close_matches(field, FIELDS, 1)
        meant = f"Did you mean {near[0]}:? " if near else ""
        raise InputError(
            f"the term {text}",
            f"there is no field {field}",
            f"{meant}Fields are {', '.join(FIELDS)}; to search for the text, put it in quotes.",
        )
    if field in NUMBERS:
        return Term(text, field, value, excludes, bounds=tuple(_bounds(text, field, value)))
    wild = bool(field) and quoted is None and any(char in value for char in "*?")
    if wild and value.count("*") + value.count("?") > _MAX_WILD:
        raise InputError(f"the term {text}", f"it has more than {_MAX_WILD} wildcards", "Use fewer.")
    if field in CHOICES and not (wild and field != "is"):
        value = _choice(text, field, value)
    return Term(text, field, value, excludes, wild)


def _choice(text: str, field: str, value: str) -> str:
    known = {one.casefold(): one for one in CHOICES[field]}
    if value.casefold() in known:
        return known[value.casefold()]
    begun = [one for one in known if one.startswith(value.casefold())]
    held = [one for one in known if value.casefold() in one]
    near = (begun or held or difflib.get_close_matches(value.casefold(), known, 3))[:3]
    said = ", ".join(written(field, known[one]) for one in near) or f"{field}: takes {', '.join(CHOICES[field][:8])}"
    raise InputError(
        f"the term {text}", f"{field} has no value {value}", f"Did you mean {said}?" if near else f"{said}."
    )


def _bounds(text: str, field: str, value: str) -> Iterator[tuple[str, float]]:
    """Yield the bounds that a number must keep: one, or two of a range."""
    if field == "severity" and value.lower() in _LEVELS:
        yield from _LEVELS[value.lower()]
        return
    if field == "severity" and value.isalpha():
        raise InputError(f"the term {text}", "there is no such severity", f"Levels are {', '.join(_LEVELS)}.")
    least, apart, most = value.partition("..")
    found_bounds: list[float] = []
    for part, sign in ((least, ">="), (most, "<=")) if apart else ((value, ""),):
        found = _BOUND.fullmatch(part)
        if not found or bool(found[3]) != (field == "age") or (sign and found[1]):
            like = "2h, <2h or 1d..7d (s, m, h, d, w)" if field == "age" else "256, >256, <=256 or 8..64"
            raise InputError(f"the term {text}", f"{field} takes a number", f"Write it as {field}:{like}.")
        found_bounds.append(min(float(found[2]) * _SECONDS[found[3]], float(MAX_ID)))
        if field == "hours" and not (sign or found[1]):
            yield from ((">=", found_bounds[0]), ("<", found_bounds[0] + 1))
        else:
            yield sign or found[1] or ("<" if field == "age" else "="), found_bounds[-1]
    if apart and found_bounds[0] > found_bounds[1]:
        raise InputError(f"the term {text}", "its range ends before it begins", f"Write it as {field}:{most}..{least}.")
