"""The HTTP server: uvicorn, with timeouts that a slow client cannot evade."""

import asyncio
import os
import socket
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from logdoctor.errors import SettingsError
from logdoctor.web.problems import SECURITY_HEADERS, problem

log = structlog.get_logger()

BREAK_OFF = "logdoctor.break_off"
"""The key in a request's scope of the function that closes its connection at once."""
_MAX_HEAD = 64 << 10  # bytes of a request line and headers
_BACKLOG = 4096
_DRAIN = 20  # seconds for open requests to end when the service stops


def protocol(seconds: float) -> type[HttpToolsProtocol]:
    """Return a protocol that closes slow connections. They are those whose request line and headers take longer than
    `seconds` or are too long, and those that go on sending a body for that time after the answer."""

    class Timed(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _head = 0
        _in_head = True

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # asyncio promises less
            super().connection_made(transport)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope[BREAK_OFF] = self.transport.abort  # type: ignore[literal-required]

        def send_400_response(self, msg: str) -> None:
            said = problem(400, "bad_request", "the request", "is not HTTP/1.1", "Use an HTTP client.")
            head = [*said.raw_headers, *SECURITY_HEADERS, (b"connection", b"close")]
            lines = [
                b"HTTP/1.1 400 Bad Request",
                *(name + b": " + value for name, value in head),
                b"",
                bytes(said.body),
            ]
            self.transport.write(b"\r\n".join(lines))
            self.transport.close()

        def data_received(self, data: bytes) -> None:
            if self._in_head:
                self._head += len(data)
                self._watch()
            super().data_received(data)
            if self._in_head and self._head > _MAX_HEAD:
                self.transport.close()

        def on_headers_complete(self) -> None:
            self._in_head, self._head = False, 0
            self._unwatch()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_head = True
            self._unwatch()
            super().on_message_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self._in_head and self._timer is None:
                self._watch()

        def _watch(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(seconds, self.transport.close)

        def _unwatch(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Timed


class HttpServer(uvicorn.Server):
    """Logs its address, and lets the service write received data before the process ends."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            host, port = one.getsockname()[:2]
            log.info("listening", url=f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def stop_soon(self) -> None:
        """Stop right after the start."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second signal drops open requests. The signal is not raised again, because a requested stop
        is no failure.

        The loop does the rest: a handler runs between any two steps of the thread, which may hold a lock, such as that
        of the log, or be in this handler for an earlier signal.
        """
        again, self.should_exit = self.should_exit, True
        asyncio.get_running_loop().call_soon_threadsafe(self._stop, sig, again)

    def _stop(self, sig: int, again: bool) -> None:
        log.info("stopping", signal=sig)
        self.config.app.state.stopping()  # type: ignore[union-attr] # ours, see `server`
        if again:
            self._drop_requests()

    def _drop_requests(self) -> None:
        for task in list(self.server_state.tasks):
            task.cancel()
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; `SettingsError` when the address is not available."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        cause = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)
        next_step = "Choose another address with --host and --port."
        raise SettingsError(f"cannot listen on {host}:{port}", cause.lower(), next_step) from error


def server(app: FastAPI, slow_seconds: float) -> HttpServer:
    """Return a server for the application. `run` serves until SIGTERM or SIGINT, then ends open requests and stops."""
    config = uvicorn.Config(
        app,
        http=protocol(slow_seconds),
        loop="uvloop",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_DRAIN,
    )
    return HttpServer(config)
