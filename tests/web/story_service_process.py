"""A real process: stopped, killed, started again, alone on its folder, on a full disk."""

import os
import random
import signal
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from logdoctor.store.jobs.records import Records
from logdoctor.store.log.archive import Archive
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.names import Key
from tests import waiting
from tests.service.disks import fill, small_disk
from tests.web.conftest import FAILED, Running
from tests.web.test_ingest import log_of

LOG = "/v1/jobs/j/attempts/1/streams/main/log"
STREAM = "/v1/jobs/j/attempts/1/streams/main"
LINES = b"".join(b"%d of many lines that are sent\n" % n for n in range(30_000))
Runs = Callable[..., AbstractContextManager[Running]]


def post(client: httpx.Client, offset: int, data: bytes, path: str = LOG) -> httpx.Response:
    return client.post(path, params={"offset": offset}, content=data)


def archived(running: Running, job: str = "j", stream: str = "main") -> bytes:
    """What the archive of a service that does not run has of a stream."""
    with closing(Records(f"sqlite:///{running.folder}/logdoctor.db")) as records:
        file = Archive(records.database, FolderObjects(running.folder / "archive")).open(Key(job, 1, stream))
        return file.read(0, file.offset)


def left_in_log(running: Running) -> int:
    """How many rows the log of a service has."""
    with closing(sqlite3.connect(running.folder / "logdoctor.db")) as database:
        return int(database.execute("SELECT count(*) FROM log").fetchone()[0])


class Sender(threading.Thread):
    """Sends a stream in parts until it is told to stop or the service goes away."""

    def __init__(self, running: Running, stream: str) -> None:
        super().__init__()
        self.path = f"/v1/jobs/j/attempts/1/streams/{stream}/log"
        self.stream, self.acknowledged, self._url = stream, 0, running.url
        self.start()

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=None) as client:
            try:
                while self.acknowledged < len(LINES):
                    answer = post(client, self.acknowledged, LINES[self.acknowledged :][:2999], self.path)
                    if answer.status_code != 200:
                        return
                    self.acknowledged = answer.json()["next_offset"]
            except httpx.HTTPError:
                return


@pytest.mark.in_sqlite
def test_a_stop_drains(running: Running) -> None:
    running.await_worker()
    senders = [Sender(running, f"s{n}") for n in range(3)]
    head = f"POST {LOG}?offset=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(LINES)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(head + LINES[:400_000])
        waiting.until(lambda: running.client.get(STREAM).status_code == 200)
        waiting.until(lambda: all(sender.acknowledged for sender in senders))
        assert running.process is not None
        running.process.terminate()
        waiting.until(lambda: [said for said in running.said() if said["event"] == "stopping"])
        connection.sendall(LINES[400_000:])
        answer = b""
        while part := connection.recv(65536):
            answer += part
        assert answer.startswith(b"HTTP/1.1 200 ") and b'"next_offset":%d' % len(LINES) in answer
    assert running.process.wait() == 0
    for sender in senders:
        sender.join()
        assert sender.acknowledged
        kept = archived(running, stream=sender.stream)
        assert LINES.startswith(kept) and len(kept) >= sender.acknowledged
    assert archived(running) == LINES
    assert left_in_log(running) == 0
    assert [m["event"] for m in running.said() if m["level"] == "error"] == []
    running.start()
    assert running.client.get(STREAM).json()["next_offset"] == len(LINES)
    assert post(running.client, len(LINES), FAILED).status_code == 200
    running.client.post("/v1/jobs/j/attempts/1/end", json={"exit_code": 1})
    found = waiting.until(lambda: final(running))
    assert found["verdict"]["reason"] == "Out of Memory Error"
    assert found["verdict"]["evidence"][0]["line"] == 30_002


def final(running: Running, job: str = "j") -> Any:
    """The final verdict, if there is one."""
    answer = running.client.get(f"/v1/jobs/{job}/attempts/1/verdict")
    return answer.json() if answer.status_code == 200 and answer.json()["final"] else None


