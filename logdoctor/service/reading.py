"""The bytes of streams for readers: the archive, followed by what only the log has."""

from collections.abc import Iterator

from logdoctor.errors import StoreError
from logdoctor.service.view import StreamView
from logdoctor.store.log.archive import Archive, ArchivedLines, lines_of
from logdoctor.store.log.table import LogTable, Standing
from logdoctor.store.names import Key


class Logs:
    """The logs of all attempts; usable from any thread of any process."""

    def __init__(self, stored: LogTable, archive: Archive) -> None:
        self._log, self._archive = stored, archive

    def standing(self, key: Key) -> Standing:
        """Return the offsets of a stream."""
        return self._log.standing(key)

    def streams(self, job: str, number: int) -> dict[str, Standing]:
        """Return the streams of an attempt with their offsets."""
        return self._log.streams_of(job, number)

    def view(self, key: Key) -> StreamView:
        """Return a stream as it is now, readable from any line on; `StoreError` when it is damaged."""
        standing, tail = self._tail(key)
        file = self._archive.open(key)
        newlines = file.newlines_before(standing.archived) + sum(part.count(b"\n") for part in tail)
        return StreamView(file, standing.archived, newlines, tail)

    def _tail(self, key: Key) -> tuple[Standing, list[bytes]]:
        """Return a stream's standing and its unarchived bytes; if they are archived meanwhile, look again."""
        while True:
            standing = self._log.standing(key)
            if standing.next == standing.archived:
                return standing, []
            chunks = self._log.tail(key, standing.archived)
            reached, parts = standing.archived, []
            for chunk in chunks:
                if chunk.offset > reached or reached >= standing.next:
                    break
                parts.append(chunk.data[reached - chunk.offset : standing.next - chunk.offset])
                reached = chunk.offset + len(chunk.data)
            if reached >= standing.next:
                return standing, parts
            if self._log.standing(key).archived == standing.archived:
                cause = f"bytes {reached} to {standing.next} are lost: the log of the service is damaged"
                raise StoreError(f"stream {key}", cause, "Run `logdoctor doctor`.")

    def lines(self, key: Key, first: int, last: int, limit: int) -> ArchivedLines:
        """Return raw lines of a stream, at most about `limit` bytes."""
        standing, tail = self._tail(key)
        number, chunks = self._archive.open(key).from_line(first, standing.archived)

        def all_chunks() -> Iterator[bytes]:
            yield from chunks
            yield from tail

        return lines_of(all_chunks(), number, first, last, limit)
