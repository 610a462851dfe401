"""Confirmed causes of past failures, and the kept lines of past attempts.

A confirmation says what a failure was, because a person said so or attempts agreed on it; it is live until it is
withdrawn or replaced, and stays on record then. The remarkable lines of settled attempts are kept so that a new rule
can be tried on exactly what it would have seen.
"""

import base64
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
import structlog
import zstandard

from logdoctor import taxonomy
from logdoctor.errors import ConfirmationRefused, ConfirmationSuperseded
from logdoctor.store.database import Database
from logdoctor.store.fit import MAX_ID, MAX_PAGE, below, fit, fit_limit, plain
from logdoctor.store.keeping.work import FORGET, TEACH, NewWork, enter
from logdoctor.store.learning import overrides
from logdoctor.store.learning.overrides import NewOverride
from logdoctor.store.names import checked, checked_attempt
from logdoctor.store.schema import LIVE, OF_ITS_ATTEMPT, confirmations, count_up, counter, residuals
from logdoctor.text import message_in
from logdoctor.types.nodes import NAME

log = structlog.get_logger()

MAX_PACKED = 64 << 10
"""Packed bytes of an attempt's kept lines, at most."""
MAX_ATTEMPTS = 20_000
"""Attempts whose lines are kept: the newest."""

AGREEMENT = "agreement"
"""The author of confirmations by agreement of attempts."""

READ = "+model"
"""The end of what made a verdict of rules that a model read, too."""

_MAX_WORDS = 4000  # characters of what people and models say
_MAX_SUMMARY = 8000
_MAX_NAME = 200
_MAX_DIGESTS = 200
_MAX_DIGEST = 64
_MAX_CITED = 50
_MAX_NODES = 200
_MAX_QUOTE = 2000
_MAX_RAW = 8 << 20  # bytes of an attempt's lines that are considered
_PAGE = 200  # attempts that are read at a time


class Cited(msgspec.Struct, frozen=True):
    """A line that proves a confirmation: its stream, its number, its raw text."""

    stream: str
    line: int
    quote: str


class NewConfirmation(msgspec.Struct, frozen=True):
    """What a failure was. "" for fault or recovery means the taxonomy's default for the reason.

    `by` is who says so, `AGREEMENT` for attempts that agree; `verdict` the id of the verdict they saw, which this one
    `corrects` if it differs. `fix` is what helped, `suggestion` what to do next time. `title`, `digests` and `summary`
    describe the failure by its episodes, the naming one first. `nodes` are those at fault; None if nobody said which.
    `detail` is a finer word than the reason for what failed.
    """

    job: str
    attempt: int
    by: str
    reason: str
    fault: str = ""
    recovery: str = ""
    fix: str = ""
    comment: str = ""
    suggestion: str = ""
    corrects: bool = False
    verdict: int | None = None
    title: str = ""
    digests: tuple[str, ...] = ()
    summary: str = ""
    evidence: tuple[Cited, ...] = ()
    nodes: tuple[str, ...] | None = None
    detail: str = ""

    @property
    def line(self) -> str:
        """Return the line that identifies the failure, of a JSON record its message; "" for none."""
        return message_in(self.title or (self.evidence[0].quote if self.evidence else ""))


class Confirmation(NewConfirmation, frozen=True, kw_only=True):
    """A stored confirmation, live unless it is `withdrawn`. Times are seconds since the epoch."""

    id: int
    at: float
    withdrawn: bool
    withdrawn_by: str = ""
    withdrawn_why: str = ""
    withdrawn_at: float | None = None


class ConfirmationPage(msgspec.Struct, frozen=True):
    """A page of confirmations, and the cursor of the next page, if any."""

    items: list[Confirmation]
    next: str | None


class Kept(NamedTuple):
    """A line of a record. If there is no room for all, those of the greatest `weight` are kept."""

    stream: str
    line: int
    text: str
    weight: int = 0


