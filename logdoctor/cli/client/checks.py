"""Checks of answers for words of the taxonomy that only a newer version knows."""

from logdoctor import taxonomy
from logdoctor.cli.client.connection import Connection


def require_known(connection: Connection, reason: str, fault: str, recovery: str) -> None:
    """Raise `ServiceError` for a reason, fault or recovery that this version does not know. An empty one means the
    default."""
    known = (("reason", reason, taxonomy.REASONS), ("fault", fault, ("", *taxonomy.FAULTS)))
    for what, word, words in (*known, ("recovery", recovery, ("", *taxonomy.RECOVERIES))):
        if word not in words:
            raise connection.not_understood(f"the {what} {word[:80]!a}")
