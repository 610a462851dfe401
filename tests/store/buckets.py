"""A server of S3's kind, and a proxy that stands between it and a bucket."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import waiting

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server of S3's kind, with a bucket `logs`."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    path = {**os.environ, "PYTHONPATH": str(ROOT / "build" / "s3")}
    said = tmp_path_factory.mktemp("bucket") / "said"
    with (
        said.open("wb") as file,
        subprocess.Popen(command, env=path, stdout=subprocess.DEVNULL, stderr=file) as process,
    ):

        def port() -> int:
            assert process.poll() is None, f"install it with `make build/s3/.ready`: {said.read_text()}"
            found = re.search(r"Running on http://127\.0\.0\.1:(\d+)", said.read_text())
            return int(found[1]) if found else 0

        try:
            listens = waiting.until(port)
            make = urllib.request.Request(f"http://127.0.0.1:{listens}/logs", method="PUT")
            urllib.request.urlopen(make, timeout=300).close()
            yield listens
        finally:
            process.kill()


class Proxy:
    """Stands between a bucket and its server. `trouble` counts the connections that are spoiled: by cutting the answer
    ("answer"), or by closing at once ("refuse"); `delay` holds answers back, in seconds. `asked` are the first lines of
    requests, of which those with something `refused` are answered with 403."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.trouble: list[str] = []
        self.delay = 0.0
        self.connections = 0
        self.asked: list[bytes] = []
        self.refused: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # or it would go on accepting
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        kind = self.trouble.pop(0) if self.trouble else ""
        if kind == "refuse":
            client.close()
            return
        with client, socket.create_connection(("127.0.0.1", self._to)) as upstream:
            threading.Thread(target=self._copy, args=[client, upstream, "", 0.0, self], daemon=True).start()
            self._copy(upstream, client, kind, self.delay)

    @staticmethod
    def _copy(one: socket.socket, other: socket.socket, kind: str, delay: float, proxy: "Proxy | None" = None) -> None:
        try:
            while data := one.recv(65536):
                if proxy is not None and b" HTTP/1.1\r\n" in data:
                    proxy.asked.append(data.partition(b"\r\n")[0])
                    if any(name in proxy.asked[-1] for name in proxy.refused):
                        one.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                        break
                time.sleep(delay)
                if kind == "answer":
                    other.sendall(data[: len(data) // 3])
                    break
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    one = Proxy(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{one.port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield one
    with suppress(OSError):
        one.close()
