"""The curve over anyone's jobs: what is kept, run by run, what is told, and what may never be taken."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from logdoctor.cli import cli
from logdoctor.errors import InputError
from tests.service.test_learning import rocks

CORPUS = Path(__file__).parents[2] / "eval" / "corpus"


@pytest.fixture(scope="module", params=[(), ("--untold",)])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The report on two kinds of jobs that no shipped rule knows, three runs each, and what is printed of it."""
    folder = tmp_path_factory.mktemp("jobs")
    for kind, words in (("quarry", b"seam"), ("mine", b"vein")):
        (folder / kind).mkdir()
        for number in (2, 10, 1):
            log = rocks(10 * number, 10 * number + 60).replace(b"seam", words)
            (folder / kind / f"run-{number}.log").write_bytes(log)
    few = tmp_path_factory.mktemp("corpus") / "failures"
    few.mkdir()
    cases = (CORPUS / "failures/cases.jsonl").read_text().splitlines()[::8]
    (few / "cases.jsonl").write_text("\n".join(cases))
    for case in cases:
        shutil.copy(CORPUS / "failures" / json.loads(case)["file"], few)
    written = tmp_path_factory.mktemp("written")
    options = ["--jobs", str(folder), "--corpus", str(few.parent), "--write", str(written)]
    done = CliRunner().invoke(cli, ["eval", "learn-filters", *options, *request.param])
    assert done.exit_code == 0, done.output
    (report,) = written.glob("*.json")
    return json.loads(report.read_text()), done.output


def test_later_runs_of_a_kind_are_short(told: tuple[dict[str, Any], str]) -> None:
    report = told[0]
    runs = report["runs"]
    assert [run["number"] for run in runs] == [1, 2, 3] * 2
    assert all(run["lines"] == run["shipped_kept"] == 960 for run in runs), "no shipped rule knows these"
    assert all(run["kept"] < 200 for run in runs if run["number"] > 1)
    first = [run for run in runs if run["number"] == 1]
    assert all(run["rest_kept"] < run["rest"] / 2 for run in first), "the rest of the same job shrinks"
    assert report["cause_lines_removed"] == 0 and report["agent"] == "miner" and report["tokens"] == [0, 0]


def test_the_table_names_each_kind_and_what_is_kept(told: tuple[dict[str, Any], str]) -> None:
    output = told[1]
    assert "0 lines of causes removed" in output and "outcomes: 6 unknown" in output
    assert [line.split()[0] for line in output.splitlines() if line.startswith((" mine", " quarry"))] == [
        "mine",
        "quarry",
    ]


def test_a_folder_without_logs_is_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["eval", "learn-filters", "--jobs", str(tmp_path)])
    assert isinstance(done.exception, InputError) and "holds no logs" in str(done.exception)
