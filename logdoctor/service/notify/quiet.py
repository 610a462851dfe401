"""Quiet hours, in which messages are held back, in the local time of a zone."""

import datetime
import re
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)")
_DAY = datetime.timedelta(days=1)


class Quiet(NamedTuple):
    """From `start` to `end` in local time of `zone`, past midnight if `end` is the earlier one."""

    start: datetime.time
    end: datetime.time
    zone: datetime.tzinfo

    def until(self, now: float) -> float | None:
        """Return when the quiet hours around `now` end, in seconds since the epoch; None outside quiet hours.

        They span two moments: a repeated hour (end of daylight saving) makes them longer, and none begins twice.
        """
        today = datetime.datetime.fromtimestamp(now, self.zone).date()
        over_midnight = self.end < self.start
        for day in (today - _DAY, today):
            begin = self._moment(day, self.start)
            end = self._moment(day + _DAY if over_midnight else day, self.end)
            if begin <= now < end:
                return end
        return None

    def _moment(self, day: datetime.date, time: datetime.time) -> float:
        return datetime.datetime.combine(day, time, self.zone).timestamp()


def read_quiet(hours: str, zone: str) -> Quiet:
    """Parse quiet hours such as `22:00-07:00` and a time zone; `ValueError` says what is wrong."""
    found = _HOURS.fullmatch(hours.strip())
    if found is None:
        raise ValueError(f"{hours[:40]!a} is not a range such as 22:00-07:00")
    start, end = (datetime.time(int(found[at]), int(found[at + 1])) for at in (1, 3))
    if start == end:
        raise ValueError("it starts and ends at the same time")
    return Quiet(start, end, read_zone(zone))


def read_zone(name: str) -> datetime.tzinfo:
    """Return the time zone of this name; `ValueError` when this machine does not know it."""
    if name.upper() == "UTC":
        return datetime.UTC  # needs no tzdata
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name[:60]!a}; is tzdata installed?") from None
