"""Times of sets measured by earlier runs, and the expected time of a set."""

import fcntl
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import structlog

from logdoctor.errors import TrialError
from logdoctor.trials.types import EvalSet, Times

_log = structlog.get_logger(__name__)

_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]

_NEWEST = 20  # newest runs of a set that count, as harnesses and nodes change
_APART = 1.5  # ratio of samples: shards of nearly one size do not show the fixed cost
# Guesses before anything was measured, from HumanEval on a 7B model in the paper (Fig. 13): 164 problems of about 200
# tokens in 114 s, including 30 s per shard before inference besides loading, and 42 s to run code.
_FIXED = 30.0
_TOKENS = 200.0
_TOKEN = 5e-4  # seconds per token and billion parameters
_BILLIONS = 7.0
_SCORE = 1.0
_SCORE_SAMPLE = {"code": 0.25, "judge": 1.0}


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One set in one run: samples and seconds of each shard, seconds of scoring all of it."""

    set: str
    shards: Annotated[tuple[tuple[_Count, _Seconds], ...], msgspec.Meta(min_length=1)]
    billions: Annotated[float, msgspec.Meta(gt=0)] | None = None
    score: _Seconds | None = None
    tokens: _Seconds | None = None  # per sample

    @property
    def samples(self) -> int:
        return sum(samples for samples, _ in self.shards)

    def sample(self, fixed: float) -> float:
        """Return the seconds per sample if each shard also takes `fixed` seconds."""
        return max(0.0, sum(seconds - fixed for _, seconds in self.shards)) / self.samples


class Priors:
    """A file of measured times, one JSON object per line for each run of a set. It only grows; a line cut off by a
    crash is ignored."""

    def __init__(self, path: Path) -> None:
        """Read the file; a missing one is empty. `TrialError` when it cannot be read."""
        self._path = path
        self._runs: dict[str, list[Run]] = {}
        for run in _read(path):
            self._runs.setdefault(run.set, []).append(run)

    def times(self, one: EvalSet, billions: float | None) -> Times:
        """Return the times of a set on a model of this size: the median of its earlier runs on that size, or of those
        on the nearest size, scaled; without any, a guess from samples and tokens, with 0 runs."""
        known = self._runs.get(one.name, [])
        size = _nearest(known, billions)
        same = [run for run in known if run.billions == size][-_NEWEST:]
        if not same:
            return self._guess(one, billions)
        fixed = self._fixed(same)
        sample = median(run.sample(fixed) for run in same) * _scale(size, billions)
        scores = [run.score * one.samples / run.samples for run in same if run.score is not None]
        return Times(fixed, sample, median(scores) if scores else self._score(one), len(same))

    def record(
        self,
        one: EvalSet,
        billions: float | None,
        shards: Sequence[tuple[int, float]],
        score: float | None = None,
    ) -> None:
        """Record the times of a set in a run: samples and seconds of each shard, and seconds of scoring all of it, None
        if not done. On disk on return; `TrialError` when that fails."""
        run = Run(one.name, tuple(shards), billions, score, one.tokens)
        line = msgspec.json.encode(run)
        try:
            msgspec.json.decode(line, type=Run)  # do not write what cannot be read back
            _append(self._path, line)
        except msgspec.ValidationError as error:
            raise TrialError(f"what was measured of {one.name}", f"cannot be kept ({error})", "Report this.") from error
        except OSError as error:
            raise _unusable(self._path, error) from error
        self._runs.setdefault(one.name, []).append(run)

    def _fixed(self, runs: list[Run]) -> float:
        """Return the seconds that each shard takes besides its samples: from shards of different sizes, else as for
        other sets, and at most half of the shortest shard."""
        shards = [shard for run in runs for shard in run.shards]
        shortest = min(seconds for _, seconds in shards)
        found = _intercept(shards)
        if found is not None:
            return min(found, shortest)
        return min(self._usual_fixed(), shortest / 2)

    def _usual_fixed(self) -> float:
        found = (_intercept([shard for run in runs[-_NEWEST:] for shard in run.shards]) for runs in self._runs.values())
        known = [fixed for fixed in found if fixed is not None]
        return median(known) if known else _FIXED

    def _guess(self, one: EvalSet, billions: float | None) -> Times:
        size = _BILLIONS if billions is None else billions
        tokens = _TOKENS if one.tokens is None else one.tokens
        return Times(self._usual_fixed(), tokens * size * self._token(), self._score(one))

    def _token(self) -> float:
        """Return the seconds per token and billion parameters, from sets with known tokens."""
        speeds = []
        for runs in self._runs.values():
            told = [run for run in runs if run.tokens and run.billions][-_NEWEST:]
            if told:
                fixed = self._fixed(told)
                speeds.append(median(run.sample(fixed) / ((run.tokens or 1) * (run.billions or 1)) for run in told))
        return median(speeds) if speeds else _TOKEN

    def _score(self, one: EvalSet) -> float:
        kind = "code" if one.runs_code else "judge" if one.judge else ""
        return _SCORE + one.samples * _SCORE_SAMPLE.get(kind, 0.0)


def _nearest(runs: Iterable[Run], billions: float | None) -> float | None:
    """Return the model size among runs that is nearest by ratio; any if the wanted one is unknown."""
    sizes = [run.billions for run in runs]
    if billions in sizes:
        return billions
    known = [size for size in sizes if size is not None]
    if billions is None or not known:
        return sizes[-1] if sizes else None
    return min(known, key=lambda size: abs(math.log(size / billions)))


def _scale(measured: float | None, wanted: float | None) -> float:
    return wanted / measured if measured and wanted else 1.0


def _intercept(shards: Sequence[tuple[int, float]]) -> float | None:
    """Return the seconds of a shard without samples; None if all shards have about one size. Uses the median slope
    between shards of different sizes (Theil-Sen), which a few slow shards do not move."""
    newest = shards[-100:]
    slopes = [
        (seconds - fewer_seconds) / (samples - fewer)
        for samples, seconds in newest
        for fewer, fewer_seconds in newest
        if samples >= fewer * _APART
    ]
    if not slopes:
        return None
    slope = max(0.0, median(slopes))
    return max(0.0, median(seconds - slope * samples for samples, seconds in newest))


def _read(path: Path) -> list[Run]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unusable(path, error) from error
    decoder = msgspec.json.Decoder(Run)
    runs = []
    damaged = 0
    for line in lines:
        try:
            runs += [decoder.decode(line)] if line.strip() else []
        except (msgspec.MsgspecError, UnicodeDecodeError):
            damaged += 1
    if damaged:
        _log.warning("priors_damaged", path=str(path), lines=damaged)
    return runs


def _append(path: Path, line: bytes) -> None:
    """Append a whole line, after ending one that a crash left; others may append at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = (b"\n" if torn else b"") + line + b"\n"
        if os.write(descriptor, data) < len(data):
            raise OSError(28, "No space left on device")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(path: Path, error: OSError) -> TrialError:
    return TrialError(f"priors {path}", f"cannot be used ({error.strerror})", "Name a file that can be written.")
