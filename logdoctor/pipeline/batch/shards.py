"""Cuts an archive into shards: the unit that one process diagnoses at a time, and that a resumed run skips or does."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from logdoctor.pipeline.batch.sources import Source


class ShardSize(NamedTuple):
    """A shard is full with this many bytes of logs, or sources."""

    bytes: int
    sources: int


_LEAST, _MOST = ShardSize(1 << 20, 16), ShardSize(64 << 20, 256)
_SHARDS = 256  # of a small archive, so that many processes get a share


def size_for(whole: ShardSize) -> ShardSize:
    """Return the size of an archive's shards: a 256th of it, within 1 MB or 16 sources, and 64 MB or 256 sources. It
    does not depend on the number of processes: a run may be resumed with another one."""
    return ShardSize(
        *(min(max(size // _SHARDS, least), most) for size, least, most in zip(whole, _LEAST, _MOST, strict=True))
    )


class Shard(NamedTuple):
    """Some sources. `weight` is how many bytes of the archive it stands for; `unpacked` is the folder with members of a
    tar, removed once they are diagnosed; `part` is the name of the file for its rows. `given` are places of logs that
    buckets gave, for checking refusals."""

    sources: tuple[Source, ...]
    weight: int
    unpacked: Path | None = None
    part: str = ""
    given: tuple[str, ...] = ()

    def split(self) -> "list[Shard]":
        """Return each source as a shard."""
        return [Shard((source,), 0, given=self.given) for source in self.sources]

    def digest(self, made_with: str) -> str:
        """Return 32 hex digits over all that the rows depend on: the sources as they are now, what is told about them,
        and what diagnoses them."""
        digest = hashlib.sha256(made_with.encode())
        for source in self.sources:
            files = [(file.label or file.place, file.stream, file.size, file.changed) for file in source.files]
            said = (source.name, source.attempt, files, str(source.error or ""), source.told)
            digest.update(repr(said).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()[:32]


def cut(weighed: Iterable[tuple[Source, int]], full: ShardSize) -> Iterator[Shard]:
    """Yield weighted sources as shards."""
    some: list[Source] = []
    size = weight = 0
    for source, more in weighed:
        some.append(source)
        size += source.size
        weight += more
        if size >= full.bytes or len(some) >= full.sources:
            yield Shard(tuple(some), weight)
            some, size, weight = [], 0, 0
    if some:
        yield Shard(tuple(some), weight)
