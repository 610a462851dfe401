"""One service at the rate of a data centre for an hour: whether memory, handles and lag stay stable.

    python -m eval.bench_hour [--minutes N] [--postgresql] [--json [FILE]] [--svg FILE]

588 nodes post 80 lines a second each. On each, jobs of two to eight minutes follow each other; one in ten fails. In the
end every second job is checked: its verdict, and that the verdict covers all bytes. `share` is the last tenth of the
time relative to the second one (of memory and handles, all processes of the service together). Nothing is asserted.
Temporary data goes to TMPDIR and is removed.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eval.bench_scale import MODES, Place, place_of
from eval.bench_service import NODES, Client, Row, Running, biglog, console, shown, spread
from eval.chart import LINEAR, Chart, draw

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "bench_hour.json"
EVERY = 5.0  # seconds between two samples
LINES = 80  # that a node posts each second


class Looks(threading.Thread):
    """Samples the memory, handles and lag of a service's processes."""

    def __init__(self, place: Place, running: Running) -> None:
        super().__init__(daemon=True)
        self._place, self._running, self._stopping = place, running, threading.Event()
        self.memory: list[float] = []
        self.handles: list[float] = []
        self.lag: list[float] = []

    def run(self) -> None:
        """Sample until stopped."""
        while not self._stopping.wait(EVERY):
            pids = self._place.pids()
            self.memory.append(sum(_resident(pid) for pid in pids) / 1e6)
            self.handles.append(float(sum(_handles(pid) for pid in pids)))
            self.lag.append(self._running.figures().get("logdoctor_verdict_lag_seconds", 0.0))

    def stop(self) -> None:
        """Stop sampling."""
        self._stopping.set()
        self.join()


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _handles(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


class Jobs:
    """The jobs of all nodes, one after another on each."""

    def __init__(self, running: Running, lines: Sequence[bytes], seconds: float) -> None:
        self._running, self._lines, self._seconds = running, lines, seconds
        self._failure = (HERE / "corpus" / "failures" / "inf-028.log").read_bytes()[-30_000:]
        self.acknowledged: list[float] = []
        self.refused = 0
        self.sent: dict[str, tuple[int, bool]] = {}
        """By ended job: its bytes, and whether it failed."""

    async def run(self) -> None:
        """Let all nodes post for the whole time."""
        self._begin = time.monotonic() + 1
        await asyncio.gather(*(self._node(number) for number in range(NODES)))

    async def _node(self, number: int) -> None:
        chance, tick, count = random.Random(number), 0, 0
        async with Client(self._running.port) as client:
            while tick < self._seconds:
                last = min(tick + chance.uniform(120, 480), self._seconds)
                job, fails, sent = f"node-{number}-{count}", chance.random() < 0.1, 0
                while tick < last:
                    await asyncio.sleep(max(self._begin + tick + number / NODES - time.monotonic(), 0))
                    sent = await self._post(client, job, sent, self._part(number, tick))
                    tick += 1
                if fails:
                    sent = await self._post(client, job, sent, self._failure)
                body = b'{"exit_code": %d}' % fails
                status, _ = await client.request("POST", f"/v1/jobs/{job}/attempts/1/end", body)
                assert status == 202
                self.sent[job] = sent, fails
                count += 1

    def _part(self, number: int, tick: int) -> bytes:
        first = (number * 7919 + tick * LINES) % (len(self._lines) - LINES)
        return b"".join(line + b"\n" for line in self._lines[first : first + LINES])

    async def _post(self, client: Client, job: str, offset: int, data: bytes) -> int:
        begun = time.perf_counter()
        path = f"/v1/jobs/{job}/attempts/1/streams/main/log?offset={offset}"
        status, answer = await client.request("POST", path, data)
        self.acknowledged.append(time.perf_counter() - begun)
        if status == 200:
            return int(json.loads(answer)["next_offset"])
        self.refused += 1
        return offset


def _wrong(running: Running, sent: dict[str, tuple[int, bool]]) -> list[str]:
    """Return the jobs whose verdict is wrong or does not cover all bytes."""
    found = []
    for job, (size, fails) in list(sent.items())[::2]:
        end = time.monotonic() + 60
        while not (stored := _verdict(running, job)).get("final") and time.monotonic() < end:
            time.sleep(0.5)
        verdict = stored.get("verdict", {})
        read, outcome = verdict.get("compression", {}).get("bytes_in"), verdict.get("outcome")
        if read != size or (outcome == "failed") != fails or verdict.get("problems"):
            found.append(f"{job}: {outcome}, {read} of {size} bytes")
    return found


def _verdict(running: Running, job: str) -> dict[str, Any]:
    """Return the stored verdict; empty without one."""
    status, answer = running.get(f"/v1/jobs/{job}/attempts/1/verdict")
    found: dict[str, Any] = json.loads(answer) if status == 200 else {}
    return found


def _tenths(values: Sequence[float], of: Callable[[Sequence[float]], float] = statistics.median) -> list[float]:
    return [of(values[len(values) * part // 10 : len(values) * (part + 1) // 10] or [0.0]) for part in range(10)]


def _chart(looks: Looks, mode: str, minutes: float) -> str:
    """Draw memory, handles and lag over time, each as a share of its maximum."""
    curves = {"memory": looks.memory, "handles": looks.handles, "lag": looks.lag}
    units = {"memory": "MB", "handles": "files", "lag": "s"}
    most = {name: max(values) or 1.0 for name, values in curves.items()}
    count = min(len(looks.memory), 120)
    places = [len(looks.memory) * step // count for step in range(count)]
    return draw(
        Chart(
            f"{NODES} streams for {minutes:g} minutes",
            f"{mode}; each as a share of the most there was: "
            + ", ".join(f"{name} {most[name]:.3g} {units[name]}" for name in curves),
            "minutes",
            [f"{minutes * step / count:.0f}" if step % max(count // 6, 1) == 0 else "" for step in range(count)],
            {name: [values[place] / most[name] for place in places] for name, values in curves.items()},
            LINEAR,
            {},
        )
    )


def measure(minutes: float, postgresql: bool, svg: Path | None) -> Row:
    """Run a service for `minutes` and return its figures."""
    mode = MODES[-1 if postgresql else 1]
    with place_of(mode) as place, place.service() as running:
        lines = biglog(place.folder / "big.log", 6, "nemo").split(b"\n")
        looks, jobs, before = Looks(place, running), Jobs(running, lines, minutes * 60), place.cpu()
        looks.start()
        asyncio.run(jobs.run())
        looks.stop()
        used = {name: (now - before[name]) / (minutes * 60) for name, now in place.cpu().items()}
        wrong = _wrong(running, jobs.sent)
    if svg:
        svg.write_text(_chart(looks, mode.name, minutes))
    memory, handles = _tenths(looks.memory), _tenths(looks.handles)
    return {
        "mode": mode.name,
        "minutes": minutes,
        "jobs": len(jobs.sent),
        "mb": sum(size for size, _ in jobs.sent.values()) / 1e6,
        "refused": jobs.refused,
        "wrong": wrong,
        "acknowledged": spread(jobs.acknowledged),
        "cores": used,
        "memory_mb": [round(one) for one in memory],
        "memory_share": memory[9] / memory[1],
        "handles": [round(one) for one in handles],
        "handles_share": handles[9] / handles[1],
        "lag_seconds_max": [round(one, 1) for one in _tenths(looks.lag, max)],
    }


def main() -> None:
    """Measure, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--postgresql", action="store_true", help="two workers over PostgreSQL")
    parser.add_argument("--json", nargs="?", const=RESULTS, type=Path, metavar="FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw memory, handles and lag")
    given = parser.parse_args()
    found = measure(given.minutes, given.postgresql, given.svg)
    for figure, value in found.items():
        console.print(f"{figure.replace('_', ' ')}: {shown(value)}")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
