"""The curve over anyone's jobs: what is kept, run by run, what is told, and what may never be taken."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from logdoctor.cli import cli
from logdoctor.errors import InputError
from tests.service.test_learning import rocks


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Two kinds of jobs that no shipped rule knows: three runs each."""
    for kind, words in (("quarry", b"seam"), ("mine", b"vein")):
        (tmp_path / kind).mkdir()
        for number in (2, 10, 1):
            log = rocks(10 * number, 10 * number + 60).replace(b"seam", words)
            (tmp_path / kind / f"run-{number}.log").write_bytes(log)
    return tmp_path


def curve(jobs: Path, *options: str) -> dict[str, object]:
    done = CliRunner().invoke(cli, ["eval", "learn-filters", "--jobs", str(jobs), "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)  # type: ignore[no-any-return]


@pytest.mark.parametrize("options", [(), ("--untold",)])
def test_later_runs_of_a_kind_are_short(jobs: Path, options: tuple[str, ...]) -> None:
    report = curve(jobs, *options)
    runs = report["runs"]
    assert isinstance(runs, list) and [run["number"] for run in runs] == [1, 2, 3] * 2
    assert all(run["lines"] == run["shipped_kept"] == 960 for run in runs), "no shipped rule knows these"
    assert all(run["kept"] < 200 for run in runs if run["number"] > 1)
    first = [run for run in runs if run["number"] == 1]
    assert all(run["rest_kept"] < run["rest"] / 2 for run in first), "the rest of the same job shrinks"
    assert report["cause_lines_removed"] == 0 and report["agent"] == "miner" and report["tokens"] == [0, 0]


def test_the_table_names_each_kind_and_what_is_kept(jobs: Path) -> None:
    done = CliRunner().invoke(cli, ["eval", "learn-filters", "--jobs", str(jobs)])
    assert done.exit_code == 0 and "0 lines of causes removed" in done.output and "outcomes: 6 unknown" in done.output
    assert [line.split()[0] for line in done.output.splitlines() if line.startswith((" mine", " quarry"))] == [
        "mine",
        "quarry",
    ]


def test_a_folder_without_logs_is_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["eval", "learn-filters", "--jobs", str(tmp_path)])
    assert isinstance(done.exception, InputError) and "holds no logs" in str(done.exception)
