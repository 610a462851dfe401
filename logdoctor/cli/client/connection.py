"""The connection to a service: requests within a time limit, and checked answers.

Answers are not trusted: each is bounded in bytes and seconds, redirects are not followed, so that the token goes
nowhere else, and an answer of another form than requested is refused.
"""

import logging
import os
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import IO, Literal, Protocol, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from logdoctor.errors import InputError, RequestRefused, ServiceAway, ServiceError, TokenRefused
from logdoctor.web.problems import HttpProblem

MAX_ANSWER = 64 << 20
"""Limit of an answer, in bytes."""
SECONDS = 60.0
"""Time limit of a request in seconds, from name resolution to the last byte of the answer."""

_CONNECT = 10.0  # seconds
_PAUSE = 5.0  # seconds; the longest wait that `retry-after` gets
_LONGEST = 2000  # characters shown of each part of an error
_AWAY = (502, 503, 504)
_BUSY = (429, 503)  # for a download; the service answers so to one more than it has room for
_CHECK_URL = "Check --url or LOGDOCTOR_URL."

Answer = TypeVar("Answer")
Method = Literal["GET", "POST", "DELETE"]
_Ask = Callable[[float], tuple[httpx.Response, bytes]]  # asks once, within a number of seconds


class Page(Protocol):
    """A page of a list."""

    @property
    def next(self) -> str | None:
        """Return the cursor of the next page."""


Paged = TypeVar("Paged", bound=Page)


class Refused(RequestRefused):
    """The service refused a request; `body` is its whole answer."""

    def __init__(self, status: int, code: str, thing: str, cause: str, next_step: str, body: bytes = b"") -> None:
        super().__init__(status, code, thing, cause, next_step)
        self.body = body