class Past(NamedTuple):
    """A settled attempt: its verdict, or what was confirmed instead, and the lines of its record.

    `decided` is what made the verdict (the kind of `types.DecidedBy`, with `READ` where a model read it, too), `digest`
    identifies the failure.
    """

    job: str
    attempt: int
    outcome: str
    reason: str
    recovery: str
    decided: str
    digest: str
    confirmed: bool
    lines: tuple[Kept, ...]


_encode = msgspec.json.Encoder().encode
_body = msgspec.json.Decoder(NewConfirmation)
_lines = msgspec.msgpack.Decoder(list[tuple[str, int, str]])
_table = confirmations
_live = sa.select(_table.c.job, _table.c.attempt, _table.c.body).where(OF_ITS_ATTEMPT).subquery()
_PAST = sa.select(residuals, _live.c.body).outerjoin(
    _live, sa.and_(_live.c.job == residuals.c.job, _live.c.attempt == residuals.c.attempt)
)


class Confirmed:
    """The confirmations and kept lines of one database; thread-safe. Changes are durable on return.

    All calls raise `StoreError` when the database fails, `NameRefused` for invalid jobs or attempts.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    # confirmations

    def add(
        self,
        new: NewConfirmation,
        at: float,
        expected: int | None = None,
        overruling: Sequence[NewOverride] = (),
    ) -> Confirmation:
        """Enter a confirmation, withdrawing the attempt's former one, and return it. Long texts are cut.

        `expected` is the id of the confirmation that was live when this was said, 0 for none: `ConfirmationSuperseded`
        when another is live by now; None skips this check. `ConfirmationRefused` when it names nobody, or a word
        outside the taxonomy. The overrides in `overruling` are entered with it, all or nothing.
        """
        new = _sound(new)
        with self._database.writing() as connection:
            former = connection.execute(sa.select(_table).where(*_of(_table, new.job, new.attempt), LIVE)).first()
            if expected is not None:
                counts = sa.select(_table).where(*_of(_table, new.job, new.attempt), OF_ITS_ATTEMPT)
                _require_expected(connection, new, connection.execute(counts).first(), expected)
            if former is not None:
                _withdraw(connection, former.id, new.by, "replaced by a later one", at)
                enter(connection, NewWork(FORGET, str(former.id)), at)
            values = {"job": new.job, "attempt": new.attempt, "at": at, "reason": new.reason}
            values |= {"withdrawn": False, "withdrawn_by": "", "withdrawn_why": "", "body": _encode(new).decode()}
            id = int(connection.execute(sa.insert(_table).values(values).returning(_table.c.id)).scalar_one())
            for override in overruling:
                overrides.enter(connection, override, new.by, at)
            enter(connection, NewWork(TEACH, str(id)), at)
            count_up(connection, "confirmed")
        return _confirmation(new, id=id, at=at, withdrawn=False)

    def drafted(self, new: NewConfirmation, at: float) -> Confirmation:
        """Return the confirmation as `add` would enter it, with the number 0, without entering it.

        `ConfirmationRefused` as for `add`.
        """
        return _confirmation(_sound(new), id=0, at=at, withdrawn=False)

    def one(self, id: int) -> Confirmation:
        """Return the confirmation with this id, withdrawn or not; `ConfirmationRefused` when there is none."""
        with self._database.reading() as connection:
            return _read(_find(connection, id))

    def page(
        self, cursor: str | None = None, limit: int = 50, reason: str | None = None, withdrawn: bool = False
    ) -> ConfirmationPage:
        """Return a page of live confirmations, with `withdrawn` also of withdrawn ones, newest first.

        `CursorError` for a bad cursor.
        """
        query = sa.select(_table).order_by(_table.c.id.desc()).where(_table.c.id < below(cursor))
        if reason is not None:
            query = query.where(_table.c.reason == plain(reason))
        if not withdrawn:
            query = query.where(LIVE)
        limit = fit_limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(query.limit(limit + 1)).all()
        return ConfirmationPage(
            [_read(row) for row in rows[:limit]], str(rows[limit - 1].id) if len(rows) > limit else None
        )

    def of(self, job: str, attempt: int) -> list[Confirmation]:
        """Return all confirmations of an attempt, newest first; only the first may be live."""
        query = sa.select(_table).where(*_of(_table, plain(job), attempt)).order_by(_table.c.id.desc())
        with self._database.reading() as connection:
            return [_read(row) for row in connection.execute(query.limit(MAX_PAGE))]

    def live(self, job: str, attempt: int) -> Confirmation | None:
        """Return the live confirmation of an attempt, if one was entered since it began."""
        query = sa.select(_table).where(*_of(_table, plain(job), attempt), OF_ITS_ATTEMPT)
        with self._database.reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else _read(row)

    def withdraw(self, id: int, by: str, why: str, at: float) -> Confirmation:
        """Withdraw a confirmation and return it; `ConfirmationRefused` when it does not exist or was withdrawn
        already."""
        who = _who(by)
        with self._database.writing() as connection:
            if _find(connection, id).withdrawn:
                raise ConfirmationRefused(f"confirmation {id}", "was already withdrawn", "There is nothing to do.")
            _withdraw(connection, id, who, fit(why, _MAX_WORDS), at)
            enter(connection, NewWork(FORGET, str(id)), at)
            count_up(connection, "confirmed")
            return _read(_find(connection, id))

    def cases(self) -> list[Confirmation]:
        """Return all live confirmations, oldest first."""
        with self._database.reading() as connection:
            return [_read(row) for row in connection.execute(sa.select(_table).where(LIVE).order_by(_table.c.id))]

    def version(self) -> int:
        """Return a number that grows with every change of live confirmations."""
        with self._database.reading() as connection:
            return counter(connection, "confirmed")

    # kept lines of attempts

    def keep_lines(
        self,
        job: str,
        attempt: int,
        lines: Sequence[Kept],
        *,
        outcome: str,
        reason: str,
        recovery: str = "",
        decided: str = "",
        digest: str = "",
    ) -> None:
        """Store the lines and the verdict of a settled attempt, replacing earlier ones.

        Lines of the least weight, and of these the last, are left out if all take more than 64 kB packed.
        """
        said = {"outcome": outcome, "reason": reason, "recovery": recovery, "decided": decided, "digest": digest}
        values = {name: fit(value, _MAX_NAME) for name, value in said.items()}
        whose = {"job": checked("job", job), "attempt": checked_attempt(attempt)}
        frame = _packed(lines)
        with self._database.writing() as connection:
            connection.execute(sa.delete(residuals).where(*_of(residuals, job, attempt)))
            connection.execute(sa.insert(residuals).values(**whose, **values, frame=frame))
            newest = sa.select(residuals.c.id).order_by(residuals.c.id.desc()).offset(MAX_ATTEMPTS).limit(1)
            if (last := connection.scalar(newest)) is not None:
                connection.execute(sa.delete(residuals).where(residuals.c.id <= last))

    def kept(self, job: str, attempt: int) -> Past | None:
        """Return what is kept of one attempt; None when nothing is."""
        with self._database.reading() as connection:
            row = connection.execute(_PAST.where(*_of(residuals, plain(job), attempt))).first()
        return None if row is None else _past(row)

    def digest(self, job: str, attempt: int) -> str:
        """Return the digest of an attempt's failure; "" when nothing is kept of it or no line named it."""
        query = sa.select(residuals.c.digest).where(*_of(residuals, plain(job), attempt))
        with self._database.reading() as connection:
            return str(connection.scalar(query) or "")

    def past(self, without: tuple[str, int] | None = None) -> Iterator[Past]:
        """Yield the kept attempts except one, newest first, holding few in memory at a time."""
        query = _PAST.order_by(residuals.c.id.desc()).limit(_PAGE)
        last = MAX_ID
        while True:
            with self._database.reading() as connection:
                rows = connection.execute(query.where(residuals.c.id < last)).all()
            for row in rows:
                if (row.job, row.attempt) != without and (past := _past(row)) is not None:
                    yield past
            if len(rows) < _PAGE:
                return
            last = rows[-1].id

    def agreed(self, digest: str, reason: str, recovery: str) -> list[tuple[str, int]]:
        """Return the attempts, as (job, number), for which the agent decided this on this digest."""
        c = residuals.c
        query = sa.select(c.job, c.attempt).where(c.digest == plain(digest), c.decided == "agent")
        query = query.where(c.reason == plain(reason), c.recovery == plain(recovery)).order_by(c.id)
        with self._database.reading() as connection:
            return [(row.job, row.attempt) for row in connection.execute(query.limit(1000))]

    def is_known(self, digest: str) -> bool:
        """Return whether a model read a failure with this digest, or one was confirmed."""
        c = residuals.c
        read = c.decided.in_(("agent", f"rule{READ}", f"structure{READ}"))
        confirmed = sa.exists().where(_live.c.job == c.job, _live.c.attempt == c.attempt)
        query = sa.select(c.id).where(c.digest == plain(digest), read | confirmed).limit(1)
        with self._database.reading() as connection:
            return connection.scalar(query) is not None


