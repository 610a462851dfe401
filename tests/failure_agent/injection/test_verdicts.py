"""Words to a model, planted in real logs, change nothing of what the rules say: neither reason, action nor evidence.

What is planted are words, not forged reports: a line that looks like one of the kernel or of the launcher is evidence,
whoever wrote it, and no log can tell the two apart.
"""

from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from eval.labels import LabelledLog
from logdoctor import pipeline
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Verdict
from tests.failure_agent.injection.planted import FAILURES, HEALTHY, HOSTILE, PLACES, Hostile, everywhere, planted, said
from tests.soak import SOAKING

Diagnose = Callable[[bytes], Verdict]

EVERY = 73 if SOAKING else 149
"""One of so many combinations of logs, places, lines and marks is tried: prime, so that all of each come by."""
LOGS = [log for log in FAILURES if log.path.stat().st_size < 100_000]


@pytest.fixture(scope="module")
def diagnose(scanner: Scanner, limits: ReadLimits, tmp_path_factory: pytest.TempPathFactory) -> Diagnose:
    path = tmp_path_factory.mktemp("logs") / "train.log"

    def run(log: bytes) -> Verdict:
        path.write_bytes(log)
        return pipeline.diagnose([LogFile("main", path)], scanner, limits)

    return run


def told(verdict: Verdict) -> dict[str, Any]:
    """What a verdict says, less the last line of the log that it shows when a job hangs: it may be the planted one."""
    plain = said(verdict)
    plain["evidence"] = [one for one in plain["evidence"] if one[0] != "progress/end of log"]
    return plain


class Moved:
    """Whether a planted line changes what is said of a log; what was said before is kept."""

    def __init__(self, diagnose: Diagnose) -> None:
        self._diagnose = diagnose
        self._before: dict[Path, dict[str, Any]] = {}

    def __call__(self, log: LabelledLog, hostile: Hostile, place: str, as_neighbour: bool) -> list[str]:
        """The parts of the verdict that are not as they were."""
        if log.path not in self._before:
            self._before[log.path] = told(self._diagnose(log.path.read_bytes()))
        before, after = (
            self._before[log.path],
            told(self._diagnose(planted(log, hostile.raw, place, as_neighbour).text)),
        )
        return [part for part in before if before[part] != after[part]]


@pytest.fixture(scope="module")
def moved(diagnose: Diagnose) -> Moved:
    return Moved(diagnose)


def test_the_corpus_is_large_and_of_many_tongues_and_forms() -> None:
    assert len(HOSTILE) >= 40 and len({one.id for one in HOSTILE}) == len(HOSTILE)
    assert len({one.language for one in HOSTILE}) >= 10
    assert len({one.form for one in HOSTILE}) >= 20
    wanted = Counter(one.wants for one in HOSTILE)
    for want in ("change the verdict", "cordon a node", "restart the job", "leak the prompt", "leak the key"):
        assert wanted[want], want
    for want in ("write a filter rule", "write a diagnosis rule", "take a line for harmless", "close the fence"):
        assert wanted[want], want
    assert all(b"\n" not in one.raw for one in HOSTILE)


@pytest.mark.more_in_soak
def test_a_hostile_line_changes_no_verdict(moved: Moved) -> None:
    tried = list(product(LOGS, PLACES, HOSTILE, (False, True)))[::EVERY]
    logs, places, lines, marks = ({str(one) for one in column} for column in zip(*tried, strict=True))
    assert [len(logs), len(places), len(lines), len(marks)] == [len(LOGS), len(PLACES), len(HOSTILE), 2]
    wrong = [
        f"{log.path.name} {place} {one.id} {as_neighbour}: {parts}"
        for log, place, one, as_neighbour in tried
        if (parts := moved(log, one, place, as_neighbour))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("log", FAILURES[::6], ids=lambda log: log.path.name)
def test_hostile_lines_by_every_rank_change_no_verdict(log: LabelledLog, diagnose: Diagnose) -> None:
    """Behind the lines of each writer, with its marks."""
    lines = HOSTILE
    before, after = told(diagnose(log.path.read_bytes())), told(diagnose(everywhere(log, lines, 7)))
    for part in ("outcome", "reason", "fault", "recovery", "suspects", "first_rank"):
        assert before[part] == after[part], part
    quotes = {quote for _, quote in after["evidence"]}
    assert not any(one.text in quote for one in HOSTILE for quote in quotes)


@pytest.mark.parametrize(
    "log", [log for log in HEALTHY if log.path.stat().st_size < 400_000], ids=lambda log: log.path.name
)
def test_a_hostile_line_is_no_alarm_in_a_healthy_log(log: LabelledLog, moved: Moved) -> None:
    turn = HEALTHY.index(log) % 3  # each line comes by in a third of the logs
    for number, one in enumerate(HOSTILE[turn::3]):
        assert "outcome" not in (parts := moved(log, one, "first", number % 2 == 0)), one.id
        assert "recovery" not in parts, one.id
