"""The report on the command line."""

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logdoctor.store.jobs.records import Records
from tests.store.test_report import HOUR, KEY, MONDAY, ran, week
from tests.test_cli import Ran, assert_refused, data, run

__all__ = ["data", "run", "week"]  # fixtures


@pytest.fixture
def records(data: Path) -> Iterator[Records]:
    """The records of the data folder."""
    data.mkdir(parents=True)
    opened = Records(f"sqlite:///{data / 'logdoctor.db'}")
    yield opened
    opened.close()


def test_a_report_makes_no_database(run: Callable[..., Ran], data: Path) -> None:
    assert_refused(run("report"), data, "no records", "--data-dir")
    assert not data.exists()


def test_the_table_tells_medians_and_wide_ones_means(
    run: Callable[..., Ran], week: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = run("report").out
    rows = {line.split("  ")[0 if line[:2] != "  " else 1].strip(): line.split() for line in out.splitlines()}
    assert rows["ECC Error"][2:] == ["2", "1,024", "3.0", "h", "30.0", "min", "6,144", "97.5%"]
    assert rows["Key Error"][2:] == ["2", "16", "5.5", "h", "-", "160", "2.5%"]
    assert rows["total"][1:] == ["4", "1,024", "3.0", "h", "30.0", "min", "6,304", "100.0%"]
    assert "GPU count known for 3 of 4; restarted: 2 of 4" in out and "rule 2, structure 2" in out
    assert "GPUs and times are medians" in out and "mean" not in out
    monkeypatch.setenv("COLUMNS", "160")
    wide = run("report").out
    assert "mean to failure" in wide and "688" in wide


def test_csv_is_read_by_spreadsheets(run: Callable[..., Ran], week: Records) -> None:
    rows = list(csv.DictReader(io.StringIO(run("report", "--csv").out)))
    assert [row["reason"] for row in rows] == ["ECC Error", "Key Error"]


def test_names_from_outside_are_no_markup(run: Callable[..., Ran], records: Records) -> None:
    import msgspec

    ran(records, "j", 1, MONDAY, MONDAY + HOUR, msgspec.structs.replace(KEY, reason="[bold]x[/nope]"))
    assert "[bold]x[/nope]" in run("report").out
