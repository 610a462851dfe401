"""A process that appends to the log as a web server does, until SIGTERM; what it was told is in a file.

python -m tests.crash.appending URL ACKNOWLEDGED NAME
"""

import mmap
import random
import signal
import struct
import sys
import time
from pathlib import Path

from logdoctor.errors import Busy, LogdoctorError, OffsetMismatch
from logdoctor.store.database import Database
from logdoctor.store.log.table import LogTable, NewBytes
from logdoctor.store.names import Key
from tests.store.logs import LIMITS, appended, data_of

STREAMS = [Key(f"job-{n // 4}", 1, f"rank {n % 4}") for n in range(16)]
"""What all such processes append to at once."""
PUSHED = Key("job-pushed", 1, "main")
"""What all push lines to, each once for its mark."""


def pushed_line(name: str, number: int) -> bytes:
    """A line that a process pushes."""
    return b"%s %08d\n" % (name.encode(), number)


def acknowledged(path: Path) -> tuple[list[int], int]:
    """What a process was told: up to where each stream is durable, and how many lines it has pushed."""
    *offsets, lines = struct.unpack(f"<{len(STREAMS) + 1}Q", path.read_bytes())
    return offsets, lines


class Appender:
    """Sends without end, and never believes what it was not told."""

    def __init__(self, log: LogTable, path: Path, name: str) -> None:
        self._log, self._name = log, name
        self._chance = random.Random()
        self._at: dict[Key, int] = {}
        if not path.exists():
            path.write_bytes(bytes(8 * (len(STREAMS) + 1)))
        with path.open("r+b") as file:
            self._told = mmap.mmap(file.fileno(), 0)
        self._lines = struct.unpack_from("<Q", self._told, 8 * len(STREAMS))[0]

    def send(self) -> None:
        """Append a group to some streams, now and then with a refused entry, and a pushed line, perhaps twice."""
        chosen = self._chance.sample(STREAMS, self._chance.randint(1, 5))
        entries = []
        for key in chosen:
            at = self._at[key] if key in self._at else self._log.standing(key).next
            for _ in range(self._chance.choice([1, 1, 2])):
                end = at + int(2 ** (self._chance.random() * 14))
                entries.append(NewBytes(key, at, data_of(key, at, end)))
                at = end
        line = NewBytes(PUSHED, None, pushed_line(self._name, self._lines), f"{self._name} {self._lines}")
        entries += [line] * self._chance.choice([0, 1, 1, 2])
        self._chance.shuffle(chosen)
        self._at = {key: at for key, at in self._at.items() if key not in chosen}
        for entry, result in zip(entries, appended(self._log, entries, time.time()), strict=True):
            self._told_of(entry, result)

    def _told_of(self, entry: NewBytes, result: int | LogdoctorError) -> None:
        if isinstance(result, OffsetMismatch):
            self._at[entry.key] = result.next_offset
        elif isinstance(result, LogdoctorError):
            if not isinstance(result, Busy):
                raise result
            time.sleep(0.02)
        elif entry.mark:
            if entry.mark == f"{self._name} {self._lines}":
                self._lines += 1
                struct.pack_into("<Q", self._told, 8 * len(STREAMS), self._lines)
        else:
            self._at[entry.key] = result
            struct.pack_into("<Q", self._told, 8 * STREAMS.index(entry.key), result)


def main(url: str, path: Path, name: str) -> None:
    """Append until SIGTERM; whatever happens to the database."""
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    appender = None
    while not stopping:
        try:
            appender = appender or Appender(LogTable(Database(url), LIMITS), path, name)
            appender.send()
            time.sleep(random.random() * 0.02)
        except (LogdoctorError, OSError) as error:
            print(name, error, file=sys.stderr, flush=True)
            time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
