"""Who starts the sender so that it ignores a signal (nohup, cron, the background of a script) is not let down."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import waiting
from tests.send.conftest import Sender
from tests.send.service import Service

IGNORED = [signal.SIGINT, signal.SIGHUP]


def ignoring(number: signal.Signals) -> Callable[[], object]:
    """What a process does before it becomes the sender."""
    return lambda: signal.signal(number, signal.SIG_IGN)


@pytest.mark.parametrize("number", IGNORED)
def test_a_command_goes_on(sender: Sender, service: Service, number: signal.Signals) -> None:
    command = ("sh", "-c", "echo ready; read x; echo $x; exit 4")
    how = {"stdin": subprocess.PIPE, "preexec_fn": ignoring(number)}
    process = sender.start("run", "--stream", "s", "--", *command, **how)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.communicate(b"on\n")[0] == b"on\n" and process.returncode == 4
    assert service.text("s") == b"ready\non\n"


@pytest.mark.parametrize("number", IGNORED)
def test_what_is_left_to_be_sent_is_sent(sender: Sender, service: Service, number: signal.Signals) -> None:
    service.stop()
    command = ("--drain-seconds", "9999", "--", "sh", "-c", "echo $$")
    process = sender.start("run", "--stream", "s", *command, preexec_fn=ignoring(number))
    assert process.stdout
    printed = process.stdout.readline()
    waiting.until(lambda: not Path("/proc", printed.decode().strip()).exists(), "the command has ended")
    process.send_signal(number)
    service.start()
    assert process.wait() == 0
    assert service.text("s") == printed and sender.left() == []


@pytest.mark.parametrize("number", IGNORED)
def test_files_are_followed_on(sender: Sender, service: Service, number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("one\n")
    process = sender.start("ship", str(log), preexec_fn=ignoring(number))
    waiting.until(lambda: service.text("train.log") == b"one\n")
    process.send_signal(number)
    log.write_text("one\ntwo\n")
    waiting.until(lambda: service.text("train.log") == b"one\ntwo\n")
    process.terminate()
    assert process.wait() == 0
