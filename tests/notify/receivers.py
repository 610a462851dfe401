"""Those who are told: real HTTP servers on this machine that check what they get and misbehave as asked."""

import base64
import hashlib
import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another secret of 32 bytes......").decode()


class Got(NamedTuple):
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def is_signed(self, secret: str = SECRET) -> bool:
        """Whether some signature is by this secret, as a receiver checks it."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        content = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.body
        wanted = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        now = abs(time.time() - int(self.headers["webhook-timestamp"])) < 300
        return now and f"v1,{wanted}" in self.headers["webhook-signature"].split(" ")


Answers = Callable[[Got, int], tuple[int, Mapping[str, str], bytes] | str]
"""What to answer to a request, the how-manieth it is: status, headers, body; or how to misbehave."""


class Receiver:
    """A server that keeps all that it gets. `answers` may be set at any time."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.answers: Answers = lambda got, number: (204, {}, b"")
        self.released = threading.Event()
        """Ends what hangs."""
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._answer(self)

            def do_GET(self) -> None:
                receiver._answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def always(self, status: int, headers: Mapping[str, str] = {}, body: bytes = b"") -> None:
        """Answer so from now on."""
        self.answers = lambda got, number: (status, headers, body)

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("content-length", 0)))
        got = Got(request.path, {name.lower(): value for name, value in request.headers.items()}, body)
        with self._lock:
            self.got.append(got)
            number = len(self.got)
        answer = self.answers(got, number)
        if isinstance(answer, str):
            self._misbehave(request, answer)
            return
        status, headers, content = answer
        request.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        with suppress(OSError):  # who asked may have left
            request.wfile.write(content)

    def _misbehave(self, request: BaseHTTPRequestHandler, how: str) -> None:
        request.close_connection = True
        try:
            if how == "hang":
                self.released.wait()
            elif how == "reset":
                linger = struct.pack("ii", 1, 0)
                request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                request.connection.close()
            elif how == "drip":  # a byte of a header now and then: no single read takes long
                request.wfile.write(b"HTTP/1.1 200 OK\r\n")
                while not self.released.wait(0.05):
                    request.wfile.write(b"X: y\r\n")
            elif how == "flood":
                request.wfile.write(b"HTTP/1.1 500 No\r\n\r\n")
                while not self.released.is_set():
                    request.wfile.write(b"x" * 65536)
            elif how == "continue":  # answers that are none yet
                while not self.released.is_set():
                    request.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            elif how == "header":  # one that does not end
                request.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
                while not self.released.is_set():
                    request.wfile.write(b"x" * 65536)
            elif how == "rubbish":
                request.wfile.write(b"\0\xff not HTTP \r\n\r\n")
        except OSError:
            pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver, until the block ends."""
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()
