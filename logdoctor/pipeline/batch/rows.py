"""The table of a batch: one row per diagnosed attempt, and per unreadable file.

docs/batch.md describes the columns. It is written as Parquet, with the logdoctor that made it in the metadata. Arrow is
used without its threads, which do not survive forks.
"""

import datetime
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from logdoctor import taxonomy
from logdoctor.errors import InputError, LogdoctorError
from logdoctor.extras import translated
from logdoctor.pipeline.batch.files import new_file
from logdoctor.pipeline.batch.processes import apart
from logdoctor.safe.budget import Budget, Overspent
from logdoctor.types import Verdict, as_json

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others reserve 1 GiB of addresses: see `_MEMORY`
with translated():
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

ROWS_VERSION = 1
"""Raised when a column changes its meaning or is removed, not for added columns."""

LOGDOCTOR = version("logdoctor")
"""The version that writes."""

_METADATA = b"logdoctor"
_NAME_IT = "Name the Parquet file or folder given to --out."


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What a table was made with: the version of its columns, of logdoctor, and the digest of the shipped rules. In
    joined tables the columns `logdoctor` and `rulebook` tell what each row was made with."""

    rows: int = ROWS_VERSION
    logdoctor: str = LOGDOCTOR
    rules: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, or one unreadable file: then `error` says why, and outcome and all other fields of a verdict are
    None. Or an earlier run in an attempt's log, which begins at line `run`. Times are UTC; a log's own are taken as
    printed. docs/batch.md describes each column."""

    source: str
    attempt: str = ""
    run: int | None = None
    job: str | None = None
    framework: str | None = None
    kind: str = ""
    user: str | None = None
    nodes: tuple[str, ...] = ()
    node_count: int | None = None
    gpus: int | None = None
    exit_code: int | None = None
    started: datetime.datetime | None = None
    ended: datetime.datetime | None = None
    bytes: int = 0
    lines: int = 0
    outcome: str | None = None
    reason: str | None = None
    detail: str | None = None
    category: str | None = None
    fault: str | None = None
    recovery: str | None = None
    suspects: tuple[str, ...] = ()
    confidence: float | None = None
    fingerprint: str | None = None
    decided_by: str | None = None
    rule: str | None = None
    model: str | None = None
    quote: str | None = None
    quote_stream: str | None = None
    quote_line: int | None = None
    onset: datetime.datetime | None = None
    step: int | None = None
    steps: int | None = None
    error: str | None = None
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    rulebook: str = ""
    logdoctor: str = LOGDOCTOR
    verdict: str | None = None


_TYPES = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    datetime.datetime: pa.timestamp("ms", "UTC"),
    tuple[str, ...]: pa.list_(pa.string()),
}

SCHEMA = pa.schema(
    [
        (name, _TYPES[kind if kind in _TYPES else next(one for one in get_args(kind) if one in _TYPES)])
        for name, kind in get_type_hints(Row).items()
    ]
)
"""The columns of a table, one per field of `Row`."""

COLUMNS = tuple(name for name in SCHEMA.names if name != "verdict")
"""All columns but the whole verdict, which is larger than all others together."""

WITH_VERDICTS = (*COLUMNS, "verdict")


def diagnosed(verdict: Verdict, told: Row) -> Row:
    """Return the row of a verdict, based on `told`, its source's row."""
    proof = verdict.evidence[0] if verdict.evidence else None
    first = next((one for one in verdict.ranks if proof and (one.stream, one.line) == (proof.stream, proof.line)), None)
    return msgspec.structs.replace(
        told,
        nodes=tuple(map(shown, told.nodes or verdict.nodes)),
        bytes=verdict.compression.bytes_in,
        lines=verdict.compression.lines_in,
        outcome=verdict.outcome,
        reason=verdict.reason,
        detail=shown(verdict.detail) or None,
        category=verdict.category,
        fault=verdict.fault,
        recovery=verdict.recovery,
        suspects=tuple(dict.fromkeys(shown(one.node) for one in verdict.suspects if one.node)),
        confidence=verdict.confidence,
        fingerprint=verdict.fingerprint or None,
        decided_by=verdict.decided_by.kind,
        rule=verdict.decided_by.rule or None,
        model=verdict.decided_by.model or None,
        quote=shown(proof.quote) if proof else None,
        quote_stream=shown(proof.stream) if proof else None,
        quote_line=proof.line if proof else None,
        onset=_onset(first.time) if first else None,
        step=verdict.progress.step,
        steps=verdict.progress.total,
        problems=tuple(map(shown, verdict.problems)),
        seconds=verdict.seconds,
        rulebook=verdict.decided_by.rulebook,
        verdict=as_json(verdict).decode(),
    )


