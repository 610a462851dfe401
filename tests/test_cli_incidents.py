"""Incidents on the command line, beside a service or after one."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from logdoctor.store.incidents.table import Incidents
from logdoctor.store.jobs.records import JobFacts, Records
from tests.rule_files.learned import EVIL
from tests.store.test_incidents import USER_CODE, publish, quoted, verdict
from tests.store.test_records import on
from tests.test_cli import Ran, assert_refused, data, run

__all__ = ["data", "run"]  # fixtures


def store(folder: Path) -> tuple[Records, Incidents]:
    """The records and incidents of a data folder."""
    folder.mkdir(parents=True, exist_ok=True)
    records = Records(f"sqlite:///{folder / 'logdoctor.db'}")
    return records, Incidents(records.database)


@pytest.fixture
def filled(data: Path) -> Incidents:
    """1: gpu-12 in three attempts of two jobs; 2: a Key Error."""
    records, incidents = store(data)
    for number in range(3):
        what = quoted("uncorrectable ECC error", suspects=on("gpu-12"))
        publish(records, f"llama-{number % 2}", number, what, 1_795_250_000.0 + number)
    records.put_job("llama-1", JobFacts(user="u17"), 1.0)
    publish(records, "bert", 1, verdict(USER_CODE, evidence=()), 1_795_250_009.0, False)
    return incidents


def test_commands_on_incidents_make_no_database(run: Callable[..., Ran], data: Path) -> None:
    for command in (["list"], ["show", "1"], ["acknowledge", "1"], ["resolve", "1"], ["reopen", "1"]):
        assert_refused(run("incidents", *command), data, "no records", "--data-dir")
    assert not data.exists()


def test_incidents_are_listed(run: Callable[..., Ran], data: Path) -> None:
    store(data)
    assert run("incidents", "list").out == "no incidents\n" and run("incidents", "list", "--json").out == ""


def test_a_list_is_readable_on_a_small_terminal(
    run: Callable[..., Ran], filled: Incidents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run("incidents", "list").out
    assert out.index("Key Error") < out.index("ECC Error  on gpu-12")
    assert "3 attempts of 2 jobs, 2026-11-21" in out and "llama-0/2: uncorrectable ECC error" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_who_acts_is_named_or_whoever_is_logged_in(run: Callable[..., Ran], filled: Incidents) -> None:
    assert run("incidents", "acknowledge", "1", "--note", "draining", "--by", "ops").code == 0
    assert_refused(run("incidents", "acknowledge", "1", "--by", "research"), "incident 1", "ops acknowledged it at")
    assert "acknowledged by ops: draining" in run("incidents", "list").out
    assert run("incidents", "resolve", "1").code == 0
    one = filled.one(1)
    assert one is not None and one.by == pwd.getpwuid(os.getuid()).pw_name
    assert_refused(run("incidents", "resolve", "1", "--by", " "), "Say who you are")


def test_nothing_of_an_incident_steers_the_terminal(run: Callable[..., Ran], data: Path) -> None:
    records, incidents = store(data)
    publish(records, "j", 1, quoted(EVIL, suspects=on(EVIL), suggestion=EVIL), 1.0)
    incidents.step(1, "acknowledge", EVIL, EVIL, 2.0, None)
    for command in (["list"], ["show", "1"]):
        out = run("incidents", *command).out
        assert all(char.isprintable() or char == "\n" for char in out), command
    assert run("incidents", "list", "--json").out.isascii() and run("incidents", "show", "1", "--json").out.isascii()
