"""The journal of a trial: one JSON object per line, on disk before anything else depends on it."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from logdoctor.errors import TrialError
from logdoctor.trials.types import Shard


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """A coordinator started, for the first time or again. Sets that had failed are tried again."""

    at: float
    host: str
    pid: int


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """A worker has the checkpoint with this content `digest` ("" if read in place), after so many seconds; `copied` if
    the worker copied it to its node."""

    at: float
    worker: str
    node: str
    digest: str
    seconds: float
    copied: bool


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A worker started a shard."""

    at: float
    shard: Shard
    worker: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The outputs of a shard are on disk: their digest, and the seconds they took."""

    at: float
    shard: Shard
    worker: str
    seconds: float
    digest: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A shard, or the scoring of its whole set (`scoring`), failed or was lost: why, by the diagnosis of its log, the
    line that proves it, and the log's path. It was the `attempt`-th try; being `lost` with its worker says nothing
    against the shard."""

    at: float
    shard: Shard
    worker: str
    attempt: int
    why: str
    quote: str = ""
    log: str = ""
    scoring: bool = False
    lost: bool = False


class Scored(msgspec.Struct, frozen=True, tag="scored"):
    """A set is scored."""

    at: float
    set: str
    metrics: dict[str, float]
    seconds: float


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """A set failed for good: it is not tried again until the trial is resumed."""

    at: float
    set: str
    why: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """Every set is scored or failed."""

    at: float


Event = Begun | Loaded | Started | Finished | Failed | Scored | Dropped | Ended

_decoder = msgspec.json.Decoder(Event)


class Journal:
    """The journal of a trial, for the one process that writes it."""

    def __init__(self, path: Path) -> None:
        """Open it, and cut off a half-written last line."""
        self._path = path
        whole = 0
        for line in _lines(path):
            whole += len(line)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._handle, whole)

    def add(self, event: Event) -> None:
        """Write an event, durably on return; `TrialError` when it cannot be written."""
        try:
            line = msgspec.json.encode(event) + b"\n"
            while line:
                line = line[os.write(self._handle, line) :]
            os.fsync(self._handle)
        except OSError as error:
            step = "Free some space, then go on with `logdoctor trials resume`."
            raise TrialError(str(self._path), f"cannot be written ({error.strerror})", step) from error

    def close(self) -> None:
        """Close it."""
        os.close(self._handle)


def read_journal(path: Path) -> list[Event]:
    """Return all events, in order; `TrialError` when it is damaged."""
    found: list[Event] = []
    for number, line in enumerate(_lines(path), 1):
        try:
            found.append(_decoder.decode(line))
        except msgspec.MsgspecError as error:
            cause = f"is damaged in line {number} ({error})"
            raise TrialError(str(path), cause, "Begin the trial anew in another folder.") from error
    return found


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines."""
    try:
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise TrialError(str(path), f"cannot be read ({error.strerror})", "Check its permissions.") from error
