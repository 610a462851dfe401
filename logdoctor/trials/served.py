"""A command that is started once per worker and makes the outputs of all its shards, loading the model once.

For each shard it reads a line `{"set", "dataset", "start", "end", "samples", "out"}`, writes the outputs to the file
`out`, and then prints `{"out": OUT}`, or `{"out": OUT, "error": "..."}`. Anything else it prints is its log.
"""

import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

_LINE = 1 << 20  # bytes of an answer
_ENDING = 30.0
_LOG = 8 << 20


class _Answer(msgspec.Struct):
    out: str
    error: str = ""


class ServerEnded(Exception):
    """The command ended by itself with exit code `code`, or took too long (None)."""

    def __init__(self, code: int | None, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class Server:
    """A command that serves."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[bytes, bytes]) -> None:
        self._log = tempfile.TemporaryFile(dir=folder)
        self._begun = 0
        self._rest = b""
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.fileno(),
            start_new_session=True,
        )

    def ask(self, line: str, out: str, seconds: float) -> str:
        """Request a shard, and return the error that the command reports, "" for none; `ServerEnded` when it ended."""
        self._begun = os.lseek(self._log.fileno(), 0, os.SEEK_END)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None
        end = time.monotonic() + seconds
        while True:
            for printed in self._lines(end, seconds):
                with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    answer = msgspec.json.decode(printed, type=_Answer)
                    if answer.out == out:
                        return answer.error
                os.write(self._log.fileno(), printed + b"\n")

    def log(self) -> bytes:
        """Return what it printed since the last request."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _LOG, max(self._begun, size - _LOG))

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING)

    def _lines(self, end: float, seconds: float) -> list[bytes]:
        """Return the next complete lines."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._process.stdout, selectors.EVENT_READ)
            if not waiting.select(max(end - time.monotonic(), 0.0)):
                self.close()
                raise ServerEnded(None, f"took more than {seconds:g} s")
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        if not data:
            raise self._ended()
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE:
            os.write(self._log.fileno(), self._rest)
            self._rest = b""
        return lines

    def _ended(self) -> ServerEnded:
        self.close()
        code = self._process.returncode
        return ServerEnded(code, f"exits with {code}, and serves no more")
