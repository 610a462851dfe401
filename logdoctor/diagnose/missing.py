"""Which ranks were missing when a collective, a barrier or a rendezvous timed out, and what they were doing.

Ranks that report a time-out were waiting; the cause is with those that did not arrive. Logs show this in three ways: in
words ("missing ranks: 3"), by sequence numbers (a rank's last call precedes the one in which the others wait), and by
silence (all ranks but one report). The last lines before the first report show what kept them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import regex

from logdoctor.diagnose.findings import LogFinding, StreamReading

WAITED = ("NCCL Timeout Error", "Connection Error", "Hang")
"""Reasons whose cause may be a missing rank."""

_RANKS = r"(?P<ranks>\d{1,7}(?:(?:, ?| and | )\d{1,7}){0,63})"
_SAID = regex.compile(
    r"(?i)(?:missing ranks?|ranks? missing|unresponsive ranks?|ranks? not (?:ready|joined|responding))[ :=\[]{1,4}"
    rf"{_RANKS}"
    rf"|\branks? \[?{_RANKS}\]? (?:failed to pass monitoredBarrier|did(?: not|n't) (?:join|call|reach|enter))"
)
_WORK = regex.compile(
    r"\[(?:PG (?:ID )?(?P<group>\w+)[^\]]*?)?Rank (?P<rank>\d{1,9})\].{0,200}?"
    r"(?:at (?:NCCL )?work(?: sequence id)?|Timeout at NCCL work): (?P<at>\d{1,18}).{0,60}?"
    r"last enqueued(?: NCCL)? work: (?P<enqueued>-?\d{1,18})"
)
_SIGNALLED = regex.compile(
    r"Rank (?P<rank>\d{1,9})\].{0,200}?[Rr]eceived a dump signal.{0,200}?"
    r"[Ll]ast enqueued NCCL work: (?P<enqueued>\d{1,18})"
)
_SILENT = 0.25
"""The largest share of silent ranks that singles them out."""

_DATA = (
    r"(?i)tokeni[sz]|\bmap(?:ping)? ?\(|preprocess|index(?:ing| cache)"
    r"|(?:building|generating|loading|preparing|processing|shuffling|packing) (?:the )?(?:\w+ ){0,3}"
    r"(?:data ?set|index|split|cache|shards?|examples)"
)
_CHECKPOINT = (
    r"(?i)(?:sav|writ|upload|persist|flush)\w{0,4} .{0,60}"
    r"(?:checkpoint|shard|\.distcp|\.pt\b|\.ckpt|safetensors|optimizer|state)"
)
_BUSY = (
    (regex.compile(_DATA), "data were still being prepared", "fix_first"),
    (regex.compile(r"(?i)\bdownload|fetching \d+ files"), "something was still being downloaded", "fix_first"),
    (regex.compile(r"(?i)\b(?:compil|autotun|inductor|ninja)"), "code was still being compiled", "fix_first"),
    (regex.compile(_CHECKPOINT), "a checkpoint was still being written", "restart"),
)
"""What keeps a rank from a collective: pattern, description, recovery."""
_DONE = regex.compile(
    r"(?i)\b(?:done|finished|completed?|enabled|disabled|reused|written|loaded|saved|in [\d.]+ ?m?s)\b"
)
_BEFORE = 3  # lines before the first report that are searched
_WORDS = {
    "fix_first": "Let all ranks wait for it before the first collective, speed it up, or raise the timeout.",
    "restart": "Check the checkpoint storage; restart, and give checkpoints more time or write them in the background.",
}


class Absence(NamedTuple):
    """Ranks that did not take part, an explanation, and the line that shows it, if any."""

    ranks: tuple[int, ...]
    why: str
    line: int | None


class Delay(NamedTuple):
    """What a rank was still doing when the others timed out: explanation, line, recovery and next step."""

    why: str
    line: int
    recovery: str
    suggestion: str


def absence(readings: Sequence[StreamReading], found: Sequence[LogFinding], cause: LogFinding) -> Absence | None:
    """Return which ranks were missing; None when the log does not show it."""
    reading = readings[cause.stream]
    return _in_words(reading) or _behind(readings, cause.stream) or _silent(readings, found, cause)


def delay(readings: Sequence[StreamReading], cause: LogFinding) -> Delay | None:
    """Return the slow work in the 3 lines before the first time-out report, the last one first. None when they show
    none."""
    reading = readings[cause.stream]
    for number in range(cause.line - 1, max(cause.line - 1 - _BEFORE, 0), -1):
        text = reading.text(number)
        if text is None or not text.strip() or _DONE.search(text[-2000:]):
            continue
        for shape, words, recovery in _BUSY:
            if shape.search(text[-2000:]):
                why = f"When the other ranks timed out, {words} (line {number})."
                return Delay(why, number, recovery, _WORDS[recovery])
    return None


def _in_words(reading: StreamReading) -> Absence | None:
    for line, where in reading.lines:
        if (line.rules or line.strong) and (stated := _SAID.search(where.message[:1000])):
            ranks = tuple(int(number) for number in regex.findall(r"\d+", stated["ranks"]))
            return Absence(ranks, f"{_named(ranks)} did not take part.", line.number)
    return None


def _behind(readings: Sequence[StreamReading], stream: int) -> Absence | None:
    """Return the ranks whose last call precedes the one in which most of their group wait."""
    groups: dict[str, dict[int, tuple[int, int, int]]] = {}
    signalled: dict[int, tuple[int, int, int]] = {}
    for number, reading in enumerate(readings):
        for line, _ in reading.lines:
            if "ast enqueued" not in line.text:
                continue
            if called := _SIGNALLED.search(line.text[:2000]):
                own = line.number if number == stream else 0
                signalled.setdefault(int(called["rank"]), (0, int(called["enqueued"]), own))
            elif work := _WORK.search(line.text[:2000]):
                place = (int(work["at"]), int(work["enqueued"]), line.number if number == stream else 0)
                groups.setdefault(work["group"] or "", {}).setdefault(int(work["rank"]), place)
    for works in groups.values():
        waits = Counter(at for at, enqueued, _ in works.values() if enqueued >= at)
        if not waits:
            continue
        at, waiting = waits.most_common(1)[0]
        late = {rank: work for rank, work in works.items() if work[1] < at}
        late |= {rank: work for rank, work in signalled.items() if rank not in works and work[1] == at - 1}
        if late and waiting > len(late):
            ranks = tuple(sorted(late))
            told = next((number for _, _, number in late.values() if number), None)
            return Absence(ranks, f"{_named(ranks)} never called collective #{at}, where the others wait.", told)
    return None


def _silent(readings: Sequence[StreamReading], found: Sequence[LogFinding], cause: LogFinding) -> Absence | None:
    """Return the ranks that report nothing while nearly all others do."""
    reporting = {finding.rank for finding in found if finding.reason == cause.reason and finding.rank is not None}
    known = {where.rank for reading in readings for _, where in reading.lines if where.rank is not None}
    known |= {rank for reading in readings for rank in reading.record.placements}
    silent = sorted(known - reporting)
    if len(reporting) < 2 or not silent or len(silent) > max(1, _SILENT * len(known)):
        return None
    return Absence(tuple(silent), f"All ranks report the timeout except {_named(tuple(silent), 'rank')}.", None)


def _named(ranks: tuple[int, ...], word: str = "Rank") -> str:
    few = ", ".join(map(str, ranks[:6])) + (f" and {len(ranks) - 6} more" if len(ranks) > 6 else "")
    return f"{word}{'s' if len(ranks) > 1 else ''} {few}"
