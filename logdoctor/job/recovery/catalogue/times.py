"""Times in manifests and pins: ISO 8601."""

import datetime


def timestamp(seconds: float) -> str:
    """Format seconds since the epoch as ISO 8601, UTC, with milliseconds."""
    found = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_of(text: str) -> float | None:
    """Parse a time into seconds since the epoch, UTC unless the text names a zone; None when invalid."""
    try:
        found = datetime.datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
