"""HTTP client of the service: one keep-alive connection, one request at a time."""

import http.client
import json
import socket
import ssl
import time
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from logdoctor.errors import NotTaken
from logdoctor.job.send.target import ShippingTarget

_ANSWER_BYTES = 16 << 20
_ANSWER_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_HEALTH_SECONDS, _HEALTH_BYTES = 0.5, 1000
_REFUSED_SECONDS = 30.0
_MEND_TOKEN = "Check LOGDOCTOR_TOKEN or --token-file: it needs the scope ingest, for this job."
_MEND_NAME = "Check the name of the host in LOGDOCTOR_URL or --url."


class ServiceAnswer(NamedTuple):
    """The service's answer, and its `url` for messages. `repeated`: the request was sent twice, and the first may have
    been accepted."""

    status: int
    body: dict[str, Any]
    retry_after: float | None
    repeated: bool
    url: str

    def refusal(self) -> NotTaken:
        """Return the error to raise for a request that was not accepted."""
        error = self.body.get("error")
        cause = str(error.get("cause") or "")[:200] if isinstance(error, dict) else ""
        detail = f"HTTP {self.status}" + (f" ({cause})" if cause else "")
        if self.status in (401, 403):
            seconds = self.retry_after or _REFUSED_SECONDS
            return NotTaken(f"the server at {self.url} refused the token: {detail}", seconds, mend=_MEND_TOKEN)
        if self.status == 429 or self.status >= 500:
            return NotTaken(f"the server at {self.url} answered {detail}", self.retry_after)
        cause = f"the server at {self.url} refused with {detail}"
        return NotTaken(cause, self.retry_after or _REFUSED_SECONDS, only_this=True)


def answers(url: str) -> bool:
    """Return whether a service answers at a URL within half a second."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_HEALTH_SECONDS)
    try:
        connection.request("GET", f"{parts.path}/healthz")
        answer = connection.getresponse()
        return answer.status == 200 and json.loads(answer.read(_HEALTH_BYTES)) == {"status": "ok"}
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()


class Client:
    """Requests of one job. `deadline` (time.monotonic) limits all requests made after it is set."""

    def __init__(self, target: ShippingTarget) -> None:
        parts = urlsplit(target.url)
        self._url = target.url
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._root = f"{parts.path}/v1"
        self._prefix = f"{self._root}/jobs/{quote(target.job, safe='')}"
        self._headers = {"User-Agent": "logdoctor-send", "Accept": "application/json"}
        if target.token:
            self._headers["Authorization"] = f"Bearer {target.token}"
        self._connection: http.client.HTTPConnection | None = None
        self.deadline: float | None = None

    def describe_job(self, metadata: dict[str, Any]) -> ServiceAnswer:
        """PUT the facts about the job."""
        return self._json("PUT", "", metadata)

    def number_attempt(self, key: str) -> ServiceAnswer:
        """Request the attempt's number; it is in `body["attempt"]`."""
        return self._json("POST", "/attempts", {"key": key})

    def look(self, attempt: int, stream: str) -> ServiceAnswer:
        """Request the next offset of a stream, in `body["next_offset"]`; status 404 for a stream that does not exist
        yet."""
        return self._send("GET", self._prefix + self._stream(attempt, stream), None, {})

    def send_log(self, attempt: int, stream: str, offset: int, body: bytes, encoding: str) -> ServiceAnswer:
        """POST bytes that begin at `offset` of the stream."""
        headers = {"Content-Type": "application/octet-stream", "Content-Encoding": encoding}
        path = f"{self._prefix}{self._stream(attempt, stream)}/log?offset={offset}"
        return self._send("POST", path, body, headers)

    def end(self, attempt: int, facts: dict[str, Any]) -> ServiceAnswer:
        """POST how a stream's process, or the attempt, ended."""
        return self._json("POST", f"/attempts/{attempt}/end", facts)

    def verdict(self, attempt: int) -> ServiceAnswer:
        """Request the current verdict on an attempt; status 404 without one."""
        return self._send("GET", f"{self._prefix}/attempts/{attempt}/verdict", None, {})

    def look_up(self, path: str) -> ServiceAnswer:
        """GET a path outside the job, such as `/actions`."""
        return self._send("GET", self._root + path, None, {})

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection:
            self._connection.close()
            self._connection = None

    def _stream(self, attempt: int, stream: str) -> str:
        return f"/attempts/{attempt}/streams/{quote(stream, safe='')}"

    def _json(self, method: str, path: str, value: dict[str, Any]) -> ServiceAnswer:
        headers = {"Content-Type": "application/json"}
        return self._send(method, self._prefix + path, json.dumps(value).encode(), headers)

    def _send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> ServiceAnswer:
        """Return the answer to a request; `NotTaken` without one.

        The service may have closed a kept connection meanwhile: then the request is repeated once.
        """
        kept = self._connection is not None
        try:
            return self._exchange(method, path, body, headers, repeated=False)
        except (ConnectionError, http.client.HTTPException, OSError, ValueError) as error:
            self.close()
            if not (kept and isinstance(error, (ConnectionError, http.client.HTTPException))):
                raise self._not_reached(error) from error
        try:
            return self._exchange(method, path, body, headers, repeated=True)
        except (http.client.HTTPException, OSError, ValueError) as error:
            self.close()
            raise self._not_reached(error) from error

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], *, repeated: bool
    ) -> ServiceAnswer:
        connection = self._connection or self._connect()
        if connection.sock:
            connection.sock.settimeout(self._seconds(_ANSWER_SECONDS))
        connection.request(method, path, body, {**self._headers, **headers})
        response = connection.getresponse()
        content = response.read(_ANSWER_BYTES)
        if not response.isclosed() or response.will_close:
            self.close()
        return ServiceAnswer(
            response.status, _object(content), _retry_after(response.getheader("Retry-After")), repeated, self._url
        )

    def _connect(self) -> http.client.HTTPConnection:
        seconds = self._seconds(_CONNECT_SECONDS)
        if self._secure:
            context = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=context)
        else:
            self._connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        self._connection.connect()
        return self._connection

    def _seconds(self, most: float) -> float:
        if self.deadline is None:
            return most
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time is left")
        return min(most, left)

    def _not_reached(self, error: Exception) -> NotTaken:
        if isinstance(error, TimeoutError):
            return NotTaken(f"the server at {self._url} did not answer in time")
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        mend = _MEND_NAME if isinstance(error, socket.gaierror) else ""
        return NotTaken(f"the server at {self._url} cannot be reached ({str(text)[:200]})", mend=mend)


def _object(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header; dates are ignored, because clocks of nodes cannot be trusted."""
    return float(value) if value and value.isascii() and value.isdigit() and len(value) < 7 else None
