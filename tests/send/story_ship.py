"""`logdoctor ship` sends files whole, once, whatever is done to them."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import waiting
from tests.send.conftest import Sender
from tests.send.service import Service


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def stop(process: "subprocess.Popen[bytes]") -> bytes:
    process.send_signal(signal.SIGTERM)
    err = process.communicate()[1]
    assert process.returncode == 0, err
    return err


def test_a_file_is_sent_as_it_is_and_the_attempt_ends(sender: Sender, service: Service, logs: Path) -> None:
    content = bytes(range(256)) * 20000
    (logs / "train.log").write_bytes(content)
    status, err = sender.ship("--no-follow", "--end", "--exit-code", "3", str(logs / "train.log"))
    assert (status, err) == (0, b"")
    assert service.text("train.log") == content
    assert service.ends == [{"attempt": 1, "exit_code": 3, "signal": None, "scheduler_state": None, "stream": None}]


def test_sending_again_doubles_nothing(sender: Sender, service: Service, logs: Path) -> None:
    (logs / "train.log").write_text("one\n")
    for text in ("", "two\n", ""):
        add(logs / "train.log", text)
        assert sender.ship("--no-follow", str(logs / "train.log"))[0] == 0
    assert service.text("train.log") == b"one\ntwo\n"
    assert len(service.keys) == 1


def test_streams_are_named_by_their_paths(sender: Sender, service: Service, logs: Path) -> None:
    for name in ("a/x.log", "b/x.log", "a.x.log", "b/odd\u0085\\.log"):
        (logs / name).parent.mkdir(exist_ok=True)
        (logs / name).write_text(name)
    assert sender.ship("--no-follow", str(logs))[0] == 0
    sent = {name: text.decode() for (_, name), text in service.streams.items()}
    assert sorted(sent.values()) == sorted(["a/x.log", "b/x.log", "a.x.log", "b/odd\u0085\\.log"])
    assert sent["b.x.log"] == "b/x.log"
    assert sent["b.odd__.log"] == "b/odd\u0085\\.log"
    assert {"a.x.log"} < {name for name in sent if name.startswith("a.x.log")}


@pytest.mark.parametrize(("how", "wanted"), [("name", "x.log"), ("host", f"{os.uname().nodename}.x.log")])
def test_streams_can_be_named_otherwise(sender: Sender, service: Service, logs: Path, how: str, wanted: str) -> None:
    (logs / "x.log").write_text("x")
    assert sender.ship("--no-follow", "--stream-from", how, str(logs / "x.log"))[0] == 0
    assert service.text(wanted) == b"x"


def test_a_file_is_followed(sender: Sender, service: Service, logs: Path) -> None:
    path = logs / "train.log"
    process = sender.start("ship", str(path))
    path.write_text("late file\n")
    waiting.until(lambda: service.text("train.log") == b"late file\n")
    add(path, "more\nhalf a li")
    waiting.until(lambda: service.text("train.log") == b"late file\nmore\nhalf a li")
    add(path, "ne\n")
    stop(process)
    assert service.text("train.log") == b"late file\nmore\nhalf a line\n"


def test_a_rotation_by_rename_loses_nothing(sender: Sender, service: Service, logs: Path) -> None:
    path = logs / "train.log"
    path.write_text("first\n")
    process = sender.start("ship", str(path))
    waiting.until(lambda: service.text("train.log") == b"first\n")
    add(path, "second\n")
    path.rename(logs / "train.log.1")
    add(logs / "train.log.1", "after the rename\n")
    path.write_text("third\n")
    wanted = b"first\nsecond\nafter the rename\nthird\n"
    waiting.until(lambda: service.text("train.log") == wanted)
    add(path, "fourth\n")
    stop(process)
    assert service.text("train.log") == wanted + b"fourth\n"
    assert len(service.streams) == 1


def test_rotations_while_nobody_looks_lose_nothing(sender: Sender, service: Service, logs: Path) -> None:
    path = logs / "train.log"
    path.write_text("one " * 100 + "\n")
    assert sender.ship("--no-follow", str(path))[0] == 0
    add(path, "two\n")
    for content in ("three\n", "four\n"):
        for number in (2, 1):
            if (logs / f"train.log.{number}").exists():
                (logs / f"train.log.{number}").rename(logs / f"train.log.{number + 1}")
        path.rename(logs / "train.log.1")
        path.write_text(content)
    assert sender.ship("--no-follow", str(path))[0] == 0
    assert service.text("train.log").replace(b"one ", b"") == b"\ntwo\nthree\nfour\n"


def test_a_folder_does_not_ship_what_was_rotated(sender: Sender, service: Service, logs: Path) -> None:
    for name in ("train.log", "train.log.1", "train.log-20260101.gz", "train.log.2.gz"):
        (logs / name).write_text(name)
    assert sender.ship("--no-follow", str(logs))[0] == 0
    assert {name for _, name in service.streams} == {"train.log"}


@pytest.mark.parametrize("copy", [True, False])
def test_a_truncated_file_goes_on(sender: Sender, service: Service, logs: Path, copy: bool) -> None:
    path = logs / "train.log"
    path.write_text("long first content\n")
    process = sender.start("ship", str(path))
    waiting.until(lambda: service.text("train.log") == b"long first content\n")
    unseen = b""
    if copy:  # copytruncate, right after a line that nobody has read yet
        add(path, "unseen\n")
        unseen = b"unseen\n"
        (logs / "train.log.1").write_bytes(path.read_bytes())
    os.truncate(path, 0)
    add(path, "new\n")
    waiting.until(lambda: service.text("train.log") == b"long first content\n" + unseen + b"new\n")
    stop(process)


def test_a_file_cut_and_grown_beyond_its_old_size_is_noticed(sender: Sender, service: Service, logs: Path) -> None:
    path = logs / "train.log"
    path.write_text("12:00 a\n")
    process = sender.start("ship", str(path))
    waiting.until(lambda: service.text("train.log") == b"12:00 a\n")
    path.write_text("12:01 something that is much longer\n")
    waiting.until(lambda: service.text("train.log") == b"12:00 a\n12:01 something that is much longer\n")
    stop(process)


def test_bytes_that_are_gone_are_told(sender: Sender, service: Service, logs: Path) -> None:
    path = logs / "train.log"
    path.write_text("one\n")
    process = sender.start("ship", str(path))
    waiting.until(lambda: service.text("train.log") == b"one\n")
    service.fail_with = 503
    add(path, "lost for ever\n")
    waiting.until(lambda: any(status == 503 for *_, status in service.requests))
    os.truncate(path, 0)
    add(path, "two\n")
    waiting.until(lambda: service.requests.clear() is None and path.read_text() == "two\n")
    service.fail_with = None
    waiting.until(lambda: service.text("train.log") == b"one\ntwo\n")
    assert b"14 bytes" in stop(process)


def test_a_killed_shipper_goes_on_where_it_was(sender: Sender, service: Service, logs: Path) -> None:
    path = logs / "train.log"
    path.write_text("one\n")
    process = sender.start("ship", str(path))
    waiting.until(lambda: service.text("train.log") == b"one\n")
    process.kill()
    process.wait()
    add(path, "two\n")
    path.rename(logs / "train.log.1")
    path.write_text("three\n")
    process = sender.start("ship", str(path))
    waiting.until(lambda: service.text("train.log") == b"one\ntwo\nthree\n")
    stop(process)
    assert len(service.keys) == 1


def test_lost_answers_double_nothing(sender: Sender, service: Service, logs: Path) -> None:
    content = os.urandom(3 << 20)
    (logs / "train.log").write_bytes(content)
    service.lose_answers = 2
    service.cut_bodies = 2
    assert sender.ship("--no-follow", str(logs / "train.log"))[0] == 0
    assert service.text("train.log") == content


def test_hundreds_of_files_share_one_connection(sender: Sender, service: Service, logs: Path) -> None:
    for rank in range(400):
        (logs / f"rank_{rank}.log").write_text(f"rank {rank}\n")
    process = sender.start("ship", str(logs / "rank_*.log"))
    waiting.until(lambda: len(service.streams) == 400 and all(service.streams.values()))
    assert len(os.listdir(f"/proc/{process.pid}/fd")) < 300
    for rank in range(400):
        add(logs / f"rank_{rank}.log", f"again {rank}\n")
    (logs / "rank_400.log").write_text("rank 400\nagain 400\n")
    waiting.until(lambda: all(service.text(f"rank_{rank}.log").count(b"\n") == 2 for rank in range(401)))
    stop(process)
    assert all(service.text(f"rank_{rank}.log") == b"rank %d\nagain %d\n" % (rank, rank) for rank in range(401))
    assert service.connections < 5


def test_one_big_file_does_not_starve_the_others(sender: Sender, service: Service, logs: Path) -> None:
    (logs / "a_big.log").write_bytes(os.urandom(8 << 20))
    (logs / "b_small.log").write_text("small\n")
    assert sender.ship("--no-follow", str(logs))[0] == 0
    posts = [path for method, path, status in service.requests if method == "POST" and "/log?" in path]
    assert any("b_small" in path for path in posts[:3])
    assert len(posts) >= 9


def test_two_shippers_of_the_same_files_are_refused(sender: Sender, service: Service, logs: Path) -> None:
    (logs / "train.log").write_text("x\n")
    process = sender.start("ship", str(logs / "train.log"))
    waiting.until(lambda: service.text("train.log") == b"x\n")
    status, err = sender.ship(str(logs / "train.log"))
    assert status == 2
    assert b"another process is shipping the same files" in err
    stop(process)


def test_a_service_that_stays_away_is_given_up(sender: Sender, service: Service, logs: Path) -> None:
    service.stop()
    (logs / "train.log").write_text("x\n")
    status, err = sender.ship("--no-follow", "--give-up-seconds", "0.5", str(logs / "train.log"))
    assert status == 1
    assert b"not everything was sent" in err
