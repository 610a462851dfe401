"""How fast the log viewer opens a very large log, measured on this machine through the service.

    python eval/bench_log.py [--gb 10] [--folder FOLDER] [--json [FILE]]

A healthy log of `biglog.py` with a failure at its end is archived again and again until the stream has that many
GB (10^9 bytes). `logdoctor serve` then opens it at its first, middle and last line and at 100 random ones, raw and
compressed, and searches it. Cold means: a service that has just started, and files that are in no cache of the kernel;
the first start has no index of the frames, the second has. With a folder the log stays there, else it is removed
(TMPDIR holds it meanwhile). 1 GB takes about two minutes. Nothing is asserted.
"""

import argparse
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rich.console import Console

from logdoctor.store.archive import Archive
from logdoctor.store.frames import Packer
from logdoctor.store.names import Key
from logdoctor.store.records import JobFacts, Records
from logdoctor.types import Compression, DecidedBy, Progress, Verdict

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
RESULTS = HERE / "results" / "bench_log.json"
HEALTHY = Verdict(
    reason="None",
    category="None",
    fault="nobody",
    recovery="none",
    outcome="completed",
    confidence=1.0,
    suggestion="",
    evidence=(),
    suspects=(),
    first_rank=None,
    symptoms=(),
    decided_by=DecidedBy("structure", "", ""),
    fingerprint="",
    progress=Progress(),
    compression=Compression(),
)
KEY = Key("big", 1, "main")
PAGE = "/jobs/big/attempts/1/streams/main"
STEP = 1 << 20
RANDOM = 100
console = Console(highlight=False)
Row = dict[str, Any]


def build(folder: Path, gigabytes: float) -> None:
    """A data folder with one settled attempt whose only stream has so many GB."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "part.log"
    command = [sys.executable, str(CORPUS / "biglog.py"), "--mb", "64", "--framework", "mixed", "--seed", "7"]
    subprocess.run([*command, "--out", str(out)], check=True, stderr=subprocess.DEVNULL)
    part = out.read_bytes()
    out.unlink()
    part = part[: part.rfind(b"\n") + 1]
    file, packer = Archive(folder / "archive").open(KEY), Packer()
    size = int(gigabytes * 1e9)
    while file.offset < size:
        for begin in range(0, len(part), STEP):
            file.append(part[begin : begin + STEP], packer)
    file.append((CORPUS / "failures" / "inf-028.log").read_bytes() + b"the needle in the haystack\n", packer)
    file.sync()
    records = Records(f"sqlite:///{folder / 'logdoctor.db'}")
    records.put_job(KEY.job, JobFacts(), time.time())
    records.open_attempt(KEY.job, KEY.attempt, time.time())
    records.publish(KEY.job, KEY.attempt, HEALTHY, True, time.time())
    records.close()


def forget(path: Path) -> None:
    """Drop a file from the kernel's cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


class Reader:
    """A browser, so to say."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid, self._port = pid, port

    def cpu(self) -> float:
        """Seconds of processor time that the service has used: what it would take were nothing else running."""
        fields = Path(f"/proc/{self._pid}/schedstat").read_text().split()
        threads = [Path(f"/proc/{self._pid}/task/{task}/schedstat") for task in os.listdir(f"/proc/{self._pid}/task")]
        return max(int(fields[0]), sum(int(thread.read_text().split()[0]) for thread in threads)) / 1e9

    def get(self, path: str = PAGE, **query: object) -> tuple[float, bytes]:
        """Seconds until the whole page is there, and the page."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        begin = time.perf_counter()
        connection.request("GET", f"{path}?{urlencode(query)}")
        response = connection.getresponse()
        body = response.read()
        took = time.perf_counter() - begin
        assert response.status == 200, body[-2000:]
        return took, body


