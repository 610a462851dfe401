"""The checkpoint catalogue: what a folder holds, what of it is complete and healthy, and which one to resume from.

>>> checkpoints = catalogue.read("/ckpt/llama-7b")  # doctest: +SKIP
>>> chosen = catalogue.best(checkpoints, before_step=1200)  # doctest: +SKIP

Whoever loads a checkpoint calls `tried(chosen)` before, and `loaded(chosen)` once it has made a step. A supervisor,
which may die meanwhile, calls either after an attempt.
"""

from logdoctor.job.recovery.catalogue.checkpoint import Checkpoint, Onset, Pin, Refused
from logdoctor.job.recovery.catalogue.choosing import best, removable, removable_once_verified, skip_reason
from logdoctor.job.recovery.catalogue.history import loaded, suspected, tried
from logdoctor.job.recovery.catalogue.pins import pin, unpin
from logdoctor.job.recovery.catalogue.reading import read
from logdoctor.job.recovery.catalogue.removing import remove
from logdoctor.job.recovery.catalogue.verifying import Verified, verify

__all__ = [
    "Checkpoint",
    "Onset",
    "Pin",
    "Refused",
    "Verified",
    "best",
    "loaded",
    "pin",
    "read",
    "removable",
    "removable_once_verified",
    "remove",
    "skip_reason",
    "suspected",
    "tried",
    "unpin",
    "verify",
]
