"""`logdoctor ship`: follows files and ships each as a stream."""

import fcntl
import glob
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from logdoctor.errors import NotTaken, SendError
from logdoctor.job.send.backoff import Backoff
from logdoctor.job.send.client import Client
from logdoctor.job.send.follow import Descriptors, FollowedFile, is_rotated
from logdoctor.job.send.introduce import introduce
from logdoctor.job.send.notices import ShippingNotices
from logdoctor.job.send.shipper import FLUSH_BYTES, FLUSH_SECONDS
from logdoctor.job.send.stream import StreamSender
from logdoctor.job.send.target import NAME_CHARACTERS, ShippingTarget, is_name
from logdoctor.safe.lasting_files import Folder

POLL_SECONDS = 0.5
GIVE_UP_SECONDS = 300.0
_DISCOVER_SECONDS = 2.0
_SAVE_SECONDS = 5.0
_AFTER_STOP_SECONDS = 30.0
_OPEN_FILES = 256


def ship(
    files: Sequence[str],
    target: ShippingTarget,
    *,
    spool_folders: tuple[str, ...],
    follow: bool = True,
    stream_from: str = "path",
    end: bool = False,
    exit_code: int | None = None,
    state_file: str | None = None,
    give_up_seconds: float = GIVE_UP_SECONDS,
    poll_seconds: float = POLL_SECONDS,
) -> int:
    """Ship files, folders and glob patterns, one stream per file; return 0 when all is sent, else 1.

    With `follow` it continues until SIGTERM or SIGINT, like `tail -F`; without, it sends what exists now. With `end`
    the attempt is then ended. `stream_from` names streams: "path" is the file's path below the common folder, with `.`
    for `/`; "name" its name alone; "host" the path after the host's name. `SendError` when the state cannot be stored
    or another process ships the same files.
    """
    state = _ShipState(state_file or _state_file(files, target, spool_folders))
    shipping = _Shipping(files, target, stream_from, state, poll_seconds)
    with suppress(ValueError):  # only the main thread may do so
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # ignored under nohup
                signal.signal(number, lambda *_: shipping.stop())
    try:
        return shipping.run(follow, end, exit_code, give_up_seconds)
    except KeyboardInterrupt:
        return 1
    finally:
        shipping.close()


class _ShippedFile:
    """A file, its sender and the time of its next turn."""

    def __init__(self, file: FollowedFile, sender: StreamSender) -> None:
        self.file = file
        self.sender = sender
        self.not_before = 0.0
        self.backoff = Backoff()
        self.waiting_since: float | None = None

    def is_due(self, now: float, at_once: bool) -> bool:
        waiting = self.sender.waiting
        if not waiting and not self.file.lost:
            self.waiting_since = None
            return False
        self.waiting_since = self.waiting_since or now
        enough = at_once or waiting >= FLUSH_BYTES or now - self.waiting_since >= FLUSH_SECONDS
        return now >= self.not_before and (enough or self.file.lost is not None)

    @property
    def is_done(self) -> bool:
        return not self.sender.waiting and not self.file.lost


