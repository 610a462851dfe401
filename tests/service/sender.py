"""A process that sends logs to a service of its own and prints what was acknowledged, until it is killed.

python -m tests.service.sender FOLDER SEED
"""

import os
import random
import sys
from pathlib import Path

import structlog

from logdoctor import build
from logdoctor.settings import Settings
from logdoctor.store.names import Key
from tests.service.services import BOUNDS, CORPUS, PATIENT, opened

LOGS = sorted(CORPUS.glob("failures/*.log"))[:40:8]
SMALL = BOUNDS._replace(journal_bytes=300_000)


def main(folder: Path, seed: int) -> None:
    """Send until all is sent, then wait; one line for each acknowledged part: the stream and its length so far."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    service = opened(folder, build.scanner(Settings()), PATIENT, SMALL)
    chance = random.Random(seed)
    logs = {Key(path.stem, 1, "main"): path.read_bytes() for path in LOGS}
    os.write(1, b"begun 0\n")
    while logs:
        key = chance.choice(list(logs))
        with service.intake.opened(key) as stream:
            begin = stream.accepted
            futures = []
            for _ in range(chance.randrange(1, 10)):
                data = logs[key][stream.accepted :][: chance.randrange(1, 4000)]
                futures.append(service.intake.take(stream, stream.accepted, data))
                begin += len(data)
            for future in futures:
                future.result()
        os.write(1, f"{key.job} {begin}\n".encode())
        if begin == len(logs[key]):
            del logs[key]
    os.write(1, b"done 0\n")
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
