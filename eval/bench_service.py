"""Speed of the live service on this machine, with its senders beside it.

    python eval/bench_service.py [--quick] [--json [FILE]] [PART...]

Parts: `ingest` (64 streams as fast as they are taken), `verdict` (from `end` to the verdict of streamed 100 MB
attempts), `datacentre` (588 streams of 8 ranks, 10 lines a second each, for 5 minutes, 20 failures), `incidents` (lists
and details with 10,000 incidents), `sender` (what `logdoctor run` costs a command that prints much). Nothing is
asserted. MB are 10^6 bytes. Temporary data goes to TMPDIR and is removed.
"""

import argparse
import asyncio
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console

from eval.labels import FailureCase, read_corpus
from logdoctor.store.jobs.records import JobFacts, Records
from logdoctor.types import Verdict

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
RESULTS = HERE / "results" / "bench_service.json"
STREAMS, BODY = 64, 1 << 19
NODES, RANKS, RATE = 588, 8, 10  # of the paper's Acme: 4,704 GPUs; lines per second of a rank
FAILURES = 20
console = Console(highlight=False)

Row = dict[str, Any]


class Running(NamedTuple):
    """A running service: its process and port."""

    pid: int
    port: int

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a GET request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()

    def post(self, path: str, body: object) -> tuple[int, bytes]:
        """Return status and body of a POST request with a JSON body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()

    def figures(self) -> dict[str, float]:
        """Return the service's own metrics."""
        lines = self.get("/metrics")[1].decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name[:1] != "#"}

    def cpu(self) -> float:
        """Return the CPU seconds that the service has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Return the resident memory in MB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def listening(process: "subprocess.Popen[bytes]") -> Running:
    """Wait until a started service listens; drop what it prints afterwards."""
    assert process.stderr is not None
    port = next(json.loads(line)["url"].rsplit(":", 1)[1] for line in process.stderr if b'"listening"' in line)
    threading.Thread(target=process.stderr.read, daemon=True).start()
    return Running(process.pid, int(port))


@contextmanager
def service(folder: Path, **settings: str) -> Iterator[Running]:
    """Run `logdoctor serve` on a free port within the block."""
    environment = os.environ | {f"LOGDOCTOR_{name.upper()}": value for name, value in settings.items()}
    command = [str(Path(sys.executable).with_name("logdoctor")), "serve", "--port", "0", "--data-dir", str(folder)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        try:
            yield listening(process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


class Watcher(threading.Thread):
    """Samples a service four times a second."""

    def __init__(self, running: Running) -> None:
        super().__init__(daemon=True)
        self.running, self.lags, self.memory, self.waits = running, [0.0], [0.0], [0.0]
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.25):
            begin = time.perf_counter()
            figures = self.running.figures()
            self.waits.append(time.perf_counter() - begin)
            lags = (value for name, value in figures.items() if name.startswith("logdoctor_scan_lag_seconds"))
            self.lags.append(max(lags))
            self.memory.append(self.running.memory())


@contextmanager
def watched(running: Running) -> Iterator[Watcher]:
    """Sample a service while the block runs."""
    watcher = Watcher(running)
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.stopping.set()
        watcher.join()


def biglog(out: Path, megabytes: int, framework: str = "mixed") -> bytes:
    """Write and return a big healthy log."""
    command = [sys.executable, str(CORPUS / "biglog.py"), "--mb", str(megabytes), "--framework", framework]
    subprocess.run([*command, "--seed", "7", "--out", str(out)], check=True, stderr=subprocess.DEVNULL)
    return out.read_bytes()


# ---- ingest


def ingest(folder: Path, quick: bool) -> Row:
    """Return durable MB/s, and how far compression falls behind."""
    log = biglog(folder / "big.log", 100)
    seconds = 10 if quick else 60
    sent = [0] * STREAMS

    def send(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", running.port)
        place = random.Random(number).randrange(len(log) - BODY)
        offset = 0
        while time.monotonic() < stop:
            body = log[place : place + BODY]
            path = f"/v1/jobs/ingest-{number % 8}/attempts/1/streams/node-{number}/log?offset={offset}"
            connection.request("POST", path, body)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            response.read()
            offset += len(body)
            sent[number] = offset
            place = (place + BODY) % (len(log) - BODY)

    with service(folder / "data") as running, watched(running) as watcher:
        begin, used = time.monotonic(), running.cpu()
        stop = begin + seconds
        threads = [threading.Thread(target=send, args=(number,)) for number in range(STREAMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took, used = time.monotonic() - begin, running.cpu() - used
    return {
        "streams": STREAMS,
        "mb_per_second": sum(sent) / took / 1e6,
        "behind_seconds_max": max(watcher.lags),
        "service_cores": used / took,
        "memory_mb_max": max(watcher.memory),
    }


# ---- from `end` to the verdict


def verdict(folder: Path, quick: bool) -> Row:
    """Return the seconds from a 100 MB attempt's reported end to its verdict."""
    log = biglog(folder / "big.log", 100)
    fault = (CORPUS / "failures" / "inf-028.log").read_bytes()
    waits = []
    with service(folder / "data") as running:
        for number in range(3 if quick else 20):
            path = f"/v1/jobs/verdict-{number}/attempts/1"
            send_all(running, f"{path}/streams/main/log", log + fault[-20_000:])
            time.sleep(1.5)  # a job dies some time after its last lines were compressed
            begin = time.perf_counter()
            assert running.post(f"{path}/end", {"exit_code": 1})[0] == 202
            while running.get(f"{path}/verdict")[0] != 200:
                time.sleep(0.002)
            waits.append(time.perf_counter() - begin)
    return {"attempts": len(waits), **spread(waits)}


