"""A process that sends logs to a service of its own and prints what was acknowledged, until it is killed.

python -m tests.service.sender FOLDER SEED DATABASE_URL
"""

import os
import random
import sys
from pathlib import Path

import structlog

from logdoctor import wiring
from logdoctor.service.service import Service
from logdoctor.settings import Settings
from logdoctor.store.names import Key
from tests.service.services import BOUNDS, CORPUS, PATIENT, plan

LOGS = sorted(CORPUS.glob("failures/*.log"))[:40:8]
SMALL = BOUNDS._replace(unarchived=300_000)


def main(folder: Path, seed: int, database: str) -> None:
    """Send until all is sent, then wait; one line for each acknowledged part: the stream and its length so far."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    folder.mkdir()
    service = Service(folder, wiring.scanner(Settings()), plan(folder, PATIENT, SMALL)._replace(database=database))
    service.start()
    chance = random.Random(seed)
    logs = {Key(path.stem, 1, "main"): path.read_bytes() for path in LOGS}
    os.write(1, b"begun 0\n")
    while logs:
        key = chance.choice(list(logs))
        service.intake.open(key)
        begin, futures = service.logs.standing(key).next, []
        for _ in range(chance.randrange(1, 10)):
            data = logs[key][begin:][: chance.randrange(1, 4000)]
            futures.append(service.intake.take(key, begin, data))
            begin += len(data)
        for future in futures:
            future.result()
        os.write(1, f"{key.job} {begin}\n".encode())
        if begin == len(logs[key]):
            del logs[key]
    os.write(1, b"done 0\n")
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
