"""A worker that reads the log of the shards that it owns and archives it, but judges nothing; until SIGTERM.

python -m tests.crash.archiving URL FOLDER SECONDS
"""

import random
import secrets
import signal
import sys
import time
from pathlib import Path

from logdoctor.errors import LogdoctorError
from logdoctor.service.holding import Holding, HoldingBounds
from logdoctor.service.owner import Owner
from logdoctor.store.jobs.records import Records
from logdoctor.store.log.archive import Archive
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.log.shards import Leases
from logdoctor.store.log.table import LogTable
from tests.store.logs import LIMITS


def turn(holding: Holding) -> None:
    """Take what came, as the watch does; archive it now and then, and forget an attempt."""
    holding.pull()
    with holding.lock:
        waiting = list(holding.unscanned)
        attempts = list(holding.attempts.values())
    for stream in waiting:
        if stream.ready:
            holding.scanned(stream, 1 << 20)
        else:
            holding.catch_up(stream, stream.archived)
    if random.random() < 0.05:
        holding.archive_all()
    if attempts and random.random() < 0.02:
        holding.forget(random.choice(attempts))


def main(url: str, folder: Path, seconds: float) -> None:
    """Work until SIGTERM; whatever happens to the database."""
    stopping: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    owner = holding = records = None
    while not stopping:
        try:
            if records is None:
                records = Records(url)
            if holding is None:
                log, archive = LogTable(records.database, LIMITS), Archive(records.database, FolderObjects(folder))
                holding = Holding(log, archive, records, lambda _: None, HoldingBounds(64 << 20, 1 << 20))
                holding.start()
            if owner is None:
                owner = Owner(Leases(records.database, secrets.token_hex(8), seconds, "book"), holding, lambda _: None)
                owner.start()
            turn(holding)
        except LogdoctorError as error:
            print(error, file=sys.stderr, flush=True)
            time.sleep(0.1)
        time.sleep(0.01)
    if holding:
        holding.stop()
    if owner:
        owner.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
