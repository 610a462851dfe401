"""A collector of traces for tests: it takes OTLP over HTTP, or does whatever else a collector may do."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class SeenSpan(NamedTuple):
    """A span as it came: the process it is of, its trace, itself and its parent by their ids, and what it says."""

    pid: int
    trace: str
    span: str
    parent: str
    name: str
    begin: int
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """What was sent to it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []

    def spans(self) -> list[SeenSpan]:
        """All spans that came."""
        return [span for body in list(self.bodies) for span in _spans(body)]

    def of(self, trace: str) -> dict[str, list[SeenSpan]]:
        """The spans of a trace by name."""
        found: dict[str, list[SeenSpan]] = {}
        for span in self.spans():
            if span.trace == trace:
                found.setdefault(span.name, []).append(span)
        return found


def _spans(body: bytes) -> Iterator[SeenSpan]:
    for of_process in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _values(of_process.resource.attributes)
        for scope in of_process.scope_spans:
            for one in scope.spans:
                ids = (one.trace_id.hex(), one.span_id.hex(), one.parent_span_id.hex())
                times = (one.start_time_unix_nano, one.end_time_unix_nano)
                yield SeenSpan(int(resource["process.pid"]), *ids, one.name, *times, _values(one.attributes), resource)


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector that takes all that comes, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.bodies.append(body)
            seen.headers.append({**dict(self.headers.items()), "path": self.path})
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen = Collector(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The URL of a collector that does with each connection what `answer` does, until the block ends."""
    ending = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                answer(connection)
            except OSError:
                pass

    def accept() -> None:
        while not ending.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                continue
            threading.Thread(target=serve, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ending.set()
            thread.join()
