"""Whatever the service does, the command does not feel it, no byte is sent twice and none is lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logdoctor.job.send.spool import gap_note
from tests import waiting
from tests.send.conftest import Sender
from tests.send.service import Service

COUNT = "import sys, time\nfor i in range({n}):\n    print('line', i, 'x' * 100, flush=True)\n    time.sleep({pause})"


def counted(n: int) -> bytes:
    return b"".join(b"line %d %s\n" % (i, b"x" * 100) for i in range(n))


def test_a_service_that_comes_late_gets_everything(sender: Sender, service: Service, tmp_path: Path) -> None:
    service.stop()
    said = tmp_path / "said"
    command = ("--drain-seconds", "600", "--", sys.executable, "-c", COUNT.format(n=1000, pause=0.001))
    with said.open("wb") as errors:
        process = sender.start("run", "--stream", "s", *command, stderr=errors)
    waiting.until(lambda: b"buffering logs" in said.read_bytes())
    service.start()
    out, _ = process.communicate()
    err = said.read_bytes()
    assert (process.returncode, out) == (0, counted(1000))
    assert service.text("s") == out
    assert err.count(b"buffering logs") == 1
    assert err.count(b"sending logs again") == 1


def test_a_service_that_goes_and_comes_back_gets_everything(sender: Sender, service: Service, tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = f"print('first', flush=True)\ninput()\n{COUNT.format(n=3000, pause=0.0001)}"
    command = ("--drain-seconds", "600", "--", sys.executable, "-c", code)
    with said.open("wb") as errors:
        process = sender.start("run", "--stream", "s", *command, stdin=subprocess.PIPE, stderr=errors)
    waiting.until(lambda: service.text("s"))
    service.stop()
    assert process.stdin
    process.stdin.write(b"\n")
    process.stdin.flush()
    waiting.until(lambda: b"buffering logs" in said.read_bytes())
    service.start()
    out, _ = process.communicate()
    assert (process.returncode, out) == (0, b"first\n" + counted(3000))
    assert service.text("s") == out


@pytest.mark.parametrize("status", [401, 503])
def test_a_refusal_is_told_once_and_overcome(sender: Sender, service: Service, status: int) -> None:
    service.fail_with = status
    service.retry_after = "0"
    command = ("--drain-seconds", "600", "--", "sh", "-c", "echo a; read x; echo b")
    process = sender.start("run", "--stream", "s", *command, stdin=subprocess.PIPE)
    waiting.until(lambda: len(service.requests) >= 2 or (status == 401 and service.requests))
    service.fail_with = None
    out, err = process.communicate(b"\n")
    assert (process.returncode, out) == (0, b"a\nb\n")
    assert service.text("s") == out
    assert err.count(b"buffering logs") == 1
    assert str(status).encode() in err


def test_a_refused_token_is_told_without_the_token(sender: Sender, service: Service) -> None:
    service.token = "right"
    sender.environment["LOGDOCTOR_TOKEN"] = "wr0ng"
    status, out, err = sender.run("sh", "-c", "echo x; exit 3", options=("--drain-seconds", "9999"))
    assert (status, out) == (3, b"x\n")
    assert b"refused the token" in err and b"Check LOGDOCTOR_TOKEN or --token-file" in err
    assert b"will be sent later" not in err and b"logdoctor ship --resume" in err
    assert b"wr0ng" not in err
    service.token = "wr0ng"
    assert sender.ship("--resume")[0] == 0
    assert service.streams


def test_a_refused_token_is_told_while_the_command_runs(sender: Sender, service: Service) -> None:
    service.token = "right"
    process = sender.start(
        "run", "--stream", "s", "--drain-seconds", "9999", "--", "sh", "-c", "read x", stdin=subprocess.PIPE
    )
    assert process.stderr and b"refused the token" in process.stderr.readline()
    assert process.poll() is None
    process.communicate(b"")
    assert process.returncode == 1


@pytest.mark.parametrize(("knob", "value"), [("largest_body", 10_000), ("refused_encodings", {"zstd", "gzip"})])
def test_another_body_is_tried_after_413_and_415(sender: Sender, service: Service, knob: str, value: Any) -> None:
    setattr(service, knob, value)
    out = sender.python(COUNT.format(n=2000, pause=0))[1]
    assert service.text("s") == out == counted(2000)
    assert "identity" in service.encodings or knob == "largest_body"


def test_bodies_are_compressed_and_one_connection_is_kept(sender: Sender, service: Service) -> None:
    sender.python(COUNT.format(n=20_000, pause=0))
    assert service.encodings == {"zstd"} and service.connections == 1


def test_a_stream_that_has_bytes_already_is_continued(sender: Sender, service: Service) -> None:
    sender.run("echo", "one", options=("--stream", "s", "--attempt", "4"))
    sender.run("echo", "two", options=("--stream", "s", "--attempt", "4"))
    assert service.text("s", 4) == b"one\ntwo\n"


def test_two_writers_of_one_stream_never_mix(sender: Sender, service: Service) -> None:
    both = []
    for letter in "AB":
        code = f"import time\nfor i in range(30):\n    print('{letter}' * 50, flush=True)\n    time.sleep(0.1)"
        both.append(sender.start("run", "--stream", "s", "--attempt", "1", "--", sys.executable, "-c", code))
    errors = b"".join(process.communicate()[1] for process in both)
    text = [bytes(known) for known in service.streams.values()]
    for letter in (b"A", b"B"):
        assert b"".join(text).count(letter * 50 + b"\n") == 30
    if len(text) > 1:
        assert b"another process writes the stream s" in errors


def test_a_service_that_lost_bytes_gets_them_again(sender: Sender, service: Service) -> None:
    command = ("sh", "-c", "echo one; read x; echo two")
    process = sender.start("run", "--stream", "s", "--", *command, stdin=subprocess.PIPE)
    waiting.until(lambda: service.text("s") == b"one\n")
    with service.lock:
        service.streams[1, "s"] = bytearray(b"o")
    assert b"sending them again" in process.communicate(b"\n")[1]
    assert service.text("s") == b"one\ntwo\n"


def test_a_full_spool_keeps_the_oldest_and_tells(sender: Sender, service: Service) -> None:
    service.stop()
    code = COUNT.format(n=3000, pause=0)
    status, out, _ = sender.python(code, "--spool-bytes", "100000", "--drain-seconds", "0.1")
    assert (status, out) == (0, counted(3000))
    service.start()
    assert sender.ship("--resume", "--url", service.url)[0] == 0
    sent = service.text("s")
    kept = sent[: sent.index(b"[logdoctor]")]
    assert out.startswith(kept)
    assert 50_000 < len(kept) <= 100_000
    assert sent == kept + gap_note(len(out) - len(kept))


def test_a_spool_takes_bytes_again_when_there_is_room(sender: Sender, service: Service) -> None:
    service.fail_with = 503
    code = (
        "import sys\n"
        "for i in range(3000): print('line', i, 'x' * 100)\n"
        "sys.stdout.flush()\n"
        "input()\n"
        "for i in range(10): print('after', i)\n"
    )
    printed = sender.spool.parent / "printed"
    options = ("run", "--stream", "s", "--spool-bytes", "100000", "--", sys.executable, "-c", code)
    with printed.open("wb") as file:
        process = sender.start(*options, stdin=subprocess.PIPE, stdout=file)
    waiting.until(lambda: service.requests and printed.stat().st_size > 300_000)
    service.fail_with = None
    waiting.until(lambda: len(service.text("s")) > 90_000)
    process.communicate(b"\n")
    out = printed.read_bytes()
    sent = service.text("s")
    kept, _, rest = sent.partition(b"[logdoctor] ")
    missing = int(rest.split()[0])
    after = rest.partition(b"\n")[2]
    assert out.startswith(kept)
    assert after.endswith(b"after 9\n")
    assert out.endswith(after)
    assert len(kept) + missing + len(after) == len(out)


def test_what_is_left_is_sent_later(sender: Sender, service: Service) -> None:
    service.stop()
    status, _, err = sender.run("sh", "-c", "echo one; exit 9", options=("--drain-seconds", "0.2", "--user", "ann"))
    assert status == 9
    (left,) = sender.left()
    assert str(left).encode() in err
    assert b"ship --resume" in err
    service.start()
    assert sender.ship("--resume", "--url", service.url)[0] == 0
    assert list(service.streams.values()) == [b"one\n"]
    assert service.ends[0]["exit_code"] == 9
    assert service.jobs["job"]["user"] == "ann"
    assert sender.left() == []


def test_a_resume_says_at_once_which_service_is_away_and_what_to_do(sender: Sender, service: Service) -> None:
    service.stop()
    for _ in range(2):
        sender.run("echo", "one", options=("--drain-seconds", "0.2"))
    process = sender.start("ship", "--resume", "--give-up-seconds", "600")
    assert process.stderr
    first = process.stderr.readline()
    assert f"the server at {service.url} cannot be reached (Connection refused)".encode() in first
    assert b"600 s" in first and b"nothing is lost" in first
    process.send_signal(signal.SIGINT)
    process.communicate()
    status, err = sender.ship("--resume", "--give-up-seconds", "1")
    _, refused, left, advice = err.splitlines()
    assert status == 1 and len(sender.left()) == 2
    assert b"(Connection refused)" in refused and b"took nothing just now" in left, "each spool waited anew"
    assert b"logdoctor ship --resume" in advice and b"--url" in advice and b"--give-up-seconds" in advice


def test_a_resume_that_gets_on_takes_as_long_as_it_needs(sender: Sender, service: Service) -> None:
    service.stop()
    text = sender.python("print('x' * (12 << 20))", "--drain-seconds", "0.2")[1]
    service.seconds = 0.6
    service.start()
    assert sender.ship("--resume", "--url", service.url, "--give-up-seconds", "5")[0] == 0
    assert service.text("s") == text


def test_the_rest_of_a_killed_run_is_sent_later(sender: Sender, service: Service) -> None:
    process = sender.start("run", "--stream", "s", "--", "sh", "-c", "echo one; exec sleep 3000")
    waiting.until(lambda: service.text("s") == b"one\n")
    process.kill()
    process.wait()
    (left,) = sender.left()
    with (next(left.glob("0*"))).open("ab") as file:
        file.write(b"written but not sent\n")
    assert sender.ship("--resume")[0] == 0
    assert service.text("s") == b"one\nwritten but not sent\n"
    assert service.ends[0] == {
        "attempt": 1, "exit_code": None, "signal": None, "scheduler_state": None, "stream": "s"
    }  # fmt: skip
    assert len(service.keys) == 1


def test_a_run_that_goes_on_is_not_resumed(sender: Sender, service: Service) -> None:
    process = sender.start("run", "--stream", "s", "--", "sleep", "3000")
    waiting.until(sender.left)
    waiting.until(lambda: list(sender.left()[0].glob("about.json")))
    assert sender.ship("--resume")[0] == 0
    assert service.ends == []
    process.terminate()
    process.wait()


def test_a_signal_after_the_end_of_the_command_stops_the_sending(sender: Sender, service: Service) -> None:
    service.stop()
    options = ("--stream", "s", "--drain-seconds", "9999")
    process = sender.start("run", *options, "--", "sh", "-c", "echo $$; exit 6")
    assert process.stdout
    command = Path("/proc", process.stdout.readline().decode().strip())
    waiting.until(lambda: not command.exists(), "the command has ended")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 6
    assert len(sender.left()) == 1


def test_no_spool_folder_is_no_reason_not_to_run(sender: Sender) -> None:
    sender.environment |= {"LOGDOCTOR_SPOOL_DIR": "/proc/x", "HOME": "/proc", "TMPDIR": "/proc"}
    status, out, err = sender.run("echo", "x")
    assert (status, out) == (0, b"x\n")
    assert b"no usable spool folder" in err


def test_a_host_that_does_not_exist_disturbs_nothing(sender: Sender) -> None:
    sender.environment["LOGDOCTOR_URL"] = "http://nowhere.invalid"
    status, out, err = sender.run("echo", "x", options=("--drain-seconds", "9999"))
    assert (status, out) == (0, b"x\n")
    assert b"not all logs were sent" in err and b"Check the name of the host" in err


def test_a_server_without_tls_disturbs_nothing(sender: Sender, service: Service) -> None:
    sender.environment["LOGDOCTOR_URL"] = service.url.replace("http", "https")
    status, out, _ = sender.run("echo", "x", options=("--drain-seconds", "0.5"))
    assert (status, out) == (0, b"x\n")


def test_the_spool_of_a_shared_temporary_folder_must_be_ours(sender: Sender, tmp_path: Any) -> None:
    sender.environment |= {"LOGDOCTOR_SPOOL_DIR": "/proc/x", "HOME": "/proc", "TMPDIR": str(tmp_path)}
    folder = tmp_path / f"logdoctor-spool-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert b"can be written by others" in sender.run("true")[2]
