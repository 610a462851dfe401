"""Writers that are killed at any moment: what is complete is good, and what was told to be saved is there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import SOAKING

ROOT = Path(__file__).parents[2]


@pytest.mark.more_in_soak
@pytest.mark.parametrize(("ranks", "kills"), [(1, 1000 if SOAKING else 60), (2, 30 if SOAKING else 6)])
def test_killed_writers(tmp_path: Path, ranks: int, kills: int) -> None:
    command = [sys.executable, "-m", "tests.checkpoint.killing", str(tmp_path / "folder"), str(kills), "7", str(ranks)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    counts = json.loads(done.stdout)
    assert {what: counts.pop(what) for what in ("unreadable", "wrong values", "lost")} == {
        "unreadable": 0,
        "wrong values": 0,
        "lost": 0,
    }
    assert counts["kills"] == kills and counts["loads"] >= kills // 2 and counts["steps"] >= kills // 2 - 1
    if ranks == 1:  # of two, the one that is left deletes what it cannot finish
        assert counts["torn"] > 0