# validation of input


def _who(by: str) -> str:
    if not by.strip():
        raise ConfirmationRefused("a confirmation", "names nobody who said it", "Say who you are.")
    return fit(by, _MAX_NAME)


def _sound(new: NewConfirmation) -> NewConfirmation:
    """Return the confirmation as it will be stored; `ConfirmationRefused` when it is invalid."""
    checked("job", new.job)
    checked_attempt(new.attempt)
    if new.reason not in taxonomy.REASONS or new.reason == "Unknown":
        raise _odd("reason", new.reason)
    if new.fault and new.fault not in taxonomy.FAULTS:
        raise _odd("fault", new.fault)
    if new.recovery and (new.recovery not in taxonomy.RECOVERIES or new.recovery == "none"):
        raise _odd("recovery", new.recovery)
    if odd := next((name for name in new.nodes or () if not NAME.fullmatch(name)), None):
        cause = f"{ascii(odd)[:80]} is not a name that a node can have"
        raise ConfirmationRefused("a confirmation", cause, "Name nodes as the cluster does.")
    if new.nodes is not None and len(new.nodes) > _MAX_NODES:
        cause = f"it names {len(new.nodes)} nodes, more than {_MAX_NODES}"
        raise ConfirmationRefused("a confirmation", cause, "Name those that are at fault.")
    cited = (
        Cited(fit(one.stream, _MAX_NAME), min(max(one.line, 0), 2**48), fit(one.quote, _MAX_QUOTE))
        for one in new.evidence[:_MAX_CITED]
    )
    return msgspec.structs.replace(
        new,
        by=_who(new.by),
        fix=fit(new.fix, _MAX_WORDS),
        comment=fit(new.comment, _MAX_WORDS),
        suggestion=fit(new.suggestion, _MAX_WORDS),
        detail=fit(new.detail, _MAX_NAME),
        title=fit(new.title, _MAX_QUOTE),
        digests=tuple(fit(digest, _MAX_DIGEST) for digest in new.digests[:_MAX_DIGESTS]),
        summary=fit(new.summary, _MAX_SUMMARY),
        evidence=tuple(cited),
        nodes=None if new.nodes is None else tuple(dict.fromkeys(new.nodes)),
    )


