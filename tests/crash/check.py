"""What must hold after all kills: every acknowledged byte once, a verdict on each attempt, and no rubbish left."""

import http.client
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from logdoctor import pipeline
from logdoctor.diagnose.decide import diagnose as judge
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.errors import StoreError
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.store.names import IDENTITY, Key, file_name
from logdoctor.text import natural
from logdoctor.types import Verdict
from tests import waiting
from tests.crash.load import Attempt, Load, Stream
from tests.service.services import plain
from tests.store.logs import Parts, held, opened
from tests.web.conftest import Running

_PIECE = 9999
_KEPT = {"alive", "archive", "lock", "logdoctor.db", "node-tests", "session.key"}


def differences(
    running: Running, load: Load, kills: int, work: Path, scanner: Scanner, limits: ReadLimits, url: str
) -> Iterator[str]:
    """All that is not as it should be after so many kills, once the senders have finished; stops the service, whose
    database has this URL."""
    verdicts = yield from _verdicts(running.port, load.attempts)
    for attempt in load.attempts:
        for stream in attempt.streams:
            content = load.corpus.content(stream.recipe)
            whole = content if content.endswith(b"\n") else content + b"\n"
            if reported := difference(_lines(running.port, attempt, stream), whole):
                yield f"lines of {attempt.path_of(stream)}: {reported}"
    if code := running.stop():
        yield f"exit code {code}: {running.messages()[-3000:]}"
    with opened(url, running.folder / "archive") as here:
        for attempt in load.attempts:
            for stream in attempt.streams:
                content = load.corpus.content(stream.recipe)
                if reported := difference(_archived(here, attempt, stream), content):
                    yield f"archive of {attempt.path_of(stream)}: {reported}"
            if stored := verdicts.get(attempt.path):
                wanted = plain(_wanted(attempt, load, work, scanner, limits))
                if reported := difference(plain(stored.verdict), wanted):
                    yield f"verdict on {attempt.path} ({attempt.ending}): {reported}; whole: {wanted!r}"
        with here.database.reading() as connection:
            yield from _history(connection, load.attempts)
        yield from _left_in_log(here)
        yield from _left_in_archive(here, kills)
    yield from _left_over(running.folder)


def difference(found: bytes, wanted: bytes) -> str:
    """Where and how two contents begin to differ; "" when they do not."""
    if found == wanted:
        return ""
    low, high = 0, min(len(found), len(wanted))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if found[:middle] == wanted[:middle] else (low, middle - 1)
    return (
        f"at byte {low} {found[low : low + 80]!r} instead of {wanted[low : low + 80]!r};"
        f" {len(found)} bytes instead of {len(wanted)}"
    )


def _verdicts(port: int, attempts: list[Attempt]) -> Generator[str, None, dict[str, StoredVerdict]]:
    """The final verdicts on all bytes, by attempt; those that do not come are told."""
    found: dict[str, StoredVerdict] = {}
    last: dict[str, StoredVerdict] = {}

    def left() -> list[Attempt]:
        return [attempt for attempt in attempts if attempt.path not in found]

    def all_found() -> bool:
        for attempt in left():
            status, body = _get(port, f"{attempt.path}/verdict")
            if status == 200:
                stored = last[attempt.path] = msgspec.json.decode(body, type=StoredVerdict)
                size = sum(stream.size for stream in attempt.streams)
                if stored.final and stored.verdict.compression.bytes_in == size:
                    found[attempt.path] = stored
        return not left()

    with suppress(AssertionError):  # all that is missing is told below
        waiting.until(all_found)
    for attempt in left():
        yield f"no final verdict on all of {attempt.path} ({attempt.ending}) but {last.get(attempt.path)}"
    return found


def _lines(port: int, attempt: Attempt, stream: Stream) -> bytes:
    """A stream in pieces of lines, as a reader asks for them."""
    path = f"{attempt.path_of(stream).replace(' ', '%20')}/log"
    parts: list[bytes] = []
    line = 1
    while True:
        status, body = _get(port, f"{path}?line={line}-{line + _PIECE}")
        if status != 200:
            return b"".join([*parts, b"answered %d: " % status, body])
        parts.append(body)
        count = body.count(b"\n")
        if not count:
            return b"".join(parts)
        line += count


