"""Past attempts that are entered into a service."""

from collections.abc import Iterator, Sequence

import msgspec

from logdoctor.cli.client.connection import Connection, path
from logdoctor.store.jobs.past import EnteredAttempt, PastAttempt
from logdoctor.web.jobs.answers import EnteredAttempts

_BODY = 1 << 20  # bytes of a request, unless one attempt alone has more


class ServedPast:
    """Entered as `store.past.PastRecords` enter them; the service's own clock counts, `now` is ignored."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def require_open(self) -> None:
        """Raise what would be raised if something were entered now: the service is away, or the token does not
        allow it."""
        self._connection.post(EnteredAttempts, path("past-attempts"), {"attempts": []})

    def enter_past(self, past: Sequence[PastAttempt], now: float) -> list[EnteredAttempt]:
        """Return what came of each past attempt."""
        found: list[EnteredAttempt] = []
        for some in _portions(past):
            answer = self._connection.post(EnteredAttempts, path("past-attempts"), {"attempts": some})
            if len(answer.attempts) != len(some):
                raise self._connection.not_understood("past attempts are missing in the answer")
            found += answer.attempts
        return found


def _portions(past: Sequence[PastAttempt]) -> Iterator[list[msgspec.Raw]]:
    """Yield attempts as JSON, as many as one request has room for."""
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
