"""Objects in a bucket: written once, read in parts, whatever becomes of the connection."""

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from logdoctor.errors import StoreError, StoreRefused
from logdoctor.store import bucket
from logdoctor.store.bucket import Bucket

ROOT = Path(__file__).parents[2]
DATA = bytes(range(256)) * 400


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a server of S3's kind, with a bucket `logs`."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    path = {**os.environ, "PYTHONPATH": str(ROOT / "build" / "s3")}
    with subprocess.Popen(command, env=path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 90
            while True:
                try:
                    make = urllib.request.Request(f"http://127.0.0.1:{port}/logs", method="PUT")
                    urllib.request.urlopen(make, timeout=30).close()
                    break
                except OSError:
                    assert process.poll() is None, "install it with `make build/s3/.ready`"
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            yield port
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


@pytest.fixture
def objects(proxy: Proxy, request: pytest.FixtureRequest) -> Bucket:
    return Bucket(f"s3://logs/{request.node.name}")


def test_objects_are_written_once_and_read_in_parts(objects: Bucket) -> None:
    objects.put("job/1/000001-1.zst", DATA)
    assert objects.get("job/1/000001-1.zst", 0, len(DATA)) == DATA
    assert objects.get("job/1/000001-1.zst", 1000, 1010) == DATA[1000:1010]
    assert objects.size("job/1/000001-1.zst") == len(DATA)
    objects.put("job/1/000001-1.zst", DATA)  # the same once more: a repetition
    with pytest.raises(StoreError, match="exists already"):
        objects.put("job/1/000001-1.zst", b"other")
    assert objects.get("job/1/000001-1.zst", 0, len(DATA)) == DATA


def test_what_is_missing_or_too_short_is_named(objects: Bucket) -> None:
    objects.put("short", b"0123456789")
    assert objects.size("none") is None
    objects.delete("none")
    with pytest.raises(StoreError, match="none is missing"):
        objects.get("none", 0, 10)
    with pytest.raises(StoreError, match="short"):
        objects.get("short", 5, 20)


def test_all_objects_below_a_prefix_are_listed(objects: Bucket) -> None:
    names = [f"job/{number}/{part:06}.zst" for number in (1, 2) for part in range(60)]
    for name in names:
        objects.put(name, b"x")
    assert sorted(facts.name for facts in objects.walk()) == names
    assert sorted(facts.name for facts in objects.walk("job/2/")) == names[60:]
    assert all(facts.bytes == 1 and abs(facts.at - time.time()) < 3600 for facts in objects.walk())
    objects.delete(names[0])
    assert len(list(objects.walk())) == len(names) - 1


@pytest.mark.parametrize("trouble", [["answer"], ["refuse"], ["refuse", "answer", "refuse"]])
def test_what_a_broken_connection_left_undone_can_be_done_again(proxy: Proxy, trouble: list[str]) -> None:
    """Also when the object was written and only the answer was lost."""
    url = f"s3://logs/broken-{'-'.join(trouble)}"
    for call in (lambda one: one.put("one", DATA), lambda one: one.get("one", 0, len(DATA))):
        proxy.trouble = list(trouble)
        found = again(lambda call=call: call(Bucket(url)))
        assert not proxy.trouble
    assert found == DATA


def again(call: Callable[[], Any]) -> Any:
    """What a call gives in the end, as whoever archives tries again."""
    for _ in range(6):
        try:
            return call()
        except StoreError as error:
            assert "s3://logs/broken" in str(error)
    raise AssertionError("it fails for good")


def test_a_slow_bucket_is_waited_for(proxy: Proxy, objects: Bucket) -> None:
    proxy.delay = 1.5
    objects.put("one", DATA)
    assert objects.get("one", 3, 9) == DATA[3:9]


def test_a_bucket_that_is_away_is_an_error_that_names_it(
    server: int, monkeypatch: pytest.MonkeyPatch, proxy: Proxy
) -> None:
    monkeypatch.setattr(bucket, "_TRIES", 1)
    objects = Bucket("s3://logs/away")
    proxy.close()
    calls = (lambda: objects.put("one", b"x"), lambda: objects.get("one", 0, 1), lambda: list(objects.walk()))
    for call in (*calls, lambda: objects.size("one"), lambda: objects.delete("one")):
        with pytest.raises(StoreError, match="s3://logs/away"):
            call()


def test_what_is_refused_is_told_from_what_fails(objects: Bucket, proxy: Proxy) -> None:
    objects.put("secret", b"x")
    proxy.refused = [b"/secret"]
    for call in (lambda: objects.size("secret"), lambda: objects.get("secret", 0, 1)):
        with pytest.raises(StoreRefused, match="secret: the bucket refuses"):
            call()
    with pytest.raises(StoreError) as missing:
        objects.get("none", 0, 1)
    assert not isinstance(missing.value, StoreRefused)


def test_a_url_of_no_bucket_is_refused() -> None:
    from logdoctor.errors import SettingsError

    for url in ("ftp://logs/x", "s3://", "nonsense://a/b"):
        with pytest.raises((SettingsError, StoreError)):
            Bucket(url).put("one", b"x")
