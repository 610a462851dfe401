"""Whether a failed job was started again since, which changes the advice."""

from typing import NamedTuple

from logdoctor.service.service import Service
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.words import phrases


class Later(NamedTuple):
    """The last attempt after the failed one: its fate ("is running"), and when. `current` is its verdict, if any."""

    number: int
    runs: bool
    did: str
    at: float
    current: StoredVerdict | None

    @property
    def said(self) -> str:
        """Return the attempt and its fate in words."""
        return f"attempt {self.number} {self.did}"

    @property
    def why_no_restart(self) -> str:
        """Return why the failed attempt should not be restarted."""
        return f"A{self.said[1:]}: a restart now would end it." if self.runs else f"A{self.said[1:]}."


def later_attempt(service: Service, stored: StoredVerdict) -> Later | None:
    """Return the last attempt after a failed one, preferably a running one; None without any."""
    if stored.verdict.outcome != "failed":
        return None
    found = service.records.later_attempt(stored.job, stored.attempt)
    if found is None:
        return None
    number, current = found.number, service.records.current(found.job, found.number)
    if found.ended is None and not (current and current.final):
        return Later(number, True, "is running", found.started, current)
    if current is None or not current.final or current.verdict.outcome in ("running", "unknown"):
        return Later(number, False, "ended", found.ended or found.started, current)
    if current.verdict.outcome == "failed":
        failed = service.incidents.failed_at([(found.job, number)])
        at = failed.get((found.job, number), current.at)
        return Later(number, False, f"also failed: {phrases.title(current.verdict)}", at, current)
    outcome = current.verdict.outcome
    did = "was cancelled" if outcome == "cancelled" else outcome
    return Later(number, False, did, found.ended or current.at, current)
