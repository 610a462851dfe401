"""Metrics as a Parquet file."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from logdoctor.errors import TrialError
from logdoctor.extras import translated
from logdoctor.safe.lasting_files import new_file
from logdoctor.trials.results import Result

with translated():
    import pyarrow as pa
    import pyarrow.parquet as pq

_SCHEMA = pa.schema(
    [
        ("model", pa.string()),
        ("step", pa.int64()),
        ("set", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("samples", pa.int64()),
        ("seconds", pa.float64()),
        ("score_seconds", pa.float64()),
    ]
)


def write_results(place: Path, rows: Sequence[Result]) -> None:
    """Write a table of metrics, all or nothing; `TrialError` when it cannot be written."""
    table = pa.Table.from_pylist([msgspec.structs.asdict(row) for row in rows], _SCHEMA)
    try:
        with new_file(place) as file:
            pq.write_table(table, file, compression="zstd")
    except OSError as error:
        step = "Give another place with --parquet: `logdoctor trials status` writes it, too."
        raise TrialError(str(place), f"cannot be written ({error.strerror})", step) from error