def unread(error: LogdoctorError, told: Row) -> Row:
    """Return the row of an unreadable file."""
    return msgspec.structs.replace(told, error=shown(str(error)))


def table(rows: Iterable[Row], provenance: Provenance) -> pa.Table:
    """Return rows as a table."""
    made = pa.Table.from_pylist([msgspec.structs.asdict(row) for row in rows], SCHEMA)
    return made.replace_schema_metadata({_METADATA: msgspec.json.encode(provenance)})


def with_runs(some: pa.Table) -> pa.Table:
    """Return a table with rows for earlier runs, each before its log's last run."""
    if not pc.any(pc.match_substring(some["verdict"], '"runs":[{')).as_py():
        return some
    return table((one for row in rows(some) for one in (*_earlier(row), row)), provenance(some))


def _earlier(row: Row) -> Iterator[Row]:
    """Yield rows for the earlier runs in an attempt's log."""
    held = msgspec.json.decode(row.verdict, type=Verdict).runs if row.verdict else ()
    for run in held:
        yield Row(
            source=row.source,
            attempt=row.attempt,
            run=run.line,
            job=row.job,
            framework=row.framework,
            kind=row.kind,
            user=row.user,
            nodes=row.nodes,
            node_count=row.node_count,
            gpus=row.gpus,
            outcome=run.outcome,
            reason=run.reason,
            detail=shown(run.detail) or None,
            category=taxonomy.REASONS[run.reason].category if run.reason in taxonomy.REASONS else "None",
            confidence=run.confidence,
            decided_by=run.decided_by,
            quote=shown(run.quote) or None,
            quote_line=run.decided_at or None,
            rulebook=row.rulebook,
        )


def rows(some: pa.Table) -> list[Row]:
    """Return the rows of a table."""
    return msgspec.convert(some.to_pylist(), list[Row])


def provenance(some: pa.Table) -> Provenance:
    """Return what a table was made with."""
    return msgspec.json.decode(some.schema.metadata[_METADATA], type=Provenance)


