"""Why a line is taken or kept, learned rules included: for people who look for a missing line."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from logdoctor.diagnose.taught import LONGEST
from logdoctor.errors import PatternRefused, RuleError
from logdoctor.learning.filters.matching import taken
from logdoctor.learning.form import as_filter
from logdoctor.learning.grammar import Chars, Pattern, parse
from logdoctor.rules.lines import hits, joined
from logdoctor.rules.match import Matcher
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.why import why
from logdoctor.store.learning.learned import Learned
from logdoctor.store.learning.refusals import StoredRefusal
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from logdoctor.text import shown

_REMEMBERED = 20_000  # patterns
_REASONS = 5  # most frequent reasons why no rule was learned for a line
_WORTH = 3  # bytes of a literal that is checked before a pattern is compiled


class Said(NamedTuple):
    """Sentences about a line of jobs of one kind; "" stands for all kinds without a learned rule that matches it."""

    kind: str
    findings: list[str]


class LineFinding(NamedTuple):
    """A parsed sentence: the action, the rule ("" for none), and the rest."""

    word: str
    rule: str
    text: str


_WIDE = 11  # characters of a sentence's first word with its blanks
_NAME_NO_RULE = ("marks", "kept", "because", "refused", "unlearned")


def finding(sentence: str) -> LineFinding:
    """Parse one sentence of `why` or `why_learned`, for other layouts."""
    word, rest = sentence[:_WIDE].strip(), sentence[_WIDE:]
    if word in _NAME_NO_RULE:
        return LineFinding(word, "", rest)
    rule, _, text = rest.partition(": ")
    return LineFinding(word, rule.strip(), text)


def why_learned(
    scanner: Scanner, rules: Iterable[Learned], line: str, refusals: Sequence[StoredRefusal] = ()
) -> list[Said]:
    """Return what shipped rules do to a line, and what each matching kind's rules change.

    With a service's `refusals` it also tells why no rule was learned for an unmatched line.
    """
    shipped = list(why(scanner, line))
    every = list(rules)
    said = [Said(DIAGNOSIS, [_named(rule) for rule in found])] if (found := telling(every, line)) else []
    by_kind: dict[str, list[Learned]] = {}
    for rule in _matching([rule for rule in every if rule.claim is None], line):
        by_kind.setdefault(rule.kind, []).append(rule)
    if not by_kind:
        unlearned = _unlearned(refusals, line) if refusals and _is_open(shipped) else ()
        return [Said("", [*shipped, *_because(shipped), *unlearned]), *said]
    return [*(Said(kind, _explained(scanner, shipped, matching, line)) for kind, matching in by_kind.items()), *said]


def _is_open(findings: Sequence[str]) -> bool:
    """Return whether a line is kept without being evidence: the Log Agent learns from such lines."""
    return any(one.startswith(_KEPT) for one in findings) and not any(one.startswith("evidence") for one in findings)


def _unlearned(refusals: Sequence[StoredRefusal], line: str) -> Iterator[str]:
    """Yield which guards refused proposals that match a line, the most frequent first."""
    raw = line.encode("utf-8", "replace")
    likely = [one for one in refusals if _may_match(one.pattern, raw)]
    matched = taken([one.pattern for one in likely], [line])
    counts = Counter((one.guard, one.cause) for one, found in zip(likely, matched, strict=True) if found)
    for (guard, cause), count in counts.most_common(_REASONS):
        yield f"refused    {guard}: {cause} ({'once' if count == 1 else f'{count} times'})"
    if not counts:
        yield "unlearned  no proposal matches it: too few of its form were seen at once"


def telling(rules: Iterable[Learned], line: str) -> list[Learned]:
    """Return the diagnosis rules that match a line, whatever their status; uncompilable ones match none."""
    seen = shown(line)[:LONGEST]
    raw = seen.encode("utf-8", "replace")
    found = []
    for rule in rules:
        if rule.claim is not None and all(text in raw for text in _needed_of_cause(rule.pattern)):
            with suppress(RuleError):
                if any(hits(Matcher([rule.pattern]), joined([seen]))):
                    found.append(rule)
    return found


def _needed_of_cause(source: str) -> tuple[bytes, ...]:
    """Return required literals of a diagnosis pattern, which need not end with `$`; () when unknown."""
    return _needed(source if source.endswith("$") and not source.endswith("\\$") else f"{source}$") or ()


def _named(rule: Learned) -> str:
    """Return a sentence about a diagnosis rule that matches a line."""
    assert rule.claim is not None
    how = {"active": "named by  ", "shadow": "would name"}.get(rule.status, "in vain   ")
    return f"{how} {rule.id}: {rule.claim.reason}{'' if rule.status == 'active' else f' ({rule.status})'}"


def _explained(scanner: Scanner, shipped: list[str], matching: Sequence[Learned], line: str) -> list[str]:
    """Return sentences about a line of one kind, compiling only rules that match it."""
    learned = tuple(as_filter(rule) for rule in matching)
    scan = scanner.learning(matching[0].kind, learned).scan(line.encode("utf-8", "replace"), np.empty(0, np.int64))
    first = len(scanner.book.filters)
    facts = _Facts(
        bool(len(scan.evidence)),
        bool(scan.strong[0] or scan.weak[0]),
        int(scan.owner[0]) - first if scan.owner[0] >= 0 else None,
        int(scan.shadow[0]) - first,
    )
    said = [_said_of(rule, place, facts) for place, rule in enumerate(matching)]
    findings = [*(finding for finding in shipped if not finding.startswith(_KEPT)), *said]
    if facts.owner is None:
        findings += [finding for finding in shipped if finding.startswith(_KEPT)]
    return [*findings, *_because(findings)]


_KEPT = "kept "


class _Facts(NamedTuple):
    """The matching result of a line. `owner` is who takes it: the index of a learned rule, below 0 a shipped one, None
    nobody; `shadow` is the index of the rule in shadow that would take it, or below 0."""

    evident: bool
    marked: bool
    owner: int | None
    shadow: int


def _said_of(rule: Learned, place: int, facts: _Facts) -> str:
    """Return a sentence about a learned rule that matches the line."""
    if facts.owner == place:
        return f"taken by   {rule.id}"
    return f"{'would take' if facts.shadow == place else 'in vain   '} {rule.id}: {_reason(rule, place, facts)}"


def _reason(rule: Learned, place: int, facts: _Facts) -> str:
    """Return why a learned rule does not take a line that it matches."""
    if rule.status == "retired":
        return "it is retired"
    if rule.status == "proposed":
        return f"it is waiting for approval ({rule.waits_for})" if rule.waits_for else "it is waiting for approval"
    if facts.evident:
        return "the line is evidence, which is never removed"
    if facts.owner is not None:
        return "another rule removes the line first"
    if facts.marked and not rule.harmless:
        return "the line looks like an error, and the rule is not approved for such lines"
    if facts.shadow == place:
        return "it is in shadow, where it counts lines but removes none"
    return "another rule in shadow counts the line first"


def _because(findings: Sequence[str]) -> Iterator[str]:
    """Yield why a kept line is kept; nothing for one that is taken."""
    if not any(finding.startswith(_KEPT) for finding in findings):
        return
    if any(finding.startswith("evidence") for finding in findings):
        yield "because    it is evidence, which no filter rule may remove"
    elif any(finding.startswith(("in vain", "would take")) for finding in findings):
        yield "because    none of the rules that match it may remove it"
    else:
        yield "because    no rule matches it"


def _matching(rules: list[Learned], line: str) -> list[Learned]:
    """Return the rules that match a line, whatever their status. Few are compiled, because each costs milliseconds."""
    raw = line.encode("utf-8", "replace")
    likely = [rule for rule in rules if _may_match(rule.pattern, raw)]
    matched = taken([rule.pattern for rule in likely], [line])
    return [rule for rule, found in zip(likely, matched, strict=True) if found]


def _may_match(source: str, line: bytes) -> bool:
    """Return whether a line holds the literals that a pattern requires."""
    needed = _needed(source)
    return needed is not None and all(text in line for text in needed)


@lru_cache(_REMEMBERED)
def _needed(source: str) -> tuple[bytes, ...] | None:
    """Return literals of every line that the pattern matches; None for a pattern that matches nothing."""
    try:
        return tuple(_literals(parse(source)))
    except PatternRefused:
        return None


def _literals(pattern: Pattern) -> Iterator[bytes]:
    run = bytearray()
    for node in pattern.nodes:
        if isinstance(node, Chars) and node.literal and (node.least, node.most) == (1, 1):
            run += bytes(node.members)
            continue
        if len(run) >= _WORTH:
            yield bytes(run)
        run.clear()
    if len(run) >= _WORTH:
        yield bytes(run)
