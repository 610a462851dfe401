"""What the process that runs a command leaves for its supervisor when the command has ended."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from logdoctor.job.recovery.contract import ATTEMPT_KEY
from logdoctor.job.recovery.death import Death, death_of, leave_death
from logdoctor.job.recovery.running import Ended
from logdoctor.job.recovery.witness.ranks import RANKS, attempt_processes
from tests import waiting
from tests.recovery.test_parts import PLAIN, judged


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The key of an attempt whose ranks 0 and 1 live, beside a process that is no rank."""
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    key = str(uuid4())
    ranks: list[dict[str, str]] = [{"RANK": "0"}, {"RANK": "1"}, {}]
    running = [subprocess.Popen(["sleep", "3000"], env={**os.environ, ATTEMPT_KEY: key, **rank}) for rank in ranks]
    waiting.until(lambda: len(attempt_processes(key)) == 3)
    yield key
    for process in running:
        process.kill()
        process.wait()


def left(folder: Path, key: str, status: int | None) -> Death:
    leave_death(str(folder), key, status)
    death = death_of(str(folder), key)
    assert death is not None
    return death


def test_a_launcher_that_is_killed_leaves_its_ranks(tmp_path: Path, key: str) -> None:
    assert left(tmp_path, key, signal.SIGKILL).left == (0, 1)
    for status in (0, 1 << 8, 137 << 8, signal.SIGTERM, signal.SIGSEGV):
        assert left(tmp_path, key, status).left == (), "it ended by itself, or was asked to"


def test_a_command_that_was_told_a_rank_is_no_launcher(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves behind loads its data."""
    monkeypatch.setenv("RANK", "0")
    assert left(tmp_path, key, signal.SIGKILL).left == ()


def test_ranks_that_are_gone_were_not_left(tmp_path: Path) -> None:
    assert left(tmp_path, str(uuid4()), signal.SIGKILL).left == ()


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"attempt": "k"}', b'{"attempt": "k", "at": [], "left": 3}'])
def test_what_is_no_death_says_nothing(tmp_path: Path, said: bytes) -> None:
    assert death_of(str(tmp_path), "k") is None
    (tmp_path / "death.json").write_bytes(said)
    assert death_of(str(tmp_path), "k") is None
    leave_death(str(tmp_path), "other", 0)
    assert death_of(str(tmp_path), "k") is None


def test_the_time_in_which_the_output_is_sent_is_not_the_commands() -> None:
    ended = Ended(0, 50.0).after(Death(130.0), 100.0)
    assert (ended.seconds, ended.sending) == (30.0, 20.0)
    assert Ended(0, 50.0).after(None, 100.0) == Ended(0, 50.0)


def test_who_ends_a_job_leaves_no_launcher_gone() -> None:
    gone = Ended(signal.SIGKILL, 50.0).after(Death(130.0, left=(0, 1)), 100.0)
    assert gone.launcher_gone
    assert not gone._replace(interrupted=True).launcher_gone
    assert not gone._replace(stopped_for=judged(PLAIN)).launcher_gone