def packed(some: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(some, sink, compression="zstd")
    return bytes(sink.getvalue())


def write(place: Path, parts: Iterable[pa.Table], made_with: Provenance) -> None:
    """Write tables as one Parquet file, atomically, replacing an existing one; `StoreError` when it cannot be
    written."""
    schema = SCHEMA.with_metadata({_METADATA: msgspec.json.encode(made_with)})
    with new_file(place) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(part.replace_schema_metadata(schema.metadata))


def read(place: Path) -> pa.Table:
    """Return the table of a batch: a Parquet file, or all parts in a folder; `InputError` when it cannot be read or was
    not written by `logdoctor batch`."""
    if not place.is_dir():
        return _read(place)
    parts = [_read(part) for part in sorted(place.glob("part-*.parquet"))]
    if not parts:
        raise InputError(str(place), "holds no table of `logdoctor batch`", _NAME_IT)
    return pa.concat_tables([part.replace_schema_metadata(parts[0].schema.metadata) for part in parts])


def read_rows(place: Path, columns: Collection[str] = COLUMNS) -> Iterator[Row]:
    """Yield a table's rows with some columns, few in memory; other fields have their defaults. `InputError` as for
    `read`."""
    parts = sorted(place.glob("part-*.parquet")) if place.is_dir() else [place]
    if not parts:
        raise InputError(str(place), "holds no table of `logdoctor batch`", _NAME_IT)
    for part in parts:
        try:
            yield from (msgspec.convert(_known(one), Row) for one in records(part, columns, _require_ours))
        except (OSError, msgspec.ValidationError) as error:
            raise _unreadable(part, error) from error


def _require_ours(place: Path) -> None:
    """Raise `InputError` unless `logdoctor batch` wrote a file, with today's columns."""
    try:
        said = msgspec.json.decode((pq.read_schema(place).metadata or {}).get(_METADATA, b"{}"), type=dict[str, Any])
    except (OSError, pa.ArrowException, msgspec.MsgspecError, RecursionError) as error:
        raise _unreadable(place, error) from error
    if said.get("rows") != ROWS_VERSION:
        cause = "was not written by `logdoctor batch`" if "rows" not in said else "has columns of another version"
        raise InputError(str(place), cause, "Diagnose the logs again with `logdoctor batch`.")


def _unreadable(place: Path, error: Exception) -> InputError:
    cause = f"cannot be read as a table ({str(error).splitlines()[0][:200]})"
    return InputError(str(place), cause, _NAME_IT)


def _known(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without nulls, which get defaults."""
    return {name: value for name, value in row.items() if value is not None}


def records(
    place: Path, columns: Collection[str], require: Callable[[Path], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of any Parquet file, with those of the columns that it has; `InputError` when it is invalid,
    expands far more than tables do, or fails `require`."""
    yield from apart(partial(_records, place, columns, require), lambda died: _no_table(place, died.how), _MEMORY)


def _no_table(place: Path, cause: object) -> InputError:
    cause = f"cannot be read as a table ({str(cause).splitlines()[0][:200]})"
    return InputError(str(place), cause, "Give it a table as CSV or Parquet.")


_ROWS, _BUFFER = 4096, 1 << 20
_MEMORY = 1 << 30  # bytes for everything that a process makes of a file
_TIMES, _MOST = 4096, 256 << 20  # bytes made of rows
_ROW, _VALUE = 256, 16  # bytes per row, and per value


def _records(place: Path, columns: Collection[str], require: Callable[[Path], None] | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, in a process with bounded memory: how far a page expands is unknown until then,
    whatever the file claims."""
    try:
        if require:
            require(place)
        for part in _parts(place, columns):
            yield from part.to_pylist()
    except MemoryError as error:
        raise _no_table(place, f"would fill more than {_MEMORY >> 20:,} MiB of memory") from error
    except (pa.ArrowException, Overspent) as error:
        raise _no_table(place, error) from error


def _parts(place: Path, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in small batches, with the wanted columns.

    A text stored once may be that of a million rows, and one row may be a million values. So texts are counted before
    they are repeated.
    """
    about, size = pq.read_metadata(place), place.stat().st_size
    leaves = [about.schema.column(number) for number in range(about.num_columns)]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    schema = pa.schema([field for field in about.schema.to_arrow_schema() if field.name in columns])
    whole = Budget(size, _TIMES, 1 << 62)
    with pq.ParquetFile(place, metadata=about, pre_buffer=False, buffer_size=_BUFFER, read_dictionary=texts) as file:
        for group in range(about.num_row_groups):
            for part in file.iter_batches(_ROWS, [group], schema.names, use_threads=False):
                made = _ROW * len(part) + sum(map(_bytes_of, part.columns))
                Budget(size, _TIMES, _MOST).spend(made)
                whole.spend(made)
                yield part.cast(schema)


def _bytes_of(column: Any) -> int:
    """Return the bytes of a column's values, counting each text as often as it occurs."""
    if pa.types.is_dictionary(column.type):
        lengths = pc.take(pc.binary_length(column.dictionary), column.indices)
        return (pc.sum(lengths).as_py() or 0) + _VALUE * len(column)
    if pa.types.is_nested(column.type):
        inner = column.flatten()
        return _VALUE * len(column) + sum(map(_bytes_of, inner if isinstance(inner, list) else [inner]))
    return int(column.nbytes) + _VALUE * len(column)


def _read(place: Path) -> pa.Table:
    """Return the table in a file with today's columns; missing ones are null."""
    _require_ours(place)
    try:
        with pq.ParquetFile(place, pre_buffer=False) as file:
            found = file.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(place, error) from error
    absent = [column for column in SCHEMA if column.name not in found.column_names]
    for column in absent:
        found = found.append_column(column, pa.nulls(len(found), column.type))
    try:
        return found.select(SCHEMA.names).cast(SCHEMA.with_metadata(found.schema.metadata))
    except pa.ArrowException as error:
        cause = f"has columns of other types ({str(error).splitlines()[0][:200]})"
        raise InputError(str(place), cause, "Diagnose the logs again with `logdoctor batch`.") from error


def _onset(seconds: float | None) -> datetime.datetime | None:
    """Return a time of a log; None when the log names no year (it then has the year 2000)."""
    if seconds is None or seconds < 978_307_200:
        return None
    with suppress(OverflowError, ValueError, OSError):
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return None


def shown(text: str) -> str:
    """Return a text that can be stored: bytes of names that are not UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
