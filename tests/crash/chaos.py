"""Appenders and workers of one log that are killed and paused, while its database is, too; what must hold then."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import sqlalchemy as sa

from logdoctor.store.names import Key
from logdoctor.store.schema import log_rows, parts
from tests import waiting
from tests.crash.appending import PUSHED, STREAMS, acknowledged, pushed_line
from tests.store.logs import Parts, data_of, held, opened

LEASE = 2.0
"""Seconds for which workers lease shards."""
_NAMES = ("a", "b")


class Chaos:
    """Two appenders and two workers. `restart` kills the database and starts it again, where that is a server."""

    def __init__(self, url: str, folder: Path, chance: random.Random, restart: Callable[[], None] | None) -> None:
        self._url, self._folder, self._chance, self._restart = url, folder, chance, restart
        self._messages = (folder / "messages").open("ab")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._paused: dict[str, float] = {}
        self.events: Counter[str] = Counter()

    def start(self) -> None:
        """Start all processes."""
        for name in ("append a", "append b", "work a", "work b"):
            self._start(name)

    def suffer(self, events: int) -> None:
        """Let so many things happen, one after the other."""
        kinds = ["append", "work", "work", "pause", "pause", *(["database"] * 2 if self._restart else [])]
        while self.events.total() < events:
            time.sleep(self._chance.uniform(0.2, 0.8))
            self._resume(time.monotonic())
            kind = self._chance.choice(kinds)
            if kind == "database":
                assert self._restart is not None
                self._restart()
            elif kind == "pause":
                self._pause()
            else:
                self._kill(f"{kind} {self._chance.choice(_NAMES)}")
            self.events[kind] += 1
        self._resume(float("inf"))

    def finish(self) -> list[str]:
        """Stop the appenders, let the workers archive all, and stop them; what is wrong then."""
        self._stop("append")
        wrong = list(self._settled())
        self._stop("work")
        ended = {name: process.returncode for name, process in self._processes.items()}
        fine = (0, -signal.SIGTERM)  # the second before it had begun
        return wrong + [f"{name} ended with {code}" for name, code in ended.items() if code not in fine]

    def close(self) -> None:
        """Leave nothing behind."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._messages.close()

    def messages(self) -> str:
        """What the processes have said."""
        return (self._folder / "messages").read_text()

    @property
    def archive(self) -> Path:
        """Where the objects are."""
        return self._folder / "archive"

    def told(self) -> dict[str, tuple[list[int], int]]:
        """What each appender was told."""
        return {name: acknowledged(self._folder / f"told-{name}") for name in _NAMES}

    def _start(self, name: str) -> None:
        kind, _, one = name.partition(" ")
        last = [str(self._folder / f"told-{one}"), one] if kind == "append" else [str(self.archive), str(LEASE)]
        module = "tests.crash.appending" if kind == "append" else "tests.crash.archiving"
        command = [sys.executable, "-m", module, self._url, *last]
        root = str(Path(__file__).parents[2])
        everything = {**os.environ, "PYTHONPATH": root}
        self._processes[name] = subprocess.Popen(
            command, cwd=root, env=everything, stdout=self._messages, stderr=self._messages
        )

    def _kill(self, name: str) -> None:
        self._paused.pop(name, None)
        process = self._processes[name]
        process.kill()
        process.wait()
        self._start(name)

    def _pause(self) -> None:
        """Stop a process, mostly for longer than a lease."""
        name = self._chance.choice([*self._processes, "work a", "work b"])
        if not self._paused:
            self._processes[name].send_signal(signal.SIGSTOP)
            self._paused[name] = time.monotonic() + self._chance.uniform(0.5, 2.0) * LEASE

    def _resume(self, now: float) -> None:
        for name in [name for name, until in self._paused.items() if until <= now]:
            del self._paused[name]
            self._processes[name].send_signal(signal.SIGCONT)

    def _stop(self, kind: str) -> None:
        for name, process in self._processes.items():
            if name.startswith(kind):
                process.terminate()
        for name, process in self._processes.items():
            if name.startswith(kind):
                process.wait(300)

    def _settled(self) -> Iterator[str]:
        """Wait until all is archived and the log is empty."""
        with opened(self._url, self.archive) as here:
            try:
                waiting.until(lambda: not _left(here))
            except AssertionError:
                yield f"not archived: {_left(here)}"


