"""A real Redis for tests, which may be killed, stopped, filled and flushed."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import redis


class RedisServer:
    """A Redis over a folder, on a port that stays the same when it is started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is, with database 1."""
        return f"redis://127.0.0.1:{self._port}/1"

    def client(self) -> redis.Redis:
        """A connection of the test's own."""
        return redis.Redis.from_url(self.url, decode_responses=True)

    def start(self, *options: str) -> "RedisServer":
        """Begin, empty, and wait until it answers."""
        program = shutil.which("redis-server")
        assert program, "Redis is missing: install the package redis-server"
        plain = ("--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", "")
        self._process = subprocess.Popen([program, *plain, *options], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while True:
            with contextlib.suppress(redis.ConnectionError), self.client() as client:
                client.ping()
                return self
            assert time.monotonic() < end and self._process.poll() is None, "Redis does not start"
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a loss of power would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            self._process = None

    def pause(self) -> None:
        """Let it hang: connections stay, and no answer comes."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End a pause."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def redis_in(folder: Path) -> Iterator[RedisServer]:
    """Yield a Redis that runs; killed at the end."""
    server = RedisServer(folder).start()
    try:
        yield server
    finally:
        server.kill()
