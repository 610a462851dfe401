"""The service is killed under load, again and again: nothing acknowledged is lost or doubled, nobody goes without
the right verdict."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from tests import waiting
from tests.crash.check import differences
from tests.crash.load import Corpus, Load
from tests.crash.trouble import Trouble
from tests.postgres import own_server
from tests.service.disks import fill, small_disk
from tests.web.conftest import Running, running_in

QUICK = {
    "LOGDOCTOR_LINGER_SECONDS": "1",
    "LOGDOCTOR_RATE_LIMIT": "0",
    "LOGDOCTOR_NEW_JOBS_PER_MINUTE": "0",
    "LOGDOCTOR_LEARN_JOBS": "0",
}
"""Rules are learned meanwhile and stay in shadow: one that takes lines would make verdicts other than expected."""


class Bench:
    """Runs a service under load, and what is done to it."""

    def __init__(self, tmp_path: Path, corpus: Corpus, seed: int, scanner: Scanner, limits: ReadLimits) -> None:
        self._work = tmp_path / "work"
        self._work.mkdir()
        self._folder = tmp_path / "data"
        self._messages = tmp_path / "messages"
        self._corpus, self._seed, self._scanner, self._limits = corpus, seed, scanner, limits

    def suffer(
        self, act: Callable[[Running, Load, Trouble], None], folder: Path | None = None, url: str = ""
    ) -> set[str]:
        """Let `act` do its worst to a service under load, then compare all that was sent with what is there.

        The errors that the service has logged.
        """
        print(f"--crash-seed {self._seed}")
        begin = time.monotonic()
        load = Load(self._corpus, self._seed)
        folder = folder or self._folder
        # over PostgreSQL who comes back waits for the lease of who was killed
        lease = "5" if url else "30"
        url = url or f"sqlite:///{folder}/logdoctor.db"
        own = {"LOGDOCTOR_LEASE_SECONDS": lease, "LOGDOCTOR_LOG_BYTES": str(8 << 20), "LOGDOCTOR_DATABASE_URL": url}
        with running_in(folder, **QUICK, **own) as running:
            running.messages_in(self._messages)
            trouble = Trouble(running, load, random.Random(self._seed))
            running.start()
            load.start(running.port)
            try:
                act(running, load, trouble)
            except BaseException:
                load.finishing = True  # nobody waits for the senders of a service that may be away
                raise
            load.finish()
            found = load.wrong or list(
                differences(running, load, trouble.kills, self._work, self._scanner, self._limits, url)
            )
            said = {str(m.get("cause", m["event"]))[-200:] for m in running.said() if m.get("level") == "error"}
        took = time.monotonic() - begin
        print(f"seed {self._seed}: {trouble.kills} kills, {trouble.restarts} restarts, damages {dict(trouble.damages)}")
        print(f"{len(load.attempts)} attempts in {took:.0f} s, {dict(load.counts)}, errors logged: {sorted(said)}")
        assert not found, f"--crash-seed {self._seed}: {len(found)} wrong:\n" + "\n".join(
            one[:3000] for one in found[:9]
        )
        assert load.counts["lost"] and load.counts["acknowledged"]
        return said


@pytest.fixture
def bench(tmp_path: Path, corpus: Corpus, seed: int, scanner: Scanner, limits: ReadLimits) -> Bench:
    return Bench(tmp_path, corpus, seed, scanner, limits)


def test_nothing_is_lost_in_crashes(bench: Bench, soaking: bool) -> None:
    def act(running: Running, load: Load, trouble: Trouble) -> None:
        while trouble.goes_on(100 if soaking else 5):
            trouble.strike(1.2)
            trouble.start()

    assert bench.suffer(act) == set()


def test_nothing_is_lost_in_crashes_that_take_what_was_not_synced(bench: Bench, soaking: bool) -> None:
    def act(running: Running, load: Load, trouble: Trouble) -> None:
        while trouble.goes_on(60 if soaking else 2):
            trouble.strike(2.0)
            trouble.damage()
            trouble.start()
        assert trouble.damages

    bench.suffer(act)


def test_nothing_is_lost_when_the_database_is_killed_too(bench: Bench, seed: int, soaking: bool) -> None:
    with own_server() as server:
        server.create("service")

        def act(running: Running, load: Load, trouble: Trouble) -> None:
            chance = random.Random(seed)
            while trouble.goes_on(30 if soaking else 1):
                for is_killed in (False, True):
                    if is_killed:
                        trouble.strike(1.2)
                    time.sleep(chance.random() * 0.8)
                    server.stop("immediate")
                    time.sleep(chance.random() * 0.8)
                    server.start()
                    if is_killed:
                        trouble.start()

        bench.suffer(act, url=server.url("service"))


def test_nothing_is_lost_in_crashes_on_a_full_disk(bench: Bench, tmp_path: Path, soaking: bool) -> None:
    def act(running: Running, load: Load, trouble: Trouble) -> None:
        chance = random.Random(load.seed)
        while trouble.goes_on(20 if soaking else 2):
            time.sleep(chance.random() * 0.5)
            with suppress(OSError):  # the service took the space first
                fill(disk, protect=chance.randrange(1 << 20))
            refused = load.counts["507"] + 3
            waiting.until(lambda refused=refused: load.counts["507"] >= refused or load.wrong, "the disk is full")
            time.sleep(chance.random() * 0.5)
            trouble.kill()
            if chance.random() < 0.5:
                trouble.start_and_kill()
            (disk / "ballast").unlink()
            trouble.start()

    with small_disk(tmp_path / "disk", 128 << 20) as disk:
        bench.suffer(act, disk / "data")
