"""The target of shipping: the service, the job, the attempt, the stream and the facts about the job."""

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import urlsplit

from logdoctor.errors import SendError
from logdoctor.job.send.environment import Environment

Facts = Mapping[str, "str | int | Mapping[str, str]"]

NAME_CHARACTERS = 200
NAME_BYTES = 240
_TOKEN_BYTES = 8192


class ShippingTarget(NamedTuple):
    """Where bytes go. `attempt` is None until the service has assigned a number to `attempt_key`."""

    url: str
    token: str | None
    job: str
    attempt: int | None
    attempt_key: str
    stream: str
    metadata: Facts
    key_is_made_up: bool = False
    """Whether `attempt_key` is random: then a process continuing another's work uses that one's key."""

    def __repr__(self) -> str:  # the token must never be logged
        return f"Target({self.url!r}, {self.job!r}, {self.attempt!r}, {self.stream!r})"


def make_target(
    environment: Environment,
    *,
    job: str | None = None,
    attempt: int | None = None,
    attempt_key: str | None = None,
    stream: str | None = None,
    url: str | None = None,
    token_file: str | None = None,
    metadata: Facts | None = None,
) -> ShippingTarget:
    """Return the target from options, completed from the environment; `SendError` when it is unusable."""
    job = job or environment.job
    if not job:
        raise SendError("--job", "no job was given", "Give --job, or set LOGDOCTOR_JOB.")
    if attempt is not None and not 0 <= attempt <= 999_999:
        raise SendError("--attempt", f"{attempt} is out of range", "Use 0 to 999999.")
    known_key = attempt_key or environment.attempt_key
    key = known_key or os.urandom(16).hex()
    if len(key) > NAME_CHARACTERS:
        raise SendError("--attempt-key", "is too long", "Use at most 200 characters.")
    return ShippingTarget(
        url=checked_url(url or environment.url),
        token=_token(token_file) if token_file else checked_token(environment.token, "LOGDOCTOR_TOKEN"),
        job=checked_name("--job", job),
        attempt=attempt,
        attempt_key=key,
        stream=checked_name("--stream", stream or environment.stream),
        metadata={**environment.metadata, **(metadata or {})},
        key_is_made_up=known_key is None,
    )


def named_after(command: Sequence[str]) -> str:
    """Return a name for an unnamed job: its command's script, module or program."""
    scripts = [os.path.basename(word) for word in command if word.endswith((".py", ".sh"))]
    modules = [after for word, after in pairwise(command) if word == "-m"]
    name = scripts[0][:-3] if scripts else modules[0] if modules else os.path.basename(command[0])
    return name if is_name(name) else "job"


def checked_name(option: str, name: str) -> str:
    """Return the name of a job or stream; `SendError` when the service would refuse it."""
    if not is_name(name):
        raise SendError(
            f"{option} {name[:80]!r}",
            "is not a valid name",
            "Use 1 to 200 printable characters without / and \\, and not . or ..",
        )
    return name


def is_name(name: str) -> bool:
    """Return whether the service accepts the name for a job or a stream."""
    return (
        1 <= len(name) <= NAME_CHARACTERS
        and name not in (".", "..")
        and name.strip() == name
        and name.isprintable()
        and not any(character in name for character in "/\\\ufffd")
        and len(name.encode()) <= NAME_BYTES
    )


def checked_url(url: str) -> str:
    """Return the URL without trailing slashes; `SendError` unless it is http(s)://host[:port][/path]."""
    shown = "--url" if "@" in url else f"--url {url[:200]!r}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SendError(shown, str(error), "Give http://host:port or https://host.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not url.isprintable():
        raise SendError(shown, "is not an http or https URL", "Give http://host:port or https://host.")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise SendError(shown, "has more than a host, a port and a path", "Put a token into --token-file.")
    return url.rstrip("/")


def _token(file: str) -> str:
    try:
        with open(file, "rb") as opened:
            content = opened.read(_TOKEN_BYTES + 1)
    except OSError as error:
        raise SendError(f"--token-file {file}", f"cannot be read ({error.strerror})", "Check the path.") from error
    token = checked_token(content.decode("latin-1").strip(), f"--token-file {file}")
    if token is None:
        raise SendError(f"--token-file {file}", "is empty", "Put the token in it, on one line.")
    return token


def checked_token(token: str | None, source: str) -> str | None:
    """Return the token, None without one; `SendError` when it is malformed."""
    if token and (len(token) > _TOKEN_BYTES or not all("!" <= character <= "~" for character in token)):
        raise SendError(source, "is not a token", "A token is one line of printable ASCII without spaces.")
    return token or None