def have_begun(senders: list[Sender], reached: dict[str, int]) -> bool:
    """Whether all have had an answer, or have none to expect."""
    return all(sender.acknowledged > reached[sender.stream] or not sender.is_alive() for sender in senders)


@pytest.mark.in_sqlite
def test_nothing_acknowledged_is_lost_when_it_is_killed(running: Running) -> None:
    """Law 6, twice over."""
    reached = {f"s{n}": 0 for n in range(4)}
    for number in range(2):
        senders = []
        for stream in reached:
            known = running.client.get(f"/v1/jobs/j/attempts/1/streams/{stream}")
            assert (known.json()["next_offset"] if known.status_code == 200 else 0) >= reached[stream]
            sender = Sender(running, stream)
            sender.acknowledged = reached[stream]  # a 409 ends it when that is behind
            senders.append(sender)
        waiting.until(partial(have_begun, senders, dict(reached)))
        job = f"ended-{number}"
        post(running.client, 0, FAILED, f"/v1/jobs/{job}/attempts/1/streams/main/log")
        assert running.client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1}).status_code == 202
        running.kill()
        for sender in senders:
            sender.join()
            reached[sender.stream] = max(reached[sender.stream], sender.acknowledged)
        running.start()
        assert waiting.until(partial(final, running, job))["verdict"]["reason"] == "Out of Memory Error"
        for stream, least in reached.items():
            offset = running.client.get(f"/v1/jobs/j/attempts/1/streams/{stream}").json()["next_offset"]
            assert offset >= least
            path = f"/v1/jobs/j/attempts/1/streams/{stream}/log"
            kept = log_of(running.client, path)
            whole = LINES[:offset]
            assert kept == whole + (b"" if whole.endswith(b"\n") else b"\n")
            reached[stream] = offset
    assert running.stop() == 0
    for stream, offset in reached.items():
        assert archived(running, stream=stream) == LINES[:offset]


@pytest.mark.in_sqlite
def test_a_stop_that_is_repeated_or_asked_for_by_hand_is_a_stop(running: Running) -> None:
    post(running.await_worker().client, 0, LINES)
    assert running.process is not None
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait() == 0
    assert archived(running) == LINES
    running.start().await_worker()
    post(running.client, len(LINES), b"x\n")
    running.process.terminate()
    running.process.terminate()
    assert running.process.wait() == 0
    assert archived(running) == LINES + b"x\n"


def test_a_listener_does_not_hold_up_a_stop(running: Running) -> None:
    running.await_worker()
    with httpx.stream("GET", f"{running.url}/v1/events", timeout=None) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("retry")
        assert running.stop() == 0
        list(lines)  # its stream ends as it should: it is not cut off after the time that open requests have


def test_a_folder_has_one_service(running: Running, tmp_path: Path) -> None:
    other = Running(running.folder, running.environment)
    other.messages_in(tmp_path / "other.err")
    process = other.spawn()
    assert process.wait() == 2
    assert "another service is using this data folder" in other.messages()
    assert "--data-dir" in other.messages() and "Traceback" not in other.messages()
    assert post(running.client, 0, b"x\n").status_code == 200


