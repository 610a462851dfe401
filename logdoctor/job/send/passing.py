"""Forwards an output as it comes, and keeps a copy for shipping."""

import errno
import os
import select
import threading
import time
from collections.abc import Callable

from logdoctor.job.send.child import Channel

READ_BYTES = 1 << 20
_NAP_SECONDS = 0.004


class Passing:
    """A thread that reads one output of the command, writes it to ours and passes it to `keep`.

    While bytes come quickly in small pieces it sleeps briefly between reads: writing to a pipe without a waiting reader
    is much cheaper for the command than waking one. A piece is late by at most that sleep.
    """

    def __init__(self, channel: Channel, keep: Callable[[bytes], None]) -> None:
        self.last_read = time.monotonic()
        self.is_writing = False
        """Whether it waits for whoever reads our own output; more may wait in the pipe of the command meanwhile."""
        self._channel = channel
        self._keep = keep
        self._open, self._refused = True, False
        self._thread = threading.Thread(target=self._run, name="logdoctor-pass", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for the end of the output; return whether it came."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        reading, keep = self._channel.reading, self._keep
        small = 0 if self._channel.terminal else self._channel.capacity // 8
        clock, read = time.monotonic, os.read
        while True:
            try:
                data = read(reading, READ_BYTES)
            except OSError:  # a pseudo-terminal ends with EIO
                return
            if not data:
                return
            self.is_writing = True
            self._pass_on(data)
            self.is_writing = False
            keep(data)
            if self._refused:
                os.close(reading)  # our reader is gone: the command gets SIGPIPE as it would without us
                return
            now = clock()
            quick = now - self.last_read < 2 * _NAP_SECONDS
            self.last_read = now
            if quick and len(data) < small:
                time.sleep(_NAP_SECONDS)

    def _pass_on(self, data: bytes) -> None:
        """Write all bytes to our own output while somebody reads it."""
        at = 0
        while self._open and at < len(data):
            try:
                at += os.write(self._channel.passing, data[at:] if at else data)
            except BlockingIOError:  # a process that shares it has made it non-blocking
                waiter = select.poll()
                waiter.register(self._channel.passing, select.POLLOUT)
                waiter.poll(1000)
            except OSError as error:
                self._refused = error.errno == errno.EPIPE
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # a full disk may have room again later
                    self._open = False
                return
