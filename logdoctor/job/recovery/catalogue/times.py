"""Times as manifests and pins have them: ISO 8601."""

import datetime


def timestamp(seconds: float) -> str:
    """Return seconds since the epoch in ISO 8601, UTC, to a millisecond."""
    found = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_of(text: str) -> float | None:
    """Return seconds since the epoch, UTC where the text names no zone; None when it is no time."""
    try:
        found = datetime.datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
