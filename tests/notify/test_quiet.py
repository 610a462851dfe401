"""Quiet hours, over midnight and while clocks change."""

import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.service.notify.quiet import Quiet, read_quiet

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: datetime.tzinfo = BERLIN, fold: int = 0) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


@pytest.mark.parametrize(
    ("now", "end"),
    [
        ("2026-11-20 21:59:59", None),
        ("2026-11-20 22:00:00", "2026-11-21 07:00:00"),
        ("2026-11-21 00:00:00", "2026-11-21 07:00:00"),
        ("2026-11-21 06:59:59", "2026-11-21 07:00:00"),
        ("2026-11-21 07:00:00", None),
        ("2026-12-31 23:30:00", "2027-01-01 07:00:00"),
        ("2026-03-28 23:00:00", "2026-03-29 07:00:00"),  # an hour is lost in this night
        ("2026-10-24 23:00:00", "2026-10-25 07:00:00"),  # and one comes twice in this one
    ],
)
def test_over_midnight(now: str, end: str | None) -> None:
    quiet = read_quiet("22:00-07:00", "Europe/Berlin")
    assert quiet.until(at(now)) == (None if end is None else at(end))


def test_within_a_day() -> None:
    quiet = read_quiet("12:00-13:30", "UTC")
    assert quiet.until(at("2026-11-20 11:59:59", datetime.UTC)) is None
    assert quiet.until(at("2026-11-20 12:00:00", datetime.UTC)) == at("2026-11-20 13:30:00", datetime.UTC)
    assert quiet.until(at("2026-11-20 13:30:00", datetime.UTC)) is None


def test_an_hour_that_comes_twice_is_no_second_night() -> None:
    quiet = read_quiet("22:00-02:30", "Europe/Berlin")
    first, second = at("2026-10-25 02:30:00"), at("2026-10-25 02:10:00", fold=1)
    assert first < second
    assert quiet.until(first - 1) == first
    assert quiet.until(first) is None and quiet.until(second) is None


def test_an_hour_that_is_left_out_ends_the_night() -> None:
    quiet = read_quiet("22:00-02:30", "Europe/Berlin")  # there is no 02:30 on the 29th of March
    end = quiet.until(at("2026-03-29 01:59:59"))
    assert end == at("2026-03-29 03:30:00")
    assert quiet.until(end) is None


@given(
    st.floats(at("2026-01-01 00:00:00"), at("2027-12-31 00:00:00")),
    st.times(),
    st.times(),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"]),
)
def test_what_is_held_back_is_sent_when_it_ends(
    now: float, start: datetime.time, end: datetime.time, zone: str
) -> None:
    quiet = Quiet(start.replace(fold=0), end.replace(fold=0), ZoneInfo(zone))
    until = quiet.until(now)
    if until is not None and start != end:
        assert now < until <= now + 25.5 * 3600
        assert quiet.until(until) is None or quiet.until(until) > until  # another one may begin just then
        assert quiet.until((now + until) / 2) == until


@pytest.mark.parametrize("hours", ["", "22:00", "22-07", "24:00-07:00", "22:60-07:00", "07:00-07:00", "22:00-07:00 x"])
def test_what_are_no_hours_is_refused(hours: str) -> None:
    with pytest.raises(ValueError):
        read_quiet(hours, "UTC")


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "../../etc/passwd", "/etc/localtime", "Europe", "\0"])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        read_quiet("22:00-07:00", zone)
