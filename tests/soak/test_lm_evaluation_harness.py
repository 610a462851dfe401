"""Shards of the adapter for lm-evaluation-harness have the scores of `lm_eval` itself, with a real model."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from logdoctor.trials import adapters
from tests.soak.silly import offline, write_silly

ADAPTER = Path(adapters.__file__).with_name("lm_evaluation_harness.py")
PLACE = Path(__file__).parents[2] / os.environ.get("LM_EVAL", "build/lm-eval")
ANIMALS = ("horse", "spider", "whale", "eagle", "snake", "frog", "camel", "goat", "tiger", "mouse", "shark", "owl")
THINGS = ("table", "river", "cloud")
DOCUMENTS = len(ANIMALS)

CHOICES = """
task: choices
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/choices.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}\\nAnswer:"
doc_to_choice: "{{options}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
SUMS = """
task: NAME
dataset_path: json
dataset_kwargs: {data_files: {train: FOLDER/examples.jsonl, test: FOLDER/sums.jsonl}}
test_split: test
fewshot_split: train
fewshot_config: {sampler: SAMPLER}
num_fewshot: 2
output_type: generate_until
generation_kwargs: {until: ["\\n"], max_gen_toks: 16, do_sample: false}
doc_to_text: "Q: {{question}}\\nA:"
doc_to_target: "{{answer}}"
metric_list: [{metric: bleu}]
"""


class Harness:
    """lm-evaluation-harness, a model and three tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = offline(folder) | {"PYTHONPATH": str(PLACE)}
        self.model = write_silly(folder)
        choices = [
            {"question": "Which is an animal?", "options": options, "answer": at % 4}
            for at, animal in enumerate(ANIMALS)
            for options in [[*THINGS[: at % 4], animal, *THINGS[at % 4 :]]]
        ]
        sums = [
            {"question": f"What is {7 * at} plus {at + 5}?", "answer": f"{7 * at} plus {at + 5} is {8 * at + 5}."}
            for at in range(DOCUMENTS + 4)
        ]
        for name, rows in (("choices", choices), ("sums", sums[:DOCUMENTS]), ("examples", sums[DOCUMENTS:])):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
        (folder / "tasks").mkdir()
        tasks = {"choices": CHOICES}
        for name, sampler in (("sums", "first_n"), ("drawn", "default")):
            tasks[name] = SUMS.replace("NAME", name).replace("SAMPLER", sampler)
        for name, text in tasks.items():
            (folder / "tasks" / f"{name}.yaml").write_text(text.replace("FOLDER", str(folder)), encoding="utf-8")

    def run(self, *command: str | int | Path, code: int = 0) -> str:
        """What a command says that ends with this code."""
        done = subprocess.run(
            [str(word) for word in (sys.executable, *command, "--include_path", self.folder / "tasks")],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        assert done.returncode == code, done.stdout[-3000:]
        return done.stdout

    def whole(self, *names: str) -> dict[str, dict[str, float]]:
        """The numbers that `lm_eval` itself gives."""
        model = ("--model", "hf", "--model_args", f"pretrained={self.model}", "--device", "cpu")
        self.run("-m", "lm_eval", "run", *model, "--tasks", ",".join(names), "--output_path", "whole")
        (file,) = self.folder.glob("whole/*/results_*.json")
        results = json.loads(file.read_text(encoding="utf-8"))["results"]
        return {
            name: {key: value for key, value in result.items() if "," in key and "_stderr," not in key}
            for name, result in results.items()
        }

    def infer(self, name: str, start: int, end: int, code: int = 0) -> str:
        """Make the outputs of a shard."""
        place = f"{name}-{start:03}"
        return self.run(ADAPTER, "infer", self.model, name, start, end, place, "--device", "cpu", code=code)

    def by_shards(self, name: str, *cuts: int) -> dict[str, float]:
        """The scores of shards between these numbers."""
        for start, end in pairwise(cuts):
            self.infer(name, start, end)
        merged = "".join(path.read_text() for path in sorted(self.folder.glob(f"{name}-*")))
        (self.folder / f"all-{name}").write_text(merged)
        self.run(ADAPTER, "score", name, f"all-{name}", f"scores-{name}")
        return json.loads((self.folder / f"scores-{name}").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    assert (PLACE / "lm_eval").is_dir(), f"{PLACE / 'lm_eval'} is missing: `make soak` gets it"
    with tempfile.TemporaryDirectory(prefix="logdoctor-lm-eval-") as scratch:
        yield Harness(Path(scratch))


def test_shards_are_scored_as_lm_eval_scores_the_whole(harness: Harness) -> None:
    whole = harness.whole("choices", "sums")
    assert set(whole["choices"]) == {"acc,none", "acc_norm,none"}
    assert 0 < whole["choices"]["acc_norm,none"] < 1, "an accuracy that tells something"
    assert 0 < whole["sums"]["bleu,none"] < 100, "a BLEU that tells something"
    assert harness.by_shards("choices", 0, 5, DOCUMENTS) == whole["choices"]  # accuracy: a mean
    assert harness.by_shards("sums", 0, 3, 4, DOCUMENTS) == whole["sums"]  # BLEU: none


def test_a_missing_document_is_found_out(harness: Harness) -> None:
    harness.infer("choices", 0, 2)
    said = harness.run(ADAPTER, "score", "choices", "choices-000", "scores-few", code=1)
    assert said.splitlines()[-1] == "of the documents of choices from 0 up to 12, 2 has no sample (filter none)"
    harness.run(ADAPTER, "score", "choices", "choices-000", "scores-few", "--limit", 2)


def test_examples_that_are_drawn_are_found_out(harness: Harness) -> None:
    said = harness.infer("drawn", 0, 2, code=1)
    assert said.splitlines()[-1] == (
        "drawn draws examples (sampler default), which depend on the split: set `splittable: false`"
    )
    assert not (harness.folder / "drawn-000").exists()
