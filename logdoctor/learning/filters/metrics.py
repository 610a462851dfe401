"""What a learned rule reads from the lines it takes, so that these can still be quoted.

Frameworks differ in how they print progress, but hardly in what they call it: step, loss, throughput, accuracy. No
verdict depends on what learned rules read (see `compress.progress`): to change that, export the rule and put it below
`rules/`.
"""

from collections.abc import Sequence
from itertools import pairwise

import regex

from logdoctor.text import last_state

_BEFORE = r"(?:^|[\s,;{|\[('\"/])"
STEP = (
    rf"(?i){_BEFORE}(?:(?:global_?step|train_?step|iteration|iter|step)['\"]?\s*+[:=]?\s*+|batch ?\[)"
    r"(?P<step>\d{1,12})(?!\w)"
)
STEP_OF = rf"{STEP}\s*/\s*(?P<total>\d{{1,12}})(?!\w)"
_VALUE = r"[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)"
_NOT_TRAINING = r"(?!.{0,4000}\b(?:eval|val|valid|validation|test)[ _/]?loss)"
LOSS = (
    rf"(?i)^{_NOT_TRAINING}.*?{_BEFORE}(?:lm|train|training|total)?[ _/]?loss['\"]?\s*[:=]\s*(?P<loss>{_VALUE})(?!\w)"
)
_PER_SECOND = r"(?:samples|sequences|images|imgs?|tokens|examples|records|words|frames|steps|it(?:erations)?)"
RATE = (
    rf"(?i){_BEFORE}(?:throughput|speed|{_PER_SECOND}(?:_per_|/)s(?:ec(?:onds?)?)?)['\"]?\s*+[:=]\s*+"
    rf"(?P<throughput>\d[\d.,]*)(?!\w)"
)
RATE_IN_UNITS = rf"(?i)(?<![\w.,])(?P<throughput>\d[\d.,]*+) ?{_PER_SECOND}/s(?:ec(?:ond)?)?\b"
ACCURACY = (
    r"(?i)(?:^|[\s,;{|\[('\"/_-])(?:accuracy|acc(?:@?1)?|top-?1)['\"]?\s*+[:=]?\s*+"
    r"(?P<accuracy>\d[\d.]*(?:e-?\d+)?)(?!\w)"
)
BAR = (
    r"^(?![^|%]{0,80}(?:Map|Load|Download|Generat|Sav|Fetch|Filter|Tokeniz|Group|Pack|Sanity|Valid|Eval|Test|Shard"
    r"|Convert|Process|Upload|Extract|Warm|Captur|Comput))"
    r"[^|%]{0,120}%\|[^|]*\| *(?P<step>\d{1,12})/(?P<total>\d{1,12}) \[[\d:]+<"
)
"""Expressions of `FilterRule.metrics`. A bar counts steps unless it names other work."""
KNOWN = frozenset({BAR, STEP_OF, STEP, RATE, RATE_IN_UNITS, LOSS, ACCURACY})
"""All expressions that a learned rule may read with."""
_SECONDS = 0.2
_FORWARD = 0.9  # share of a stream's steps that increase, if they are steps


def metrics(lines: Sequence[tuple[str, int, str]]) -> tuple[str, ...]:
    """Return the expressions that read something from all lines, given as (stream, number, text)."""
    lines = [(stream, number, last_state(text)) for stream, number, text in lines]
    texts = [text for _, _, text in lines]
    steps = next((one for one in (BAR, STEP_OF, STEP) if _reads(one, texts) and _goes_forward(one, lines)), None)
    rate = next((one for one in (RATE, RATE_IN_UNITS) if _reads(one, texts)), None)
    others = (one if _reads(one, texts) else None for one in (LOSS, ACCURACY))
    return tuple(one for one in (steps, rate, *others) if one)


def _reads(expression: str, texts: Sequence[str]) -> bool:
    return bool(texts) and all(regex.search(expression, text, timeout=_SECONDS) for text in texts)


def _goes_forward(expression: str, lines: Sequence[tuple[str, int, str]]) -> bool:
    """Return whether what is read as steps grows along each stream."""
    steps: dict[str, list[int]] = {}
    for stream, _, text in sorted(lines):
        match = regex.search(expression, text, timeout=_SECONDS)
        steps.setdefault(stream, []).append(int(match["step"]) if match else 0)
    pairs = [pair for column in steps.values() for pair in pairwise(column)]
    return sum(a <= b for a, b in pairs) >= _FORWARD * len(pairs)
