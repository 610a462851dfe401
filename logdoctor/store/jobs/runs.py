"""The runs of jobs, from their attempts and verdicts."""

from logdoctor.jobs.timeline import Judgement, Run, attempt_of, run_of
from logdoctor.store.jobs.records import Records

_MOST = 1000  # newest attempts of a run


def stored_run(records: Records, job: str, now: float) -> Run:
    """Return the run of a job until now, with at most its newest 1,000 attempts; empty for an unknown job. `StoreError`
    when the database fails."""
    found = []
    for one in records.attempts(job)[-_MOST:]:
        current = records.current(job, one.number)
        said = Judgement(current.id, current.at, current.verdict) if current is not None else None
        found.append(attempt_of(one.number, one.started, one.ended, said))
    return run_of(job, found, now)
