"""Speed of one service as one process, with workers beside it as by default, and over PostgreSQL, on this machine.

    python eval/bench_scale.py [--quick] [--json [FILE]] [PART...]

Parts: `drain` (logs of ended attempts are compressed and judged: by the web process while it takes them, or once they
are taken by one and two workers, over SQLite and PostgreSQL), `fleet` (588 streams that post once a second: latency of
acknowledgements and verdicts in each mode; the first 20 s, in which all begin at once, apart), `takeover` (588 streams,
and the worker of half of them is killed: until each job has its verdict), `incidents` (lists and details with 10,000
incidents in PostgreSQL). Nothing is asserted. MB are 10^6 bytes; processor time is that of all processes of the
service, and of PostgreSQL beside it. Temporary data goes to TMPDIR and is removed.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from rich.console import Console

from eval.bench_service import NODES, Client, Row, Running, biglog, fill, listening, run, send_all, slowest, spread
from logdoctor.store.database import Database
from logdoctor.store.schema import shards, verdicts
from tests.postgres import Server, new_folder

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "bench_scale.json"
ATTEMPTS = 16
BEGIN = 20  # seconds in which a fleet that begins all at once is measured apart
PROGRAM = str(Path(sys.executable).with_name("logdoctor"))
console = Console(highlight=False)


class Mode(NamedTuple):
    """How a service runs: over PostgreSQL or not, and with how many workers (0: within the web process)."""

    name: str
    postgresql: bool
    workers: int


MODES = (
    Mode("one process", False, 0),
    Mode("one worker", False, 1),
    Mode("two workers", False, 2),
    Mode("postgresql, one worker", True, 1),
    Mode("postgresql, two workers", True, 2),
)


class Place:
    """A data folder with a database in it or in its own PostgreSQL, and the processes over it."""

    def __init__(self, folder: Path, mode: Mode, stack: ExitStack) -> None:
        self.folder, self.mode, self._stack = folder, mode, stack
        self.server: Server | None = None
        self.url = f"sqlite:///{folder / 'data' / 'logdoctor.db'}"
        (folder / "data").mkdir()
        if mode.postgresql:
            self.server = Server(new_folder(), durable=True)
            self.server.start()
            self.server.make_template()
            self.server.create("bench")
            self.url = self.server.url("bench")
            stack.callback(self.server.stop, "immediate")
        self.environment = os.environ | {
            "LOGDOCTOR_DATABASE_URL": self.url,
            "LOGDOCTOR_ARCHIVE_URL": str(folder / "archive"),
            "LOGDOCTOR_LOG_BYTES": str(4 << 30),
            "LOGDOCTOR_LEARN": "off",
            "LOGDOCTOR_CASES": "off",
        }
        self.workers: list[int] = []

    @contextmanager
    def process(self, *words: str, data: str = "data") -> Iterator["subprocess.Popen[bytes]"]:
        """Run a process of logdoctor within the block."""
        command = [PROGRAM, *words, "--data-dir", str(self.folder / data)]
        with subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(90)

    @contextmanager
    def serving(self, *words: str) -> Iterator[Running]:
        """Run a web process within the block."""
        with self.process("serve", "--port", "0", *words) as process:
            yield listening(process)

    @contextmanager
    def service(self) -> Iterator[Running]:
        """Run all processes of the mode within the block."""
        with ExitStack() as stack:
            if self.mode.workers == 0:
                yield stack.enter_context(self.serving("--workers", "0"))
                return
            running = stack.enter_context(self.serving("--role", "web"))
            for number in range(self.mode.workers):
                worker = stack.enter_context(self.process("worker", "--workers", "1", data=f"worker-{number}"))
                assert worker.stderr is not None
                while b"shards taken" not in worker.stderr.readline():
                    pass
                self.workers.append(worker.pid)
                threading.Thread(target=worker.stderr.read, daemon=True).start()
            yield running

    def pids(self) -> list[int]:
        """Return the ids of logdoctor's processes."""
        return [pid for pid, words, _ in _processes() if str(self.folder) in words]

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds of the living processes of logdoctor and of PostgreSQL."""
        used = {"logdoctor": 0.0, "postgresql": 0.0}
        main = _postmaster("" if self.server is None else str(self.server.folder))
        for pid, words, fields in _processes():
            seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            if str(self.folder) in words:
                used["logdoctor"] += seconds
            elif main and (pid == main or int(fields[1]) == main):
                used["postgresql"] += seconds
        return used


def _processes() -> Iterator[tuple[int, str, list[str]]]:
    """Yield all processes: id, command line, and the fields of `stat` after the name."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().decode("utf-8", "replace")
            yield int(place.name), words, (place / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue


def _postmaster(folder: str) -> int:
    file = Path(folder) / "data" / "postmaster.pid"
    return int(file.read_text().split()[0]) if folder and file.exists() else 0


@contextmanager
def place_of(mode: Mode) -> Iterator[Place]:
    """Yield a new place for a mode."""
    with tempfile.TemporaryDirectory(prefix="logdoctor-bench-") as folder, ExitStack() as stack:
        yield Place(Path(folder), mode, stack)


# ---- drain


def drain(folder: Path, quick: bool) -> Row:
    """Return MB/s at which a waiting log is compressed, archived and judged, and CPU time per MB."""
    log = biglog(folder / "big.log", 10 if quick else 40)
    found = {}
    for mode in MODES:
        with place_of(mode) as place:
            found[mode.name] = _drained(place, log)
    return found


def _drained(place: Place, log: bytes) -> Row:
    place.environment["LOGDOCTOR_LEASE_SECONDS"] = "600"  # workers stand still until all is sent
    database = Database(place.url)
    with place.service() as running:
        before, begun = place.cpu(), time.time()
        for worker in place.workers:
            _stand_still(worker, database)
        senders = [threading.Thread(target=_send, args=(running, number, log)) for number in range(ATTEMPTS)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        sent = time.time()
        for worker in place.workers:
            os.kill(worker, signal.SIGCONT)
        last = _last_verdict(database, ATTEMPTS)
        used = {name: seconds - before[name] for name, seconds in place.cpu().items()}
    database.close()
    mb = len(log) * ATTEMPTS / 1e6
    return {
        "mb": mb,
        "acknowledged_mb_per_second": mb / (sent - begun),
        "compressed_mb_per_second": mb / (last - (sent if place.workers else begun)),
        "cpu_ms_per_mb": 1e3 * used["logdoctor"] / mb,
        "cpu_ms_per_mb_of_postgresql": 1e3 * used["postgresql"] / mb,
    }


def _stand_still(worker: int, database: Database) -> None:
    """Stop a worker outside of a transaction, within which it would block other writers."""
    for _ in range(100):
        os.kill(worker, signal.SIGSTOP)
        writes = threading.Thread(target=_write, args=(database,))
        writes.start()
        writes.join(1.0)
        if not writes.is_alive():
            return
        os.kill(worker, signal.SIGCONT)
        writes.join()
    raise RuntimeError(f"worker {worker} writes all the time")


def _write(database: Database) -> None:
    with database.writing() as connection:
        connection.execute(sa.select(shards.c.shard).with_for_update())  # SQLite locks no rows


def _send(running: Running, number: int, log: bytes) -> None:
    path = f"/v1/jobs/drain-{number}/attempts/1"
    send_all(running, f"{path}/streams/main/log", log)
    assert running.post(f"{path}/end", {"exit_code": 0})[0] == 202


def _last_verdict(database: Database, count: int) -> float:
    """Wait until `count` final verdicts are published; return the time of the last."""
    query = sa.select(sa.func.count(), sa.func.max(verdicts.c.at)).where(
        verdicts.c.final, verdicts.c.superseded_by.is_(None)
    )
    while True:
        with database.reading() as connection:
            published, last = connection.execute(query).one()
        if published >= count:
            return float(last)
        time.sleep(0.1)


# ---- a fleet


class Fleet:
    """588 nodes, one job each, that post once a second."""

    def __init__(self, running: Running, lines: list[bytes], seconds: int) -> None:
        self._running, self._lines, self._seconds = running, lines, seconds
        self.beginning: list[float] = []
        """Seconds of acknowledgements in the first 20 s, in which all jobs begin at once."""
        self.acknowledged: list[float] = []
        self.refused = 0

    async def run(self) -> None:
        """Let all nodes post for the whole time."""
        self._begin = time.monotonic() + 1
        await asyncio.gather(*(self._node(number) for number in range(NODES)))

    async def end(self) -> None:
        """Report the end of all jobs."""
        async with Client(self._running.port) as client:
            for number in range(NODES):
                status, _ = await client.request("POST", f"/v1/jobs/node-{number}/attempts/1/end", b'{"exit_code": 0}')
                assert status == 202

    async def _node(self, number: int) -> None:
        path, offset = f"/v1/jobs/node-{number}/attempts/1/streams/main/log", 0
        async with Client(self._running.port) as client:
            for tick in range(self._seconds):
                await asyncio.sleep(max(self._begin + tick + number / NODES - time.monotonic(), 0))
                first = (number * 7919 + tick * 80) % (len(self._lines) - 80)
                body = b"".join(line + b"\n" for line in self._lines[first : first + 80])
                begun = time.perf_counter()
                status, answer = await client.request("POST", f"{path}?offset={offset}", body)
                (self.acknowledged if tick >= BEGIN else self.beginning).append(time.perf_counter() - begun)
                if status == 200:
                    offset = json.loads(answer)["next_offset"]
                else:
                    self.refused += 1


def fleet(folder: Path, quick: bool) -> Row:
    """Return latencies of acknowledgements, and from a job's end to its verdict, with 588 streams."""
    seconds = 35 if quick else 90
    lines = biglog(folder / "big.log", 6, "nemo").split(b"\n")
    found = {}
    for mode in MODES:
        with place_of(mode) as place, place.service() as running:
            before = place.cpu()
            load = Fleet(running, lines, seconds)
            waits: list[float] = []
            watcher = threading.Thread(target=_verdicts, args=(running, seconds, waits))
            watcher.start()
            asyncio.run(load.run())
            watcher.join()
            used = {name: (now - before[name]) / seconds for name, now in place.cpu().items()}
        found[mode.name] = {
            "acknowledged_at_the_beginning": spread(load.beginning),
            "acknowledged": spread(load.acknowledged),
            "end_to_verdict": spread(waits),
            "refused": load.refused,
            "cores": used["logdoctor"],
            "cores_of_postgresql": used["postgresql"],
        }
    return found


def _verdicts(running: Running, seconds: int, waits: list[float]) -> None:
    """End one job a second, and note how long its verdict takes."""
    failed = (HERE / "corpus" / "failures" / "inf-028.log").read_bytes()
    time.sleep(BEGIN)
    for number in range(seconds - BEGIN - 1):
        path = f"/v1/jobs/failing-{number}/attempts/1"
        send_all(running, f"{path}/streams/main/log", failed[-60_000:])
        time.sleep(0.5)
        begun = time.perf_counter()
        assert running.post(f"{path}/end", {"exit_code": 1})[0] == 202
        while running.get(f"{path}/verdict")[0] != 200:
            time.sleep(0.005)
        waits.append(time.perf_counter() - begun)


# ---- takeover


def takeover(folder: Path, quick: bool) -> Row:
    """Return seconds from a worker's death until all 588 jobs, which end then, have a verdict."""
    lines = biglog(folder / "big.log", 6, "nemo").split(b"\n")
    found = {}
    for mode in MODES:
        if mode.workers != 2:
            continue
        with place_of(mode) as place, place.service() as running:
            load = Fleet(running, lines, 5 if quick else 30)
            asyncio.run(load.run())
            time.sleep(3)
            subprocess.run(["pkill", "-KILL", "-f", f"{place.folder}/worker-0"], check=True)
            begun = time.time()
            asyncio.run(load.end())
            database = Database(place.url)
            found[mode.name] = _last_verdict(database, NODES) - begun
            database.close()
    return {"seconds": found}


# ---- 10,000 incidents


def incidents(folder: Path, quick: bool) -> Row:
    """Return the slowest request for lists and details with 10,000 incidents in PostgreSQL, in seconds."""
    count = 1000 if quick else 10_000
    with place_of(Mode("postgresql", True, 0)) as place:
        fill(place.url, count)
        with place.serving() as running:
            return slowest(running, count)


# ---- all

PARTS = {"drain": drain, "fleet": fleet, "takeover": takeover, "incidents": incidents}


def main() -> None:
    """Measure the parts and print them."""
    run(PARTS, "Measure one service as several processes on this machine.", RESULTS)


if __name__ == "__main__":
    main()