def send_all(running: Running, path: str, log: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", running.port)
    for offset in range(0, len(log), 1 << 20):
        connection.request("POST", f"{path}?offset={offset}", log[offset : offset + (1 << 20)])
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()


def spread(seconds: Sequence[float]) -> Row:
    """Return median, 99th percentile and maximum."""
    ordered = sorted(seconds)
    return {
        "p50": statistics.median(ordered),
        "p99": ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)],
        "max": ordered[-1],
    }


# ---- the paper's data centre


class Plan(NamedTuple):
    """One job: its name, nodes, end (seconds), and the failure of its first node if it fails."""

    job: str
    nodes: int
    ends: float
    failure: bytes
    reasons: tuple[str, ...]


def datacentre(folder: Path, quick: bool) -> Row:
    """Measure 588 streams of 8 ranks with 10 lines a second each; 20 jobs fail in between."""
    seconds = 40 if quick else 300
    healthy = biglog(folder / "big.log", 6 if quick else 8, "nemo").split(b"\n")
    plans = list(jobs(seconds))
    with service(folder / "data") as running, watched(running) as watcher:
        used = running.cpu()
        outcome = asyncio.run(Cluster(running, plans, healthy).run())
        used = running.cpu() - used
        wrong = [
            f"{plan.job}: {outcome.verdicts[plan.job]} instead of {plan.reasons}"
            for plan in plans
            if outcome.verdicts[plan.job] not in plan.reasons
        ]
        lost = [
            name
            for name, size in outcome.sent.items()
            if json.loads(running.get(f"/v1/jobs/{name}")[1])["next_offset"] != size
        ]
        failures = [outcome.waits[plan.job] for plan in plans if plan.failure]
        looks = len(watcher.memory)
        over_time = [round(watcher.memory[min(looks * part // 10, looks - 1)]) for part in range(1, 11)]
    return {
        "streams": NODES,
        "seconds": seconds,
        "mb": sum(outcome.sent.values()) / 1e6,
        "requests": outcome.requests,
        "refused": outcome.refused,
        "streams_lost_or_doubled": len(lost),
        "verdicts": len(plans),
        "wrong": wrong,
        "end_to_verdict_of_failures": spread(failures),
        "end_to_verdict_of_all": spread(list(outcome.waits.values())),
        "behind_seconds_max": max(watcher.lags),
        "service_cores": used / seconds,
        "share_of_machine": used / seconds / len(os.sched_getaffinity(0)),
        "memory_mb_over_time": over_time,
        "memory_mb_max": max(watcher.memory),
        "request_seconds_max": outcome.slowest,
    }


def jobs(seconds: float) -> Iterator[Plan]:
    """Yield jobs of 1 to 32 nodes, 588 in all; the first 20 fail, spread over time."""
    choose = random.Random(1)
    cases = [
        (log, case)
        for log, case in read_corpus(CORPUS)
        if isinstance(case, FailureCase) and case.reason not in ("Hang", "Loss Spike")
    ]
    left, number = NODES, 0
    while left:
        nodes = min(choose.choice((1, 2, 4, 8, 16, 32)), left)
        left -= nodes
        if number < FAILURES:
            log, case = choose.choice(cases)
            ends = seconds * (0.15 + 0.75 * number / FAILURES)
            yield Plan(f"job-{number}", nodes, ends, log.read_bytes(), (case.reason,))
        else:
            yield Plan(f"job-{number}", nodes, seconds, b"", ("None",))
        number += 1


class Cluster:
    """All nodes, each with its own connection, posting once a second."""

    def __init__(self, running: Running, plans: Sequence[Plan], healthy: list[bytes]) -> None:
        self.running, self.plans, self.healthy = running, plans, healthy
        self.sent: dict[str, int] = {}
        self.verdicts: dict[str, str] = {}
        self.waits: dict[str, float] = {}
        self.requests = self.refused = 0
        self.slowest = 0.0

    async def run(self) -> "Cluster":
        self.begin = time.monotonic() + 1
        loop = asyncio.get_running_loop()
        self.final: dict[str, asyncio.Future[tuple[float, str]]] = {
            plan.job: loop.create_future() for plan in self.plans
        }
        listener = asyncio.create_task(self._listen())
        await asyncio.gather(*(self._job(plan) for plan in self.plans))
        listener.cancel()
        return self

    async def _listen(self) -> None:
        """Note when final verdicts arrive by server-sent events, as on an operator's page."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.running.port, limit=1 << 24)
        writer.write(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        while line := await reader.readline():
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if event["final"] and not self.final[event["job"]].done():
                    self.final[event["job"]].set_result((time.perf_counter(), event["verdict"]["reason"]))

    async def _job(self, plan: Plan) -> None:
        path = f"{plan.job}/attempts/1"
        await asyncio.gather(*(self._node(plan, number) for number in range(plan.nodes)))
        begin = time.perf_counter()
        async with Client(self.running.port) as client:
            status, _ = await client.request(
                "POST", f"/v1/jobs/{path}/end", json.dumps({"exit_code": int(bool(plan.failure))}).encode()
            )
            assert status == 202
        came, self.verdicts[plan.job] = await self.final[plan.job]
        self.waits[plan.job] = came - begin

    async def _node(self, plan: Plan, number: int) -> None:
        name = f"{plan.job}/attempts/1/streams/node-{number}"
        failing = plan.failure if number == 0 else b""
        ticks = max(int(plan.ends), 1)
        phase = random.random()
        offset = 0
        async with Client(self.running.port) as client:
            for tick in range(ticks):
                await asyncio.sleep(max(self.begin + tick + phase - time.monotonic(), 0))
                if failing:
                    body = failing[len(failing) * tick // ticks : len(failing) * (tick + 1) // ticks]
                else:
                    lines = self.healthy[tick * RANKS * RATE : (tick + 1) * RANKS * RATE]
                    body = b"".join(line + b"\n" for line in lines)
                begin = time.perf_counter()
                status, answer = await client.request("POST", f"/v1/jobs/{name}/log?offset={offset}", body)
                self.slowest = max(self.slowest, time.perf_counter() - begin)
                self.requests += 1
                if status != 200:
                    self.refused += 1
                    continue
                offset = json.loads(answer)["next_offset"]
                self.sent[name] = offset


class Client:
    """One persistent connection, with only what a load needs."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return int(answer[9:12]), await self._reader.readexactly(length)


# ---- 10,000 incidents


def incidents(folder: Path, quick: bool) -> Row:
    """Return the slowest request for lists and details with 10,000 incidents, in seconds."""
    data = folder / "data"
    data.mkdir()
    count = 1000 if quick else 10_000
    fill(f"sqlite:///{data / 'logdoctor.db'}", count)
    with service(data) as running:
        return {"incidents": count, "slowest_seconds": slowest(running, count)}


def slowest(running: Running, count: int) -> dict[str, float]:
    """Return the slowest of 29 requests for each list and detail, in seconds."""
    paths = {
        "list": "/v1/verdicts?limit=50",
        "list of a reason": "/v1/verdicts?reason=ECC%20Error",
        "list of a node": "/v1/verdicts?node=gpu-7",
        "list of a user": "/v1/verdicts?user=user-3",
        "list of a job": "/v1/verdicts?job=job-11",
        "500 at once": "/v1/verdicts?limit=500",
        "detail": "/v1/verdicts/{}",
        "job": "/v1/jobs/job-{}",
        "jobs": "/v1/jobs",
        "page of attempts": "/attempts",
        "page of one": "/verdicts/{}",
    }
    choose = random.Random(3)
    found = {}
    connection = http.client.HTTPConnection("127.0.0.1", running.port)
    for name, path in paths.items():
        waits = []
        for _ in range(30):
            begin = time.perf_counter()
            connection.request("GET", path.format(choose.randrange(1, count // 50)))
            response = connection.getresponse()
            response.read()
            waits.append(time.perf_counter() - begin)
            assert response.status == 200, (path, response.status)
        found[name] = max(waits[1:])
    return found


def fill(url: str, count: int) -> None:
    """Store `count` verdicts as a service would, each an incident, on 200 jobs and 300 nodes."""
    records = Records(url)
    samples = [
        msgspec.json.decode(
            subprocess.run(
                [str(Path(sys.executable).with_name("logdoctor")), "diagnose", "--json", str(log)],
                stdout=subprocess.PIPE,
                check=False,
            ).stdout,
            type=Verdict,
        )
        for log in sorted((CORPUS / "failures").glob("*.log"))[:12]
    ]
    for job in range(200):
        records.put_job(f"job-{job}", JobFacts(user=f"user-{job % 20}", gpus=8 * job), 1.79e9)
    for number in range(count):
        sample = samples[number % len(samples)]
        suspects = tuple(msgspec.structs.replace(one, node=f"gpu-{number % 300}") for one in sample.suspects)
        stored = msgspec.structs.replace(sample, suspects=suspects, fingerprint=f"{number:016x}")
        records.publish(f"job-{number % 200}", number // 200 + 1, stored, True, 1.79e9 + number)
    records.close()


# ---- the sender

CHATTY = """
import sys, time
line = "x" * 149 + "\\n"
work = 0
begin = time.perf_counter()
for second in range({seconds}):
    for burst in range(200):
        for _ in range(100):
            sys.stdout.write(line)
        sys.stdout.flush()
        for number in range(12_000):
            work += number * number % 7
print(time.perf_counter() - begin, file=sys.stderr)
"""


def sender(folder: Path, quick: bool) -> Row:
    """Return how much `logdoctor run` slows down a command that prints much. It prints 20,000 lines of 150 bytes per
    second of work; alone, its output goes to a file. Figures are medians of alternating runs."""
    script = folder / "chatty.py"
    script.write_text(CHATTY.format(seconds=2 if quick else 5))
    alone, under = [], []
    with service(folder / "data") as running:
        logdoctor = str(Path(sys.executable).with_name("logdoctor"))
        run = [logdoctor, "run", "--url", f"http://127.0.0.1:{running.port}", "--job", "sender", "--"]
        for _ in range(3 if quick else 7):
            alone.append(timed([sys.executable, str(script)], folder))
            under.append(timed([*run, sys.executable, str(script)], folder))
    return {
        "runs": len(alone),
        "alone_seconds": statistics.median(alone),
        "under_seconds": statistics.median(under),
        "slowdown": statistics.median(under) / statistics.median(alone) - 1,
        "spread_of_alone": (max(alone) - min(alone)) / statistics.median(alone),
    }


def timed(command: list[str], folder: Path) -> float:
    """Return the seconds that the command itself reports."""
    with (folder / "out").open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=True)
    return float(done.stderr.split()[-1])


# ---- all

PARTS = {
    "ingest": ingest,
    "verdict": verdict,
    "datacentre": datacentre,
    "incidents": incidents,
    "sender": sender,
}


def main() -> None:
    """Measure the parts and print them."""
    run(PARTS, "Measure the speed of the live service on this machine.", RESULTS)


def run(parts: Mapping[str, Callable[[Path, bool], Row]], description: str, file: Path) -> None:
    """Measure and print the named parts, each in its own folder; write them if asked."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--json", nargs="?", const=file, type=Path, metavar="FILE", help=f"write {file.name}")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    given = parser.parse_args()
    results: Row = {"cores": len(os.sched_getaffinity(0)), "load_before": os.getloadavg()[0], "quick": given.quick}
    console.print(f"{results['cores']} cores, load {results['load_before']:.1f} before the run")
    for name in given.parts or parts:
        with tempfile.TemporaryDirectory(prefix="logdoctor-bench-") as folder:
            results[name] = parts[name](Path(folder), given.quick)
        console.print(f"[bold]{name}[/bold]")
        for figure, value in results[name].items():
            console.print(f"  {figure.replace('_', ' ')}: {shown(value)}")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(results, indent=2) + "\n")


def shown(value: object) -> str:
    """Return a figure with three digits."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(one)}" for name, one in value.items())
    return f"{value:.3g}" if isinstance(value, float) else f"{value}"


if __name__ == "__main__":
    main()