def test_a_port_that_is_taken_is_told(runs: Runs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, runs() as running:
        port = taken.getsockname()[1]
        running.process = running.spawn("--port", str(port))
        assert running.process.wait() == 2
        assert str(port) in running.messages() and "in use" in running.messages()
        assert "Traceback" not in running.messages()


def test_what_cannot_work_is_told(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cases: list[tuple[tuple[str, ...], dict[str, str], Path | None]] = [
        (("--host", "no.such.host.invalid", "--port", "0"), {}, None),
        ((), {"LOGDOCTOR_LABELS": "nonsense"}, None),
        ((), {"LOGDOCTOR_DATABASE_URL": "nonsense"}, None),
        ((), {}, tmp_path / "file"),
        ((), {}, tmp_path / "file" / "below"),
        ((), {}, Path("/proc/nothing")),
    ]
    with ExitStack() as stack:
        started = []
        for number, (arguments, environment, folder) in enumerate(cases):
            running = stack.enter_context(runs(folder or tmp_path / f"data-{number}"))
            running.messages_in(tmp_path / f"messages-{number}")
            running.process = running.spawn(*arguments, **environment)
            started.append(running)
        for running, case in zip(started, cases, strict=True):
            assert running.process is not None
            assert running.process.wait() == 2, f"{case}: {running.messages()}"
            assert running.messages().strip() and "Traceback" not in running.messages(), case


@pytest.mark.in_sqlite
def test_others_read_nothing_in_a_folder_that_they_may_enter(runs: Runs, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        (tmp_path / "data").mkdir(mode=0o755)
        with runs() as running:
            running.start("--port", "0", "--workers", "0")
            assert post(running.client, 0, FAILED).status_code == 200
            files = [path for path in running.folder.rglob("*") if path.is_file()]
            assert {"logdoctor.db", "logdoctor.db-wal", "logdoctor.db-shm"} <= {path.name for path in files}
            assert [path.name for path in files if path.exists() and path.stat().st_mode & 0o077] == []
            [warning] = [one for one in running.said() if one["event"] == "data folder is open to others"]
            assert warning["mode"] == "755" and warning["next_step"] == f"chmod 700 {running.folder}"
    finally:
        os.umask(before)


def test_a_folder_that_cannot_be_written_is_called_that(disk: Path, runs: Runs, tmp_path: Path) -> None:
    (disk / "data").mkdir(mode=0o700)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with runs(disk / "data") as running:
        running.messages_in(tmp_path / "messages")
        running.process = running.spawn()
        assert running.process.wait() == 2
        assert "read-only file system" in running.messages() and "Traceback" not in running.messages()


@pytest.mark.in_sqlite
def test_a_stop_while_it_starts_is_a_stop(runs: Runs, tmp_path: Path) -> None:
    """Whatever it is about when it is told, from the moment on at which it listens to signals."""
    moments = ("", "lock", "logdoctor.db", "logdoctor.db-wal", "archive", "listening")
    with ExitStack() as stack:
        started = []
        for number, moment in enumerate(moments):
            running = stack.enter_context(runs(tmp_path / f"data-{number}"))
            running.process = running.spawn("--port", "0", "--workers", "0")
            started.append((running, running.process, moment))
        for number, (running, process, moment) in enumerate(started):
            waiting.until(partial(_reached, running, process, moment))
            process.send_signal(signal.SIGINT if number % 2 else signal.SIGTERM)
        for running, process, moment in started:
            assert process.wait() == 0, (moment, running.messages())
            assert "Traceback" not in running.messages() and "Aborted" not in running.messages()


def _reached(running: Running, process: "subprocess.Popen[bytes]", moment: str) -> bool:
    """Whether a process listens to signals, and has made a file of its folder or said that it listens."""
    assert process.poll() is None, running.messages()
    there = not moment or (running.folder / moment).exists() or f'"{moment}"' in running.messages()
    return there and _catches(process.pid, signal.SIGTERM)


def _catches(process: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return bool(int(next(line.split()[1] for line in lines if line.startswith("SigCgt:")), 16) >> (number - 1) & 1)


def test_a_damaged_download_is_cut_off_and_told(runs: Runs) -> None:
    data = random.Random(7).randbytes(4 << 20)
    with runs() as running:
        running.start("--port", "0", "--workers", "0")
        assert post(running.client, 0, data).status_code == 200
        assert running.stop() == 0
        largest = max(running.folder.glob("archive/j/1/*.zst"), key=lambda path: path.stat().st_size)
        with largest.open("r+b") as file:
            file.seek(-5000, os.SEEK_END)
            file.write(bytes(1000))
        begin = len(running.messages())
        running.start("--port", "0", "--workers", "0")
        with pytest.raises(httpx.RemoteProtocolError):
            running.client.get(f"{STREAM}/download")
        waiting.until(lambda: [one for one in running.said(begin) if one["event"] == "download broken off"])
        assert running.client.get("/healthz").status_code == 200
        assert running.stop() == 0
        assert "Traceback" not in running.messages() and "ASGI" not in running.messages()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 24 << 20) as folder:
        yield folder


@pytest.mark.in_sqlite
@pytest.mark.parametrize("min_free", [0, 8 << 20])
def test_a_full_disk_is_told_and_recovered_from(disk: Path, runs: Runs, tmp_path: Path, min_free: int) -> None:
    with runs(disk / "data", LOGDOCTOR_MIN_FREE_BYTES=str(min_free)) as running:
        running.messages_in(tmp_path / "messages")
        running.start()
        assert post(running.client, 0, LINES[:100_000]).status_code == 200
        ballast = fill(disk, protect=min_free // 2)
        noise = random.Random(1).randbytes(4 << 20)  # more than the service itself may free meanwhile
        answer = post(running.client, 100_000, noise)
        assert answer.status_code == 507, answer.text
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "storage_full"
        assert running.client.get(STREAM).json()["next_offset"] == 100_000
        for path, body in (("/v1/jobs/k/attempts", {"key": "x"}), ("/v1/jobs/k/attempts/1/end", {"exit_code": 1})):
            assert running.client.post(path, json=body).status_code in (200, 202, 507)
        assert running.client.post("/v1/diagnose", content=noise).status_code == 507
        assert log_of(running.client).rstrip(b"\n") == LINES[:100_000].rstrip(b"\n")
        assert running.client.get("/v1/verdicts").status_code == 200
        ballast.unlink()
        for at in range(100_000, len(LINES), 100_000):
            assert post(running.client, at, LINES[at : at + 100_000]).status_code == 200
        running.client.post("/v1/jobs/j/attempts/1/end", json={"exit_code": 0})
        waiting.until(lambda: final(running))
        assert running.client.post("/v1/jobs/k/attempts", json={"key": "x"}).status_code == 200
        ballast = fill(disk, protect=4096)
        assert post(running.client, len(LINES), noise).status_code == 507
        running.kill()
        ballast.unlink()
        running.start()
        assert running.client.get(STREAM).json()["next_offset"] == len(LINES)
        assert running.stop() == 0
        assert archived(running) == LINES


def test_the_default_keeps_room(disk: Path, runs: Runs, tmp_path: Path) -> None:
    """256 MiB are to stay free, and the whole disk has 24."""
    with runs(disk / "data", LOGDOCTOR_MIN_FREE_BYTES=str(256 << 20)) as running:
        running.messages_in(tmp_path / "messages")
        running.start()
        answer = post(running.client, 0, b"x\n")
        assert (answer.status_code, answer.headers["retry-after"]) == (507, "10")
        assert "is free" in answer.text or "are free" in answer.text
        assert running.client.post("/v1/diagnose", content=b"x\n").status_code == 507
        unready = running.client.get("/readyz")
        assert (unready.status_code, unready.json()["error"]["code"]) == (503, "not_ready")
        assert "disk is full" in unready.json()["error"]["cause"]
        assert running.stop() == 0


@pytest.mark.in_sqlite
def test_a_disk_that_is_full_at_the_stop_loses_nothing(disk: Path, runs: Runs, tmp_path: Path) -> None:
    with runs(disk / "data") as running:
        running.messages_in(tmp_path / "messages")
        running.start()
        assert post(running.client, 0, LINES).status_code == 200
        ballast = fill(disk)
        assert running.stop() == 0
        ballast.unlink()
        running.start().await_worker()
        assert running.client.get(STREAM).json()["next_offset"] == len(LINES)
        assert log_of(running.client) == LINES
        assert running.stop() == 0
        assert archived(running) == LINES