class _Shipping:
    """Sends every file in turn, in one thread over one connection."""

    def __init__(
        self, files: Sequence[str], target: ShippingTarget, stream_from: str, state: "_ShipState", poll_seconds: float
    ) -> None:
        self._arguments = [os.path.abspath(file) for file in files]
        self._root = os.path.commonpath([_folder_of(argument) for argument in self._arguments])
        self._state = state
        self._target = state.merged(target)
        self._attempt: int | None = None
        self._stream_from = stream_from
        self._poll_seconds = poll_seconds
        self._notices = ShippingNotices()
        self._client = Client(target)
        self._descriptors = Descriptors(_OPEN_FILES)
        self._entries: dict[str, _ShippedFile] = {}
        self._stops = 0
        self._backoff = Backoff()
        self._discovered_at = self._saved_at = self._progressed_at = -1e9

    def stop(self) -> None:
        """Send what is there and end; the second call ends at once."""
        self._stops += 1
        if self._stops > 1:
            raise KeyboardInterrupt

    def close(self) -> None:
        with suppress(OSError):
            self._save()
        self._client.close()
        self._descriptors.close()
        self._state.close()

    def run(self, follow: bool, end: bool, exit_code: int | None, give_up_seconds: float) -> int:
        self._progressed_at = time.monotonic()
        while follow and not self._stops:
            self._look(time.monotonic())
            if not self._round(at_once=False):
                time.sleep(self._poll_seconds)
        self._discovered_at = -1e9
        self._look(time.monotonic(), settle=0.0)
        if not follow and not self._any_exists():
            self._notices.say("none of the given files exist.")
            return 1
        self._progressed_at = time.monotonic()
        patience = min(give_up_seconds, _AFTER_STOP_SECONDS) if self._stops else give_up_seconds
        ended = not end
        while not (ended and all(entry.is_done for entry in self._entries.values())):
            if all(entry.is_done for entry in self._entries.values()):
                ended = self._try(lambda: self._send_end(exit_code))
            elif not self._round(at_once=True):
                time.sleep(0.05)  # nothing announces that a file grew
            if time.monotonic() - self._progressed_at > patience:
                self._notices.say("not everything was sent; run the same command again to continue.")
                return 1
        if end:
            self._state.forget()
        return 0

    def _any_exists(self) -> bool:
        return any(os.path.lexists(path) or entry.file.state() for path, entry in self._entries.items())

    def _look(self, now: float, settle: float | None = None) -> None:
        if now - self._discovered_at >= _DISCOVER_SECONDS:
            self._discovered_at = now
            self._discover()
        for entry in self._entries.values():
            entry.file.poll(now) if settle is None else entry.file.poll(now, settle)
        if now - self._saved_at >= _SAVE_SECONDS or any(entry.file.changed for entry in self._entries.values()):
            self._saved_at = now
            self._save()

    def _round(self, at_once: bool) -> bool:
        """Give every due file one turn; return whether any was due."""
        now = time.monotonic()
        due = [entry for entry in self._entries.values() if entry.is_due(now, at_once)]
        for entry in due:
            if not self._try(lambda entry=entry: self._send(entry), entry):
                break
        return bool(due)

    def _try(self, step: Any, entry: _ShippedFile | None = None) -> bool:
        """Make requests; return whether the service is available. After a failure of the whole service, wait."""
        try:
            step()
        except NotTaken as refused:
            if refused.only_this and entry:
                entry.not_before = time.monotonic() + entry.backoff.seconds(refused.retry_after)
                self._notices.once("stream", f"{entry.file.path} is not sent for now: {refused.cause}.")
                return True
            self._notices.away(refused.cause)
            self._pause(self._backoff.seconds(refused.retry_after))
            return False
        self._progressed_at = time.monotonic()
        self._backoff.reset()
        self._notices.back()
        return True

    def _send(self, entry: _ShippedFile) -> None:
        attempt = self._introduced()
        if entry.file.lost:
            entry.sender.place(attempt)
            if entry.sender.offset is not None:
                entry.file.cut(entry.sender.offset)
            self._save()
        elif entry.sender.send(attempt):
            entry.backoff.reset()
        else:
            entry.file.poll(time.monotonic(), 0.0)
        entry.waiting_since = None

    def _introduced(self) -> int:
        if self._attempt is None:
            self._attempt = introduce(self._client, self._target, self._notices)
            self._save()
        return self._attempt

    def _send_end(self, exit_code: int | None) -> None:
        facts = {"exit_code": exit_code, "signal": None, "scheduler_state": None, "stream": None}
        answer = self._client.end(self._introduced(), facts)
        if answer.status >= 300:
            raise answer.refusal()

    def _pause(self, seconds: float) -> None:
        until, stops = time.monotonic() + seconds, self._stops
        while (left := until - time.monotonic()) > 0 and self._stops == stops:
            time.sleep(min(left, 0.2))

    def _discover(self) -> None:
        """Follow new files, but not rotated copies of a followed file."""
        for path in self._found():
            if path in self._entries:
                continue
            self._take_up(path)

    def _found(self) -> Iterable[str]:
        for argument in self._arguments:
            if os.path.isdir(argument):
                yield from self._unrotated(
                    os.path.join(folder, name) for folder, _, names in os.walk(argument) for name in names
                )
            elif glob.has_magic(argument) and not os.path.lexists(argument):
                yield from self._unrotated(glob.glob(argument, recursive=True))
            else:
                yield argument

    def _unrotated(self, paths: Iterable[str]) -> list[str]:
        found = sorted(path for path in paths if os.path.isfile(path))
        names: dict[str, list[str]] = {}
        for path in found:
            names.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
        for path in self._entries:
            names.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
        return [path for path in found if not _is_rotation(os.path.basename(path), names[os.path.dirname(path)])]

    def _take_up(self, path: str) -> None:
        kept = self._state.files.get(path, {})
        file = FollowedFile(path, self._descriptors, self._notices.say)
        base, stream = 0, None
        with suppress(KeyError, TypeError, ValueError, IndexError):
            file.restore(kept["generations"])
            base, stream = int(kept["base"]), str(kept["stream"])
        if stream is None or not is_name(stream):
            stream = self._name(path)
        sender = StreamSender(self._client, stream, file, self._notices, base=base, placed=lambda *_: self._save())
        self._entries[path] = _ShippedFile(file, sender)

    def _name(self, path: str) -> str:
        """Return a stream name for a file's path, unique per file."""
        shown = os.path.basename(path) if self._stream_from == "name" else os.path.relpath(path, self._root)
        if self._stream_from == "host":
            shown = f"{os.uname().nodename}.{shown}"
        name = "".join(c if c.isprintable() and c not in "\\\ufffd" else "_" for c in shown.replace("/", ".")).strip()
        taken = {entry.sender.stream for entry in self._entries.values()}
        taken |= {str(kept.get("stream")) for kept in self._state.files.values()}
        if is_name(name) and name not in taken:
            return name
        digest = hashlib.blake2b(os.fsencode(path), digest_size=5).hexdigest()
        short = name[: NAME_CHARACTERS - 12]
        while len(short.encode()) > 220:
            short = short[:-1]
        return f"{short}-{digest}"

    def _save(self) -> None:
        files = dict(self._state.files)
        for path, entry in self._entries.items():
            entry.file.changed = False
            files[path] = {
                "stream": entry.sender.stream,
                "base": entry.sender.base,
                "generations": entry.file.state(),
            }
        self._state.save(files, self._target, self._attempt)


