"""What real shippers send is understood, line for line."""

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from logdoctor.store.names import Key
from logdoctor.web.push import loki, otlp
from logdoctor.web.push.labels import label_map
from logdoctor.web.push.pushes import Batch
from tests import waiting
from tests.web.shippers import opentelemetry, syslog_ng


class Receiver:
    """What came in, by stream; the next `refuse` requests are answered with 503."""

    def __init__(self) -> None:
        self.streams: dict[Key, bytes] = {}
        self.batches: list[Batch] = []
        self.headers: list[dict[str, str]] = []
        self.refuse = 0

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """The answer to a request: its status and its body."""
        self.headers.append(headers)
        if self.refuse:
            self.refuse -= 1
            return 503, b""
        kind = headers.get("content-type", "")
        if path == "/loki/api/v1/push":
            self._keep(loki.decode(body, kind))
            return 204, b""
        self._keep(otlp.decode(body, kind))
        return 200, otlp.answer(kind)[0]

    def _keep(self, batches: list[Batch]) -> None:
        for key, batch in label_map().gather(batches).placed:
            self.streams[key] = self.streams.get(key, b"") + batch.lines
            self.batches.append(batch)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def port(receiver: Receiver) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            status, answer = receiver.take(self.path, body, {k.lower(): v for k, v in self.headers.items()})
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


LINES = [
    "iteration 1/ 10",
    'with "quotes", a \\ and a\ttab',
    "  indented $MESSAGE caf\u00e9 \u4e2d",
    '{"json": [1]}',
    "[rank3]: RuntimeError: CUDA error",
]


def test_syslog_ng(tmp_path: Path, receiver: Receiver, port: int) -> None:
    log = tmp_path / "train.log"
    text = "".join(line + "\n" for line in LINES)
    log.write_text(text)
    labels = {"slurm_job_id": "4711", "host": 'n1"$\\'}
    key = Key("4711", 1, 'n1"$_')
    with syslog_ng(tmp_path / "shipper", log, port, labels, token="secret", batch_lines=3):
        waiting.until(lambda: receiver.streams.get(key) == text.encode())
    receiver.refuse = 2
    with syslog_ng(tmp_path / "shipper", log, port, labels, batch_lines=3), log.open("a") as file:
        file.write("\n\n")
        file.write("more\n" * 10)
        file.flush()
        waiting.until(lambda: receiver.streams[key] == text.encode() + b"more\n" * 10)
    assert receiver.headers[0]["authorization"] == "Bearer secret"
    assert receiver.refuse == 0
    assert max(batch.entries for batch in receiver.batches) <= 3


@pytest.mark.parametrize("compressed", [False, True])
def test_opentelemetry(receiver: Receiver, port: int, compressed: bool) -> None:
    receiver.refuse = 1
    attributes: dict[str, str | int] = {"slurm.job.id": 4711, "slurm.restart.count": 2, "rank": 3}
    with opentelemetry(port, attributes, token="secret", compressed=compressed) as logger:
        for i in range(1000):
            logger.info("iteration %d", i)
        try:
            raise RuntimeError("CUDA error")
        except RuntimeError:
            logger.exception("step failed")
    (key,) = receiver.streams
    assert key == Key("4711", 2, "3")
    lines = receiver.streams[key].decode().splitlines()
    assert lines[:1000] == [f"iteration {i}" for i in range(1000)]
    assert lines[1000:1002] == ["ERROR: step failed", "Traceback (most recent call last):"]
    assert lines[-1] == "RuntimeError: CUDA error"
    assert receiver.headers[0]["authorization"] == "Bearer secret"
    assert (receiver.headers[0].get("content-encoding") == "gzip") is compressed
