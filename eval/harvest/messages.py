"""Messages that a source can print, and which of them the rules decide on purpose.

A message counts as decided when a diagnosis rule knows it (as a reason with its role, or as saying nothing), a filter
rule takes it, or it is an exception whose class says the reason (`ValueError`); a `fallback` rule, which takes what
looks like trouble of a kind, does not count.
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
    """One line as a program would print it, from where in which source.

    `raised` is the same as an exception would say it, where the source does not tell how it is printed; a message is
    decided when either is.
    """

    source: str
    place: str
    text: str
    raised: str = ""


Reader = Callable[[Path], Iterator[Message]]
"""What reads the messages of one source out of its tree; `SOURCES` of a module holds its readers by name."""


class Coverage(NamedTuple):
    """How many messages of a source there are, how many of them rules decide, by which, and the others."""

    source: str
    messages: int
    decided: int
    rules: Counter[str]
    undecided: tuple[Message, ...]


def reason_of_class(text: str) -> str:
    """The reason that the class of an exception names by itself; empty for classes that may mean anything."""
    match = _EXCEPTION.match(text)
    reason = taxonomy.reason_of_exception(match["name"]) if match else ""
    return "" if reason in ("Runtime Error", "Connection Error", "OS Error") else reason


def coverage(messages: Iterable[Message], scanner: Scanner) -> list[Coverage]:
    """For each source what the rules decide of its messages; the same text counts once in a source."""
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
    """For each line what decides it; empty where nothing does."""
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
    """Whether a rule that hits a message knows it: not a fallback, and a row for what it looks up."""
    table = rule.verdict.lookup
    return not rule.fallback and (not table or captures(rule, text).get(table, "") in scanner.book.knowledge(table))
