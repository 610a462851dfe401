"""A server on loopback that speaks the protocol of OpenAI's chat completions, well or badly, as it is told."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GOOD = {"patterns": [{"pattern": r"^step \d+/\d+$", "what": "progress", "lines": [1]}], "errors": []}

Behave = Callable[["Handler", dict[str, Any]], None]
Say = Callable[[dict[str, Any]], str]


class Handler(BaseHTTPRequestHandler):
    """Writes down what it was sent and behaves as its server is told to."""

    protocol_version = "HTTP/1.1"
    server: "ModelServer"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.loads(raw)
        self.server.got.append((dict(self.headers), body))
        with self.server.lock:
            queue = self.server.queue
            behave = queue.pop(0) if len(queue) > 1 else queue[0]
        try:
            behave(self, body)
        except OSError:
            self.close_connection = True

    def do_GET(self) -> None:
        self.server.got.append((dict(self.headers), {"GET": self.path}))
        self.reply(200, b"{}")

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, text: str | None, usage: dict[str, int] | None = None, **message: Any) -> None:
        """A whole answer of the protocol."""
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text} | message,
        }
        body: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        self.reply(200, json.dumps(body | ({"usage": usage} if usage else {})).encode())

    def log_message(self, *_: object) -> None:
        pass


class ModelServer(ThreadingHTTPServer):
    """`behave` says how it behaves: one after another, the last for ever. `got` is what it got."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.queue: list[Behave] = [saying()]
        self.lock = threading.Lock()
        self.over = threading.Event()

    def behave(self, *behaviours: Behave) -> None:
        with self.lock:
            self.queue = list(behaviours)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.got]

    def handle_error(self, *_: object) -> None:
        pass


@contextmanager
def model_server() -> Iterator[ModelServer]:
    server = ModelServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


# ways to behave


def saying(text: "str | Say | None" = None, usage: dict[str, int] | None = None) -> Behave:
    """Answers with the text, in the mode that it was asked in."""

    def behave(handler: Handler, body: dict[str, Any]) -> None:
        said = text(body) if callable(text) else json.dumps(GOOD) if text is None else text
        if isinstance(body.get("tool_choice"), dict):
            name = body["tools"][0]["function"]["name"]
            call = {"id": "c", "type": "function", "function": {"name": name, "arguments": said}}
            handler.answer(None, usage, tool_calls=[call])
        else:
            handler.answer(said, usage)

    return behave


def calling(name: str, arguments: Any, times: int = 1, then: Behave | None = None, id: str = "c") -> Behave:
    """Calls a tool so many times, if there are some on offer, before it behaves otherwise; `arguments` as they are
    written when they are text."""

    def behave(handler: Handler, body: dict[str, Any]) -> None:
        made = sum(message["role"] == "tool" for message in body["messages"])
        if body.get("tool_choice") == "auto" and made < times:
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            call = {"id": id, "type": "function", "function": {"name": name, "arguments": written}}
            handler.answer(None, tool_calls=[call])
        else:
            (then or saying())(handler, body)

    return behave


def without_tools(said: str = "tools are not supported", code: int = 400, then: Behave | None = None) -> Behave:
    """A server that refuses requests which offer tools, or hold what came of them, in these words."""

    def behave(handler: Handler, body: dict[str, Any]) -> None:
        if "tools" in body or any(message["role"] == "tool" for message in body["messages"]):
            status(code, said)(handler, body)
        else:
            (then or saying())(handler, body)

    return behave


def writing(pattern_of: Callable[[str], str] | None = None, vote: str = "keep") -> Behave:
    """A model that does its work by rote: a pattern for each group, the same vote on each candidate."""

    def say(body: dict[str, Any]) -> str:
        text = body["messages"][0]["content"]
        shown = text.rsplit("```", 2)[-2]
        if candidates := re.findall(r"^candidate (\d+): ", shown, re.M):
            return json.dumps({"votes": [{"candidate": int(n), "vote": vote, "why": "by rote"} for n in candidates]})
        patterns = []
        for group in re.split(r"^group of \d+ lines:\n", shown, flags=re.M)[1:]:
            lines = re.findall(r"^\[(\d+)\] (.*)$", group, re.M)
            pattern = (pattern_of or by_rote)(lines[0][1])
            patterns.append({"pattern": pattern, "what": "by rote", "lines": [int(n) for n, _ in lines]})
        return json.dumps({"patterns": patterns, "errors": []})

    return saying(say)


def by_rote(message: str) -> str:
    """The message with its numbers as fields."""
    return (
        "^" + re.sub(r"\d+(?:\\\.\d+)?", lambda m: r"[0-9.]+" if "." in m.group() else r"\d+", re.escape(message)) + "$"
    )


def refusal(handler: Handler, body: dict[str, Any]) -> None:
    """The refusal of the protocol, which is no text."""
    handler.answer(None, refusal="I can't help with that.")


def status(code: int, said: str = "out of order", **headers: str) -> Behave:
    return lambda handler, body: handler.reply(code, json.dumps({"error": {"message": said}}).encode(), **headers)


def without(*unknown: str, code: int = 400, then: Behave | None = None) -> Behave:
    """A server that refuses requests with these keys, or with response formats of these types."""

    def behave(handler: Handler, body: dict[str, Any]) -> None:
        used = {*body, body.get("response_format", {}).get("type", "")}
        if odd := used & set(unknown):
            status(code, f"unknown: {sorted(odd)}")(handler, body)
        else:
            (then or saying())(handler, body)

    return behave


def raw(data: bytes) -> Behave:
    """These bytes for a response, and the end of the connection."""

    def behave(handler: Handler, body: dict[str, Any]) -> None:
        handler.wfile.write(data)
        handler.wfile.flush()
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    return behave


def body(data: bytes, **headers: str) -> Behave:
    """A good response with this body."""
    return lambda handler, body: handler.reply(200, data, **headers)


def half(handler: Handler, body: dict[str, Any]) -> None:
    """Half of the body that was announced."""
    raw(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"choices": [{"mess')(
        handler, body
    )


def hanging(handler: Handler, body: dict[str, Any]) -> None:
    """No answer at all, until the server ends."""
    handler.server.over.wait()
    handler.close_connection = True


def _for_ever(head: bytes, drop: bytes, pause: float) -> Behave:
    def behave(handler: Handler, body: dict[str, Any]) -> None:
        handler.wfile.write(head)
        while not handler.server.over.wait(pause):
            handler.wfile.write(drop)
            handler.wfile.flush()

    return behave


_CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
dripping = _for_ever(_CHUNKED, b"1\r\n \r\n", 0.02)
"""A byte of the body at a time, for ever."""

dripping_head = _for_ever(b"HTTP/1.1 200 OK\r\nx-a: ", b"a", 0.02)
"""A byte of a header at a time, for ever."""

endless = _for_ever(
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n',
    0.01,
)
"""A stream of events that never ends, though none was asked for."""

huge = _for_ever(_CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n", 0)
"""A body that grows for ever, as fast as it can."""
