"""Judges are asked through a proxy of ours, so that all scorings of a trial share their rate limits.

A scoring command calls `{judge}`: its request is passed on to the judge's URL when its turn comes; a judge without a
URL answers 204 at its turn. The address contains a secret: only commands of the trial can use it.
"""

import http.client
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from logdoctor.errors import TrialError
from logdoctor.trials.trial_file import Judge

_MOST = 64 << 20  # bytes of a request
_SECONDS = 600.0
_AGAIN = (429, 503)
_TRIES = 4
_LONGEST_WAIT = 120.0
_OWN = frozenset(("connection", "host", "keep-alive", "te", "transfer-encoding", "upgrade", "content-length"))


class TokenBucket:
    """Lets through so many calls per minute, evenly, and a few at once after a pause. `clock` and `sleep` use
    seconds."""

    def __init__(
        self,
        per_minute: float,
        at_once: int = 1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._every = 60.0 / per_minute
        self._slack = self._every * (at_once - 1)
        self._clock, self._sleep = clock, sleep
        self._guard = threading.Lock()
        self._next = clock()

    def wait(self) -> None:
        """Block until it is the caller's turn."""
        with self._guard:
            now = self._clock()
            turn = max(self._next, now - self._slack)
            self._next = turn + self._every
        self._sleep(max(0.0, turn - now))

    def pause(self, seconds: float) -> None:
        """Let nobody through for so many seconds."""
        with self._guard:
            self._next = max(self._next, self._clock() + seconds)


class Judges:
    """The judges of a trial, at addresses of this machine until `close`."""

    def __init__(
        self,
        judges: Sequence[Judge],
        host: str = "127.0.0.1",
        bucket: Callable[[float], TokenBucket] = TokenBucket,
    ) -> None:
        """Start to listen, if there are judges; `TrialError` when that fails."""
        self._secret = secrets.token_urlsafe(16)
        self._host = host
        self._server: ThreadingHTTPServer | None = None
        if judges:
            known = {one.name: (one, bucket(one.per_minute)) for one in judges}

            class Handler(_Handler):
                secret, judges = self._secret, known

            try:
                self._server = ThreadingHTTPServer((host, 0), Handler)
            except OSError as error:
                step = "Check that this machine has the address."
                raise TrialError(f"the address {host}", f"cannot be listened at ({error.strerror})", step) from error
            self._server.daemon_threads = True
            threading.Thread(target=self._server.serve_forever, name="logdoctor-judges", daemon=True).start()

    def url(self, name: str) -> str:
        """Return the URL of a judge."""
        assert self._server is not None
        return f"http://{self._host}:{self._server.server_address[1]}/{self._secret}/{name}"

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Passes requests on to the judge."""

    secret: str
    judges: dict[str, tuple[Judge, TokenBucket]]
    timeout = 60

    def do_GET(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: addresses contain a secret."""

    def _pass_on(self) -> None:
        _, secret, name, *rest = [*self.path.split("/", 3), "", ""]
        size = self.headers.get("content-length", "0")
        if not secrets.compare_digest(secret.encode(), self.secret.encode()) or name not in self.judges:
            self._answer(404, b"", {})
            return
        if not size.isdecimal() or int(size) > _MOST:
            self._answer(413, b"", {})
            return
        body = self.rfile.read(int(size))
        judge, bucket = self.judges[name]
        if not judge.url:
            bucket.wait()
            self._answer(204, b"", {})
            return
        self._answer(*self._asked(judge, bucket, rest[0], body))

    def _asked(self, judge: Judge, bucket: TokenBucket, rest: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Return the judge's answer; when it asks for fewer requests, all callers wait."""
        for attempt in range(_TRIES):
            bucket.wait()
            try:
                status, answer, headers = self._sent(judge.url, rest, body)
            except (OSError, http.client.HTTPException) as error:
                return 502, f"the judge {judge.name} cannot be asked ({type(error).__name__})".encode(), {}
            if status not in _AGAIN or attempt == _TRIES - 1:
                break
            wait = headers.get("retry-after", "")
            bucket.pause(min(float(wait) if wait.isdecimal() else 2.0**attempt, _LONGEST_WAIT))
        return status, answer, headers

    def _sent(self, url: str, rest: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=_SECONDS)
        try:
            headers = {key: value for key, value in self.headers.items() if key.lower() not in _OWN}
            path = f"{parts.path.rstrip('/')}/{rest}".rstrip("/") if rest else parts.path
            connection.request(self.command, path or "/", body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_MOST), {key.lower(): value for key, value in answer.getheaders()}
        finally:
            connection.close()

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        with suppress(OSError):
            self.send_response(status)
            for key, value in headers.items():
                if key not in _OWN and key not in ("server", "date"):
                    self.send_header(key, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if status != 204:
                self.wfile.write(body)
