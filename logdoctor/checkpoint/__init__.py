"""Checkpoints that do not hold up training and are whole when needed.

>>> with Checkpointer("/ckpt/run-7", keep=3) as checkpoints:  # doctest: +SKIP
...     checkpoints.load(state)
...     checkpoints.save(state, step=step, data_position=batches, loss=loss)

Saved and loaded with `torch.distributed.checkpoint`, in a folder that `docs/checkpoints.md` describes. Needs the extra
`checkpoint` (torch and xxhash) and nothing of the service.
"""

from logdoctor.errors import ExtraMissing

try:
    from logdoctor.checkpoint.checkpointer import Checkpointer
    from logdoctor.checkpoint.mirror import fetch
    from logdoctor.checkpoint.reading import Loaded, latest, load
    from logdoctor.checkpoint.reports import Report, Save, Stall, Stats
    from logdoctor.checkpoint.training import TrainingState
except ModuleNotFoundError as error:
    if error.name not in ("fsspec", "torch", "xxhash"):
        raise
    raise ExtraMissing(error.name, "checkpoint") from error

__all__ = ["Checkpointer", "Loaded", "Report", "Save", "Stall", "Stats", "TrainingState", "fetch", "latest", "load"]
