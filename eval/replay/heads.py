"""Healthy training before a failure: from `biglog.py` by framework, and from healthy logs of the corpus."""

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from eval.labels import HealthyCase, read_corpus
from eval.replay.vary import Traits, Variation, traits
from logdoctor.errors import InputError
from logdoctor.text import origin, seconds_of

FRAMEWORKS = (
    *("megatron", "megatron_deepspeed", "deepspeed", "internevo", "hf_trainer", "llamafactory", "torchtitan", "nemo"),
    *("composer", "nanotron", "olmo", "colossalai", "verl", "metaseq", "lightning"),
)
_SEEDS = (3,)
_MB = 0.5
_END = 40  # last lines of a generated log, which may report the end of training
_REAL_PART = 0.7  # of a healthy log of the corpus: the rest may show how it ended
_MOST = 80_000  # most bytes of healthy training before a failure
_STEP = re.compile(r"(?i)\b(?:iter(?:ation)?|step|loss)s?\b[ =:\]]{1,12}\d")
_CHANNELS = ("task", "host", "rank", "local", "ray", "pod")


class Before(NamedTuple):
    """Lines of healthy training, how their writers are marked, and their last time (None without stamps)."""

    text: str
    style: str
    time: float | None


class HealthyHead:
    """The healthy training of one job, which can end anywhere."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._begin = next((n for n, line in enumerate(lines) if n > 20 and _STEP.search(line)), len(lines) // 4)
        self._traits: Traits = traits("\n".join(lines))
        self.style = _style(lines)

    def before(self, rng: random.Random, training: bool) -> Before:
        """Return a job's output until it failed, before or in training; different at every call."""
        begin = self._begin
        if not training:
            lines = self._lines[: rng.randint(min(12, begin), min(begin, 260))]
        else:
            first = rng.randint(begin, max(begin, len(self._lines) - 30))
            count = int(10 ** rng.uniform(1.3, 3.0))
            lines = [*self._lines[: rng.randint(min(20, begin), min(begin, 320))], *self._lines[first : first + count]]
        while len(lines) > 20 and sum(map(len, lines)) > _MOST:
            lines = lines[: len(lines) * 3 // 4]
        text = Variation(rng, self._traits).text("\n".join(lines))
        return Before(text, self.style, _last_time(text))


def _style(lines: list[str]) -> str:
    """Return the mark before most lines: one of `_CHANNELS`, or ""."""
    marks: dict[str, int] = {}
    sample = lines[:: max(1, len(lines) // 200)]
    for line in sample:
        found = origin(line[:300])
        fields = (found.task, None, found.rank, found.local_rank)
        if line.startswith("("):
            name = "ray"
        elif found.node is not None:
            name = "host"
        else:
            name = next((n for n, value in zip(_CHANNELS, fields, strict=False) if value is not None), "")
        marks[name] = marks.get(name, 0) + 1
    name, count = max(marks.items(), key=lambda item: item[1])
    return name if count > len(sample) // 3 else ""


def _last_time(text: str) -> float | None:
    for line in reversed(text[-6000:].split("\n")):
        if (time := seconds_of(line, 2025)) is not None:
            return time
    return None


def heads(corpus: Path, folder: Path) -> dict[str, list[HealthyHead]]:
    """Return the healthy jobs by framework, those of the corpus under "real". `folder` is for temporary logs. Raises
    `InputError` when the generator is missing or fails."""
    found: dict[str, list[HealthyHead]] = {
        framework: [HealthyHead(_generated(corpus / "biglog.py", folder, framework, seed)) for seed in _SEEDS]
        for framework in FRAMEWORKS
    }
    found["real"] = []
    for path, case in read_corpus(corpus / "healthy"):
        if isinstance(case, HealthyCase) and case.outcome in ("completed", "running") and case.fault is None:
            lines = path.read_bytes().decode("latin-1").split("\n")
            found["real"].append(HealthyHead(lines[: int(len(lines) * _REAL_PART)]))
    return found


def _generated(generator: Path, folder: Path, framework: str, seed: int) -> list[str]:
    if not generator.is_file():
        raise InputError(str(generator), "is missing", "Name the corpus that biglog.py lies in.")
    log = folder / "head.log"
    command = [sys.executable, str(generator), "--framework", framework, "--mb", f"{_MB:g}", "--seed", str(seed)]
    done = subprocess.run([*command, "--out", str(log)], capture_output=True, text=True, check=False)
    if done.returncode:
        cause = (done.stderr.strip().split("\n") or [""])[-1]
        raise InputError(str(generator), f"could not write a log ({cause})", f"Run {' '.join(command)} yourself.")
    lines = log.read_bytes().decode("latin-1").split("\n")
    log.unlink()
    return lines[:-_END]
