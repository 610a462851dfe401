"""A small real HTTP server that speaks the service's contract, and can be told to misbehave."""

import json
import threading
import time
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import zstandard


class Service:
    """What came in, by (attempt, stream), and the knobs of its misbehaviour."""

    def __init__(self) -> None:
        self.streams: dict[tuple[int, str], bytearray] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.keys: list[str] = []
        self.ends: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str, int]] = []
        self.encodings: set[str] = set()
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.fail_with: int | None = None
        self.retry_after: str | None = None
        self.seconds = 0.0
        """How long bytes of a log take."""
        self.lose_answers = 0
        self.cut_bodies = 0
        self.largest_body = 1 << 30
        self.refused_encodings: set[str] = set()
        self.token: str | None = None
        self.more: Callable[[str, list[str]], dict[str, Any] | int | None] = lambda method, path: None
        """What is answered beside logs; a status where it is refused, None for what is not there."""
        self.lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._open: list[Any] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        service = self

        class Handler(_Handler):
            pass

        Handler.service = service
        ThreadingHTTPServer.allow_reuse_address = True
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Goes away: no listening socket, no open connection."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            for connection in self._open:
                try:
                    connection.shutdown(2)
                except OSError:
                    pass
            self._open.clear()
            self._server = None

    def text(self, stream: str, attempt: int = 1) -> bytes:
        with self.lock:
            return bytes(self.streams.get((attempt, stream), b""))


class _Handler(BaseHTTPRequestHandler):
    service: Service
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.service.connections += 1
        self.service._open.append(self.connection)

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_GET

    def _serve(self) -> None:
        service = self.service
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        path = [unquote(part) for part in parts.path.split("/")][1:]
        service.headers.append(dict(self.headers))
        if service.fail_with:
            return self._answer(service.fail_with, _error("told_to", f"status {service.fail_with}"))
        if service.token and self.headers.get("Authorization") != f"Bearer {service.token}":
            return self._answer(401, _error("unauthorized", "no such token"))
        match self.command, path:
            case "PUT", ["v1", "jobs", job]:
                service.jobs[job] = json.loads(body)
                self._answer(200, service.jobs[job])
            case "POST", ["v1", "jobs", _, "attempts"]:
                key = json.loads(body)["key"]
                with service.lock:
                    if key not in service.keys:
                        service.keys.append(key)
                self._answer(200, {"attempt": service.keys.index(key) + 1})
            case "GET", ["v1", "jobs", _, "attempts", number, "streams", stream]:
                with service.lock:
                    known = service.streams.get((int(number), stream))
                if known is None:
                    self._answer(404, _error("unknown", "no such stream"))
                else:
                    self._answer(200, _totals(known))
            case "POST", ["v1", "jobs", _, "attempts", number, "streams", stream, "log"]:
                self._take(int(number), stream, int(parse_qs(parts.query)["offset"][0]), body)
            case "POST", ["v1", "jobs", _, "attempts", number, "end"]:
                service.ends.append({"attempt": int(number), **json.loads(body)})
                self._answer(202, {})
            case _:
                more = service.more(self.command, path)
                if isinstance(more, dict):
                    self._answer(200, more)
                else:
                    self._answer(more or 404, _error("unknown", "no such place"))

    def _take(self, attempt: int, stream: str, offset: int, body: bytes) -> None:
        service = self.service
        encoding = self.headers.get("Content-Encoding", "identity")
        service.encodings.add(encoding)
        if encoding in service.refused_encodings:
            return self._answer(415, _error("encoding", encoding))
        data = _decoded(body, encoding)
        time.sleep(service.seconds)
        if len(data) > service.largest_body:
            return self._answer(413, _error("too_large", str(len(data))))
        with service.lock:
            known = service.streams.setdefault((attempt, stream), bytearray())
            if offset != len(known):
                wanted = {**_error("offset_mismatch", "not there")["error"], "next_offset": len(known)}
                return self._answer(409, {"error": wanted})
            if service.cut_bodies:
                service.cut_bodies -= 1
                known += data[: len(data) // 2]
                return self._hang_up()
            known += data
            if service.lose_answers:
                service.lose_answers -= 1
                return self._hang_up()
        self._answer(200, _totals(known))

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(2)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self.service.requests.append((self.command, self.path, status))
        content = json.dumps(body).encode()
        self.send_response(status)
        if self.service.retry_after and status >= 400:
            self.send_header("Retry-After", self.service.retry_after)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _decoded(body: bytes, encoding: str) -> bytes:
    if encoding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(body)
    return zlib.decompress(body, 47) if encoding == "gzip" else body


def _totals(known: bytearray) -> dict[str, int]:
    lines = known.count(b"\n")
    return {"next_offset": len(known), "lines_in": lines, "lines_scanned": lines, "lines_kept": lines}


def _error(code: str, cause: str) -> dict[str, dict[str, Any]]:
    return {"error": {"code": code, "thing": "it", "cause": cause, "next_step": "none"}}
