"""Messages that a source can print, and which of them the rules decide on purpose.

A message counts as decided when a diagnosis rule knows it (as a reason with its role, or as saying nothing), a filter
rule removes it, or it is an exception whose class gives the reason (`ValueError`); a `fallback` rule, which takes
whatever resembles a kind of trouble, does not count.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import regex

from logdoctor import taxonomy
from logdoctor.rules.captures import captures
from logdoctor.rules.lines import joined
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import DiagnosisRule

_EXCEPTION = regex.compile(r"(?:\w+\.)*(?P<name>[A-Z]\w*(?:Error|Exception)): ")


class Message(NamedTuple):
    """One line as a program would print it, with its source and place.

    `raised` is the same as an exception would print it, if the source does not tell how it is printed; a message is
    decided when either is.
    """

    source: str
    place: str
    text: str
    raised: str = ""


Reader = Callable[[Path], Iterator[Message]]
"""Reads the messages of one source from its tree; `SOURCES` of a module holds its readers by name."""


class Coverage(NamedTuple):
    """How many messages a source has, how many of them rules decide, by which, and the others."""

    source: str
    messages: int
    decided: int
    rules: Counter[str]
    undecided: tuple[Message, ...]


def reason_of_class(text: str) -> str:
    """Return the reason that an exception's class names by itself, else ""."""
    match = _EXCEPTION.match(text)
    reason = taxonomy.reason_of_exception(match["name"]) if match else ""
    return "" if reason in ("Runtime Error", "Connection Error", "OS Error") else reason


def coverage(messages: Iterable[Message], scanner: Scanner) -> list[Coverage]:
    """Return for each source what the rules decide of its messages; equal texts count once."""
    by_source: dict[str, dict[str, Message]] = {}
    for message in messages:
        by_source.setdefault(message.source, {}).setdefault(message.text, message)
    return [_coverage(source, list(some.values()), scanner) for source, some in by_source.items()]


def _coverage(source: str, messages: list[Message], scanner: Scanner) -> Coverage:
    said = _deciders([message.text for message in messages], scanner)
    raised = _deciders([message.raised for message in messages], scanner)
    deciders = [one or other for one, other in zip(said, raised, strict=True)]
    undecided = tuple(message for message, decider in zip(messages, deciders, strict=True) if not decider)
    return Coverage(source, len(messages), len(messages) - len(undecided), Counter(filter(None, deciders)), undecided)


def _deciders(texts: list[str], scanner: Scanner) -> list[str]:
    """Return the rule or class that decides each line; "" for none."""
    lines = joined(texts)
    scan = scanner.scan(lines.buffer, lines.newlines)
    deciders: dict[int, str] = {}
    for line, rule in scan.evidence.tolist():
        if _knows(scanner, scanner.book.diagnoses[rule], texts[line]):
            deciders.setdefault(line, scanner.book.diagnoses[rule].id)
    for line, owner in enumerate(scan.owner[: len(texts)].tolist()):
        if owner >= 0:
            deciders.setdefault(line, scanner.book.filters[owner].id)
    for line, text in enumerate(texts):
        if line not in deciders and (reason := reason_of_class(text)):
            deciders[line] = f"structure/{reason}"
    return [deciders.get(line, "") if text else "" for line, text in enumerate(texts)]


def _knows(scanner: Scanner, rule: DiagnosisRule, text: str) -> bool:
    """Return whether a rule knows a message: not as a fallback, nor without its code."""
    table = rule.verdict.lookup
    return not rule.fallback and (not table or captures(rule, text).get(table, "") in scanner.book.knowledge(table))
