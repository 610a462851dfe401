"""Sending a message to its target: one POST with a timeout, and the meaning of the answer.

The client takes nothing from the environment. URLs may hold secrets: no error and no log line shows more of one than
`shown` does.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Coroutine
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec
import regex

from logdoctor.service.notify import slack
from logdoctor.service.notify.messages import decode
from logdoctor.service.notify.signing import headers

MAX_ANSWER = 4096
"""Bytes of an answer that are read."""
LONGEST_RETRY_AFTER = 6 * 3600.0
"""Longest wait that a receiver may ask for with Retry-After, in seconds."""

_PULSE = 0.1  # seconds between checks whether to stop
_LATER = (408, 425, 429)
_ENDING = 4  # characters at the end of a URL that are shown
_WORD = regex.compile(rb"[a-z_]{3,60}+(?![^\s\"',.:;}])")
_KNOWN = frozenset(
    """action_prohibited channel_is_archived channel_not_found invalid_blocks invalid_payload invalid_token
    missing_text_or_fallback_or_attachments no_active_hooks no_service no_service_id no_team no_text
    posting_to_general_channel_denied rate_limited rollup_error team_disabled too_many_attachments user_not_found
    """.split()
)
"""Error words of Slack and its look-alikes. No other word of an answer is kept: a receiver may repeat the secrets it
was sent, whole or in part, in any spelling."""

Outcome = Literal["taken", "later", "refused", "gone"]
"""The result of a message: `later` is retried, `gone` means that the target no longer takes messages."""


class Target(NamedTuple):
    """Where messages go. `secrets` sign webhooks; Slack needs none, as its URL is secret. With `answers`, messages to
    Slack have buttons that it reports back."""

    name: str
    kind: Literal["webhook", "slack"]
    url: str
    secrets: tuple[str, ...] = ()
    answers: bool = False


class Way(NamedTuple):
    """How messages are sent: the timeout in seconds, and the proxy, "" for none."""

    seconds: float = 10.0
    proxy: str = ""


class SendResult(NamedTuple):
    """The result of a POST: its outcome, the cause, and the seconds that the receiver asks to wait."""

    outcome: Outcome
    why: str
    retry_after: float | None = None


def shown(url: str) -> str:
    """Return the part of a URL that people may see: scheme, host and the last four characters if long."""
    try:
        parts = urlsplit(url)
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return "…"
    rest = f"{parts.path}{parts.query}"
    ending = rest[-_ENDING:] if len(rest) >= 4 * _ENDING else ""
    return f"{parts.scheme}://{host}/…{ending}"


def send(target: Target, id: str, body: str, way: Way, stopping: threading.Event | None = None) -> SendResult:
    """Post the message whose JSON is `body`, once; never raises for what a receiver does.

    It returns within the timeout of `way`, even if a name does not resolve or the answer trickles in. It is aborted
    when `stopping` is set.
    """
    loop = _Loop()
    try:
        posting = _until(stopping, _posted(target, id, body, way))
        return loop.run_until_complete(asyncio.wait_for(posting, way.seconds))
    except TimeoutError:
        return SendResult("later", f"no answer within {way.seconds:g} s")
    except httpx.HTTPError as error:
        return SendResult("later", _trouble(error))
    except msgspec.MsgspecError:
        return SendResult("refused", "another version of logdoctor wrote it in another format")
    except (httpx.InvalidURL, UnicodeError, ValueError):
        return SendResult("refused", "its URL cannot be used")
    except (OSError, ssl.SSLError) as error:
        return SendResult("later", f"no connection ({type(error).__name__})")
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that resolves names in daemon threads. A process waits for executor threads when it exits, and a
    lookup can take half a minute when no name server answers."""

    async def getaddrinfo(self, host: Any, port: Any, **how: Any) -> Any:
        found: asyncio.Future[Any] = self.create_future()

        def settle(answer: Any, error: OSError | UnicodeError | None) -> None:
            if not found.done():
                found.set_result(answer) if error is None else found.set_exception(error)

        def look_up() -> None:
            answer, trouble = None, None
            try:
                answer = socket.getaddrinfo(host, port, **how)
            except (OSError, UnicodeError) as error:
                trouble = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any longer
                self.call_soon_threadsafe(settle, answer, trouble)

        threading.Thread(target=look_up, name="name lookup", daemon=True).start()
        return await found


async def _until(stopping: threading.Event | None, posting: Coroutine[None, None, SendResult]) -> SendResult:
    """Return the result of a POST, unless `stopping` is set first."""
    task = asyncio.ensure_future(posting)
    try:
        while not (stopping is not None and stopping.is_set()):
            if (await asyncio.wait({task}, timeout=None if stopping is None else _PULSE))[0]:
                return task.result()
        return SendResult("later", "logdoctor was stopped")
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _posted(target: Target, id: str, body: str, way: Way) -> SendResult:
    content = body.encode()
    sent = {"content-type": "application/json", "user-agent": "logdoctor", "accept-encoding": "identity"}
    if target.kind == "slack":
        content = msgspec.json.encode(slack.payload(decode(content), target.answers))
    else:
        sent |= headers(target.secrets, id, int(time.time()), content)
    client = httpx.AsyncClient(
        verify=_tls(), trust_env=False, follow_redirects=False, timeout=way.seconds, proxy=way.proxy or None
    )
    async with client, client.stream("POST", target.url, content=content, headers=sent) as response:
        answer = bytearray()
        if not response.is_success:  # the text of a success does not matter
            async for part in response.aiter_raw():
                answer += part
                if len(answer) >= MAX_ANSWER:
                    break
        return judged(response.status_code, _said(bytes(answer)), response.headers.get("retry-after"))


def judged(status: int, said: str, retry_after: str | None) -> SendResult:
    """Return what an HTTP status means, as Standard Webhooks defines it."""
    why = f"{status}{f': {said}' if said else ''}"
    if 200 <= status < 300:
        return SendResult("taken", str(status))
    if status == 410:
        return SendResult("gone", why)
    if 300 <= status < 400:
        return SendResult("later", f"{status}: redirects are not followed")
    if 400 <= status < 500 and status not in _LATER:
        return SendResult("refused", why)
    return SendResult("later", why, _seconds(retry_after))


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date; None if it is missing or malformed."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdecimal() and len(text) < 12:
        return min(float(text), LONGEST_RETRY_AFTER)
    try:
        left = parsedate_to_datetime(text).timestamp() - time.time()
    except (TypeError, ValueError, IndexError, OverflowError, OSError):
        return None
    return min(max(left, 0.0), LONGEST_RETRY_AFTER)


def _said(answer: bytes) -> str:
    """Return the first known error word of an answer; "" if there is none."""
    words = (found.group().decode() for found in _WORD.finditer(answer[:MAX_ANSWER]))
    return next((word for word in words if word in _KNOWN), "")


def _trouble(error: httpx.HTTPError) -> str:
    """Return an error in words; its own text may contain the URL."""
    if isinstance(error, httpx.ProxyError):
        return "the proxy refused the connection"
    if isinstance(error, httpx.ConnectError):
        certificate = isinstance(error.__cause__, ssl.SSLError) or "SSL" in str(error) or "CERTIFICATE" in str(error)
        return "no connection: its certificate is not trusted" if certificate else "no connection"
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return f"the connection broke ({type(error).__name__})"


@cache
def _tls() -> ssl.SSLContext:
    """Return a TLS context with this machine's trusted certificates, made at the first use."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log each URL in full
    return ssl.create_default_context()
