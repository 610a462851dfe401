"""The HTTP server: uvicorn, with a clock that a slow client cannot stop."""

import asyncio
import socket
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = structlog.get_logger()

_MAX_HEAD = 64 << 10  # bytes of a request line and headers
_DRAIN = 20  # seconds that requests have to end when the service stops


def protocol(seconds: float) -> type[HttpToolsProtocol]:
    """A protocol that closes connections whose request line and headers take longer than `seconds` or are too long,
    and those that go on so long with a body after the request was answered."""

    class Timed(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _head = 0
        _in_head = True

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            super().connection_lost(exc)

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


class Server(uvicorn.Server):
    """Says where it listens, and ends streams of events when it is told to stop."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in (listener for server in self.servers for listener in server.sockets):
            host, port = listener.getsockname()[:2]
            log.info("listening", url=f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; asked again, do not wait for open requests. The signal is not raised again at the end,
        because to stop when told to is no failure."""
        log.info("stopping", signal=sig)
        self.config.app.state.stopping()  # type: ignore[union-attr] # ours, see `server`
        self.force_exit = self.should_exit
        self.should_exit = True


def server(app: FastAPI, host: str, port: int, slow_seconds: float) -> Server:
    """A server for the application; `run` serves until SIGTERM or SIGINT, then ends open requests and stops."""
    config = uvicorn.Config(
        app,
        host,
        port,
        http=protocol(slow_seconds),
        loop="uvloop",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_DRAIN,
        backlog=4096,
    )
    return Server(config)
