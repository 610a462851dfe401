"""Score real runs that ended well: checkouts of the public `mlcommons/training_results_*` repositories.

    python eval/mlperf.py CHECKOUT... [--each 1] [--seed 0] [--cut 0.5] [--write FOLDER] [--list]

A CHECKOUT is a clone (also a bare one: nothing is checked out) or any folder of logs. Of each folder of results (one
system, one benchmark) `--each` logs are taken, 0 for all. A run ended well if its log has MLPerf's own `run_stop` with
the status `success`; the others (`aborted`, none at all) are counted apart. An alarm is a verdict `failed`, or any
advice other than to do nothing. With `--cut` only that share of each log is read, as the service sees a job that still
runs.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import regex
from rich.console import Console

from eval.report import EvalReport
from logdoctor import pipeline, wiring
from logdoctor.pipeline import LogFile
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import read_settings

_RESULT = regex.compile(r"(?:^|/)results/.*/result_[^/]*\.(?:txt|log)$")
_STOP = regex.compile(rb'"key": ?"run_stop".{0,200}?"status": ?"(?P<status>\w+)"')


class MlperfLog(NamedTuple):
    """A log in a checkout: the checkout, and the path in it."""

    checkout: Path
    path: str


class DiagnosedRun(msgspec.Struct, frozen=True):
    """One log's result: how MLPerf says it ended, and the verdict with the first line it cites."""

    log: str
    status: str
    outcome: str
    reason: str
    recovery: str
    nodes: int
    bytes: int
    seconds: float
    line: str

    @property
    def is_alarm(self) -> bool:
        """Whether the verdict would call a person."""
        return self.outcome == "failed" or self.recovery != "none"


class MlperfReport(EvalReport, frozen=True):
    """The sums over all logs; `outcomes` for each MLPerf status."""

    logs: int
    succeeded: int
    alarms: int
    alarm_share: float
    completed_share: float
    outcomes: dict[str, dict[str, int]]
    alarms_of: dict[str, int]
    mb_per_second: float
    alarming: list[DiagnosedRun]

    @property
    def name(self) -> str:
        return "mlperf"

    def parts(self, details: bool = False) -> Iterator[str]:
        """Yield the sums, and each alarm with the line it cites."""
        yield f"{self.logs:,} logs, {self.succeeded:,} of runs that succeeded; {self.mb_per_second:.0f} MB/s a core"
        yield f"alarms {self.alarms} ({100 * self.alarm_share:.2f} %), completed {100 * self.completed_share:.1f} %"
        for status, counts in self.outcomes.items():
            yield f"  run_stop {status}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        if self.alarms_of:
            yield "  alarms: " + ", ".join(f"{count} {reason}" for reason, count in self.alarms_of.items())
        for one in self.alarming if details else ():
            yield f"{one.log}\n    {one.outcome} {one.reason}, {one.recovery}, {one.nodes} nodes: {one.line}"


def logs(checkout: Path) -> list[MlperfLog]:
    """Return the logs of a clone or a folder, by name."""
    if _is_repository(checkout):
        listing = _git(checkout, "ls-tree", "-r", "-z", "--name-only", "HEAD").decode("utf-8", "replace").split("\0")
        return _present(checkout, sorted(path for path in listing if _RESULT.search(path)))
    files = (path for path in checkout.rglob("*") if path.is_file() and path.suffix in (".txt", ".log", ".out"))
    return sorted(MlperfLog(checkout, str(path.relative_to(checkout))) for path in files)


def _present(checkout: Path, paths: list[str]) -> list[MlperfLog]:
    """Return the logs that a clone really holds; a partial one lacks some."""
    asked = "".join(f"HEAD:{path}\n" for path in paths).encode()
    answers = subprocess.run(
        ["git", "-C", str(checkout), "cat-file", "--batch-check"], input=asked, check=True, capture_output=True
    ).stdout.split(b"\n")
    return [MlperfLog(checkout, path) for path, answer in zip(paths, answers, strict=False) if b" blob " in answer]