def _odd(name: str, value: str) -> ConfirmationRefused:
    cause = f"its {name} {ascii(value)[:80]} is not one that a failure can have"
    return ConfirmationRefused("a confirmation", cause, "Use a word of the taxonomy.")


# rows


def _of(table: sa.Table, job: str, attempt: int) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return table.c.job == job, table.c.attempt == attempt


def _find(connection: sa.Connection, id: int) -> sa.Row[Any]:
    row = connection.execute(sa.select(_table).where(_table.c.id == min(max(id, 0), MAX_ID))).first()
    if row is None:
        raise ConfirmationRefused(f"confirmation {id}", "does not exist", "List the cases.")
    return row


def _require_expected(
    connection: sa.Connection, new: NewConfirmation, former: sa.Row[Any] | None, expected: int
) -> None:
    """Raise `ConfirmationSuperseded` when another confirmation is live than the one that was seen."""
    if (former.id if former is not None else 0) == expected:
        return
    thing = f"the case of {new.job}/{new.attempt}"
    if former is not None:
        live = _read(former)
        cause = f"{live.by} has said since that it was {live.reason}"
        raise ConfirmationSuperseded(
            thing, cause, f"Look at case {live.id}, then repeat your correction if you know better."
        )
    seen = connection.execute(sa.select(_table).where(*_of(_table, new.job, new.attempt), _table.c.id == expected))
    gone = seen.first()
    cause = f"{gone.withdrawn_by} withdrew case {expected} in the meantime" if gone else f"it has no case {expected}"
    raise ConfirmationSuperseded(thing, cause, "Look at it again, then repeat it if it still applies.")


