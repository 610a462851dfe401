"""The adapter for lm-evaluation-harness, with a stand-in for it."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from logdoctor.trials import adapters
from tests.trials.conftest import Trials, unsplit

ADAPTER = Path(adapters.__file__).with_name("lm_evaluation_harness.py")
STAND_IN = Path(__file__).with_name("lm_eval_stand_in")
METRICS = {"acc": "mean", "bleu": "whole", "plain": None}
DRAWN = {"num_fewshot": 2, "fewshot_config": {"sampler": "default"}}
FIRST = {"num_fewshot": 2, "fewshot_config": {"sampler": "first_n"}}
NOTHING = "of the documents of one from 0 up to 12, "


def write_task(folder: Path, name: str, documents: int = 12, **more: Any) -> None:
    """Write a task of the stand-in."""
    task = {"documents": [f"document {number}" for number in range(documents)], "metrics": METRICS, **more}
    (folder / f"{name}.json").write_text(json.dumps(task), encoding="utf-8")


class Here:
    """A folder with tasks, in which the adapter runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_bytes(b"weights")
        self.tasks = folder / "tasks"
        self.tasks.mkdir()
        write_task(self.tasks, "one")
        write_task(self.tasks, "filtered", filters=["strict", "flexible"])
        write_task(self.tasks, "drawn", **DRAWN)
        write_task(self.tasks, "unset", num_fewshot=1)
        write_task(self.tasks, "first", **FIRST)
        write_task(self.tasks, "deaf", deaf=True)
        write_task(self.tasks, "twice", twice=True)
        write_task(self.tasks, "arrays", metrics={"brier_score": "of_arrays"})
        write_task(self.tasks, "each", metrics={"each": "each"})
        write_task(self.tasks, "endless", metrics={"perplexity": "endless"})
        write_task(self.tasks, "half", metrics={"perplexity": "endless", "acc": "mean"})
        (self.tasks / "several.json").write_text('{"group": ["one", "first"]}', encoding="utf-8")

    def run(self, *words: str | int | Path, python_path: Path = STAND_IN) -> subprocess.CompletedProcess[str]:
        """What a command of Python says."""
        return subprocess.run(
            [sys.executable, *map(str, words), "--include_path", str(self.tasks)],
            cwd=self.folder,
            env={"PYTHONPATH": str(python_path)},
            capture_output=True,
            text=True,
        )

    def whole(self, name: str) -> dict[str, float]:
        """What `lm_eval` itself scores."""
        model = ("--model", "hf", "--model_args", f"pretrained={self.folder / 'model'}")
        done = self.run("-m", "lm_eval", "run", *model, "--tasks", name, "--output_path", "whole")
        assert done.returncode == 0, done.stderr
        (file,) = self.folder.glob("whole/*/results_*.json")
        scores = json.loads(file.read_text(encoding="utf-8"))["results"][name]
        return {key: value for key, value in scores.items() if key != "alias"}

    def infer(self, name: str, start: int, end: int, *options: str) -> subprocess.CompletedProcess[str]:
        """Make the outputs of a shard."""
        return self.run(ADAPTER, "infer", self.folder / "model", name, start, end, f"{start:03}.out", *options)

    def outputs(self, name: str, *cuts: int) -> Path:
        """The outputs of shards between these numbers, merged."""
        for start, end in pairwise(cuts):
            done = self.infer(name, start, end)
            assert done.returncode == 0, done.stderr
        made = self.folder / "all"
        made.write_text("".join((self.folder / f"{start:03}.out").read_text() for start in cuts[:-1]))
        return made

    def scored(self, name: str, outputs: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Score outputs."""
        return self.run(ADAPTER, "score", name, outputs, "scores", *options)

    def score(self, name: str, outputs: Path, *options: str) -> dict[str, float]:
        """The scores."""
        done = self.scored(name, outputs, *options)
        assert done.returncode == 0, done.stderr
        return json.loads((self.folder / "scores").read_text(encoding="utf-8"))


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


@pytest.mark.parametrize(
    ("name", "cuts"), [("one", (0, 12)), ("one", (0, 1, 7, 11, 12)), ("filtered", (0, 1, 7, 11, 12))]
)
def test_shards_are_scored_as_the_harness_scores_the_whole(here: Here, name: str, cuts: tuple[int, ...]) -> None:
    assert here.score(name, here.outputs(name, *cuts)) == here.whole(name)


def test_outputs_are_scored_in_the_order_of_their_documents(here: Here) -> None:
    made = here.outputs("filtered", 0, 6, 12)
    made.write_text("".join(reversed(made.read_text().splitlines(keepends=True))))
    assert here.score("filtered", made) == here.whole("filtered")


@pytest.mark.parametrize(("start", "end"), [(3, 3), (5, 4), (-1, 2)])
def test_a_shard_without_documents_is_refused_before_the_model_is_loaded(here: Here, start: int, end: int) -> None:
    done = here.infer("one", start, end)
    assert (done.returncode, done.stderr) == (1, f"there are no documents of one from {start} up to {end}\n")
    assert "loaded" not in done.stdout


def test_documents_that_are_not_there_fail_as_the_harness_fails(here: Here) -> None:
    done = here.infer("one", 6, 13)
    assert done.returncode == 1
    assert "here k=12" in done.stderr
    assert not (here.folder / "006.out").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deaf", "of the documents of deaf from 0 up to 5, which are 5, there are 12 samples (filter none)\n"),
        ("twice", "of the documents of twice from 0 up to 5, which are 5, there are 10 samples (filter none)\n"),
        ("several", "several is no task, but stands for first, one: each is a set\n"),
        ("drawn", "drawn draws examples (sampler default), which depend on the split: set `splittable: false`\n"),
        ("unset", "unset draws examples (sampler default), which depend on the split: set `splittable: false`\n"),
    ],
)
def test_samples_that_are_not_those_of_the_unsplit_run_are_refused(here: Here, name: str, said: str) -> None:
    done = here.infer(name, 0, 5)
    assert (done.returncode, done.stderr) == (1, said)
    assert not (here.folder / "000.out").exists()


def test_examples_may_be_drawn_for_all_documents_at_once(here: Here) -> None:
    assert here.score("drawn", here.outputs("drawn", 0, 12)) == here.whole("drawn")


def test_examples_that_are_always_the_first_may_be_taken(here: Here) -> None:
    assert here.score("first", here.outputs("first", 0, 5, 12)) == here.whole("first")


def test_an_option_decides_whether_examples_are_drawn(here: Here) -> None:
    assert here.infer("drawn", 0, 5, "--num_fewshot", "0").returncode == 0
    assert here.infer("one", 0, 5, "--num_fewshot", "3").stderr.startswith("one draws examples (sampler default)")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "loaded {model} by hf\n"),
        (("--model", "vllm"), "loaded {model} by vllm\n"),
        (("--model_args", "dtype=float32,pretrained={model}", "--batch_size", "8"), "loaded {model} by hf\n"),
    ],
)
def test_options_are_those_of_the_harness(here: Here, options: tuple[str, ...], said: str) -> None:
    model = str(here.folder / "model")
    done = here.infer("one", 0, 5, *(option.replace("{model}", model) for option in options))
    assert (done.returncode, done.stdout) == (0, said.replace("{model}", model))


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (range(11), f"{NOTHING}11 has no sample (filter none)\n"),
        ([0, 1, *range(3, 12)], f"{NOTHING}2 has no sample (filter none)\n"),
        ([*range(12), 5], f"{NOTHING}which are 12, there are 13 samples (filter none)\n"),
        ([], f"{NOTHING}0 has no sample (filter none)\n"),
    ],
)
def test_each_document_has_one_sample(here: Here, kept: list[int], said: str) -> None:
    rows = here.outputs("one", 0, 12).read_text().splitlines(keepends=True)
    (here.folder / "some").write_text("".join(rows[number] for number in kept))
    done = here.scored("one", here.folder / "some")
    assert (done.returncode, done.stderr) == (1, said)
    assert not (here.folder / "scores").exists()


def test_each_document_has_a_sample_of_each_filter(here: Here) -> None:
    rows = here.outputs("filtered", 0, 12).read_text().splitlines(keepends=True)
    (here.folder / "some").write_text("".join(rows[:-1]))  # the last is of the filter `strict`
    done = here.scored("filtered", here.folder / "some")
    said = "of the documents of filtered from 0 up to 12, 11 has no sample (filter strict)\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_the_first_documents_may_be_the_set(here: Here) -> None:
    made = here.outputs("one", 0, 2, 5)
    write_task(here.tasks, "one", documents=5)
    expected = here.whole("one")
    write_task(here.tasks, "one")
    assert here.score("one", made, "--limit", "5") == expected
    write_task(here.tasks, "one", documents=5)
    assert here.score("one", made, "--limit", "100") == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("several", "several is no task, but stands for several: name a task; those of your own need --include_path\n"),
        ("none", "none is not known to lm_eval: name a task; those of your own need --include_path\n"),
    ],
)
def test_what_is_no_task_is_not_scored(here: Here, name: str, said: str) -> None:
    done = here.scored(name, here.outputs("one", 0, 12))
    assert (done.returncode, done.stderr) == (1, said)


def test_values_that_are_logged_as_text_are_quoted(here: Here) -> None:
    here.whole("arrays")
    done = here.scored("arrays", here.outputs("arrays", 0, 12))
    assert done.returncode == 1
    assert done.stderr.startswith("brier_score of arrays cannot be scored from logged samples like [1, '[")
    assert done.stderr.count("\n") == 1


def test_a_metric_is_a_number(here: Here) -> None:
    done = here.scored("each", here.outputs("each", 0, 12))
    assert done.returncode == 1
    assert done.stderr.startswith("each of each is no number: [") and done.stderr.count("\n") == 1
    done = here.scored("endless", here.outputs("endless", 0, 12))
    assert (done.returncode, done.stderr) == (1, "the metrics of endless are no numbers: {'perplexity,none': inf}\n")
    assert set(here.score("half", here.outputs("half", 0, 12))) == {"acc,none"}


@pytest.mark.parametrize("command", [("infer", "model", "one", 0, 1, "out"), ("score", "one", "some", "scores")])
def test_a_missing_harness_is_named(here: Here, command: tuple[str | int, ...]) -> None:
    done = here.run(ADAPTER, *command, python_path=here.folder)
    assert (done.returncode, done.stderr) == (1, f"lm_eval is not installed for {sys.executable}\n")


def test_a_missing_part_of_the_harness_is_named(here: Here) -> None:
    package = here.folder / "lm_eval"
    package.mkdir()
    (package / "tasks.py").write_text("import nowhere", encoding="utf-8")
    done = here.run(ADAPTER, "score", "one", "some", "scores", python_path=here.folder)
    assert (done.returncode, done.stderr) == (
        1,
        f"lm_eval cannot start: nowhere is not installed for {sys.executable}\n",
    )


@pytest.mark.parametrize("words", [(), ("infer", "model", "one"), ("evaluate", "one", "some", "scores")])
def test_the_usage_is_shown(words: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, str(ADAPTER), *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert "lm_evaluation_harness.py score {dataset} {outputs} {out} [OPTIONS]" in done.stderr


def test_a_trial_makes_shards_and_scores_them(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN), prepend=os.pathsep)
    write_task(trials.folder, "mine", documents=40)
    adapter = f"{sys.executable} {{adapters}}/lm_evaluation_harness.py"
    options = f"--include_path {trials.folder}"
    one = {
        "name": "mine",
        "samples": 40,
        "infer": f"{adapter} infer {{model}} {{dataset}} {{start}} {{end}} {{out}} {options}",
        "score": f"{adapter} score {{dataset}} {{outputs}} {{out}} {options}",
        "dataset": "mine",
    }
    progress = trials.work(trials.trial(one)).progress
    assert len(progress.parts("mine")) > 1
    whole = unsplit(trials, one)
    assert {name: scored.metrics for name, scored in progress.scored.items()} == whole
    assert set(whole["mine"]) == {"acc,none", "bleu,none", "plain,none"}