def sample(found: Sequence[MlperfLog], each: int, seed: int) -> list[MlperfLog]:
    """Return at most `each` logs of every folder, at random; all of them if `each` is 0."""
    folders: dict[tuple[Path, str], list[MlperfLog]] = {}
    for log in found:
        folders.setdefault((log.checkout, str(Path(log.path).parent)), []).append(log)
    if not each or len(folders) == len({log.checkout for log in found}):
        return list(found)
    lot = random.Random(seed)
    return [log for some in folders.values() for log in sorted(lot.sample(some, min(each, len(some))))]


def _is_repository(folder: Path) -> bool:
    return (folder / "HEAD").is_file() or (folder / ".git").exists()


def _git(checkout: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(checkout), *arguments], check=True, capture_output=True).stdout


def _content(log: MlperfLog) -> bytes:
    if _is_repository(log.checkout):
        return _git(log.checkout, "cat-file", "blob", f"HEAD:{log.path}")
    return (log.checkout / log.path).read_bytes()


_scanner: Scanner | None = None  # shared with forked processes
_share = 1.0


def _judge(log: MlperfLog) -> DiagnosedRun:
    assert _scanner is not None
    whole = _content(log)
    content = whole[: int(len(whole) * _share)]
    limits = wiring.limits(read_settings())._replace(workers=1)
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        file.write(content)
        file.flush()
        begin = time.perf_counter()
        verdict = pipeline.diagnose((LogFile("main", Path(file.name)),), _scanner, limits)
        seconds = time.perf_counter() - begin
    stops = _STOP.findall(whole)
    return DiagnosedRun(
        f"{log.checkout.parent.name if log.checkout.name == 'repo' else log.checkout.name}:{log.path}",
        stops[-1].decode() if stops else "none",
        verdict.outcome,
        verdict.reason,
        verdict.recovery,
        sum(suspect.node is not None for suspect in verdict.suspects),
        len(content),
        seconds,
        verdict.evidence[0].quote[:200] if verdict.evidence else verdict.why,
    )


def score(chosen: Sequence[MlperfLog], scanner: Scanner, share: float = 1.0) -> MlperfReport:
    """Diagnose the logs, or the first `share` of each, one process per core; return the report."""
    global _scanner, _share
    _scanner, _share = scanner, share
    with ProcessPoolExecutor(pipeline.cores(), get_context("fork")) as pool:
        return summed(list(pool.map(_judge, chosen, chunksize=4)))


def summed(seen: Sequence[DiagnosedRun]) -> MlperfReport:
    """Return the report; shares are of the runs that MLPerf calls a success."""
    outcomes: dict[str, Counter[str]] = {}
    for one in seen:
        outcomes.setdefault(one.status, Counter())[one.outcome] += 1
    good = [one for one in seen if one.status == "success"]
    alarming = [one for one in good if one.is_alarm]
    return MlperfReport(
        len(seen),
        len(good),
        len(alarming),
        len(alarming) / len(good) if good else 0.0,
        sum(one.outcome == "completed" for one in good) / len(good) if good else 0.0,
        {status: dict(counts.most_common()) for status, counts in sorted(outcomes.items())},
        dict(Counter(one.reason for one in alarming).most_common()),
        sum(one.bytes for one in seen) / 1e6 / (sum(one.seconds for one in seen) or 1.0),
        alarming,
    )


@click.command()
@click.argument("checkouts", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--each", type=click.IntRange(0), default=1, show_default=True, help="Logs of a system and benchmark.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--cut", type=click.FloatRange(0, 1), default=1.0, help="Read only this share of each log.")
@click.option("--list", "listed", is_flag=True, help="Each alarm with the line it cites.")
@click.option("--write", type=click.Path(file_okay=False, path_type=Path), help="Write mlperf.json and mlperf.md here.")
def main(checkouts: tuple[Path, ...], each: int, seed: int, cut: float, listed: bool, write: Path | None) -> None:
    """Score logs of MLPerf training runs that ended well."""
    chosen = [log for checkout in checkouts for log in sample(logs(checkout), each, seed)]
    if not chosen:
        sys.exit(f"{', '.join(map(str, checkouts))}: no logs of results in it; clone mlcommons/training_results_v4.0")
    report = score(chosen, wiring.scanner(read_settings()), cut)
    report.show(Console(soft_wrap=True), details=listed)
    if write:
        report.write(write)


if __name__ == "__main__":
    main()
