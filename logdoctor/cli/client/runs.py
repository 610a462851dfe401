"""The runs of jobs of a service."""

from logdoctor.cli.client.connection import Connection, path
from logdoctor.jobs.timeline import Run


def served_run(connection: Connection, job: str) -> Run | None:
    """Return the run of a job until now; None for an unknown job."""
    return connection.get_if_any(Run, path("jobs", job, "run"))
