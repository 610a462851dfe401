"""Enters past attempts into a service."""

from collections.abc import Iterator, Sequence

import msgspec

from logdoctor.cli.client.connection import Connection, path
from logdoctor.store.jobs.past import EnteredAttempt, PastAttempt
from logdoctor.web.jobs.answers import EnteredAttempts

_BODY = 1 << 20  # bytes of a request, unless one attempt alone has more


class ServedPast:
    """The calls of `store.jobs.past.PastRecords`, over HTTP; the service's clock counts, `now` is ignored."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def require_open(self) -> None:
        """Raise now what entering would raise: no service, or a token without permission."""
        self._connection.post(EnteredAttempts, path("past-attempts"), {"attempts": []})

    def enter_past(self, past: Sequence[PastAttempt], now: float) -> list[EnteredAttempt]:
        """Enter past attempts, and return one result for each."""
        found: list[EnteredAttempt] = []
        for some in _portions(past):
            answer = self._connection.post(EnteredAttempts, path("past-attempts"), {"attempts": some})
            if len(answer.attempts) != len(some):
                raise self._connection.not_understood("past attempts are missing in the answer")
            found += answer.attempts
        return found


def _portions(past: Sequence[PastAttempt]) -> Iterator[list[msgspec.Raw]]:
    """Yield attempts as JSON, in portions that fit a request."""
    some: list[msgspec.Raw] = []
    size = 0
    for one in past:
        body = msgspec.json.encode(one)
        if some and size + len(body) > _BODY:
            yield some
            some, size = [], 0
        some.append(msgspec.Raw(body))
        size += len(body)
    if some:
        yield some
