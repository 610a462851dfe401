"""Kills of a service under load, and what a loss of power may do to its data folder on top of that."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import msgspec

from logdoctor.store.archive import Archive
from logdoctor.store.frames import Frame, Packer, walk
from logdoctor.store.journal import Journal, JournalEntry, _secret
from logdoctor.store.names import Key
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

    def kill(self) -> None:
        """Kill the service now."""
        self._running.kill()
        self._load.closed()
        self.kills += 1

    def damage(self) -> None:
        """Take from the data folder of a killed service what its page cache held and nobody promised to keep."""
        self._load.silent()
        folder = self._running.folder
        for key, entries in _journalled(folder).items():
            if self._chance.random() < 0.8:
                self._damage_archive(folder, key, entries[0].offset)
        for state in sorted(folder.glob("archive/*/*/*.state")):
            if self._chance.random() < 0.3:
                self._damage_state(state)
        if files := sorted((folder / "journal").glob("*.zst")):
            self._damage_journal(files[-1])

    def _damage_archive(self, folder: Path, key: Key, covered: int) -> None:
        """Cut or blank the end of a file, no further than the journal reaches back."""
        path = Archive(folder / "archive").open(key, to_mend=True).path
        if not path.exists():
            return
        first = next((frame.begin for frame, offset in _frames(path) if offset >= covered), None)
        size = path.stat().st_size
        if first is None or first == size:
            return
        self.damages["archive"] += 1
        place = self._chance.randrange(first, size)
        os.truncate(path, place)
        if self._chance.random() < 0.6:
            os.truncate(path, size)  # the size came to the disk, the pages did not
        elif not place:
            path.unlink()

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

    def _damage_journal(self, path: Path) -> None:
        """Tear the last write: one that was never acknowledged, or another that had just begun."""
        with path.open("rb") as file:
            frames = list(walk(file.fileno(), 0, _secret(path)))
        end = frames[-1].end if frames else 0
        if frames and not self._is_acknowledged(frames[-1]):
            self.damages["last frame"] += 1
            os.truncate(path, end - self._chance.randrange(1, end - frames[-1].begin))
            return
        notes = msgspec.msgpack.encode([(Key("never", 1, "sent"), 0, 999, "")])
        torn = Packer().pack(notes, self._chance.randbytes(999))
        with path.open("r+b") as file:
            file.truncate(end)
            file.seek(end)
            file.write(torn[: self._chance.randrange(len(torn))])
        self.damages["torn write"] += 1

    def _is_acknowledged(self, frame: Frame) -> bool:
        """Whether anybody may know of something in a frame of the journal. Pushes have no offset, so they count."""
        known = {
            Key(attempt.job, attempt.number, stream.name): stream.acknowledged
            for attempt in self._load.attempts
            for stream in attempt.streams
        }
        for name, offset, _, mark in msgspec.msgpack.decode(frame.note):
            if mark or offset < known[Key(*name)]:
                return True
        return False


def _journalled(folder: Path) -> dict[Key, list[JournalEntry]]:
    """What the journal of a killed service holds, by stream."""
    found: dict[Key, list[JournalEntry]] = {}
    for entry in Journal(folder / "journal", lambda _: None, lambda *_: None).replay():
        found.setdefault(entry.key, []).append(entry)
    return found


def _frames(path: Path) -> list[tuple[Frame, int]]:
    """The frames of a stream's file, and where in the stream each begins."""
    with path.open("rb") as file:
        return [(frame, int.from_bytes(frame.note[:8], "little")) for frame in walk(file.fileno())]
