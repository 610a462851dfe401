"""What must hold after all kills: every acknowledged byte once, a verdict on each attempt, and no rubbish left."""

import http.client
import sqlite3
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec
import zstandard

from logdoctor import pipeline
from logdoctor.diagnose.decide import diagnose as judge
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.store.names import file_name
from logdoctor.store.records import StoredVerdict
from logdoctor.text import natural
from logdoctor.types import Verdict
from tests.crash.load import Attempt, Load, Stream
from tests.service.services import plain
from tests.web.conftest import Running

PATIENCE = 30.0
"""Seconds until every attempt that has ended must have its verdict."""
_PIECE = 9999
_KEPT = {"archive", "journal", "lock", "logdoctor.db", "node-tests", "session.key"}


def differences(
    running: Running, load: Load, kills: int, work: Path, scanner: Scanner, limits: ReadLimits
) -> Iterator[str]:
    """All that is not as it should be after so many kills, once the senders have finished; stops the service."""
    verdicts = yield from _verdicts(running.port, load.attempts)
    for attempt in load.attempts:
        for stream in attempt.streams:
            content = load.corpus.content(stream.recipe)
            whole = content if content.endswith(b"\n") else content + b"\n"
            if reported := difference(_lines(running.port, attempt, stream), whole):
                yield f"lines of {attempt.path_of(stream)}: {reported}"
    if code := running.stop():
        yield f"exit code {code}: {running.messages()[-3000:]}"
    for attempt in load.attempts:
        for stream in attempt.streams:
            if reported := difference(_archived(running.folder, attempt, stream), load.corpus.content(stream.recipe)):
                yield f"archive of {attempt.path_of(stream)}: {reported}"
        if stored := verdicts.get(attempt.path):
            wanted = plain(_wanted(attempt, load, work, scanner, limits))
            if reported := difference(plain(stored.verdict), wanted):
                yield f"verdict on {attempt.path} ({attempt.ending}): {reported}; whole: {wanted!r}"
    yield from _history(running.folder / "logdoctor.db", load.attempts)
    yield from _left_over(running.folder, load.attempts, kills)


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
    deadline = time.monotonic() + PATIENCE
    left = list(attempts)
    while left and time.monotonic() < deadline:
        for attempt in left:
            status, body = _get(port, f"{attempt.path}/verdict")
            if status == 200:
                stored = last[attempt.path] = msgspec.json.decode(body, type=StoredVerdict)
                size = sum(stream.size for stream in attempt.streams)
                if stored.final and stored.verdict.compression.bytes_in == size:
                    found[attempt.path] = stored
        left = [attempt for attempt in left if attempt.path not in found]
        time.sleep(0.1)
    for attempt in left:
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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _archived(folder: Path, attempt: Attempt, stream: Stream) -> bytes:
    """What `zstdcat` makes of a stream's file."""
    path = folder / "archive" / file_name(attempt.job) / str(attempt.number) / f"{file_name(stream.name)}.zst"
    unpacker = zstandard.ZstdDecompressor()
    try:
        with path.open("rb") as file, unpacker.stream_reader(file, read_across_frames=True) as reader:
            return reader.read()
    except (OSError, zstandard.ZstdError) as error:
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


def _history(database: Path, attempts: list[Attempt]) -> Iterator[str]:
    """What is wrong with the verdicts in the database."""
    with sqlite3.connect(database) as connection:
        if (reported := connection.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
            yield f"database: {reported}"
        known = dict(connection.execute("SELECT job || '/' || number, settled FROM attempts").fetchall())
        query = "SELECT job || '/' || attempt, id, superseded_by, final FROM verdicts ORDER BY id"
        rows: dict[str, list[tuple[int, int | None, int]]] = {}
        for name, *row in connection.execute(query):
            rows.setdefault(name, []).append((row[0], row[1], row[2]))
    connection.close()
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


def _left_over(folder: Path, attempts: list[Attempt], kills: int) -> Iterator[str]:
    """What lies in the data folder of a service that was stopped, and should not."""
    names = {path.name for path in folder.iterdir()}
    if names - _KEPT - {"scratch"}:
        yield f"left in the data folder: {sorted(names - _KEPT)}"
    for place in ("scratch", "journal", "node-tests"):
        files = (path for path in folder.glob(f"{place}/**/*") if path.is_file())
        if left := [path for path in files if path.relative_to(folder) != Path("node-tests/keeper")]:
            yield f"left in {place}: {[(path.name, path.stat().st_size) for path in left]}"
    kept = {
        f"{file_name(attempt.job)}/{attempt.number}/{file_name(stream.name)}.zst"
        for attempt in attempts
        for stream in attempt.streams
    }
    found = {str(path.relative_to(folder / "archive")) for path in folder.glob("archive/*/*/*")}
    snapshots = {f"{name.removesuffix('.zst')}.state{new}" for name in kept for new in ("", ".new")}
    if other := sorted(found - kept - snapshots):
        yield f"files left beside streams: {other[:20]}"
    behind = {name.rpartition("/")[0] for name in found & snapshots}
    if len(behind) > 1 + kills // 50:  # killed between the verdict and the removal of what led to it
        yield f"snapshots left of {len(behind)} attempts: {sorted(found & snapshots)[:20]}"
