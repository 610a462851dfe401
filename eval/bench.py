"""Speed of logdoctor on this machine, next to other tools in the same run.

    python eval/bench.py [--quick] [--huge] [--real FOLDER]... [--json [FILE]]

Four parts: the filter stage against ripgrep and Drain3, the whole `logdoctor diagnose`, real logs, start-up. Nothing is
asserted; only that ours and ripgrep leave the same number of lines is checked. MB are 10^6 bytes. Files are read from
the page cache. CPU seconds are user and system time of a command and its descendants, on all cores. Temporary data goes
to TMPDIR and is removed.

The FOLDER of real logs is a checkout of MLPerf training results (mlcommons/training_results_v1.1, v2.0, v3.0, v3.1 or
v4.0). 240 logs of 250 kB to 6 MB below its `results` folders are taken, the same ones every time. Ours reads them as
240 jobs and as one file of at most 150 MB; slow tools read the first 20 MB of that file, and so does ours once more.
ripgrep, Drain3 and NVRx (the restart agent of nvidia-resiliency-ext with its model turned off) do less, or something
else: the figures say what each costs, not that they are alike.
"""

import argparse
import datetime
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from logdoctor.compress.cut import cut_range
from logdoctor.compress.filter import compress, tally
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import FilterRule, Origin

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
RESULTS = HERE / "results" / "bench.json"
FAULT_LOG, FAULT_FROM, FAULT_TO, FAULT = CORPUS / "failures" / "inf-028.log", 120, 281, "ECC Error"
SMALL_LOG = CORPUS / "failures" / "inf-004.log"

SIZES = (200, 0, 1000, 5000)  # patterns; 0 stands for all templates of biglog.py
BLOCK = 4 << 20
REPEATS = 3
DRAIN3_BYTES = 20_000_000
SAMPLE_SECONDS = 0.01
TIMEOUT_SECONDS = 3600

REAL_LOGS = 240
REAL_SUFFIXES = (".txt", ".log", ".out")
REAL_SMALLEST, REAL_LARGEST = 250_000, 6_000_000  # bytes of a log
REAL_BYTES = 150_000_000  # of the single file
SLOW_BYTES = DRAIN3_BYTES
NVRX = "nvidia_resiliency_ext.attribution.restart_agent.cli"

# runs a command with its output in a file; prints its exit code, seconds, CPU seconds and largest process
METER = f"""
import json, resource, subprocess, sys, time
with open(sys.argv[1], "wb") as output:
    begin = time.perf_counter()
    code = subprocess.run(sys.argv[2:], stdout=output, timeout={TIMEOUT_SECONDS}).returncode
    seconds = time.perf_counter() - begin
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, seconds, used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss]))
"""

# the same as `drain3` below, in its own process
DRAIN3 = """
import sys
from drain3 import TemplateMiner
from drain3.template_miner_config import TemplateMinerConfig
miner = TemplateMiner(config=TemplateMinerConfig())
with open(sys.argv[1], "rb") as log:
    for line in log:
        miner.add_log_message(line.rstrip(b"\\n").decode("utf-8", "replace"))
print(len(miner.drain.clusters))
"""

Row = dict[str, Any]
console = Console(highlight=False)


class Failed(Exception):
    """A command failed, so its part cannot be measured."""


# ---- the filter stage


class Timed(NamedTuple):
    """The best of several runs: seconds, lines left, and a remark."""

    seconds: float
    left: int
    note: str = ""


def filter_stage(folder: Path, megabytes: int) -> list[Row]:
    """Return one row per number of patterns: MB/s of ours (all cores, one core) and ripgrep."""
    log, templates = folder / "filter.log", folder / "templates.txt"
    biglog(log, megabytes, "--templates", str(templates))
    known = templates.read_text().splitlines()
    return [compare(log, pattern_set(known, size or len(known)), folder) for size in SIZES]


def pattern_set(templates: Sequence[str], size: int) -> list[str]:
    """Return `size` patterns: a seeded sample of the templates, or all of them and decoys."""
    if size < len(templates):
        return random.Random(7).sample(list(templates), size)
    return [*templates, *decoys(size - len(templates))]