def _withdraw(connection: sa.Connection, id: int, by: str, why: str, at: float) -> None:
    values = {"withdrawn": True, "withdrawn_by": by, "withdrawn_why": why, "withdrawn_at": at}
    connection.execute(sa.update(_table).where(_table.c.id == id).values(values))


def _read(row: sa.Row[Any]) -> Confirmation:
    return _confirmation(
        _body.decode(row.body),
        id=row.id,
        at=row.at,
        withdrawn=row.withdrawn,
        withdrawn_by=row.withdrawn_by,
        withdrawn_why=row.withdrawn_why,
        withdrawn_at=row.withdrawn_at,
    )


def _confirmation(new: NewConfirmation, **place: Any) -> Confirmation:
    return Confirmation(**{name: getattr(new, name) for name in NewConfirmation.__struct_fields__}, **place)


def _packed(lines: Sequence[Kept]) -> bytes:
    """Pack the lines into one frame, as many as fit."""
    order = sorted(range(len(lines)), key=lambda place: -lines[place].weight)
    room, chosen = _MAX_RAW, 0
    for place in order:
        room -= len(lines[place].text) + 16
        if room < 0:
            break
        chosen += 1
    while True:
        kept = [lines[place] for place in sorted(order[:chosen])]
        raw = msgspec.msgpack.encode([(one.stream, one.line, plain(one.text)) for one in kept])
        packed = zstandard.ZstdCompressor(level=3).compress(raw)
        if len(packed) <= MAX_PACKED:
            return packed
        chosen = min(chosen - 1, int(chosen * MAX_PACKED / len(packed)))


def _unpacked(frame: bytes) -> tuple[Kept, ...]:
    raw = zstandard.ZstdDecompressor().decompress(frame, max_output_size=4 * _MAX_RAW)
    return tuple(Kept(*line) for line in _lines.decode(raw))


def as_text(lines: Sequence[Kept]) -> str:
    """Pack the lines as `keep_lines` does, as text."""
    return base64.b64encode(_packed(lines)).decode()


def from_text(text: str) -> tuple[Kept, ...]:
    """Return the lines of `as_text`; `ValueError` when they cannot be read."""
    try:
        return _unpacked(base64.b64decode(text, validate=True))
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise ValueError(f"kept lines cannot be read ({error})") from error


def _past(row: sa.Row[Any]) -> Past | None:
    """Return the attempt of a row; None when its lines are damaged."""
    try:
        lines = _unpacked(row.frame)
        said = None if row.body is None else _body.decode(row.body)
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        log.error("kept lines cannot be read", job=row.job, attempt=row.attempt, cause=str(error)[:200])
        return None
    if said is None:
        what = (row.outcome, row.reason, row.recovery, row.decided, row.digest)
        return Past(row.job, row.attempt, *what, False, lines)
    recovery = said.recovery or taxonomy.REASONS[said.reason].recovery
    return Past(row.job, row.attempt, "failed", said.reason, recovery, row.decided, row.digest, True, lines)
