"""Sends one stream's bytes to the service: decides which bytes come next, whatever the service answers."""

from collections.abc import Callable
from typing import Protocol

from logdoctor.errors import NotTaken
from logdoctor.job.send.body import ENCODINGS, encoded
from logdoctor.job.send.client import Client, ServiceAnswer
from logdoctor.job.send.notices import ShippingNotices
from logdoctor.job.send.target import NAME_CHARACTERS

BODY_BYTES = 1 << 20
_LEAST_BODY_BYTES = 1024
_MOST_NAMES = 100


class ByteSource(Protocol):
    """The source of a stream's bytes. Offsets are the source's own, from 0."""

    @property
    def start(self) -> int:
        """Return the first available byte."""

    @property
    def end(self) -> int:
        """Return the offset after the last byte so far."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""

    def release(self, offset: int) -> None:
        """Release the bytes before `offset`, which the service has stored."""


class StreamSender:
    """Sends a source as a stream. The service's offset of a byte is the source's plus `base`.

    The service may only ask for an offset up to which we have sent: then an answer was lost. If it asks for a later
    one, another process writes the stream, and ours continues under another name, so no byte ever lands at the wrong
    place. `placed(stream, base)` is called before bytes go to a new place, so that it can be saved.
    """

    def __init__(
        self,
        client: Client,
        stream: str,
        source: ByteSource,
        notices: ShippingNotices,
        *,
        base: int | None = None,
        placed: Callable[[str, int], None] = lambda stream, base: None,
    ) -> None:
        self.stream = stream
        self.offset: int | None = None
        self.base = base
        self._client = client
        self._source = source
        self._notices = notices
        self._placed = placed
        self._uncertain = 0
        self._most = BODY_BYTES
        self._encodings = list(ENCODINGS)
        self._first_name = stream

    @property
    def sent(self) -> int:
        """Return the source's offset up to which everything is known to be acknowledged."""
        return self._source.start if self.offset is None else self.offset

    @property
    def waiting(self) -> int:
        """Return the number of unacknowledged bytes."""
        return self._source.end - self.sent

    def place(self, attempt: int) -> None:
        """Ask for the stream's next offset and continue there; `NotTaken` without an answer."""
        wanted = self._look(attempt)
        if self.base is None:
            self._move(self.stream, wanted - self._source.start, self._source.start)
            return
        if self.offset is None:  # an earlier process may have sent anything up to the end
            self.offset, self._uncertain = self._source.start, self._source.end
        self._go_on(attempt, wanted)

    def send(self, attempt: int) -> int:
        """Send one body and return how many bytes that advanced; `NotTaken` when the service refused it."""
        if self.offset is None:
            self.place(attempt)
        assert self.offset is not None and self.base is not None
        data = self._source.read(self.offset, min(self._most, self._source.end - self.offset))
        if not data:
            return 0
        before, known = (self.stream, self.base, self.offset), self._uncertain
        self._uncertain = max(known, self.offset + len(data))  # stays so when the answer is lost
        body, encoding = encoded(data, self._encodings[0])
        answer = self._client.send_log(attempt, self.stream, self.base + self.offset, body, encoding)
        if 400 <= answer.status < 500 and not answer.repeated:  # a plain refusal: nothing was stored
            self._uncertain = known
        if answer.status == 200:
            self._go_on(attempt, _offset(answer.body.get("next_offset")))
        elif answer.status == 409:
            error = answer.body.get("error")
            self._go_on(attempt, _offset(error.get("next_offset") if isinstance(error, dict) else None))
        else:
            self._refused(answer, len(data), encoding)
            return 0
        if (self.stream, self.base, self.offset) == before:
            raise NotTaken("the server asks again for what it was just sent", only_this=True)
        return max(0, self.offset - before[2])

    def _refused(self, answer: ServiceAnswer, size: int, encoding: str) -> None:
        if answer.status == 413 and size > _LEAST_BODY_BYTES:
            self._most = max(_LEAST_BODY_BYTES, size // 2)
        elif answer.status == 415 and encoding == self._encodings[0] and len(self._encodings) > 1:
            del self._encodings[0]
        else:
            raise answer.refusal()

    def _go_on(self, attempt: int, wanted: int) -> None:
        """Continue from the service's offset `wanted`."""
        assert self.offset is not None and self.base is not None
        local = wanted - self.base
        if local > max(self._uncertain, self.offset):
            self._rename(attempt)
        elif local >= self._source.start:
            if local < self.offset:
                self._notices.once("back", f"the service lost bytes of {self.stream}; sending them again.")
            self._move(self.stream, self.base, local)
        else:
            self._notices.once(
                "lost",
                f"the service asks for byte {wanted} of {self.stream}, which is no longer here; "
                f"{self._source.start - local} bytes are skipped.",
            )
            self._move(self.stream, wanted - self._source.start, self._source.start)

    def _rename(self, attempt: int) -> None:
        """Continue under the next free name, because another process writes this stream."""
        assert self.offset is not None
        taken = self.stream
        for number in range(2, _MOST_NAMES):
            suffix = f".{number}"
            name = self._first_name[: NAME_CHARACTERS - len(suffix)] + suffix
            if name == taken or self._look(attempt, name):
                continue
            self._notices.say(f"another process writes the stream {taken}; continuing as {name}.")
            self._move(name, -self.offset, self.offset)
            return
        raise NotTaken(f"another process writes the stream {taken}", 30.0, only_this=True)

    def _move(self, stream: str, base: int, offset: int) -> None:
        new_place = (stream, base) != (self.stream, self.base)
        self.stream, self.base, self.offset = stream, base, offset
        self._uncertain = offset if new_place else max(self._uncertain, offset)  # a lost request may still be stored
        if new_place:
            self._placed(stream, base)
        self._source.release(offset)

    def _look(self, attempt: int, stream: str | None = None) -> int:
        answer = self._client.look(attempt, stream or self.stream)
        if answer.status == 404:
            return 0
        if answer.status != 200:
            raise answer.refusal()
        return _offset(answer.body.get("next_offset"))


def _offset(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise NotTaken("its response has no offset; is this logdoctor?", only_this=True)