@contextmanager
def service(folder: Path) -> Iterator[Reader]:
    """`logdoctor serve` on a free port, stopped at the end."""
    command = [str(Path(sys.executable).with_name("logdoctor")), "serve", "--port", "0", "--data-dir", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        port = next(json.loads(line)["url"] for line in process.stderr if b"listening" in line).rsplit(":", 1)[1]
        threading.Thread(target=process.stderr.read, daemon=True).start()
        try:
            yield Reader(process.pid, int(port))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def cold(folder: Path, path: Path, line: int, view: str, index: bool) -> tuple[float, float]:
    """Seconds until a line is there that a new service is asked for first, with nothing of the log in the kernel's
    cache, and those that the processor worked for it."""
    beside = path.with_suffix(".index")
    if not index:
        beside.unlink(missing_ok=True)
    for file in (path, beside):
        if file.exists():
            forget(file)
    with service(folder) as reader:
        used = reader.cpu()
        return reader.get(line=line, view=view)[0], reader.cpu() - used


def measure(folder: Path) -> list[Row]:
    """All measurements of a built folder."""
    path = Archive(folder / "archive").open(KEY).path
    begin = time.perf_counter()
    file = Archive(folder / "archive").open(KEY)
    rows: list[Row] = [
        {"what": "GB", "value": file.offset / 1e9},
        {"what": "GB on disk", "value": path.stat().st_size / 1e9},
        {"what": "lines", "value": file.newlines},
        {"what": "all headers walked, warm (ms)", "value": (time.perf_counter() - begin) * 1e3},
    ]
    places = {"first": 1, "middle": file.newlines // 2, "last": file.newlines}
    for view in ("raw", "compressed"):
        for index in (False, True):
            for name, line in places.items():
                took, used = cold(folder, path, line, view, index)
                what = f"{view}, {name} line, cold, {'index' if index else 'no index'}"
                rows += [
                    {"what": f"{what} (ms)", "value": took * 1e3},
                    {"what": f"{what} (CPU ms)", "value": used * 1e3},
                ]
    with service(folder) as reader:
        dice = random.Random(3)
        lines = [dice.randrange(1, file.newlines) for _ in range(RANDOM)]
        for view in ("raw", "compressed"):
            reader.get(line=1, view=view)
            used = reader.cpu()
            times = sorted(reader.get(line=line, view=view)[0] * 1e3 for line in lines)
            used = (reader.cpu() - used) / len(lines) * 1e3
            rows.append({"what": f"{view}, {RANDOM} random lines, mean (CPU ms)", "value": used})
            rows.append({"what": f"{view}, {RANDOM} random lines, median (ms)", "value": statistics.median(times)})
            rows.append({"what": f"{view}, {RANDOM} random lines, p95 (ms)", "value": times[len(times) * 95 // 100]})
            rows.append({"what": f"{view}, {RANDOM} random lines, slowest (ms)", "value": times[-1]})
        rows += searches(reader, file.offset)
    return rows


def searches(reader: Reader, size: int) -> Iterator[Row]:
    """A search for what stands at the end, gone on with until it is found; a pattern; a rank."""
    for what, query in (
        ("words", {"q": "needle in the haystack"}),
        ("pattern", {"q": r"needle \w+ the hay", "regex": 1}),
    ):
        took, requests, place, used = 0.0, 0, 1, reader.cpu()
        while place:
            seconds, body = reader.get(PAGE, **query, **{"from": place})
            took, requests = took + seconds, requests + 1
            found = re.search(rb'data-next="(\d+)"', body)
            place = int(found[1]) if found else 0
        used = reader.cpu() - used
        rows = {"MB/s": size / took / 1e6, "MB a CPU s": size / used / 1e6, "requests": requests}
        rows["s a request"] = took / requests
        for unit, value in rows.items():
            yield {"what": f"search for {what}, all of it ({unit})", "value": value}
    yield {"what": "lines of rank 3 from line 1 (ms)", "value": reader.get(rank=3)[0] * 1e3}
    yield {"what": "lines of rank 9999, which is none (ms)", "value": reader.get(rank=9999)[0] * 1e3}


def main() -> None:
    """Build, measure, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=10.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path, nargs="?", const=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        if not (folder / "archive").exists():
            build(folder, given.gb)
        rows = measure(folder)
    for row in rows:
        console.print(f"{row['what']:60} {row['value']:14,.1f}")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({row["what"]: row["value"] for row in rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
