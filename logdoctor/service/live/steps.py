"""The steps of a growing log: of whole lines, and of a progress bar redrawn on one."""

from math import isfinite

import numpy as np

from logdoctor.compress.cut import newlines_of
from logdoctor.compress.filter import compress
from logdoctor.compress.progress import Meter, read
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Segment


def said_since(segment: Segment, meter: Meter) -> tuple[int, bytes]:
    """Return how many steps a segment shows, and what was printed after the last one. A step printed by several lines
    or ranks counts once; lines without a number are one step together."""
    text = segment.data
    if not meter.readings and not meter.recent:
        return 0, text
    series = [*meter.readings.values(), *(recent.readings for recent in meter.recent.values())]
    last = max(int(readings.lines[-1]) for readings in series) - segment.line
    steps = np.unique(np.concatenate([readings.steps for readings in series]))
    count = max(1, int(np.isfinite(steps).sum()))
    return count, text[int(segment.newlines[last]) + 1 :] if last < len(segment.newlines) else b""


def steps_of_bar(stream: str, state: bytes, scanner: Scanner) -> list[float]:
    """Return the steps that one state of a bar, an incomplete line, shows."""
    line = state + b"\n"
    alone = compress(Segment(stream, line, 0, 1, newlines_of(line)), scanner)
    series = read(alone, scanner.book).readings.values()
    return [step for readings in series for step in readings.steps.tolist() if isfinite(step)]
