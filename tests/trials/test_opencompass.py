"""The adapter for OpenCompass, with a stand-in for it."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from logdoctor.trials import adapters
from tests.trials.conftest import Trials, unsplit

ADAPTER = Path(adapters.__file__).with_name("opencompass.py")
STAND_IN = Path(__file__).with_name("opencompass_stand_in")
ZERO = {"retriever": {"type": "ZeroRetriever"}}
DRAWN = {"retriever": {"type": "opencompass.openicl.icl_retriever.RandomRetriever"}}


class Here:
    """A folder with a config, in which the adapter runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_bytes(b"weights")
        self.lines = "".join(f"sample {number}\n" for number in range(12))
        (folder / "set.jsonl").write_text(self.lines, encoding="utf-8")
        self.config = str(folder / "config.py")
        self.write(
            one=self.dataset("one"),
            late=self.dataset("late", {"test_range": "[2:]"}),
            number=self.dataset("number", {"test_range": 10}),
            drawn=self.dataset("drawn", infer_cfg=DRAWN),
            deaf=self.dataset("deaf", deaf=True),
            broken=self.dataset("broken", broken=True),
        )

    def dataset(self, abbr: str, reader_cfg: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """A data set as a config has it."""
        path = str(self.folder / "set.jsonl")
        return {"abbr": abbr, "path": path, "reader_cfg": reader_cfg or {}, "infer_cfg": ZERO, **more}

    def write(self, models: int = 1, **datasets: Any) -> None:
        """Write the config."""
        having = [{"abbr": f"model-{number}", "path": "/nowhere"} for number in range(models)]
        text = f"datasets = {list(datasets.values())!r}\nmodels = {having!r}\n"
        Path(self.config).write_text(text, encoding="utf-8")

    def run(self, *words: str | int | Path, python_path: Path = STAND_IN) -> subprocess.CompletedProcess[str]:
        """What the adapter says."""
        return subprocess.run(
            [sys.executable, str(ADAPTER), *map(str, words)],
            cwd=self.folder,
            env={"PYTHONPATH": str(python_path)},
            capture_output=True,
            text=True,
        )

    def infer(self, name: str, start: int, end: int, *options: str) -> subprocess.CompletedProcess[str]:
        """Make the outputs of a shard."""
        return self.run("infer", self.folder / "model", name, start, end, f"{start:03}.out", *options)

    def outputs(self, name: str, *cuts: int, options: tuple[str, ...] = ()) -> Path:
        """The outputs of shards between these numbers, merged."""
        for start, end in pairwise(cuts):
            done = self.infer(name, start, end, *(options or (self.config,)))
            assert done.returncode == 0, done.stderr
        made = self.folder / "all"
        made.write_text("".join((self.folder / f"{start:03}.out").read_text() for start in cuts[:-1]))
        return made

    def score(self, name: str, outputs: Path, *options: str) -> dict[str, float]:
        """The scores."""
        done = self.run("score", name, outputs, "scores", *(options or (self.config,)))
        assert done.returncode == 0, done.stderr
        return json.loads((self.folder / "scores").read_text(encoding="utf-8"))


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def test_shards_are_scored_like_the_whole(here: Here) -> None:
    whole = here.score("one", here.outputs("one", 0, 12))
    assert set(whole) == {"even", "of/whole"}, "lists, truths, NaN and what single samples got are left out"
    assert here.score("one", here.outputs("one", 0, 1, 7, 12)) == whole
    assert here.score("one", here.outputs("one", 0, 6, 12)) == whole


def test_a_shard_is_a_range_of_what_the_config_leaves(here: Here) -> None:
    whole = [json.loads(line) for line in here.outputs("one", 0, 12).read_text().splitlines()]
    late = [json.loads(line) for line in here.outputs("late", 0, 4, 10).read_text().splitlines()]
    assert [row["sample"] for row in late] == list(range(10))
    assert [row["made"] for row in late] == [row["made"] for row in whole[2:]]


@pytest.mark.parametrize("name", ["mine", "set.jsonl", "config.py"])
def test_a_config_with_one_data_set_needs_no_option(here: Here, name: str) -> None:
    here.write(one=here.dataset("one"))
    (here.folder / "configs" / "datasets").mkdir(parents=True)
    text = f"a_datasets = [{here.dataset('one')!r}]"
    (here.folder / "configs" / "datasets" / "mine.py").write_text(text, encoding="utf-8")
    options = ("--config-dir", "configs")
    made = here.outputs(name, 0, 5, 12, options=options)
    assert here.score(name, made, *options) == here.score("one", here.outputs("one", 0, 12))


@pytest.mark.parametrize(
    ("name", "start", "end", "said"),
    [
        ("none", 0, 1, "0 data sets have the abbr none; the config has one, late, number, drawn, deaf, broken"),
        ("one", 6, 13, "one has 12 samples: there are none from 6 up to 13"),
        ("late", 0, 11, "late has 10 samples: there are none from 0 up to 11"),
        ("one", 3, 3, "one has 12 samples: there are none from 3 up to 3"),
        ("number", 0, 1, "test_range=10 draws samples of number"),
        ("drawn", 0, 6, "drawn takes examples by RandomRetriever, which depend on the split: set `splittable: false`"),
    ],
)
def test_what_cannot_be_made_is_refused_before_the_model_is_loaded(
    here: Here, name: str, start: int, end: int, said: str
) -> None:
    done = here.infer(name, start, end, here.config)
    assert done.returncode == 1
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1
    assert "loaded" not in done.stdout
    assert not (here.folder / f"{start:03}.out").exists()


@pytest.mark.parametrize("name", ["unknown_gen", "unknown.py", "unknown.jsonl"])
def test_a_data_set_that_nobody_knows_is_named(here: Here, name: str) -> None:
    done = here.infer(name, 0, 1)
    assert done.returncode == 1
    assert done.stderr.startswith(f"OpenCompass finds nothing to evaluate by {name}: ") and done.stderr.count("\n") == 1


def test_one_of_several_data_sets_must_be_named(here: Here) -> None:
    done = here.infer(here.config, 0, 1)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{here.config} has 6 data sets, so name one, and the config as an option")


@pytest.mark.parametrize("models", [0, 2])
def test_a_config_has_one_model(here: Here, models: int) -> None:
    here.write(models=models, one=here.dataset("one"))
    done = here.infer("one", 0, 1, here.config)
    assert done.returncode == 1
    assert done.stderr.startswith(f"the config of one has {models} models: it must have one")


def test_examples_may_be_drawn_for_all_samples_at_once(here: Here) -> None:
    here.outputs("drawn", 0, 12)


def test_more_predictions_than_were_asked_for_are_refused(here: Here) -> None:
    done = here.infer("deaf", 0, 5, here.config)
    assert done.returncode == 1
    assert done.stderr == "OpenCompass made 12 predictions for the samples of deaf from 0 up to 5\n"
    assert not (here.folder / "000.out").exists()


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (range(11), "of the 12 samples of one, sample 11 has no prediction\n"),
        ([0, 1, *range(3, 12)], "of the 12 samples of one, sample 2 has no prediction\n"),
        ([*range(12), 5], "one has 12 samples, the outputs have 13 predictions\n"),
        ([], "of the 12 samples of one, sample 0 has no prediction\n"),
    ],
)
def test_each_sample_has_one_prediction(here: Here, kept: list[int], said: str) -> None:
    rows = here.outputs("one", 0, 12).read_text().splitlines(keepends=True)
    (here.folder / "some").write_text("".join(rows[number] for number in kept))
    done = here.run("score", "one", "some", "scores", here.config)
    assert (done.returncode, done.stderr) == (1, said)
    assert not (here.folder / "scores").exists()


