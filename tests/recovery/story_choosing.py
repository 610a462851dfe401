"""Processes that write notes about checkpoints at once, and one that is killed while it removes them."""

import os
import subprocess
import sys
from pathlib import Path

from logdoctor.job.recovery import catalogue
from tests import waiting
from tests.recovery.makers import ours


def test_two_processes_that_write_notes_leave_whole_ones(tmp_path: Path) -> None:
    ours(tmp_path, 10)
    code = (
        "import sys; from logdoctor.job.recovery import catalogue\n"
        "(one,) = catalogue.read(sys.argv[1])\n"
        "for n in range(50): catalogue.tried(one); catalogue.pin(one, 'x' * 1000)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    while any(writer.poll() is None for writer in writers):
        (one,) = catalogue.read(tmp_path)
        assert one.pinned is None or one.pinned.by == "x" * 1000
    assert [writer.returncode for writer in writers] == [0, 0]
    left = [path.name for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]
    assert left == [] and catalogue.read(tmp_path)[0].tries >= 50


def test_a_checkpoint_is_never_seen_half_removed(tmp_path: Path) -> None:
    """Whatever a removal is in, what is listed is whole: killed at several places."""
    code = (
        "import sys, time; from logdoctor.job.recovery import catalogue\n"
        "found = catalogue.read(sys.argv[1]); print('go', flush=True)\n"
        "catalogue.remove(found)\n"
    )
    for step in range(1, 61):
        path = ours(tmp_path, step)
        for number in range(20):
            (path / f"more-{number}").write_bytes(b"x")
    for left in (60, 45, 30, 10):
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as remover:
            assert remover.stdout is not None and remover.stdout.readline() == b"go\n"
            waiting.until(lambda left=left: len(list(tmp_path.glob("step-*"))) <= left)  # type: ignore[misc]
            remover.kill()
        assert all(one.complete for one in catalogue.read(tmp_path))
    ours(tmp_path, 61)  # whoever removes one sweeps what is left of others
    found = catalogue.read(tmp_path)
    assert catalogue.remove(found) == found
    assert catalogue.read(tmp_path) == [] and os.listdir(tmp_path / ".logdoctor" / "removing") == []