def decoys(count: int) -> list[str]:
    """Return patterns that resemble log lines but match no line of `biglog.py`; always the same.

    Their words are those of training logs, so that a search for single words does not rule them out.
    """
    dice = random.Random(11)
    words = (
        "loss step iteration checkpoint rank worker loading saved memory elapsed tokens batch INFO time"
        " gradient optimizer learning rate NCCL socket model epoch train eval shard cache device"
    ).split()
    fields = (r"\d+", r"\d+\.\d{2}", r"[a-z0-9-]+", r"[0-9a-f]{8}", r" *\d+", r"(?:true|false)")
    stamps = ("", r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ", r"\d\d:\d\d:\d\d ", r"\[rank\d+\]: ")
    return [
        f"^{dice.choice(stamps)}"
        + "".join(f"{dice.choice(words)} {dice.choice(words)}[:=]{dice.choice(fields)} " for _ in range(3))
        + rf"took \d+\.\d ms \(d{number:04d}\)$"
        for number in range(count)
    ]


def compare(log: Path, patterns: list[str], folder: Path) -> Row:
    """Compare ours and ripgrep on one log with the same patterns, warm, best of several runs."""
    cache = folder / f"cache-{len(patterns)}"
    begin = time.perf_counter()
    Scanner(book_of(patterns), cache)
    compiled = time.perf_counter() - begin
    size = log.stat().st_size
    cores = len(os.sched_getaffinity(0))
    ours = best(lambda: filtered(log, patterns, cache, cores))
    alone = best(lambda: filtered(log, patterns, cache, 1))
    theirs = ripgrep(log, patterns, folder)
    if theirs and theirs.left != ours.left:
        console.print(
            f"[bold red]NOT THE SAME: with {len(patterns)} patterns ours leaves {ours.left:,} lines,"
            f" ripgrep {theirs.left:,}[/]"
        )
    return {
        "ratio": theirs.seconds / ours.seconds if theirs else None,
        "patterns": len(patterns),
        "ours_mb_per_s": size / 1e6 / ours.seconds,
        "ours_one_core_mb_per_s": size / 1e6 / alone.seconds,
        "ripgrep_mb_per_s": size / 1e6 / theirs.seconds if theirs else None,
        "cores": cores,
        "bytes": size,
        "lines_left": ours.left,
        "ripgrep_lines_left": theirs.left if theirs else None,
        "first_compile_s": compiled,
        "note": theirs.note if theirs else "ripgrep: no result",
    }


def best(run: Callable[[], Timed]) -> Timed:
    """Return the fastest of several runs, after one to warm the caches."""
    run()
    return min((run() for _ in range(REPEATS)), key=lambda timed: timed.seconds)


def book_of(patterns: Sequence[str]) -> RuleBook:
    """Return a rule book with one filter rule per pattern, and nothing else.

    The group keeps a rule's `^` from being read as "after any prefix", which ripgrep cannot do.
    """
    origin = Origin("bench", datetime.date(2026, 1, 1), "biglog.py")
    rules = tuple(
        FilterRule(f"filter/bench/{number}", "active", "", (f"(?:{pattern})",), (), origin, harmless=True)
        for number, pattern in enumerate(patterns)
    )
    return RuleBook(rules, Path(os.devnull))


def filtered(log: Path, patterns: Sequence[str], cache: Path, workers: int) -> Timed:
    """Measure the filter stage over a file: load compiled rules, fork workers, count lines.

    The interpreter's start is not included; `whole` has it.
    """
    global _stage
    book = book_of(patterns)
    size = log.stat().st_size
    begin = time.perf_counter()
    _stage = (log, size, Scanner(book, cache))
    starts = range(0, size, BLOCK)
    if workers == 1:
        left = sum(map(left_in_block, starts))
    else:
        with ProcessPoolExecutor(workers, get_context("fork")) as pool:
            left = sum(pool.map(left_in_block, starts))
    return Timed(time.perf_counter() - begin, left)


_stage: tuple[Path, int, Scanner]  # set before the workers are forked


def left_in_block(begin: int) -> int:
    """Count the lines that begin in a block and that the rules leave; reads the block."""
    log, size, scanner = _stage
    rules = len(scanner.book.filters)
    with log.open("rb", buffering=0) as file:
        segments = cut_range("main", file, begin, min(begin + BLOCK, size), size)
        return sum(tally(compress(segment, scanner), rules).lines_kept for segment in segments)


def ripgrep(log: Path, patterns: Sequence[str], folder: Path) -> Timed | None:
    """Measure `rg -a -v -f` without output, best of several runs; None if it fails."""
    if not shutil.which("rg"):
        console.print("[yellow]ripgrep is not installed: apt-get install ripgrep[/]")
        return None
    file = folder / "patterns.txt"
    file.write_text("\n".join(patterns) + "\n")
    command = ["rg", "--no-config", "-a", "-v", "-f", str(file), str(log)]
    counted = _count(command)
    note = ""
    if counted is None:
        command[1:1] = ["--regex-size-limit", "4G", "--dfa-size-limit", "4G"]
        note = "ripgrep refuses the set; measured with --regex-size-limit and --dfa-size-limit 4G"
        if (counted := _count(command)) is None:
            return None
    return Timed(min(_seconds(command) for _ in range(REPEATS)), counted, note)


def _count(command: Sequence[str]) -> int | None:
    """Count the lines that ripgrep leaves; None when it refuses."""
    done = subprocess.run([*command, "-c"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if done.returncode > 1:
        console.print(f"[yellow]ripgrep: {done.stderr.strip()[-200:]}[/]", markup=True)
        return None
    return int(done.stdout or 0)


def _seconds(command: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """Return the seconds that a command takes, its output dropped; `Failed` if it fails."""
    begin = time.perf_counter()
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, timeout=TIMEOUT_SECONDS
    )
    seconds = time.perf_counter() - begin
    check(command, done.returncode, done.stderr)
    return seconds


class Spent(NamedTuple):
    """Cost and output of a command: seconds, CPU seconds of all its processes, memory of the largest."""

    seconds: float
    cpu_seconds: float
    largest_rss_bytes: int
    output: bytes


def metered(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Spent:
    """Return what a command and its descendants cost, by the kernel's account; `Failed` if it fails.

    A small process (9 MB) starts the command: the kernel's peak begins with the size of the process that forked, and
    ours is large.
    """
    with tempfile.NamedTemporaryFile() as output:
        meter = [sys.executable, "-I", "-S", "-c", METER, output.name, *command]
        done = subprocess.run(meter, capture_output=True, env=environment)
        if done.returncode:
            raise Failed(f"not run: {' '.join(command)}\n{done.stderr.decode('utf-8', 'replace').strip()[-500:]}")
        code, seconds, cpu_seconds, largest = json.loads(done.stdout)
        check(command, code, done.stderr)
        return Spent(seconds, cpu_seconds, largest, output.read())


def cost(cpu_seconds: float, size: int) -> Row:
    """Return CPU seconds, and their ratio to the bytes read."""
    megabytes = size / 1e6
    return {
        "cpu_seconds": cpu_seconds,
        "mb_per_cpu_s": megabytes / cpu_seconds,
        "cpu_s_per_mb": cpu_seconds / megabytes,
    }


def check(command: Sequence[str], code: int, errors: bytes) -> None:
    """Raise `Failed` with a command's errors for any exit code but 0 and 1."""
    if code not in (0, 1):
        told = errors.decode("utf-8", "replace").strip()[-500:]
        raise Failed(f"exit code {code}: {' '.join(command)}\n{told}")


def drain3(log: Path) -> Row | None:
    """Measure Drain3 (default settings, no masks, one core) on the first bytes of the log."""
    try:
        from drain3 import TemplateMiner
        from drain3.template_miner_config import TemplateMinerConfig
    except ImportError:
        console.print("[yellow]Drain3 is not installed: pip install drain3==0.9.11[/]")
        return None
    with log.open("rb") as file:
        data = file.read(DRAIN3_BYTES)
    lines = [line.decode("utf-8", "replace") for line in data.split(b"\n")]
    miner = TemplateMiner(config=TemplateMinerConfig())
    begin = time.perf_counter()
    for line in lines:
        miner.add_log_message(line)
    seconds = time.perf_counter() - begin
    return {
        "mb_per_s": len(data) / 1e6 / seconds,
        "lines_per_s": len(lines) / seconds,
        "bytes": len(data),
        "templates": len(miner.drain.clusters),
    }


# ---- the whole of diagnose


def whole(folder: Path, megabytes: Sequence[int]) -> list[Row]:
    """Measure `logdoctor diagnose --json` on logs with a fault at the end; one row per size."""
    rows = []
    for size in megabytes:
        log, index = folder / f"whole-{size}.log", folder / "index.json"
        if shutil.disk_usage(folder).free < size * 1_100_000:
            console.print(f"[yellow]no room for a log of {size} MB in {folder}; set TMPDIR[/]")
            continue
        biglog(log, size, "--fault", f"{FAULT_LOG}:{FAULT_FROM}-{FAULT_TO}", "--index", str(index))
        rows.append(diagnosed(log, json.loads(index.read_text())["fault_from"], folder))
        log.unlink()
    return rows


def diagnosed(log: Path, fault_from: int, folder: Path) -> Row:
    """Return seconds, CPU seconds, peak memory and verdict for one log.

    Time and memory come from different runs, since sampling memory costs time.
    """
    command, environment = diagnose_command(log), private_cache(folder)
    size = log.stat().st_size
    _seconds(diagnose_command(SMALL_LOG), environment)
    runs = [metered(command, environment) for _ in range(REPEATS if size < 500_000_000 else 1)]
    seconds = min(run.seconds for run in runs)
    output, sampled = watched(command, environment)
    verdict = last_verdict(output)
    cited = [evidence["line"] for evidence in verdict.get("evidence", [])]
    wanted = [line - FAULT_FROM + fault_from for line in labelled_lines() if line >= FAULT_FROM]
    return {
        "mb_per_s": size / 1e6 / seconds,
        **cost(min(run.cpu_seconds for run in runs), size),
        "bytes": size,
        "seconds": seconds,
        **sampled,
        "reason": verdict.get("reason", "no verdict"),
        "cited_lines": cited,
        "right": verdict.get("reason") == FAULT and any(abs(a - b) <= 1 for a in cited for b in wanted),
    }


def labelled_lines() -> list[int]:
    """Return the lines that the label of the fault's log calls the cause."""
    cases = map(json.loads, (FAULT_LOG.parent / "cases.jsonl").read_text().splitlines())
    return next(list(case["evidence_lines"]) for case in cases if case["file"] == FAULT_LOG.name)


def last_verdict(output: bytes) -> Row:
    """Return the last verdict that `diagnose --json` printed; empty without one."""
    rows = output.split(b"\n")
    try:
        verdict = json.loads(next(row for row in reversed(rows) if row.strip()))
    except (StopIteration, ValueError):
        return {}
    return verdict if isinstance(verdict, dict) else {}


def watched(command: Sequence[str], environment: Mapping[str, str]) -> tuple[bytes, Row]:
    """Return output and peak memory of a command and its descendants, sampled; `Failed` if it fails.

    `peak_pss_bytes` is the largest sum of PSS, which counts shared memory such as the forked rules once.
    `largest_rss_bytes` is the high-water mark of the largest process. (`wait4` is of no use: its peak starts with the
    size of the process that forked.)
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        pss = largest = 0
        with subprocess.Popen(command, stdout=output, stderr=errors, env=environment) as process:
            while process.poll() is None:
                tree = process_tree(process.pid)
                pss = max(pss, sum(kernel_figure(pid, "smaps_rollup", "Pss:") for pid in tree))
                largest = max(largest, *(kernel_figure(pid, "status", "VmHWM:") for pid in tree))
                time.sleep(SAMPLE_SECONDS)
        output.seek(0)
        errors.seek(0)
        check(command, process.returncode, errors.read())
        return output.read(), {"peak_pss_bytes": pss, "largest_rss_bytes": largest}


def process_tree(root: int) -> list[int]:
    """Return a process and all its living descendants."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                waiting += map(int, task.read_text().split())
            except OSError:
                continue
    return found


def kernel_figure(pid: int, file: str, name: str) -> int:
    """Return a size in bytes from a process's file below /proc; 0 when it is gone."""
    try:
        rows = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(row.split()[1]) for row in rows if row.startswith(name)), 0)


# ---- real logs


class RealLogs(NamedTuple):
    """Real logs in the scratch folder: one by one, joined, and the first bytes of the joined file."""

    apart: Path
    together: Path
    start: Path

    def count(self) -> int:
        """Count the logs."""
        return sum(1 for _ in self.apart.iterdir())


def real(folder: Path, logs: RealLogs, repeats: int) -> list[Row]:
    """Return one row per program and way to read the real logs: ours, ripgrep, Drain3, NVRx."""
    ours = [
        diagnosed_real(f"diagnose, {logs.count()} jobs", ["--each", str(logs.apart)], logs.apart, folder, repeats),
        diagnosed_real("diagnose, one file", [str(logs.together)], logs.together, folder, repeats),
        diagnosed_real(f"diagnose, first {told_size(logs.start)}", [str(logs.start)], logs.start, folder, repeats),
    ]
    others = [*ripgrep_real(folder, logs, repeats), drain3_real(logs.start), nvrx(logs.start)]
    return [*ours, *(row for row in others if row)]


def there(checkouts: Sequence[Path]) -> list[Path]:
    """Return the checkouts that exist; print which are left out."""
    for checkout in checkouts:
        if not checkout.is_dir():
            wanted = "a checkout of MLPerf training results, mlcommons/training_results_v4.0 for instance"
            console.print(
                f"real logs are left out: no folder {checkout} ({wanted})", style="yellow", markup=False, soft_wrap=True
            )
    return [checkout for checkout in checkouts if checkout.is_dir()]


def chosen(checkouts: Sequence[Path]) -> list[Path]:
    """Return a seeded sample of the checkouts' logs in a seeded order, wherever they lie."""
    logs = [log for checkout in checkouts for log in logs_below(checkout)]
    return random.Random(7).sample(logs, min(REAL_LOGS, len(logs)))


def logs_below(checkout: Path) -> list[Path]:
    """Return all logs of a fitting size below a checkout's `results` folders, by path."""
    found = {path.relative_to(checkout).as_posix() for path in checkout.glob("**/results/**/*")}
    paths = (checkout / name for name in sorted(found) if name.endswith(REAL_SUFFIXES))
    return [path for path in paths if path.is_file() and REAL_SMALLEST <= path.stat().st_size <= REAL_LARGEST]


def laid_out(logs: Sequence[Path], folder: Path) -> RealLogs:
    """Copy real logs into the scratch folder, and join them in one file."""
    laid = RealLogs(folder / "real", folder / "real.log", folder / "real-start.log")
    laid.apart.mkdir()
    room = REAL_BYTES
    with laid.together.open("wb") as together:
        for number, log in enumerate(logs):
            data = log.read_bytes()
            (laid.apart / f"{number:03d}-{log.name}").write_bytes(data)
            room -= together.write((data if data.endswith(b"\n") else data + b"\n")[:room])
    with laid.together.open("rb") as together:
        laid.start.write_bytes(together.read(SLOW_BYTES))
    return laid


def diagnosed_real(what: str, arguments: Sequence[str], read: Path, folder: Path, repeats: int) -> Row:
    """Measure `logdoctor diagnose --json` on real logs, after one run to compile the rules that these want."""
    command, environment = [logdoctor(), "diagnose", "--json", *arguments], private_cache(folder)
    metered(command, environment)
    runs = [metered(command, environment) for _ in range(repeats)]
    verdicts = sum(1 for row in runs[0].output.splitlines() if row.strip())
    return real_row(what, read, runs, f"verdicts: {verdicts}")


def ripgrep_real(folder: Path, logs: RealLogs, repeats: int) -> list[Row]:
    """Measure `rg -c -f` with all templates of `biglog.py`, on single logs and the joined file."""
    if not shutil.which("rg"):
        console.print("[yellow]ripgrep is not installed: apt-get install ripgrep[/]")
        return []
    templates = folder / "real-templates.txt"
    biglog(folder / "real-templates.log", 1, "--templates", str(templates))
    command = ["rg", "--no-config", "--no-ignore", "-a", "-c", "-f", str(templates)]
    note = f"{len(templates.read_text().splitlines())} patterns, lines counted"
    rows = []
    for what, read in ((f"ripgrep, {logs.count()} files", logs.apart), ("ripgrep, one file", logs.together)):
        metered([*command, str(read)])
        rows.append(real_row(what, read, [metered([*command, str(read)]) for _ in range(repeats)], note))
    return rows


def drain3_real(log: Path) -> Row | None:
    """Measure Drain3 with default settings on the first bytes of the real logs, once."""
    if not find_spec("drain3"):
        console.print("[yellow]Drain3 is not installed: pip install drain3==0.9.11[/]")
        return None
    spent = metered([sys.executable, "-c", DRAIN3, str(log)])
    return real_row(f"Drain3, first {told_size(log)}", log, [spent], f"{int(spent.output):,} templates")


def nvrx(log: Path) -> Row | None:
    """Measure NVRx without a model on the first bytes of the real logs, once.

    Its log analyser asks a model about every log; the restart agent, which newer versions have, can do without.
    """
    if not find_spec("nvidia_resiliency_ext"):
        console.print("[yellow]NVRx (nvidia-resiliency-ext) is not installed[/]")
        return None
    try:
        spent = metered([sys.executable, "-m", NVRX, str(log), "--disable-l1"])
    except Failed as error:
        console.print(f"NVRx could not read the log: {error}", style="yellow", markup=False)
        return None
    if not (verdict := last_verdict(spent.output)):
        console.print("[yellow]the NVRx that is installed has no analysis without a model[/]")
        return None
    decision = verdict.get("retry_policy", {}).get("decision", "no decision")
    return real_row(f"NVRx, first {told_size(log)}", log, [spent], f"no model: {decision}")


def real_row(what: str, read: Path, runs: Sequence[Spent], note: str) -> Row:
    """Return a program's row: the run with the fewest CPU seconds, and the most memory of any."""
    least = min(runs, key=lambda run: run.cpu_seconds)
    return {
        "what": what,
        **cost(least.cpu_seconds, size_of(read)),
        "bytes": size_of(read),
        "seconds": least.seconds,
        "largest_rss_bytes": max(run.largest_rss_bytes for run in runs),
        "note": note,
    }


def size_of(read: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    return sum(path.stat().st_size for path in (read.iterdir() if read.is_dir() else [read]))


def told_size(read: Path) -> str:
    """Return a file's size for a row, such as `20 MB`."""
    return f"{size_of(read) / 1e6:.0f} MB"


# ---- start-up


def start_up(folder: Path) -> list[Row]:
    """Return seconds from the shell to the result: medians, and the first diagnosis without compiled rules."""
    environment = private_cache(folder / "start")
    small = diagnose_command(SMALL_LOG)
    cold = _seconds(small, environment)
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "logdoctor --help": [logdoctor(), "--help"],
        f"diagnose {SMALL_LOG.name}, warm": small,
    }
    rows: list[Row] = [
        {"seconds": statistics.median(_seconds(command, environment) for _ in range(5)), "what": what}
        for what, command in commands.items()
    ]
    return [*rows, {"seconds": cold, "what": f"diagnose {SMALL_LOG.name}, rules not compiled yet"}]


def logdoctor() -> str:
    """Return the path of the command next to this interpreter."""
    return str(Path(sys.executable).with_name("logdoctor"))


def diagnose_command(log: Path) -> list[str]:
    """Return the command line that diagnoses a log."""
    return [logdoctor(), "diagnose", "--json", str(log)]


def private_cache(folder: Path) -> dict[str, str]:
    """Return an environment that keeps compiled rules below a folder, apart from the user's."""
    return {**os.environ, "LOGDOCTOR_CACHE_DIR": str(folder / "rules-cache")}


def biglog(out: Path, megabytes: int, *more: str) -> None:
    """Write a big healthy log of all frameworks; `more` are further arguments of `biglog.py`."""
    arguments = ["--mb", str(megabytes), "--framework", "mixed", "--seed", "7", "--out", str(out), *more]
    subprocess.run([sys.executable, str(CORPUS / "biglog.py"), *arguments], check=True, stderr=subprocess.DEVNULL)


# ---- showing


def show_filter_stage(rows: Sequence[Row], drain: Row | None) -> None:
    """Print ours against ripgrep, and below it against Drain3."""
    first = rows[0]
    title = f"filter stage, {first['bytes'] / 1e6:.0f} MB, {first['cores']} cores; MB/s"
    columns = ("to ripgrep", "patterns", "ours", "ours, one core", "ripgrep", "lines left", "first compile")
    table = table_of(title, columns)
    for row in rows:
        figures = (row["ours_mb_per_s"], row["ours_one_core_mb_per_s"], row["ripgrep_mb_per_s"])
        left = f"{row['lines_left']:,}"
        compiled = f"{row['first_compile_s']:.1f} s"
        table.add_row(times(row["ratio"]), f"{row['patterns']:,}", *map(speed, figures), left, compiled)
    console.print(table)
    for row in rows:
        if row["note"]:
            console.print(f"{row['patterns']:,} patterns: {row['note']}")
    if drain:
        console.print(
            f"{times(drain['ratio'])} Drain3 (on one core {times(drain['ratio_one_core'])},"
            f" ours with {drain['against_patterns']} patterns): {drain['mb_per_s']:.1f} MB/s,"
            f" {drain['lines_per_s']:,.0f} lines/s on the first {drain['bytes'] / 1e6:.0f} MB"
        )


def show_whole(rows: Sequence[Row]) -> None:
    """Print the cost and the findings of `diagnose`."""
    title = "diagnose --json, start-up included, fault at the end"
    cpu = ("MB/CPU s", "CPU s/MB")
    table = table_of(title, ("MB/s", *cpu, "MB", "seconds", "peak PSS, all", "largest RSS", "reason", "cited", "right"))
    for row in rows:
        memory = (f"{row[key] / 1e6:.0f} MB" for key in ("peak_pss_bytes", "largest_rss_bytes"))
        size = f"{row['bytes'] / 1e6:,.0f}"
        cited = ", ".join(f"{line:,}" for line in islice(row["cited_lines"], 3))
        right = "yes" if row["right"] else "[red]NO[/]"
        figures = (speed(row["mb_per_s"]), *per_cpu(row), size, f"{row['seconds']:.2f}")
        table.add_row(*figures, *memory, row["reason"], cited, right)
    console.print(table)


def show_real(rows: Sequence[Row]) -> None:
    """Print the cost of each program on the real logs."""
    columns = ("what", "MB/CPU s", "CPU s/MB", "MB", "CPU s", "seconds", "largest RSS", "note")
    table = table_of("real logs (MLPerf training results), start-up included", columns)
    for row in rows:
        took = (f"{row['bytes'] / 1e6:.0f}", f"{row['cpu_seconds']:.2f}", f"{row['seconds']:.2f}")
        memory = f"{row['largest_rss_bytes'] / 1e6:.0f} MB"
        table.add_row(row["what"], *per_cpu(row), *took, memory, row["note"])
    console.print(table)


def per_cpu(row: Row) -> tuple[str, str]:
    """Return MB per CPU second and CPU seconds per MB as text."""
    return f"{row['mb_per_cpu_s']:.1f}", f"{row['cpu_s_per_mb']:.4f}"


def show_start_up(rows: Sequence[Row]) -> None:
    """Print the start-up times."""
    table = table_of("start-up", ("seconds", "what"))
    for row in rows:
        table.add_row(f"{row['seconds']:.3f}", row["what"])
    console.print(table)


def table_of(title: str, columns: Sequence[str]) -> Table:
    """Return an empty table with figures aligned right."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("note", "reason", "what", "right") else "right")
    return table


def times(ratio: float | None) -> str:
    """Return a ratio as text; a dash for None."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def speed(figure: float | None) -> str:
    """Return MB/s as text; a dash for None."""
    return "-" if figure is None else f"{figure:.0f}"


# ---- main


def main() -> None:
    """Run all parts and print their tables; exit with 1 if a part could not be measured."""
    given = arguments()
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "processor": processor(),
        "python": platform.python_version(),
    }
    load = f"load {machine['load_before']:.1f} before the run"
    console.print(f"{machine['processor']}, {machine['cores']} cores, {load}")
    with tempfile.TemporaryDirectory(prefix="logdoctor-bench-") as name:
        results, failed = measured(Path(name), given)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {"machine": machine, "quick": given.quick, **results, "failed": failed}
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
        console.print(f"written to {given.json}")
    sys.exit(1 if failed else 0)


def measured(folder: Path, given: argparse.Namespace) -> tuple[Row, list[str]]:
    """Return all figures, each part printed as soon as it is done, and the failed parts."""
    sizes = [100] + [1000] * (not given.quick) + [10_000] * given.huge
    parts: dict[str, Callable[[], Any]] = {
        "filter_stage": lambda: filter_part(folder, 100 if given.quick else 200),
        "diagnose": lambda: whole_part(folder, sizes),
        "real": lambda: real_part(folder, given.real, 1 if given.quick else REPEATS),
        "start_up": lambda: start_up_part(folder),
    }
    results: Row = {}
    failed: list[str] = []
    for name, run in parts.items():
        try:
            results[name] = run()
        except Failed as error:
            failed.append(f"{name}: {error}")
            console.print(f"{name} NOT MEASURED: {error}", style="bold red", markup=False)
    return results, failed


def filter_part(folder: Path, megabytes: int) -> Row:
    """Measure and show the filter stage, with Drain3 beside the full set of templates."""
    rows = filter_stage(folder, megabytes)
    log = folder / "filter.log"
    drain = drain3(log)
    log.unlink()
    if drain:
        full = rows[SIZES.index(0)]
        drain["against_patterns"] = full["patterns"]
        drain["ratio"] = full["ours_mb_per_s"] / drain["mb_per_s"]
        drain["ratio_one_core"] = full["ours_one_core_mb_per_s"] / drain["mb_per_s"]
    show_filter_stage(rows, drain)
    return {"rows": rows, "drain3": drain}


def whole_part(folder: Path, sizes: Sequence[int]) -> list[Row]:
    """Measure and show the whole of `diagnose`."""
    rows = whole(folder, sizes)
    show_whole(rows)
    return rows


def real_part(folder: Path, checkouts: Sequence[Path], repeats: int) -> list[Row]:
    """Measure and show real logs; no rows without any."""
    checkouts = there(checkouts)
    logs = chosen(checkouts)
    if not logs:
        if checkouts:
            console.print("[yellow]real logs are left out: none of 250 kB to 6 MB below a folder `results`[/]")
        return []
    laid = laid_out(logs, folder)
    rows = real(folder, laid, repeats)
    shutil.rmtree(laid.apart)
    show_real(rows)
    return rows


def start_up_part(folder: Path) -> list[Row]:
    """Measure and show start-up."""
    rows = start_up(folder)
    show_start_up(rows)
    return rows


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure logdoctor's speed on this machine.")
    parser.add_argument("--quick", action="store_true", help="100 MB logs only")
    parser.add_argument("--huge", action="store_true", help="also diagnose 10 GB (needs 11 GB in TMPDIR)")
    parser.add_argument(
        "--real",
        action="append",
        default=[],
        type=Path,
        metavar="FOLDER",
        help="also real logs from a checkout of MLPerf training results; repeatable",
    )
    parser.add_argument("--json", nargs="?", const=RESULTS, type=Path, metavar="FILE", help=f"write {RESULTS.name}")
    return parser.parse_args()


def processor() -> str:
    """Return the processor's name if the kernel gives it, else its architecture."""
    try:
        rows = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((row.split(":", 1)[1].strip() for row in rows if row.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
