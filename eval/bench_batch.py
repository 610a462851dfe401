"""Speed of `logdoctor batch` on this machine.

    python -m eval.bench_batch [--logs N] [--mb N] [--files N] [--json [FILE]] [PART...]

Parts: `local` (logs of the corpus behind healthy lines, with one process and with two), `plan` (empty files, 1,000 in a
folder, until all are found and cut into shards), `ray` (as `local`, on a Ray cluster of two nodes of one core each).
Start-up is measured with one log and subtracted. Nothing is asserted. MB are 10^6 bytes; memory is that of the largest
process. Temporary data goes to TMPDIR and is removed.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from rich.console import Console

from eval.bench_service import CORPUS, Row, biglog, shown
from logdoctor.pipeline import ReadLimits
from logdoctor.pipeline.batch.processes import worked
from logdoctor.pipeline.batch.rows import Row as BatchRow
from logdoctor.pipeline.batch.run import Batch, parts_folder
from logdoctor.pipeline.batch.shards import Shard
from logdoctor.pipeline.batch.sources import Walk
from logdoctor.store.log.objects import FolderObjects

RESULTS = Path(__file__).resolve().parent / "results" / "bench_batch.json"
PROGRAM = str(Path(sys.executable).with_name("logdoctor"))
PER_FOLDER = 1000
_PER_NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 200 << 20}
console = Console(highlight=False)


class Sizes(NamedTuple):
    """How many logs, their total size, and how many files to plan."""

    logs: int
    mb: int
    files: int


class Ran(NamedTuple):
    """Cost of a command: seconds, and the memory of its largest process in MB."""

    seconds: float
    mb: float


def generate(folder: Path, sizes: Sizes) -> float:
    """Write logs: those of the corpus behind healthy lines of many lengths; return their MB."""
    found = [log.read_bytes() for log in sorted(CORPUS.rglob("*.log"))]
    lines = biglog(folder / "big.log", 20)
    (folder / "big.log").unlink()
    chosen = random.Random(1)
    mean = max(sizes.mb * 1e6 / sizes.logs - sum(map(len, found)) / len(found), 0.0)
    whole = 0
    for number in range(sizes.logs):
        place = folder / f"{number // PER_FOLDER}" / f"job-{number}.log"
        place.parent.mkdir(exist_ok=True)
        length = min(int(chosen.expovariate(1 / mean)) if mean else 0, len(lines) - 1)
        begin = lines.find(b"\n", chosen.randrange(len(lines) - length)) + 1
        before = lines[begin : lines.find(b"\n", begin + length) + 1] if length else b""
        whole += place.write_bytes(before + found[number % len(found)])
    return whole / 1e6


def batch(logs: Path, out: Path, *arguments: str, workers: int = 1) -> Ran:
    """Run `logdoctor batch`; return its cost."""
    command = [PROGRAM, "batch", str(logs), "--each", "--out", str(out), *arguments]
    environment = os.environ | {"LOGDOCTOR_WORKERS": str(workers), "RAY_USAGE_STATS_ENABLED": "0"}
    begin = time.perf_counter()
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = process.stderr.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, said
    assert not re.search("could not be read", said), said
    return Ran(time.perf_counter() - begin, used.ru_maxrss * 1024 / 1e6)


def measured(folder: Path, sizes: Sizes, *arguments: str, processes: tuple[int, ...] = (1,)) -> Row:
    """Return MB/s by number of processes, without start-up."""
    mb = generate(folder / "logs", sizes)
    one = folder / "one.log"
    shutil.copy(folder / "logs" / "0" / "job-0.log", one)
    found: Row = {"logs": sizes.logs, "mb": mb}
    for workers in processes:
        start = batch(one, folder / "one.parquet", *arguments, workers=workers)
        ran = batch(folder / "logs", folder / f"{workers}.parquet", *arguments, workers=workers)
        name = f"with_{workers}_process{'es' * (workers > 1)}"
        found |= {
            f"start_up_seconds_{name}": start.seconds,
            f"mb_per_second_{name}": mb / (ran.seconds - start.seconds),
            f"memory_mb_{name}": ran.mb,
        }
    return found


def local(folder: Path, sizes: Sizes) -> Row:
    """Return MB/s with one process and with two."""
    found = measured(folder, sizes, processes=(1, 2))
    found["of_linear"] = found["mb_per_second_with_2_processes"] / found["mb_per_second_with_1_process"] / 2
    return found


def ray(folder: Path, sizes: Sizes) -> Row:
    """Return MB/s on a Ray cluster of two nodes."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={**_PER_NODE, "num_cpus": 0})
    try:
        for _ in range(2):
            cluster.add_node(**_PER_NODE)
        cluster.wait_for_nodes()
        batch(next((Path(CORPUS) / "failures").glob("*.log")), folder / "warm.parquet", "--ray", cluster.address)
        found = measured(folder, sizes, "--ray", cluster.address)
    finally:
        cluster.shutdown()
    return {name.replace("_with_1_process", ""): value for name, value in found.items()}


def plan(folder: Path, sizes: Sizes) -> Row:
    """Return the seconds and memory to find files and cut them into shards."""
    for number in range(sizes.files):
        if number % PER_FOLDER == 0:
            below = folder / "logs" / str(number // PER_FOLDER)
            below.mkdir(parents=True, exist_ok=True)
        os.close(os.open(below / f"job-{number}.log", os.O_CREAT | os.O_WRONLY))
    ((_, result),) = worked(_planned, [folder], 1)
    seconds, shards, memory = result
    return {"files": sizes.files, "shards": shards, "seconds": seconds, "memory_growth_mb": memory}


def _planned(folder: Path) -> tuple[float, int, float]:
    def no_fetch(url: str, file: IO[bytes]) -> None:
        raise AssertionError(url)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    walk = Walk("", lambda url: FolderObjects(Path(url)))
    with parts_folder(folder / "v.parquet") as parts:
        run = Batch(parts, "", ReadLimits(1, 1, 1, 1), no_fetch)
        for _ in run.plan(walk.sources([str(folder / "logs")])):
            pass
        shards = 0

        def count(some: Iterable[Shard]) -> Iterator[tuple[Shard, list[BatchRow]]]:
            nonlocal shards
            shards = sum(1 for _ in some)
            yield from ()

        for _ in run.diagnose(count, walk.takes):
            pass
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return time.perf_counter() - begin, shards, grown * 1024 / 1e6


PARTS: dict[str, Callable[[Path, Sizes], Row]] = {"local": local, "plan": plan, "ray": ray}


def main() -> None:
    """Measure and print the parts that the command line names."""
    parser = argparse.ArgumentParser(description="Measure `logdoctor batch` on this machine.")
    parser.add_argument("--logs", type=int, default=10_000, help="logs to diagnose")
    parser.add_argument("--mb", type=int, default=2000, help="their total size")
    parser.add_argument("--files", type=int, default=1_000_000, help="files to plan")
    parser.add_argument("--json", nargs="?", const=RESULTS, type=Path, metavar="FILE", help=f"write {RESULTS.name}")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    given = parser.parse_args()
    sizes = Sizes(given.logs, given.mb, given.files)
    results: Row = {"cores": len(os.sched_getaffinity(0)), "load_before": os.getloadavg()[0]}
    for name in given.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="logdoctor-bench-") as folder:
            (Path(folder) / "logs").mkdir()
            results[name] = PARTS[name](Path(folder), sizes)
        console.print(f"[bold]{name}[/bold]")
        for figure, value in results[name].items():
            console.print(f"  {figure.replace('_', ' ')}: {shown(value)}")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