def test_an_evaluator_that_gives_no_number_is_quoted(here: Here) -> None:
    done = here.run("score", "broken", here.outputs("broken", 0, 12), "scores", here.config)
    assert done.returncode == 1
    assert done.stderr == (
        'the evaluator of broken gave no number: {"error": "predictions and references have different length"}\n'
    )


def test_a_missing_harness_is_named(here: Here) -> None:
    done = here.run("score", "one", "some", "scores", here.config, python_path=here.folder)
    assert (done.returncode, done.stderr) == (1, f"opencompass is not installed for {sys.executable}\n")


def test_a_missing_part_of_the_harness_is_named(here: Here) -> None:
    package = here.folder / "opencompass" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text("import mmengine", encoding="utf-8")
    done = here.run("score", "one", "some", "scores", here.config, python_path=here.folder)
    said = f"OpenCompass cannot start: mmengine is not installed for {sys.executable}\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_a_trial_makes_shards_and_scores_them(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN), prepend=":")
    samples = "".join(f"sample {number}\n" for number in range(40))
    (trials.folder / "mine.jsonl").write_text(samples, encoding="utf-8")
    adapter = f"{sys.executable} {{adapters}}/opencompass.py"
    one = {
        "name": "mine",
        "samples": 40,
        "dataset": "mine.jsonl",
        "infer": f"{adapter} infer {{model}} {{dataset}} {{start}} {{end}} {{out}}",
        "score": f"{adapter} score {{dataset}} {{outputs}} {{out}}",
    }
    progress = trials.work(trials.trial(one)).progress
    assert len(progress.parts("mine")) > 1
    whole = unsplit(trials, one | {"dataset": str(trials.folder / "mine.jsonl")})
    assert {name: scored.metrics for name, scored in progress.scored.items()} == whole
    assert set(whole["mine"]) == {"even", "of/whole"}
