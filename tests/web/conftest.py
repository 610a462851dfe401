"""The service as its users meet it: in this process, on a port of this machine, and as a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from logdoctor import wiring
from logdoctor.rules.scanner import Scanner
from logdoctor.service import casework
from logdoctor.service.consulting import Climbing
from logdoctor.service.parts import Parts
from logdoctor.service.retention import Rules
from logdoctor.service.service import Plan, Service, ServiceBounds, Stores
from logdoctor.service.silence import Timing
from logdoctor.settings import Settings
from logdoctor.web import rendering
from logdoctor.web.app import application
from logdoctor.web.bodies import Allowed
from logdoctor.web.dependencies import AppOptions
from logdoctor.web.nodes import background
from logdoctor.web.push.labels import label_map
from logdoctor.web.server import listener, server
from logdoctor.wiring import learning
from tests import waiting
from tests.databases import databases, url_in

LOCAL = "http://127.0.0.1"
ALLOWED = Allowed(sent=8 << 20, unpacked=32 << 20, seconds=300.0)
BOUNDS = ServiceBounds(1 << 40, 1000, shard_bytes=512 << 20, behind=64 << 20, unscanned=64 << 20, unarchived=64 << 20)
ALL_PARTS = Parts()
TIMING = Timing(scan=0.02, quiet=300.0, hang=900.0, linger=300.0, abandon=86_400.0, least=300.0)
FAILED = (
    b" [2024-03-02 11:08:47] iteration      120/  500000 | consumed samples:       122880 | lm loss: 6.81E+00 |\n"
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
    b" 79.15 GiB of which 1.06 GiB is free.\n"
)
"""A log with one cause."""


def new_service(
    folder: Path,
    scanner: Scanner,
    timing: Timing = TIMING,
    bounds: ServiceBounds = BOUNDS,
    ladder: Callable[[Stores], Climbing] | None = None,
    parts: Parts = ALL_PARTS,
) -> Service:
    """A service over a folder, not yet started; an application starts and stops it."""
    plan = Plan(url_in(folder / "logdoctor.db"), bounds, timing, Rules(0, 0, every=600.0), min_free=0, parts=parts)
    folder.mkdir(parents=True, exist_ok=True)
    return Service(folder, scanner, plan, ladder=ladder)


def options(wants_token: bool = False, rate: int = 0, allowed: Allowed = ALLOWED) -> AppOptions:
    """What an application is made with."""
    limits = wiring.limits(Settings(workers=1, max_decompressed_bytes=64 << 20))
    return AppOptions(wants_token, rate, allowed, limits, label_map(), "0" * 64, causes=causes())


@cache
def causes() -> tuple[str, ...]:
    """Lines of all causes that are known."""
    chosen = Settings()
    return learning.known_causes(chosen, wiring.rule_book(chosen))


def local_client(service: Service, chosen: AppOptions | None = None) -> TestClient:
    """A client of an application over the service; within `with` both work."""
    return TestClient(application(service, chosen or options()), base_url=LOCAL, raise_server_exceptions=False)


@pytest.fixture
def service(tmp_path: Path, scanner: Scanner) -> Service:
    """A service over the test's folder, which `client`, `guarded` or `served` starts and stops."""
    return new_service(tmp_path / "data", scanner)


@pytest.fixture(autouse=True, scope="session")
def _templates_when_asked() -> Iterator[None]:
    """Templates are compiled when a page asks for them: the threads of many applications would compile each at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendering, "prepare_others", lambda: None)
        yield


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages wait for what they began, and previews are tried on all attempts, however slow the machine is."""
    monkeypatch.setattr(background, "_SOON", 300.0)
    monkeypatch.setattr(casework, "_PREVIEW", 300.0)


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    """A client of an application without tokens."""
    with local_client(service) as client:
        yield client


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory, scanner: Scanner) -> Iterator[TestClient]:
    """A client of an application without tokens, which all tests of a module share: for those that change nothing."""
    with local_client(new_service(tmp_path_factory.mktemp("lasting"), scanner)) as client:
        yield client


@pytest.fixture(scope="module")
def lasting_guarded(tmp_path_factory: pytest.TempPathFactory, scanner: Scanner) -> Iterator["Guarded"]:
    """An application that wants tokens, shared likewise."""
    service = new_service(tmp_path_factory.mktemp("lasting"), scanner)
    with local_client(service, options(wants_token=True)) as client:
        yield Guarded(client, service)


class Guarded:
    """An application that wants tokens: its client, and tokens."""

    def __init__(self, client: TestClient, service: Service) -> None:
        self.client, self.service = client, service

    def secret(self, *scopes: str, prefixes: tuple[str, ...] = (), expires: float | None = None, name: str = "") -> str:
        """The secret of a new token."""
        name = name or f"token {len(self.service.tokens.list())}"
        return self.service.tokens.create(name, scopes, prefixes, expires)[1]

    def token(self, *scopes: str, prefixes: tuple[str, ...] = (), expires: float | None = None) -> dict[str, str]:
        """The headers that a caller with a new token sends."""
        return bearer(self.secret(*scopes, prefixes=prefixes, expires=expires))


def bearer(secret: str) -> dict[str, str]:
    """The header that carries a token."""
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def guarded(service: Service) -> Iterator[Guarded]:
    """An application that wants tokens, and a function that makes them."""
    with local_client(service, options(wants_token=True)) as client:
        yield Guarded(client, service)


