"""`logdoctor trials plan`: bars and JSON of a plan."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logdoctor.cli import cli
from logdoctor.trials.priors import Priors
from logdoctor.trials.types import EvalSet

TRIAL = """
model: {path: /nowhere, name: seven, billions: 7}
sets:
  - {name: gsm8k, samples: 1319, infer: "x {start} {end} {out}", score: "y {outputs} {out}"}
  - {name: mmlu, samples: 500, infer: "x {start} {end} {out}", score: "y {outputs} {out}"}
"""


@pytest.fixture
def planned(tmp_path: Path) -> "Planner":
    return Planner(tmp_path)


class Planner:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "trial.yaml"
        self.file.write_text(TRIAL)
        Priors(folder / "times.jsonl").record(EvalSet("gsm8k", 1319, "", ""), 7, [(319, 74.0), (1000, 210.0)], 30.0)

    def __call__(self, *options: str) -> Result:
        priors = str(self.folder / "times.jsonl")
        return CliRunner().invoke(cli, ["trials", "plan", str(self.file), "--priors", priors, *options])


def test_a_plan_is_shown(planned: Planner) -> None:
    done = planned("--workers", "2")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split()[0] == "0" and "▏gsm8k" in lines[0] and "▏" in lines[1]
    assert "all scored after" in done.stdout and "with 2 workers" in done.stdout
    assert next(line for line in lines if line.startswith("mmlu")).endswith("~")  # a guess


def test_a_plan_as_json_has_every_sample(planned: Planner) -> None:
    told = json.loads(planned("--workers", "3", "--load", "10", "--json").stdout)
    assert told["makespan"] >= max(one["ends"] for one in told["shards"]) and told["load"] == 10
    assert {one["worker"] for one in told["shards"]} == {0, 1, 2}
    assert sum(one["to"] - one["from"] for one in told["shards"] if one["set"] == "gsm8k") == 1319
    times = next(one for one in told["sets"] if one["set"] == "gsm8k")
    assert (times["fixed"], times["sample"], times["score"]) == pytest.approx((10.3, 0.2, 30), abs=0.1)


def test_how_many_workers_there_are_must_be_said(planned: Planner) -> None:
    done = planned()
    assert done.exit_code == 2 and "--workers" in done.stderr
