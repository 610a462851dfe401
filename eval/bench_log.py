"""How fast the log viewer opens a very large log, through the service on this machine.

    python eval/bench_log.py [--gb 10] [--folder FOLDER] [--json [FILE]]

A healthy log of `biglog.py` with a failure at its end is archived again and again until the stream has `--gb` GB (10^9
bytes). `logdoctor serve` then opens it at its first, middle and last line and at 100 random ones, raw and compressed,
and searches it. Cold means: a service that has just started, and files in no kernel cache. With a folder the log stays
there; otherwise it is in TMPDIR and removed. 1 GB takes about two minutes. Nothing is asserted.
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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import sqlalchemy as sa
from rich.console import Console

from logdoctor.store.jobs.records import JobFacts, Records
from logdoctor.store.log.archive import Archive, ArchivedStream, StreamPiece
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.log.shards import Leases, Owned, shard_of
from logdoctor.store.log.table import DoneRows
from logdoctor.store.names import Key
from logdoctor.store.schema import streams
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
STEP, OBJECT = 1 << 20, 32 << 20  # bytes
RANDOM = 100
console = Console(highlight=False)
Row = dict[str, Any]


def build(folder: Path, gigabytes: float) -> None:
    """Write a data folder with one settled attempt whose only stream has `gigabytes` GB."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "part.log"
    command = [sys.executable, str(CORPUS / "biglog.py"), "--mb", "64", "--framework", "mixed", "--seed", "7"]
    subprocess.run([*command, "--out", str(out)], check=True, stderr=subprocess.DEVNULL)
    part = out.read_bytes()
    out.unlink()
    part = part[: part.rfind(b"\n") + 1]
    end = (CORPUS / "failures" / "inf-028.log").read_bytes() + b"the needle in the haystack\n"
    settle(folder, (*[part] * int(gigabytes * 1e9 // len(part) + 1), end))


def settle(folder: Path, chunks: Iterable[bytes]) -> ArchivedStream:
    """Archive a stream of the given bytes in a data folder, with a final verdict; return it."""
    records = Records(f"sqlite:///{folder / 'logdoctor.db'}")
    records.put_job(KEY.job, JobFacts(), time.time())
    leases = Leases(records.database, "bench")
    owned = next(one for one in leases.beat() if one.shard == shard_of(KEY.job, KEY.attempt))
    file = keep(records, Archive(records.database, FolderObjects(folder / "archive")), owned, KEY, chunks)
    leases.leave()
    records.publish(KEY.job, KEY.attempt, HEALTHY, True, time.time())
    records.close()
    return file


def keep(records: Records, archive: Archive, owned: Owned, key: Key, chunks: Iterable[bytes]) -> ArchivedStream:
    """Archive a stream of an attempt directly, without the log; return it."""
    records.open_attempt(key.job, key.attempt, time.time())
    zero = dict.fromkeys(("next", "lines", "archived", "scanned", "kept"), 0)
    row = {**key._asdict(), **zero, "shard": owned.shard, "changed": time.time(), "state": "", "problem": ""}
    with records.database.writing() as connection:
        connection.execute(sa.insert(streams).values(row))
    offset, line = 0, 1
    for chunk in chunks:
        for begin in range(0, len(chunk), OBJECT):
            data = chunk[begin : begin + OBJECT]
            archive.store(DoneRows(owned, 0), key.job, key.attempt, [StreamPiece(key.stream, offset, line, data)])
            offset, line = offset + len(data), line + data.count(b"\n")
    mine = (streams.c.job == key.job, streams.c.attempt == key.attempt, streams.c.stream == key.stream)
    with records.database.writing() as connection:
        connection.execute(sa.update(streams).where(*mine).values(next=offset, lines=line - 1))
    return archive.open(key)


def listed(folder: Path) -> ArchivedStream:
    """Open the stream from its list of parts."""
    records = Records(f"sqlite:///{folder / 'logdoctor.db'}")
    try:
        return Archive(records.database, FolderObjects(folder / "archive")).open(KEY)
    finally:
        records.close()


def forget(folder: Path) -> None:
    """Drop the files of a data folder from the kernel's cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


class Reader:
    """A minimal browser."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid, self._port = pid, port

    def cpu(self) -> float:
        """Return the CPU seconds that the service has used: its time if nothing else were running."""
        fields = Path(f"/proc/{self._pid}/schedstat").read_text().split()
        threads = [Path(f"/proc/{self._pid}/task/{task}/schedstat") for task in os.listdir(f"/proc/{self._pid}/task")]
        return max(int(fields[0]), sum(int(thread.read_text().split()[0]) for thread in threads)) / 1e9

    def get(self, path: str = PAGE, **query: object) -> tuple[float, bytes]:
        """Return the seconds until the whole page is there, and the page."""
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
    """Run `logdoctor serve` on a free port within the block."""
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


def cold(folder: Path, line: int, view: str) -> tuple[float, float]:
    """Return seconds and CPU seconds until a new service shows a line. Nothing of the log is in the kernel's cache."""
    forget(folder)
    with service(folder) as reader:
        used = reader.cpu()
        return reader.get(line=line, view=view)[0], reader.cpu() - used


def measure(folder: Path) -> list[Row]:
    """Return all measurements of a folder that was built."""
    listed(folder)
    begin = time.perf_counter()
    file = listed(folder)
    took = time.perf_counter() - begin
    size = sum(path.stat().st_size for path in (folder / "archive").rglob("*.zst"))
    rows: list[Row] = [
        {"what": "GB", "value": file.offset / 1e9},
        {"what": "GB on disk", "value": size / 1e9},
        {"what": "lines", "value": file.newlines},
        {"what": "all parts listed, warm (ms)", "value": took * 1e3},
    ]
    places = {"first": 1, "middle": file.newlines // 2, "last": file.newlines}
    for view in ("raw", "compressed"):
        for name, line in places.items():
            took, used = cold(folder, line, view)
            rows += [
                {"what": f"{view}, {name} line, cold (ms)", "value": took * 1e3},
                {"what": f"{view}, {name} line, cold (CPU ms)", "value": used * 1e3},
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
    """Yield the cost of searches for words and a pattern, and of a rank's lines."""
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
    """Build, measure and print."""
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
