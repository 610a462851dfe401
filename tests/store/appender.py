"""A process that appends to a journal and prints what was acknowledged, until it is killed.

python -m tests.store.appender FOLDER SEED
"""

import os
import random
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from logdoctor.store.journal import Journal, JournalEntry
from logdoctor.store.names import Key


def data_of(stream: str, offset: int, seed: int) -> bytes:
    """The bytes that are appended to a stream at an offset: of some size, and like no others."""
    chance = random.Random(f"{stream} {offset} {seed}")
    return f"{stream} {offset} ".encode() + chance.randbytes(chance.choice([1, 20, 300, 20_000]))


def main(folder: Path, seed: int) -> None:
    """Append for ever; one line for each acknowledged entry: its stream, offset and length."""
    room = threading.Semaphore(200)

    def committed(group: Sequence[JournalEntry]) -> None:
        told = "".join(f"{entry.key.stream} {entry.offset} {len(entry.data)}\n" for entry in group)
        os.write(1, told.encode())
        for _ in group:
            room.release()

    journal = Journal(folder, committed, lambda group, error: os._exit(3))
    journal.start()
    chance, offsets = random.Random(seed), dict.fromkeys("abcde", 0)
    for turn in range(10**9):
        stream = chance.choice("abcde")
        data = data_of(stream, offsets[stream], seed)
        room.acquire()
        journal.append(JournalEntry(Key("job", 1, stream), offsets[stream], data))
        offsets[stream] += len(data)
        if turn % 500 == 499:
            journal.rotate()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
