"""Tests of nodes as processes of this machine: worlds of real ranks, and one that is interrupted."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import waiting
from tests.recorded_nodes import opened
from tests.test_cli import data, program

__all__ = ["data"]  # a fixture


def test_real_worlds_on_this_machine(data: Path) -> None:
    ran = program(
        "nodes", "test", "--launcher", "local", "--nodes", "local-[0-1]", "--json", LOGDOCTOR_DATA_DIR=str(data)
    )
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert [one["standing"] for one in told["test"]["conclusion"]["findings"]] == ["healthy", "healthy"]
    assert {reading["tool"] for reading in told["worlds"][0]["readings"]} == {"torch/gloo"}
    assert "local-0 local-1  passed" in ran.err and "GB/s" in ran.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_test_that_is_interrupted_leaves_nothing_running(data: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "logdoctor.cli", "nodes", "test", "--launcher", "local", "--nodes", "local-[0-1]"]
    environment = {**os.environ, "LOGDOCTOR_DATA_DIR": str(data), "OF_THIS_TEST": str(data)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        waiting.until(lambda: len(probes(data)) >= 2)
        process.send_signal(number)
        _, err = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 2 and "stopped" in err and "Traceback" not in err, err
    waiting.until(lambda: not probes(data))
    kept = opened(data).test(1)
    assert kept is not None and kept.state == "aborted" and "cancelled by" in kept.why


def probes(data: Path) -> list[str]:
    """The probes that run because of a test."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = f"OF_THIS_TEST={data}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if ours and b"--world" in (folder / "cmdline").read_bytes():
                found.append(folder.name)
    return found