def _left(here: Parts) -> str:
    """What the log still has, "" for nothing."""
    with here.database.reading() as connection:
        rows = connection.scalar(sa.select(sa.func.count()).select_from(log_rows)) or 0
    behind = [key for key in (*STREAMS, PUSHED) if (s := here.log.standing(key)).archived != s.next]
    return f"{rows} rows, {len(behind)} streams" if rows or behind else ""


def differences(url: str, folder: Path, told: dict[str, tuple[list[int], int]]) -> Iterator[str]:
    """All that is not as it should be once everything was archived."""
    with opened(url, folder) as here:
        yield from _bytes(here, told)
        if wrong := held(here.database):
            yield f"bytes and rows of shards: {wrong}"
        before = {facts.name for facts in here.objects.walk()}
        with here.database.reading() as connection:
            listed = set(connection.scalars(sa.select(parts.c.object)))
        if missing := listed - before:
            yield f"objects are missing: {sorted(missing)[:5]}"
        swept = here.archive.sweep(time.time() + 7200.0)
        print(f"{len(listed)} objects, {swept} orphans")
        if not listed <= {facts.name for facts in here.objects.walk()}:
            yield "sweeping took objects that are listed"
        yield from _bytes(here, told)


def _bytes(here: Parts, told: dict[str, tuple[list[int], int]]) -> Iterator[str]:
    """What is wrong with the bytes in the archive."""
    for place, key in enumerate(STREAMS):
        found, least = _archived(here, key), max(offsets[place] for offsets, _ in told.values())
        if len(found) < least:
            yield f"{key}: {least} bytes were acknowledged, {len(found)} are there"
        if found != data_of(key, 0, len(found)):
            yield f"{key}: its bytes are not those that were sent"
        if here.log.standing(key).lines != found.count(b"\n"):
            yield f"{key}: {here.log.standing(key).lines} lines are counted, {found.count(b'n')} are there"
    lines = _archived(here, PUSHED).splitlines(keepends=True)
    for name, (_, count) in told.items():
        mine = [line for line in lines if line.startswith(name.encode())]
        if not count <= len(mine) <= count + 1 or mine != [pushed_line(name, n) for n in range(len(mine))]:
            yield f"{name} was told of {count} lines, {len(mine)} are there, {len(set(mine))} of them different"


def _archived(here: Parts, key: Key) -> bytes:
    stream = here.archive.open(key)
    whole = b"".join(stream.frames(0, len(stream.places(stream.offset)[0])))
    assert whole == stream.read(0, stream.offset), key
    return whole


@contextlib.contextmanager
def chaos(url: str, folder: Path, seed: int, restart: Callable[[], None] | None = None) -> Iterator[Chaos]:
    """Yield running processes over a database."""
    running = Chaos(url, folder, random.Random(seed), restart)
    try:
        running.start()
        yield running
    finally:
        running.close()


def check(url: str, folder: Path, seed: int, events: int, restart: Callable[[], None] | None = None) -> None:
    """Let so many things happen to a log, and compare all of it with what was sent and told."""
    print(f"seed {seed}")
    begin = time.monotonic()
    with chaos(url, folder, seed, restart) as running:
        _begun(url, running)
        running.suffer(events)
        wrong = running.finish()
        wrong += differences(url, running.archive, running.told())
        took = time.monotonic() - begin
        sizes = [max(of) for of in zip(*(offsets for offsets, _ in running.told().values()), strict=True)]
        lines = [count for _, count in running.told().values()]
        print(
            f"{running.events.total()} events {dict(running.events)} in {took:.0f} s; {sum(sizes)} bytes, {lines} lines"
        )
        assert not wrong, f"seed {seed}: " + "\n".join(wrong[:20]) + running.messages()[-5000:]


def _begun(url: str, running: Chaos) -> None:
    """Wait until something was sent and archived."""
    with opened(url, running.archive) as here:
        waiting.until(lambda: any(here.log.standing(key).archived for key in STREAMS), "bytes in the archive")