class Connection:
    """A service at a URL, asked with a token. All calls raise `ServiceAway`, `ServiceError` and `Refused`."""

    def __init__(self, url: str, token: str | None = None, seconds: float = SECONDS) -> None:
        self.url, self._seconds = url, seconds
        self._headers = {
            "accept": "application/json",
            "accept-encoding": "identity",  # compressed data may unpack to any size
            "user-agent": f"logdoctor/{version('logdoctor')}",
        }
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._client: httpx.Client | None = None
        self._process = 0

    def get(self, kind: type[Answer], path: str, /, **query: object) -> Answer:
        """Return the resource at a path."""
        return self.decoded(kind, self._sent("GET", path, query))

    def get_if_any(self, kind: type[Answer], path: str, /, **query: object) -> Answer | None:
        """Return the resource at a path, or None if it does not exist."""
        try:
            return self.get(kind, path, **query)
        except Refused as error:
            if error.code == "not_found":
                return None
            raise

    def post(self, kind: type[Answer], path: str, body: object = None, /, **query: object) -> Answer:
        """Post JSON, or bytes as they are, and return the answer."""
        return self.decoded(kind, self._sent("POST", path, query, body))

    def delete(self, kind: type[Answer], path: str, /, **query: object) -> Answer:
        """Delete a resource, and return the answer."""
        return self.decoded(kind, self._sent("DELETE", path, query))

    def read(self, path: str, /, **query: object) -> bytes:
        """Return the resource at a path as it is."""
        return self._sent("GET", path, query)

    def save(self, path: str, file: IO[bytes]) -> None:
        """Write the resource at a path to a file, whatever its length. `ServiceAway` when it breaks off, or when no
        bytes arrive for the time limit of a request. A busy service is retried for as long."""
        self._repeated(lambda seconds: self._saved(path, file), _BUSY)

    def page(self, kind: type[Paged], path: str, cursor: str | None, /, **query: object) -> Paged:
        """Return the page of a list that starts at a cursor."""
        found = self.get(kind, path, cursor=cursor, **query)
        if found.next is not None and found.next == cursor:
            raise self.not_understood("the next page of a list is the same page")
        return found

    def decoded(self, kind: type[Answer], body: bytes) -> Answer:
        """Decode the JSON of an answer into its type; `ServiceError` when it does not fit."""
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            raise self.not_understood(str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._no_logdoctor("an answer is not JSON") from error

    def not_understood(self, cause: str) -> ServiceError:
        """Return the error for an answer of a logdoctor of another version."""
        ours = version("logdoctor")
        why = f"answers in a form that logdoctor {ours} does not know ({cause[:200]})"
        return ServiceError(self._thing, why, "Use the version of logdoctor that the service runs.")

    # ---- one request

    @property
    def _thing(self) -> str:
        return f"the service at {self.url}"

    def _sent(self, method: Method, path: str, query: dict[str, object], body: object = None) -> bytes:
        """Send a request and return the body of a successful answer."""
        return self._repeated(lambda seconds: _within(seconds, lambda: self._exchanged(method, path, query, body)))

    def _repeated(self, ask: _Ask, busy: tuple[int, ...] = (429,)) -> bytes:
        """Return the body of a successful answer. Retry within the time limit while the service is busy."""
        end = time.monotonic() + self._seconds
        while True:
            response, content = self._answered(ask, end - time.monotonic())
            pause = _pause(response)
            if response.status_code not in busy or time.monotonic() + pause >= end:
                break
            time.sleep(pause)
        if response.is_success:
            return content
        raise self._refusal(response, content)

    def _answered(self, ask: _Ask, seconds: float) -> tuple[httpx.Response, bytes]:
        try:
            return ask(seconds)
        except (TimeoutError, httpx.TimeoutException) as error:
            self._client = None  # the thread may still use it
            step = "See whether it runs and can be reached; try again."
            raise ServiceAway(self._thing, f"gave no answer within {self._seconds:g} s", step) from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise ServiceError(self._thing, "its URL cannot be used", _CHECK_URL) from error

    def _saved(self, path: str, file: IO[bytes]) -> tuple[httpx.Response, bytes]:
        """Return a response; the body of a successful one is in the file."""
        with self._open().stream("GET", f"{self.url}{path}", headers=self._headers) as response:
            if not response.is_success:
                return response, next(response.iter_raw(1 << 20), b"")
            for part in response.iter_raw():
                file.write(part)
        return response, b""

    def _exchanged(
        self, method: Method, path: str, query: dict[str, object], body: object
    ) -> tuple[httpx.Response, bytes]:
        """Return a response and its body, at most `MAX_ANSWER` bytes."""
        content = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        kind = {} if content is None else {"content-type": _content_type(body)}
        request = self._open().stream(
            method, f"{self.url}{path}", params=_pairs(query), content=content, headers={**self._headers, **kind}
        )
        with request as response:
            found = bytearray()
            for part in response.iter_raw():
                found += part
                if len(found) > MAX_ANSWER:
                    raise ServiceError(self._thing, f"answered with more than {MAX_ANSWER} bytes", "Ask for less.")
            return response, bytes(found)

    def _open(self) -> httpx.Client:
        """Return the client; it takes nothing from the environment but the certificates that OpenSSL trusts."""
        if self._client is None or self._process != os.getpid():  # a forked process has its own connections
            self._process = os.getpid()
            logging.getLogger("httpx").setLevel(logging.WARNING)
            verify = ssl.create_default_context() if self.url.startswith("https:") else False
            timeout = httpx.Timeout(self._seconds, connect=_CONNECT)
            self._client = httpx.Client(verify=verify, trust_env=False, follow_redirects=False, timeout=timeout)
        return self._client

    # ---- errors

    def _refusal(self, response: httpx.Response, content: bytes) -> ServiceError | Refused:
        """Return the error for an unsuccessful answer, whoever gave it."""
        status = response.status_code
        if response.is_redirect:
            where = response.headers.get("location", "")[:200]
            cause = f"redirects to {where!a}, which is not followed, because the token would go along"
            return ServiceError(self._thing, cause, "Give the address that it redirects to, if you trust it.")
        said = _problem(content)
        if status == 401 and said is not None:
            cause = "wants a token" if "authorization" not in self._headers else "does not accept the token"
            step = "Set LOGDOCTOR_TOKEN to a token made by `logdoctor tokens create` at the service."
            return TokenRefused(self._thing, cause, step)
        if status in _AWAY:
            cause = f"cannot answer now ({said.error.cause[:200]})" if said else f"cannot answer now (HTTP {status})"
            return ServiceAway(self._thing, cause, "Try again later.")
        if said is None:
            return self._no_logdoctor(f"HTTP {status}")
        error = said.error
        if error.code in ("not_found", "method_not_allowed") and error.thing.startswith("/v1/"):
            return self.not_understood(f"it has no {error.thing[:100]}")
        code, thing, cause, step = (text[:_LONGEST] for text in (error.code, error.thing, error.cause, error.next_step))
        return Refused(status, code, thing, cause, step, content)

    def _no_logdoctor(self, cause: str) -> ServiceError:
        return ServiceError(self._thing, f"does not answer as logdoctor does ({cause})", _CHECK_URL)

    def _unreachable(self, error: httpx.TransportError) -> ServiceError:
        """Return the error for a request that got no answer."""
        reason = _reason(error)
        if isinstance(reason, ssl.SSLError):
            said = getattr(reason, "verify_message", "") or reason.reason or str(reason)
            step = "Check the URL, or name the certificates that you trust in SSL_CERT_FILE."
            return ServiceError(self._thing, f"cannot be asked over TLS ({said[:200]})", step)
        if isinstance(error, httpx.UnsupportedProtocol):
            return ServiceError(self._thing, "its URL cannot be used", _CHECK_URL)
        if isinstance(error, httpx.ProtocolError):
            return ServiceAway(self._thing, "broke off its answer, or does not speak HTTP", _CHECK_URL)
        said = (reason.strerror if isinstance(reason, OSError) else "") or "no connection"
        return ServiceAway(self._thing, f"cannot be reached ({said})", "Check the URL, and whether the service runs.")


def path(*parts: object) -> str:
    """Return the path of a resource. Its parts are quoted, so none can name another resource; `InputError` for a part
    that stands for a folder."""
    if odd := [part for part in map(str, parts) if part in ("", ".", "..")]:
        raise InputError(ascii(odd[0]), "is not a name that a resource can have", "Name it as the service lists it.")
    return "".join(f"/{quote(str(part), safe='')}" for part in ("v1", *parts))


def _within(seconds: float, act: Callable[[], Answer]) -> Answer:
    """Return what `act` returns, or raise what it raises; `TimeoutError` when it takes too long. It bounds any wait,
    for a name that does not resolve or an answer that drips; the abandoned thread holds up nobody."""
    answers: queue.SimpleQueue[tuple[Answer | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((act(), None))
        except BaseException as error:  # noqa: BLE001 -- raised again in the waiting thread
            answers.put((None, error))

    threading.Thread(target=work, name="request", daemon=True).start()
    try:
        answer, error = answers.get(timeout=max(seconds, 0.0))
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value] # without an error `act` returned it


def _reason(error: BaseException) -> BaseException:
    """Return the system error at the root of an error."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLError | socket.gaierror | OSError):
        found = found.__cause__ or found.__context__
    return found or error


def _problem(content: bytes) -> HttpProblem | None:
    try:
        return msgspec.json.decode(content, type=HttpProblem)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _pause(response: httpx.Response) -> float:
    """Return the seconds to wait before the next try, by `retry-after`, at most `_PAUSE`."""
    text = response.headers.get("retry-after", "")
    return min(float(text), _PAUSE) if text.isascii() and text.isdecimal() and len(text) < 9 else _PAUSE


def _pairs(query: dict[str, object]) -> httpx.QueryParams:
    """Return query parameters that are not None, one pair for each value."""
    found: list[tuple[str, str | int | float | bool | None]] = []
    for name, value in query.items():
        for one in value if isinstance(value, list | tuple) else (value,):
            if one is not None:
                found.append((name, str(one).lower() if isinstance(one, bool) else str(one)))
    return httpx.QueryParams(found)


def _content_type(body: object) -> str:
    return "application/yaml" if isinstance(body, bytes) else "application/json"
