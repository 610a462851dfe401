"""All logs of the corpora through each mode of the service, whose processes are killed meanwhile: every verdict is that
of `logdoctor diagnose`, to the last number, and every byte is there.

MODES_SEED says by which dice.
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from logdoctor import pipeline
from logdoctor.diagnose.decide import diagnose as judge
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.store.jobs.records import StoredVerdict
from tests import waiting
from tests.databases import databases
from tests.redis_server import redis_in
from tests.service.services import plain
from tests.web.conftest import Running, running_in

SEED = int(os.environ.get("MODES_SEED", "1"))
LOGS = sorted(path for of in ("corpus", "validation") for path in Path(f"eval/{of}").resolve().glob("*/*.log"))
KILLS = 12
_PIECE = 10_000
_AT_ONCE = 5000  # lines that are asked for at a time
_JSON = {"content-type": "application/json"}
_ALONE = {"LOGDOCTOR_LEASE_SECONDS": "1", "LOGDOCTOR_LEARN": "off", "LOGDOCTOR_CASES": "off"}
"""Others take over soon, and nothing is learned: what is known stays the same, as for `diagnose`."""


class Site:
    """The processes of one mode: those that take requests, and how each is begun again when it was killed."""

    def __init__(self, folder: Path, stack: ExitStack, environment: dict[str, str]) -> None:
        self._folder, self._stack, self._environment = folder, stack, environment
        self._begin: list[tuple[Running, Callable[[Running], None]]] = []
        self.serving: list[Running] = []

    def add(self, *options: str, name: str, serves: bool = True) -> None:
        """Begin one more process."""

        def begin(running: Running) -> None:
            if serves:
                running.start("--port", "0", *options)
            else:
                running.process = running.spawn(*options)

        running = self._stack.enter_context(running_in(self._folder / name, **self._environment))
        begin(running)
        self._begin.append((running, begin))
        if serves:
            self.serving.append(running)

    def kill(self, chance: random.Random) -> None:
        """Kill one of them, and begin it again."""
        running, begin = chance.choice(self._begin)
        running.kill()
        begin(running)


@contextmanager
def embedded(folder: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        site = Site(folder, stack, _ALONE)
        site.add(name="data")
        yield site


@contextmanager
def two_workers(folder: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        site = Site(folder, stack, _ALONE)
        site.add("--workers", "2", name="data")
        yield site


@contextmanager
def cluster(folder: Path, with_redis: bool) -> Iterator[Site]:
    with ExitStack() as stack:
        name = databases.pool.lend()
        stack.callback(databases.pool.take_back, name)
        environment = _ALONE | {
            "LOGDOCTOR_DATABASE_URL": databases.server.url(name),
            "LOGDOCTOR_ARCHIVE_URL": str(folder / "archive"),
        }
        if with_redis:
            environment["LOGDOCTOR_REDIS_URL"] = stack.enter_context(redis_in(folder)).url
        site = Site(folder, stack, environment)
        for number in range(2):
            site.add("--role", "web", name=f"web-{number}")
            site.add("--role", "worker", name=f"worker-{number}", serves=False)
        yield site


MODES = {
    "embedded": embedded,
    "two workers": two_workers,
    "cluster": lambda folder: cluster(folder, with_redis=True),
    "cluster without Redis": lambda folder: cluster(folder, with_redis=False),
}


class Sender:
    """Sends logs to whichever process answers, again and again until each byte was acknowledged."""

    def __init__(self, site: Site, chance: random.Random) -> None:
        self._site, self._chance = site, chance

    def send(self, job: str, data: bytes) -> None:
        """Send a log in parts, and its end."""
        path, offset = f"/v1/jobs/{job}/attempts/1", 0
        while offset < len(data):
            piece = data[offset : offset + self._chance.randrange(1, _PIECE)]
            answer = self._asked("POST", f"{path}/streams/main/log?offset={offset}", piece)
            assert answer.status_code in (200, 409), answer.text
            found = answer.json()  # 409: what was sent before a process died was acknowledged to nobody
            offset = found["next_offset"] if answer.status_code == 200 else found["error"]["next_offset"]
        assert self._asked("POST", f"{path}/end", b'{"exit_code": 1}').status_code == 202

    def verdict(self, job: str, size: int) -> StoredVerdict | None:
        """The final verdict on so many bytes, if there is one."""
        answer = self._asked("GET", f"/v1/jobs/{job}/attempts/1/verdict", b"")
        if answer.status_code != 200:
            return None
        stored = msgspec.json.decode(answer.content, type=StoredVerdict)
        return stored if stored.final and stored.verdict.compression.bytes_in == size else None

    def lines(self, job: str, count: int) -> bytes:
        """So many lines of a log, as a reader gets them."""
        parts = []
        for first in range(1, count + 1, _AT_ONCE):
            last = min(first + _AT_ONCE - 1, count)
            answer = self._asked("GET", f"/v1/jobs/{job}/attempts/1/streams/main/log?line={first}-{last}", b"")
            parts.append(answer.content)
        return b"".join(parts)

    def _asked(self, method: str, path: str, body: bytes) -> httpx.Response:
        end = time.monotonic() + 120
        while True:
            try:
                url = self._chance.choice(self._site.serving).url
                answer = httpx.request(method, url + path, content=body, headers=_JSON, timeout=60)
                if answer.status_code < 500:
                    return answer
            except httpx.HTTPError:
                pass
            assert time.monotonic() < end, path
            time.sleep(0.05)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_verdicts_of_diagnose(
    tmp_path: Path, mode: str, scanner: Scanner, limits: ReadLimits
) -> None:
    chance = random.Random(SEED)
    with MODES[mode](tmp_path) as site:
        sender, kills = Sender(site, chance), 0
        with ThreadPoolExecutor(8) as pool:
            sent = [pool.submit(sender.send, path.stem, path.read_bytes()) for path in LOGS]
            while left := wait(sent, chance.uniform(0.2, 2.0), FIRST_EXCEPTION).not_done:
                if any(one.done() and one.exception() for one in sent):
                    pool.shutdown(cancel_futures=True)
                    break
                if kills < KILLS and len(left) < len(LOGS) - 13 * kills:
                    site.kill(chance)
                    kills += 1
            for one in sent:
                one.result()
        wrong = list(_differences(sender, LOGS, scanner, limits))
        print(f"{mode}: {len(LOGS)} logs, {kills} processes killed")
        assert kills == KILLS and not wrong, "\n".join(wrong)


def _differences(sender: Sender, logs: Sequence[Path], scanner: Scanner, limits: ReadLimits) -> Iterator[str]:
    for path in logs:
        records = pipeline.records([pipeline.LogFile("main", path)], scanner, limits)
        wanted = plain(judge(records, scanner.book, reported=ReportedEnd(1)))
        data = path.read_bytes()
        found = waiting.until(lambda path=path, data=data: sender.verdict(path.stem, len(data)))  # type: ignore[misc]
        if plain(found.verdict) != wanted:
            yield f"{path.name}: {plain(found.verdict)!r} instead of {wanted!r}"
        whole = data if data.endswith(b"\n") else data + b"\n"
        if sender.lines(path.stem, whole.count(b"\n")) != whole:
            yield f"{path.name}: its bytes are not those that were sent"
