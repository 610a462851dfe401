"""Run tests or stories again and again, and write down how each run ended: green runs in a row are what they promise.

`python -m tests.many_runs test|story RUNS BUSY [argument of pytest ...]` adds a line for each run to `tests/runs.tsv`:
date, commit, kind, busy processes beside it, seconds, what pytest says in its last line, what failed. Nothing is tried
a second time. It exits with the number of runs that failed.
"""

import datetime
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.second_try import FAILED, ROOT, failed, pytest

WRITTEN = ROOT / "tests/runs.tsv"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processes at work."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def run(kind: str, beside: int, arguments: Sequence[str]) -> bool:
    """Run all of a kind once beside so many busy processes and write it down; return whether it was green."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    FAILED.unlink(missing_ok=True)
    day, begin = datetime.datetime.now(datetime.UTC).date(), time.monotonic()
    with busy(beside):
        done = subprocess.run([*pytest(kind), *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    said = (done.stdout.splitlines() or ["nothing"])[-1].strip("= ")
    fields = (day, commit.strip(), kind, beside, round(time.monotonic() - begin), said, " ".join(sorted(failed())))
    with WRITTEN.open("a", encoding="utf-8") as file:
        file.write("\t".join(map(str, fields)) + "\n")
    print(*fields, sep="  ", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    what, runs, beside = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.exit(sum(not run(what, beside, sys.argv[4:]) for _ in range(runs)))
