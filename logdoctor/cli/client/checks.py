"""Words of the taxonomy in what a service answers: a newer one may have others, which this version cannot explain."""

from logdoctor import taxonomy
from logdoctor.cli.client.connection import Connection


def require_known(connection: Connection, reason: str, fault: str, recovery: str) -> None:
    """Raise `ServiceError` for a reason, fault or recovery that this version does not know; "" is what is usual."""
    known = (("reason", reason, taxonomy.REASONS), ("fault", fault, ("", *taxonomy.FAULTS)))
    for what, word, words in (*known, ("recovery", recovery, ("", *taxonomy.RECOVERIES))):
        if word not in words:
            raise connection.not_understood(f"the {what} {word[:80]!a}")
