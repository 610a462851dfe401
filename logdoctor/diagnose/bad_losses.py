"""Metric lines with a NaN or infinite loss, which most filter rules do not match.

A filter rule reads only lines that its patterns match, and the patterns of many frameworks want a digit. Here, the
metric expressions of the rules that read losses in a stream are tried on its lines that report a bad loss.
"""

import math
import re
from functools import cache

import numpy as np

from logdoctor.diagnose.findings import StreamReading
from logdoctor.rules.load import RuleBook
from logdoctor.text import last_state
from logdoctor.types import Line, Readings

_READ = 4096  # characters of a line that are searched


def bad_losses(reading: StreamReading, book: RuleBook) -> dict[str, Readings]:
    """Return readings, by rule, of lines that report a bad loss and that no rule has read. Losses are inf."""
    said = [line for line, _ in reading.lines if _is_of_spike(line, book)]
    if not said:
        return {}
    progress = reading.record.progress
    rules = [rule for rule in book.filters if rule.id in progress and not np.isnan(progress[rule.id].losses).all()]
    read = {line for readings in progress.values() for line in readings.lines.tolist()}
    lines = [line for line in said if line.number not in read]
    found = {rule.id: [row for line in lines if (row := _row(line, rule.metrics))] for rule in rules}
    return {rule: _readings(rows) for rule, rows in found.items() if rows}


def _is_of_spike(line: Line, book: RuleBook) -> bool:
    return any(book.diagnoses[number].verdict.reason == "Loss Spike" for number in line.rules)


def _row(line: Line, metrics: tuple[str, ...]) -> tuple[int, float] | None:
    """Return (line number, step or NaN) of a line whose loss is not finite, else None."""
    text = last_state(line.text)[:_READ]
    values: dict[str, str] = {}
    for metric in metrics:
        if match := _compiled(metric).search(text):
            values |= {name: value for name, value in match.groupdict().items() if value is not None}
    try:
        step, loss = float(values.get("step", "nan")), float(values["loss"])
    except (KeyError, ValueError):
        return None
    return None if math.isfinite(loss) else (line.number, step)


def _readings(rows: list[tuple[int, float]]) -> Readings:
    lines, steps = (np.array(column) for column in zip(*rows, strict=True))
    return Readings(lines, steps, np.full(len(rows), np.inf), np.full(len(rows), np.nan))


@cache
def _compiled(metric: str) -> re.Pattern[str]:
    return re.compile(metric, re.ASCII)
