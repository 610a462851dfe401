"""The command that shows how far a save is."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.recovery.makers import ours
from tests.recovery.test_progress import MiB, begun, ended


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Any]:
    """Starts the command over a folder with one checkpoint; its standard output is given."""
    started = []
    ours(tmp_path, 10)

    def start(*options: str, out: Any = subprocess.PIPE) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "logdoctor.cli", "checkpoints", "list", str(tmp_path), "--watch", *options]
        started.append(
            subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, env=os.environ | {"COLUMNS": "120"})
        )
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()
        assert each.stderr
        each.stderr.close()


def test_json_has_an_object_for_each_change_and_ends_with_130(tmp_path: Path, watching: Any) -> None:
    process = watching("--json")
    with process.stdout as out:
        assert json.loads(out.readline())["name"] == "step-10.attempt-1"
        place = begun(tmp_path, 20, MiB)
        while (first := json.loads(out.readline()))["bytes"] != MiB:
            assert first["bytes"] == 0
        assert (first["name"], first["stage"]) == ("step-20.attempt-1", "writing")
        assert first["expected"] > 0 and first["at"] > 1e9
        begun(tmp_path, 20, 3 * MiB)
        while (second := json.loads(out.readline()))["bytes"] != 3 * MiB:
            assert second["stage"] == "writing"
        assert second["per_second"] > 0
        ended(place)
        while json.loads(out.readline())["stage"] != "complete":
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_lines_are_printed_where_there_is_no_terminal_and_refreshed_where_there_is(
    tmp_path: Path, watching: Any
) -> None:
    with watching().stdout as out:
        begun(tmp_path, 20, MiB)
        while b"step-20.attempt-1  writing  1.0 MiB of about " not in (line := out.readline()):
            assert line
    terminal, other = pty.openpty()
    process = watching(out=other)
    os.close(other)
    shown = b""
    while b"20.attempt-1  complete  1.0 MiB" not in shown:
        shown += os.read(terminal, 1 << 16)
        if b"writing" in shown:
            ended(tmp_path / "step-20.attempt-1")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    os.close(terminal)
