"""Counters of a `Checkpointer` in a file for Prometheus' node exporter (textfile collector)."""

from collections.abc import Mapping
from pathlib import Path

from logdoctor.checkpoint.reports import Stats
from logdoctor.safe.lasting_files import new_file

Samples = Mapping[str, float]


def write(path: Path, stats: Stats) -> None:
    """Replace the file of metrics; `OSError` when it cannot be written."""
    with new_file(path) as file:
        file.write(text_of(stats).encode())


def text_of(stats: Stats) -> str:
    """Return the counters in Prometheus' text format, all named `logdoctor_checkpoint_*`."""
    outcomes = {"saved": stats.saved, "failed": stats.failed, "left_out": stats.left_out, "changed": stats.changed}
    stall = {"returned": stats.stall.returned, "staging": stats.stall.staging, "backpressure": stats.stall.backpressure}
    return "".join(
        (
            _family("saves_total", "Saves by outcome.", "counter", _labelled("outcome", outcomes)),
            _family("stall_seconds_total", "Seconds that training waited.", "counter", _labelled("part", stall)),
            _family("written_bytes_total", "Bytes that were written.", "counter", {"": stats.bytes_written}),
            _family("deleted_total", "Old checkpoints that were deleted.", "counter", {"": stats.deleted}),
            _family("uploads_total", "Checkpoints that were copied to the mirror.", "counter", {"": stats.mirrored}),
            _family("uploads_failed_total", "Uploads that failed.", "counter", {"": stats.mirror_failed}),
            _family("last_saved_step", "Step of the last one saved.", "gauge", _known(stats.last_saved_step)),
            _family("last_saved_timestamp_seconds", "When it was whole.", "gauge", _known(stats.last_saved_at)),
            _family("last_mirrored_step", "Step of the last one copied.", "gauge", _known(stats.last_mirrored_step)),
        )
    )


def _labelled(label: str, values: Samples) -> Samples:
    return {f'{{{label}="{name}"}}': value for name, value in values.items()}


def _known(value: float | None) -> Samples:
    return {} if value is None else {"": value}


def _family(name: str, meaning: str, kind: str, samples: Samples) -> str:
    """Return one metric with all its samples; "" without samples."""
    if not samples:
        return ""
    whole = f"logdoctor_checkpoint_{name}"
    lines = [f"# HELP {whole} {meaning}", f"# TYPE {whole} {kind}"]
    return "\n".join((*lines, *(f"{whole}{labels} {value!r}" for labels, value in samples.items()), ""))
