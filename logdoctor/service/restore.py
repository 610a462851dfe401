"""What stands in the journal of a service that was killed goes to the archive, before anything new is taken."""

import structlog

from logdoctor.errors import StoreError
from logdoctor.store.archive import FRAME, Archive, StreamFile
from logdoctor.store.frames import Packer
from logdoctor.store.journal import Journal, JournalEntry
from logdoctor.store.names import Key
from logdoctor.store.records import Records

log = structlog.get_logger()


class _Restored:
    """One stream: its file, and what is to be appended to it."""

    def __init__(self, file: StreamFile, packer: Packer) -> None:
        self.file, self._packer = file, packer
        self._waiting: list[bytes] = []
        self._marks: list[str] = []
        self._held = 0

    @property
    def reached(self) -> int:
        return self.file.offset + self._held

    def add(self, entry: JournalEntry) -> None:
        """Take what the file does not have of an entry that continues it."""
        if missing := entry.data[self.reached - entry.offset :]:
            self._waiting.append(missing)
            self._held += len(missing)
        if entry.mark:
            self._marks.append(entry.mark)
        if self._held >= FRAME:
            self.write()

    def write(self) -> None:
        if self._waiting:
            self.file.append(b"".join(self._waiting), self._packer, self._marks)
            self._waiting, self._marks, self._held = [], [], 0

    def finish(self) -> None:
        """Write the rest, durably."""
        self.write()
        if self.file.offset:
            self.file.sync()


def replay(journal: Journal, archive: Archive, records: Records) -> None:
    """Bring the archive up to what was acknowledged, and delete the journal.

    A stream whose archive does not fit keeps its journal for the next start: its file may be restored, or its disk
    mounted, until then. `OSError` when the disk is full.
    """
    streams: dict[Key, _Restored | None] = {}  # None: the archive does not fit
    packer = Packer()
    for entry in journal.replay():
        if entry.key not in streams:
            streams[entry.key] = _opened(archive, entry, packer)
        stream = streams[entry.key]
        if stream is None:
            continue
        if entry.offset > stream.reached:
            log.error("bytes missing", stream=str(entry.key), archived=stream.reached, journal=entry.offset)
            streams[entry.key] = None
            stream.finish()
            continue
        stream.add(entry)
    for restored in streams.values():
        if restored is not None:
            restored.finish()
    for job, number in {(key.job, key.attempt): None for key in streams}:
        records.reopen(job, number)  # what stands in the journal may have come after its verdict
    if None in streams.values():
        journal.set_aside()
    else:
        journal.drop_kept()
    journal.release(journal.rotate())
    if streams:
        log.info("journal replayed", streams=len(streams))


def _opened(archive: Archive, entry: JournalEntry, packer: Packer) -> _Restored | None:
    try:
        file = archive.open(entry.key, to_mend=True)
    except StoreError as error:
        log.error("stream not readable", stream=str(entry.key), cause=str(error))
        return None
    file.mend(entry.offset)
    return _Restored(file, packer)