class Served:
    """An application on a port of this machine."""

    def __init__(self, port: int, service: Service, stop: Callable[[], None]) -> None:
        self.port, self.service, self.stop = port, service, stop
        self.url = f"{LOCAL}:{port}"

    def client(self, **more: Any) -> httpx.Client:
        """A client of it that waits however long an answer takes."""
        return httpx.Client(base_url=self.url, timeout=None, **more)


@contextmanager
def serving(service: Service, chosen: AppOptions | None = None, slow: float = 300.0) -> Iterator[Served]:
    """The real server in a thread, until the block ends."""
    app = application(service, chosen or options())
    real, listening = server(app, slow), listener("127.0.0.1", 0)
    real.config.timeout_graceful_shutdown = None  # who holds up a stop is found by the limit of the test
    thread = threading.Thread(target=real.run, args=([listening],), name="server")
    thread.start()

    def stop() -> None:
        if not real.should_exit:
            app.state.stopping()
            real.should_exit = True
        thread.join()

    port = listening.getsockname()[1]
    try:
        waiting.until(lambda: real.started or not thread.is_alive())
        yield Served(port, service, stop)
    finally:
        stop()


def dripped(connection: socket.socket, part: bytes) -> bytes:
    """What comes back while a part is sent again and again, until the other side closes the connection."""
    found = b""
    connection.settimeout(0.02)

    def is_closed() -> bool:
        nonlocal found
        try:
            connection.sendall(part)
            answer = connection.recv(65536)
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        found += answer
        return not answer

    waiting.until(is_closed, "the server closes the connection")
    return found


@pytest.fixture
def served(service: Service) -> Iterator[Served]:
    """An application without tokens on a port."""
    with serving(service) as served:
        yield served


class Running:
    """`logdoctor serve` as a process of its own; `start` it again after it ended."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self._program = str(Path(sys.executable).with_name("logdoctor"))
        self._messages = folder.with_name(folder.name + ".err")
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.client = httpx.Client()

    def start(self, *arguments: str, **environment: str) -> "Running":
        """Begin to serve, and wait until it listens."""
        begin = self._messages.stat().st_size if self._messages.exists() else 0
        self.process = self.spawn(*arguments, **environment)

        def port() -> int:
            assert self.process is not None
            assert self.process.poll() is None, self.messages()
            said = [m for m in self.said(begin) if m.get("event") == "listening"]
            return int(said[0]["url"].rpartition(":")[2]) if said else 0

        self.port = waiting.until(port, "it listens")
        self.client.close()
        self.client = httpx.Client(base_url=self.url, timeout=None)
        return self

    def await_worker(self) -> "Running":
        """Wait until a process compresses and judges what this one takes."""
        waiting.until(lambda: "logdoctor_unowned_shards 0.0" in self.client.get("/metrics").text)
        return self

    def start_with_token(self, *scopes: str) -> dict[str, str]:
        """Begin to serve with a new token; the headers that carry it."""
        scopes = scopes or ("admin",)
        secret = self.command("tokens", "create", "first", *(word for scope in scopes for word in ("--scope", scope)))
        self.start()
        return bearer(secret.split()[-1])

    def command(self, *words: str) -> str:
        """What a command says that works on the same folder."""
        line = [self._program, *words, "--data-dir", str(self.folder)]
        made = subprocess.run(line, env=dict(self.environment), capture_output=True, check=True)
        return made.stdout.decode()

    def spawn(self, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
        """The process, which may not come to listen."""
        arguments = arguments or ("--port", "0")
        command = [self._program, "serve", "--data-dir", str(self.folder), *arguments]
        with self._messages.open("ab") as messages:
            everything = {**self.environment, **environment}
            return subprocess.Popen(command, stdout=messages, stderr=messages, env=everything)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{LOCAL}:{self.port}"

    def messages_in(self, path: Path) -> None:
        """Let it write its messages elsewhere than beside the folder."""
        self._messages = path

    def messages(self) -> str:
        """What it has said."""
        return self._messages.read_text()

    def said(self, begin: int = 0) -> list[dict[str, Any]]:
        """What it has said in JSON, from a place of its messages on."""
        lines = self._messages.read_bytes()[begin:].split(b"\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def resident(self, peak: bool = False) -> int:
        """Bytes of memory it has, or had at most."""
        assert self.process is not None
        wanted = "VmHWM:" if peak else "VmRSS:"
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(wanted))

    def stop(self) -> int:
        """Its exit code after SIGTERM."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()

    def kill(self) -> None:
        """End it as a loss of power would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Leave nothing behind."""
        self.client.close()
        if self.process is not None and self.process.poll() is None:
            self.kill()


@contextmanager
def running_in(folder: Path, **environment: str) -> Iterator[Running]:
    """A process that is not yet started; killed at the end."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LOGDOCTOR_")}
    quick = {"LOGDOCTOR_SCAN_SECONDS": "0.05", "LOGDOCTOR_MIN_FREE_BYTES": "0"}
    if databases.of_postgresql:
        quick["LOGDOCTOR_DATABASE_URL"] = url_in(folder / "logdoctor.db")
    running = Running(folder, plain | quick | environment)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A real process that serves without tokens."""
    with running_in(tmp_path / "data") as running:
        yield running.start()


@pytest.fixture
def runs(tmp_path: Path) -> Callable[..., AbstractContextManager[Running]]:
    """Makes processes with settings: `with runs(LOGDOCTOR_AUTH="on") as running: running.start()`."""

    def run(folder: Path = tmp_path / "data", **environment: str) -> AbstractContextManager[Running]:
        return running_in(folder, **environment)

    return run
