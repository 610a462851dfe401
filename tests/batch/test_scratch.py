"""Folders for what is fetched: none outlives its process for long."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logdoctor.pipeline.batch.scratch import scratch

BEGIN = """
import signal
from pathlib import Path
from logdoctor.pipeline.batch.scratch import scratch
with scratch() as folder:
    (folder / "source" ).mkdir()
    (folder / "source" / "0").write_text("fetched")
    print(folder, flush=True)
    signal.pause()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_what_a_killed_process_left_goes_when_the_next_one_begins(temporary: Path) -> None:
    (temporary / "logdoctor-scratch-link").symlink_to("/etc")
    (temporary / "logdoctor-scratch-file").write_text("of somebody")
    begun = [subprocess.Popen([sys.executable, "-c", BEGIN], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        folders = [Path(process.stdout.readline().strip()) for process in begun if process.stdout]
        assert all((folder / "source" / "0").read_text() == "fetched" for folder in folders)
        begun[0].send_signal(signal.SIGKILL)
        begun[0].wait()
        with scratch() as own, scratch() as other:
            assert own.is_dir() and other.is_dir() and own != other and own.parent == temporary
            assert [folder.exists() for folder in folders] == [False, True], "what lives keeps its own"
        assert not own.exists() and not other.exists()
    finally:
        for process in begun:
            process.kill()
            process.communicate()
    assert (temporary / "logdoctor-scratch-link").is_symlink() and (temporary / "logdoctor-scratch-file").exists()
