"""The thread that sends a spool while the command runs, and the rest afterwards."""

import math
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from logdoctor.errors import NotTaken
from logdoctor.job.send.backoff import Backoff
from logdoctor.job.send.notices import ShippingNotices
from logdoctor.job.send.spool import Spool
from logdoctor.job.send.target import ShippingTarget

if TYPE_CHECKING:
    from logdoctor.job.send.client import Client
    from logdoctor.job.send.stream import StreamSender

FLUSH_SECONDS = 1.0
FLUSH_BYTES = 256 << 10
_TICK_SECONDS = 0.1
_LONGEST_WAIT_AT_THE_END = 1.0
_ONCE_MORE = 2.0  # seconds
_NICE = 10


class CommandEnd(NamedTuple):
    """How a command ended: an exit code, or the signal it died of, and the scheduler's state."""

    exit_code: int | None
    signal: int | None
    scheduler_state: str | None = None


class Shipper:
    """Sends one spool to a target. Its failures never reach the command."""

    def __init__(
        self, target: ShippingTarget, spool: Spool, notices: ShippingNotices, *, base: int | None = None
    ) -> None:
        self.done = threading.Event()
        self.refused: NotTaken | None = None  # the last refusal, until a request is accepted
        self._target = target
        self._spool = spool
        self._notices = notices
        self._base = base
        self._stream = target.stream
        self._attempt = target.attempt
        self._described = False
        self._sender: StreamSender | None = None
        self._due_until = 0
        self._end: CommandEnd | None = None
        self._deadline: float | None = None
        self._patience: float | None = None
        self._last = math.inf
        self._ending = threading.Event()
        self._stopped = threading.Event()
        self._all_sent = self._needs_mending = False
        self._keeping = threading.Lock()
        self._keep()

    @property
    def attempt(self) -> int | None:
        """Return the number of the attempt; None until the service has assigned it."""
        return self._attempt

    def pause(self, seconds: float) -> bool:
        """Sleep; return whether sending was stopped."""
        return self._stopped.wait(seconds)

    def start(self) -> None:
        """Start sending in a daemon thread."""
        threading.Thread(target=self._run_apart, name="logdoctor-ship", daemon=True).start()

    def finish(self, end: CommandEnd, seconds: float, patience: float | None = None) -> bool:
        """Send the rest and the end within `seconds`; return whether the service has it all. With `patience`, stop once
        the service has accepted nothing for that long. When a person must fix something first, retry only once."""
        seconds = min(seconds, _ONCE_MORE) if self._needs_mending else seconds
        self._patience, self._last = patience, time.monotonic() + seconds
        self._begin_to_end(end, seconds if patience is None else min(seconds, patience))
        self.done.wait(seconds + 0.5)
        return self._all_sent

    def finish_patiently(self, end: CommandEnd, patience: float) -> bool:
        """Send the rest and the end, until the service has accepted nothing for `patience` seconds; return whether it
        has it all."""
        self._patience = patience
        self._begin_to_end(end, patience)
        self.done.wait()
        return self._all_sent

    def stop(self) -> None:
        """Stop sending at once; the rest stays in the spool."""
        self._stopped.set()
        self._ending.set()
        self.done.set()

    def run(self) -> None:
        """Send until all is sent and the end is reported, or time runs out."""
        from logdoctor.job.send.client import Client  # imported here, because it is slow

        client = Client(self._target)
        backoff = Backoff()
        try:
            while not self._is_over() and not self._all_sent:
                client.deadline = self._deadline
                ended = self._ending.is_set()
                try:
                    self._all_sent = self._step(client)
                    self._taken()
                    backoff.reset()
                    self._notices.back()
                except NotTaken as refused:
                    self.refused = refused
                    if not self._is_over():
                        self._notices.away(refused.cause, refused.mend)
                        if ended and refused.mend:  # a job does not wait for a person
                            break
                        self._needs_mending = bool(refused.mend)
                        self._wait(backoff.seconds(refused.retry_after))
        finally:
            client.close()
            self.done.set()

    def _begin_to_end(self, end: CommandEnd, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._end = end
        self._keep()
        self._ending.set()

    def _taken(self) -> None:
        self.refused, self._needs_mending = None, False
        if self._patience is not None:
            self._deadline = min(time.monotonic() + self._patience, self._last)

    def _run_apart(self) -> None:
        with suppress(OSError):  # the command matters more than shipping
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            self.run()
        except Exception as error:  # noqa: BLE001  the edge of the thread: the command goes on whatever happens here
            self._notices.say(f"logs are no longer sent: {type(error).__name__}: {error}")

    def _step(self, client: "Client") -> bool:
        """Make the next due request; return whether that was the last one."""
        from logdoctor.job.send.introduce import introduce

        if self._attempt is None or not self._described:
            self._attempt = introduce(client, self._target._replace(attempt=self._attempt), self._notices)
            self._described = True
            self._keep()
        elif self._bytes_are_due():
            self._sender_on(client).send(self._attempt)
        else:
            return self._send_end(client, self._attempt)
        return False

    def _sender_on(self, client: "Client") -> "StreamSender":
        from logdoctor.job.send.stream import StreamSender

        if self._sender is None:
            self._sender = StreamSender(
                client, self._stream, self._spool, self._notices, base=self._base, placed=self._keep_place
            )
        return self._sender

    def _bytes_are_due(self) -> bool:
        """Wait until enough bytes, or old enough ones, are unsent; return False when all is sent and the end has
        come."""
        waiting_since = None
        while True:
            ending = self._ending.is_set()
            sent = self._spool.start if self._sender is None else self._sender.sent
            waiting = self._spool.end - sent
            if waiting:
                now = time.monotonic()
                waiting_since = waiting_since or now
                if sent < self._due_until:
                    return True
                if ending or waiting >= FLUSH_BYTES or now - waiting_since >= FLUSH_SECONDS:
                    self._due_until = self._spool.end
                    return True
            elif ending:
                return False
            self._ending.wait(_TICK_SECONDS)

    def _send_end(self, client: "Client", attempt: int) -> bool:
        assert self._end is not None
        answer = client.end(attempt, {**self._end._asdict(), "stream": self._stream})
        if answer.status >= 300:
            raise answer.refusal()
        return True

    def _wait(self, seconds: float) -> None:
        """Wait, but no longer than until the end comes, and only briefly after it."""
        if not self._ending.is_set():
            self._ending.wait(seconds)
        else:
            left = max(0.0, (self._deadline or 0.0) - time.monotonic())
            self._stopped.wait(min(seconds, _LONGEST_WAIT_AT_THE_END, left))

    def _is_over(self) -> bool:
        return self._stopped.is_set() or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _keep_place(self, stream: str, base: int) -> None:
        self._stream, self._base = stream, base
        self._keep()

    def _keep(self) -> None:
        """Store what `logdoctor ship --resume` needs, without the token."""
        about = {
            "version": 1,
            "url": self._target.url,
            "job": self._target.job,
            "attempt": self._attempt,
            "attempt_key": self._target.attempt_key,
            "stream": self._stream,
            "base": self._base,
            "metadata": dict(self._target.metadata),
            "host": os.uname().nodename,
            "end": self._end._asdict() if self._end else None,
        }
        with self._keeping, suppress(OSError):
            self._spool.save_about(about)
