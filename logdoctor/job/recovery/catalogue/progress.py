"""Progress of our own checkpointer's saves, read from the files of incomplete ones."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

from logdoctor.job.recovery.catalogue import ours
from logdoctor.job.recovery.catalogue.files import entries, tree

_STILL = 10.0  # seconds without a byte
Stage = Literal["writing", "finishing", "standing still", "complete", "gone"]


class Progress(NamedTuple):
    """One save. `bytes` are written of about `expected`, the size of the last complete checkpoint (None without one).
    `per_second` is the rate since the last look (the average once it has ended), `seconds` the time since it was first
    seen. Stages: finishing once all data is there, standing still after 10 seconds without a byte (hanging storage or a
    dead writer), gone when its folder was deleted because the save failed."""

    name: str
    step: int
    stage: Stage
    bytes: int
    expected: int | None
    per_second: float
    seconds: float


class _Seen:
    """What was seen of a save."""

    def __init__(self, now: float) -> None:
        self.begun = self.looked = self.grew = now
        self.bytes, self.per_second = 0, 0.0

    def take(self, size: int, now: float) -> None:
        if now > self.looked:
            self.per_second = max(size - self.bytes, 0) / (now - self.looked)
        if size != self.bytes:
            self.grew = now
        self.bytes, self.looked = size, now


class Watch:
    """Polls a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, _Seen] = {}
        self._complete: dict[str, int] | None = None
        """Bytes of complete checkpoints by name; None before the first look."""

    def look(self, now: float) -> list[Progress]:
        """Return the saves under way and, once, those that completed or vanished since. `now` is in monotonic seconds.
        `CheckpointError` when the folder cannot be read."""
        complete, under_way = self._looked()
        last = max(complete, key=lambda name: (ours.named(name) or (0, 0))[::-1], default="")
        expected = complete.get(last)
        before = complete if self._complete is None else self._complete
        ended = [name for name in self._seen if name not in under_way]
        ended += [name for name in complete if name not in before and name not in self._seen]
        found = [self._ended(name, complete.get(name), expected, now) for name in ended]
        found += [self._going_on(name, *at, expected, now) for name, at in under_way.items()]
        self._complete = complete
        return found

    def _looked(self) -> tuple[dict[str, int], dict[str, tuple[bool, int]]]:
        """Return the bytes of complete ones; of others the bytes, and whether all data is there."""
        complete, under_way = {}, {}
        for entry in entries(self._folder):
            if ours.named(entry.name) and entry.is_dir(follow_symlinks=False):
                inside = tree(Path(entry.path))
                if {ours.MANIFEST, ours.DAMAGED} & inside.files.keys():
                    complete[entry.name] = inside.bytes
                else:
                    under_way[entry.name] = (".metadata" in inside.files, inside.bytes)
        return complete, under_way

    def _going_on(self, name: str, all_there: bool, size: int, expected: int | None, now: float) -> Progress:
        seen = self._seen.setdefault(name, _Seen(now))
        seen.take(size, now)
        stage: Stage = "finishing" if all_there else "writing"
        if now - seen.grew >= _STILL:
            stage = "standing still"
        return _progress(name, stage, size, expected, seen.per_second, now - seen.begun)

    def _ended(self, name: str, size: int | None, expected: int | None, now: float) -> Progress:
        seen = self._seen.pop(name, None) or _Seen(now)
        size, stage = (seen.bytes, "gone") if size is None else (size, "complete")
        seconds = now - seen.begun
        return _progress(name, stage, size, expected, size / seconds if seconds else 0.0, seconds)


def _progress(name: str, stage: Any, size: int, expected: int | None, per_second: float, seconds: float) -> Progress:
    step, _ = ours.named(name) or (0, 0)
    return Progress(name, step, stage, size, expected, round(per_second, 1), round(seconds, 3))
