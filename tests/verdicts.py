"""A verdict for tests that need any."""

from typing import Any

import msgspec

from logdoctor.types import Compression, DecidedBy, Progress, Verdict

_ECC = Verdict(
    reason="ECC Error",
    category="Infrastructure",
    fault="infrastructure",
    recovery="isolate_and_restart",
    outcome="failed",
    confidence=0.9,
    suggestion="",
    evidence=(),
    suspects=(),
    first_rank=None,
    symptoms=(),
    decided_by=DecidedBy("rule"),
    fingerprint="",
    progress=Progress(),
    compression=Compression(),
)


def ecc(**changes: Any) -> Verdict:
    """The verdict on a job that failed because of a node's memory, by a rule, with these changes."""
    return msgspec.structs.replace(_ECC, **changes)
