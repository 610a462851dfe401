"""Incidents to tell of."""

from logdoctor.store.incidents.notices import UnsentIncident
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.types import DecidedBy, Evidence, Suspect, Verdict
from tests.verdicts import ecc

AT = 1_795_255_505.0  # 2026-11-21T10:05:05Z
VERDICT = ecc(
    confidence=0.95,
    suggestion="Cordon the node and reset the GPU, so that the row is remapped.",
    evidence=(Evidence("llama-7b/1/gpu-12", "gpu-12", 126, "Cuda failure 'uncorrectable ECC error'", "rule"),),
    suspects=(Suspect("gpu-12", 96, None, "GPU memory has an uncorrectable error (line 126)"),),
    first_rank=96,
    decided_by=DecidedBy("rule", "rule"),
    fingerprint="4d1f",
)


def untold(
    verdict: Verdict = VERDICT, id: int = 12, job: str = "llama-7b", user: str | None = "u17", final: bool = True
) -> UnsentIncident:
    """An incident with one attempt."""
    stored = StoredVerdict(7, 9, job, 1, AT, final, True, None, user, verdict)
    return UnsentIncident(id, "new", AT, 1, 1, stored)
