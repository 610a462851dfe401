"""A log with many appenders and workers, all of which die, stand still and lose their database again and again.

CHAOS_EVENTS=1000 says how much happens, CHAOS_SEED by which dice.
"""

import os
import random
import time
from pathlib import Path

from tests.crash.chaos import check
from tests.postgres import own_server

EVENTS = int(os.environ.get("CHAOS_EVENTS", "1000"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))


def test_chaos_over_postgresql(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with own_server() as server:
        server.create("chaos")

        def restart() -> None:
            server.stop("immediate")
            time.sleep(chance.random())
            server.start()

        check(server.url("chaos"), tmp_path, SEED, EVENTS, restart)


def test_chaos_over_sqlite(tmp_path: Path) -> None:
    check(f"sqlite:///{tmp_path}/log.sqlite", tmp_path, SEED, EVENTS)
