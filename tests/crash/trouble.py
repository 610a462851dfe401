"""Kills of a service under load, and what a loss of power may do to its data folder on top of that."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from tests.crash.load import Load
from tests.web.conftest import Running

KINDS = ("running", "running", "ended", "starting", "stopping")
"""When it is killed: at any moment, when an end was just acknowledged, while it starts, while it stops."""


class Trouble:
    """Kills a service and starts it again."""

    def __init__(self, running: Running, load: Load, chance: random.Random) -> None:
        self._running, self._load, self._chance = running, load, chance
        self._kinds: list[str] = []
        self._took = 2.0  # seconds that the last start took
        self.kills = self.restarts = 0
        self.damages: Counter[str] = Counter()

    def start(self) -> None:
        """Let the service come back."""
        begin = time.monotonic()
        self._running.start()
        self._took = time.monotonic() - begin
        self.restarts += 1
        self._load.opened(self._running.port)

    def strike(self, longest: float) -> None:
        """Kill the service within `longest` seconds, or a little later."""
        if not self._kinds:
            self._kinds = self._chance.sample(KINDS, len(KINDS))
        kind = self._kinds.pop()
        if kind == "ended":
            self._load.ended.clear()
            self._load.ended.wait(4 * longest)
        else:
            time.sleep(self._chance.random() * longest)
        if kind == "stopping":
            assert self._running.process is not None
            self._running.process.send_signal(signal.SIGTERM)
            time.sleep(self._chance.random() * 0.4)
        self.kill()
        if kind == "starting":
            self.start_and_kill()

    def start_and_kill(self) -> None:
        """Start the service and kill it on the way, mostly when it has begun to work."""
        self._running.process = self._running.spawn()
        early = self._chance.random() if self._chance.random() < 0.3 else 0.8 + 0.3 * self._chance.random()
        time.sleep(early * self._took)
        self.kill()

    def goes_on(self, kills: int) -> bool:
        """Whether to kill it once more: at least so often, and until one kill came in the middle of an answer; senders
        may all be waiting just then."""
        is_enough = self.kills >= kills and self._load.counts["lost"] > 0
        return not self._load.wrong and not is_enough

    def kill(self) -> None:
        """Kill the service now."""
        self._running.kill()
        self._load.closed()
        self.kills += 1

    def damage(self) -> None:
        """Take from the data folder of a killed service what nobody promised to keep, and leave what a loss of power
        leaves of writes that had begun."""
        self._load.silent()
        folder = self._running.folder
        for state in sorted(folder.glob("archive/*/*/*.state")):
            if self._chance.random() < 0.3:
                self._damage_state(state)
        for attempt in sorted(folder.glob("archive/*/*")):
            if self._chance.random() < 0.5:
                self._leave_object(attempt)
        self._tear(folder / "logdoctor.db-wal")

    def _damage_state(self, path: Path) -> None:
        self.damages["snapshot"] += 1
        size = path.stat().st_size
        match self._chance.randrange(3):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(bytes(size))
            case _:
                os.truncate(path, self._chance.randrange(size + 1))

    def _leave_object(self, folder: Path) -> None:
        """Leave one that was not yet whole, or not yet listed, beside those of an attempt."""
        whole = next((path.read_bytes() for path in sorted(folder.glob("*.zst"))), b"x" * 100)
        name = f"{self._chance.randrange(1, 9):06}-1-{self._chance.randrange(1 << 32):08x}.zst"
        is_whole = self._chance.random() < 0.5
        kept = len(whole) if is_whole else self._chance.randrange(len(whole))
        (folder / (name if is_whole else f".{name}")).write_bytes(whole[:kept])
        self.damages["orphan" if is_whole else "torn object"] += 1

    def _tear(self, path: Path) -> None:
        """Leave a part of a transaction that was never committed at the end of the database's log."""
        if not path.exists():
            return
        whole = path.read_bytes()
        self.damages["torn transaction"] += 1
        with path.open("ab") as file:
            torn = whole[32 : 32 + self._chance.randrange(20_000)] if self._chance.random() < 0.5 else b""
            file.write(torn or self._chance.randbytes(self._chance.randrange(1, 9999)))