class _ShipState:
    """The state that survives a restart, in a file that one process at a time owns."""

    def __init__(self, path: str) -> None:
        folder, self._name = os.path.split(path)
        self._folder = Folder(folder)
        try:
            self._folder.make(mode=0o700)
            self._lock = self._folder.open(f"{self._name}.lock", os.O_RDWR | os.O_CREAT, ours=True)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SendError(path, "another process is shipping the same files", "Stop that one first.") from error
        except OSError as error:
            cause = f"cannot be used ({error.strerror})"
            raise SendError(str(error.filename or path), cause, "Use another --state file.") from error
        self._kept: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            kept = json.loads(self._folder.read(self._name, ours=True))
            self._kept = kept if isinstance(kept, dict) else {}
        files = self._kept.get("files")
        self.files: dict[str, Any] = files if isinstance(files, dict) else {}
        self._forgotten = False

    def merged(self, target: ShippingTarget) -> ShippingTarget:
        """Return the target with the key used before for these files; another reliable key is another attempt."""
        key, attempt = self._kept.get("attempt_key"), self._kept.get("attempt")
        if not isinstance(key, str) or (key != target.attempt_key and not target.key_is_made_up):
            self.files = {} if target.attempt is None else self.files
            return target
        if target.attempt is None and isinstance(attempt, int):
            return target._replace(attempt_key=key, attempt=attempt)
        return target._replace(attempt_key=key)

    def save(self, files: dict[str, Any], target: ShippingTarget, attempt: int | None) -> None:
        self.files = files
        if self._forgotten:
            return
        kept = {"version": 1, "attempt_key": target.attempt_key, "attempt": attempt, "files": files}
        with suppress(OSError):
            self._folder.write(self._name, json.dumps(kept).encode(), lasting=False)

    def forget(self) -> None:
        """Forget the ended attempt: the next one starts afresh."""
        self._forgotten = True
        with suppress(OSError):
            self._folder.remove(self._name)

    def close(self) -> None:
        os.close(self._lock)


def _state_file(files: Sequence[str], target: ShippingTarget, spool_folders: tuple[str, ...]) -> str:
    facts = [target.url, target.job, target.attempt, sorted(os.path.abspath(file) for file in files)]
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()
    for folder in spool_folders:
        with suppress(OSError):
            Folder(folder).make(mode=0o700)
            if os.access(folder, os.W_OK):
                return os.path.join(folder, f"follow-{digest}.json")
    raise SendError("the spool folder", "cannot be written", "Set LOGDOCTOR_SPOOL_DIR, or give --state FILE.")


def _folder_of(argument: str) -> str:
    """Return a folder that contains everything an argument matches."""
    if os.path.isdir(argument):
        return argument
    while glob.has_magic(os.path.dirname(argument)):
        argument = os.path.dirname(argument)
    return os.path.dirname(argument)


def _is_rotation(name: str, names: list[str]) -> bool:
    return any(is_rotated(name, other) for other in names)
