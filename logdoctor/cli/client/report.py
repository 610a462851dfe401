"""The report of a service on what failures cost."""

from logdoctor.cli.client.connection import Connection, path
from logdoctor.jobs.report import Report


def served_report(connection: Connection, since: float | None, until: float | None) -> Report:
    """Return the report on the failures of a period, `since` <= time < `until`."""
    return connection.get(Report, path("report"), since=since, until=until)
