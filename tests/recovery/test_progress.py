"""How far a save is, told by its files."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logdoctor.recovery.catalogue.progress import Progress, Watch
from tests.recovery.makers import ours

MiB = 1 << 20


def begun(folder: Path, step: int, size: int) -> Path:
    """A save of ours that has written so much."""
    place = folder / f"step-{step}.attempt-1"
    place.mkdir(parents=True, exist_ok=True)
    (place / "__0_0.distcp").write_bytes(bytes(size))
    return place


def ended(place: Path) -> None:
    (place / ".metadata").write_bytes(b"m")
    (place / "manifest.json").write_text("{}")


def test_stages_bytes_and_bandwidth(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    ours(folder, 10)
    whole = sum(path.stat().st_size for path in (folder / "step-10.attempt-1").iterdir())
    watch = Watch(folder)
    assert watch.look(0.0) == []
    place, name = begun(folder, 20, 1 * MiB), "step-20.attempt-1"
    assert watch.look(1.0) == [Progress(name, 20, "writing", MiB, whole, 0.0, 0.0)]
    begun(folder, 20, 5 * MiB)
    assert watch.look(3.0) == [Progress(name, 20, "writing", 5 * MiB, whole, 2.0 * MiB, 2.0)]
    (place / ".metadata").write_bytes(b"m")
    (one,) = watch.look(4.0)
    assert (one.stage, one.bytes) == ("finishing", 5 * MiB + 1)
    assert [one.stage for at in (13.9, 14.1) for one in watch.look(at)] == ["finishing", "standing still"]
    (place / "manifest.json").write_text("{}")
    assert watch.look(21.0) == [
        Progress(name, 20, "complete", 5 * MiB + 3, 5 * MiB + 3, round((5 * MiB + 3) / 20, 1), 20)
    ]
    assert watch.look(22.0) == []


def test_a_save_that_failed_is_gone_and_one_that_was_quick_is_seen(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    place = begun(tmp_path, 1, 100)
    (one,) = watch.look(0.0)
    assert one.expected is None
    (place / "__0_0.distcp").unlink()
    place.rmdir()
    assert [(one.stage, one.bytes) for one in watch.look(1.0)] == [("gone", 100)]
    ended(begun(tmp_path, 2, 100))
    assert [(one.stage, one.name) for one in watch.look(2.0)] == [("complete", "step-2.attempt-1")]
    (tmp_path / "step-x.attempt-1").mkdir()
    (tmp_path / "other").mkdir()
    assert watch.look(3.0) == []


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
        assert process.wait(60) == 130


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
    shown, deadline = b"", time.monotonic() + 60
    while b"20.attempt-1  complete  1.0 MiB" not in shown:
        assert time.monotonic() < deadline
        shown += os.read(terminal, 1 << 16)
        if b"writing" in shown:
            ended(tmp_path / "step-20.attempt-1")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    os.close(terminal)