def _get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _archived(here: Parts, attempt: Attempt, stream: Stream) -> bytes:
    """What is archived of a stream."""
    try:
        found = here.archive.open(Key(attempt.job, attempt.number, stream.name))
        return b"".join(found.frames(0, len(found.places(found.offset)[0])))
    except StoreError as error:
        return f"not readable: {error}".encode()


def _wanted(attempt: Attempt, load: Load, work: Path, scanner: Scanner, limits: ReadLimits) -> Verdict:
    """The verdict on the same bytes when they are read from files."""
    given = []
    for stream in sorted(attempt.streams, key=lambda stream: natural(stream.name)):
        path = work / file_name(stream.name)
        path.write_bytes(load.corpus.content(stream.recipe))
        given.append(pipeline.LogFile(stream.name, path))
    records = pipeline.records(given, scanner, limits)
    return judge(records, scanner.book, reported=ReportedEnd(attempt.exit_code))


def _history(connection: sa.Connection, attempts: list[Attempt]) -> Iterator[str]:
    """What is wrong with the verdicts in the database."""
    if connection.dialect.name == "sqlite":
        if (reported := connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()) != ["ok"]:
            yield f"database: {reported}"
    known = {f"{job}/{n}": settled for job, n, settled in _rows(connection, "job, number, settled FROM attempts")}
    rows: dict[str, list[tuple[int, int | None, bool]]] = {}
    for job, number, *row in _rows(connection, "job, attempt, id, superseded_by, final FROM verdicts ORDER BY id"):
        rows.setdefault(f"{job}/{number}", []).append((row[0], row[1], row[2]))
    expected = {f"{attempt.job}/{attempt.number}" for attempt in attempts}
    if known.keys() != expected:
        yield f"attempts {sorted(known.keys() ^ expected)} are known to one side only"
    for name in sorted(expected):
        history = rows.get(name, [])
        ids = [id for id, _, _ in history]
        if [superseded for _, superseded, _ in history] != [*ids[1:], None] or not history or not history[-1][2]:
            yield f"history of {name}: {history}"
        if not known.get(name):
            yield f"{name} is not settled"


def _rows(connection: sa.Connection, what: str) -> Sequence[sa.Row[Any]]:
    return connection.exec_driver_sql(f"SELECT {what}").all()


def _left_in_log(here: Parts) -> Iterator[str]:
    """What a service that was stopped has left in the log, and should not."""
    with here.database.reading() as connection:
        if rows := _rows(connection, "shard, seq, bytes FROM log"):
            yield f"left in the log: {rows[:20]}"
    if wrong := held(here.database):
        yield f"bytes of shards, and of their rows: {wrong}"


def _left_in_archive(here: Parts, kills: int) -> Iterator[str]:
    """What is left of snapshots, and after sweeping of objects that nobody lists."""
    with here.database.reading() as connection:
        listed = {name for (name,) in _rows(connection, "object FROM parts")}
        states = _rows(connection, "job, attempt, state FROM streams WHERE state <> ''")
    behind = {(job, attempt) for job, attempt, _ in states}
    if len(behind) > 2 + kills // 20:  # killed between the verdict and the removal of what led to it
        yield f"snapshots left of {len(behind)} attempts: {sorted(states)[:20]}"
    orphans = here.archive.sweep(time.time() + 7200.0)
    here.objects.sweep(older=-1.0)
    print(f"{len(listed)} objects, {orphans} orphans, snapshots of {len(behind)} attempts")
    folder = Path(str(here.objects))
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    behind_last = {name for name in found - listed if name.endswith(".zst")}  # a repair may want them
    if wrong := (found ^ listed) - {state for *_, state in states} - behind_last - {IDENTITY}:
        yield f"objects that are missing, or that nobody lists: {sorted(wrong)[:20]}"


def _left_over(folder: Path) -> Iterator[str]:
    """What lies in the data folder of a service that was stopped, and should not."""
    names = {path.name for path in folder.iterdir()}
    if names - _KEPT - {"scratch"}:
        yield f"left in the data folder: {sorted(names - _KEPT)}"
    for place in ("scratch", "node-tests"):
        files = (path for path in folder.glob(f"{place}/**/*") if path.is_file())
        if left := [path for path in files if path.relative_to(folder) != Path("node-tests/keeper")]:
            yield f"left in {place}: {[(path.name, path.stat().st_size) for path in left]}"
