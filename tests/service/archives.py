"""Archived streams for tests of what reads them."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from logdoctor.store.log import archive
from logdoctor.store.log.archive import Archive, ArchivedStream, StreamPiece
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.names import Key


class Counted(FolderObjects):
    """A folder of objects that counts what is read of them."""

    gets = 0

    def get(self, name: str, begin: int, end: int) -> bytes:
        """Return bytes of an object."""
        self.gets += 1
        return super().get(name, begin, end)


def filled(key: Key, objects: FolderObjects, chunks: Sequence[bytes]) -> ArchivedStream:
    """A stream with these chunks, each in frames of its own, in the only object of a folder."""
    shutil.rmtree(str(objects), ignore_errors=True)
    pieces, offset, line = [], 0, 1
    for chunk in chunks:
        pieces.append(StreamPiece(key.stream, offset, line, chunk))
        offset, line = offset + len(chunk), line + chunk.count(b"\n")
    data, index = Archive(None, objects).packed(pieces)  # type: ignore[arg-type] # nothing is listed
    objects.put("object.zst", data)
    listed = archive._Attempt()
    archive._extend(listed, key, [(1, "object.zst", index)], objects)
    return listed.streams.get(key.stream) or ArchivedStream(key, objects)


def stream(folder: Path, chunks: Sequence[bytes]) -> ArchivedStream:
    """A stream with these chunks in a folder of its own."""
    return filled(Key("job", 1, "rank 0"), FolderObjects(folder), chunks)
