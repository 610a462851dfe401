"""Shards of the adapter for OpenCompass have the scores of `opencompass` itself, with a real model."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from logdoctor.trials import adapters
from tests.soak.silly import offline, write_silly

ADAPTER = Path(adapters.__file__).with_name("opencompass.py")
PLACE = Path(__file__).parents[2] / os.environ.get("OPENCOMPASS", "build/opencompass") / "bin"
ANIMALS = ("horse", "spider", "whale", "eagle", "snake", "frog", "camel", "goat", "tiger", "mouse", "shark", "owl")
THINGS = ("table", "river", "cloud")
SAMPLES = len(ANIMALS)

CONFIG = """
from opencompass.datasets.custom import CustomDataset
from opencompass.models import HuggingFaceBaseModel
from opencompass.openicl.icl_evaluator import AccEvaluator, BleuEvaluator
from opencompass.openicl.icl_inferencer import GenInferencer, PPLInferencer
from opencompass.openicl.icl_prompt_template import PromptTemplate
from opencompass.openicl.icl_retriever import FixKRetriever, ZeroRetriever

choices = dict(
    abbr="choices",
    type=CustomDataset,
    path="FOLDER/choices.jsonl",
    reader_cfg=dict(input_columns=["question", "A", "B", "C", "D"], output_column="answer"),
    infer_cfg=dict(
        prompt_template=dict(
            type=PromptTemplate,
            template=dict(
                (letter, "{question}\\nA. {A}\\nB. {B}\\nC. {C}\\nD. {D}\\nAnswer: " + letter) for letter in "ABCD"
            ),
        ),
        retriever=dict(type=ZeroRetriever),
        inferencer=dict(type=PPLInferencer),
    ),
    eval_cfg=dict(evaluator=dict(type=AccEvaluator)),
)
sums = dict(
    abbr="sums",
    type=CustomDataset,
    path="FOLDER/sums.jsonl",
    reader_cfg=dict(input_columns=["question"], output_column="answer", test_range="[1:]"),
    infer_cfg=dict(
        ice_template=dict(type=PromptTemplate, template="</E>Q: {question}\\nA: {answer}\\n", ice_token="</E>"),
        retriever=dict(type=FixKRetriever, fix_id_list=[0, 1]),
        inferencer=dict(type=GenInferencer, max_out_len=16),
    ),
    eval_cfg=dict(evaluator=dict(type=BleuEvaluator)),
)
datasets = [choices, sums]
models = [
    dict(
        type=HuggingFaceBaseModel,
        abbr="silly",
        path="FOLDER/model",
        tokenizer_kwargs=dict(model_input_names=["input_ids", "attention_mask"]),
        max_seq_len=512,
        max_out_len=16,
        batch_size=1,
        stop_words=["\\n"],
        run_cfg=dict(num_gpus=0),
    )
]
"""


class Harness:
    """OpenCompass, a model and two data sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = offline(folder)
        self.model = write_silly(folder, PLACE / "python")
        choices = [
            {"question": "Which is an animal?", **dict(zip("ABCD", options, strict=True)), "answer": "ABCD"[at % 4]}
            for at, animal in enumerate(ANIMALS)
            for options in [[*THINGS[: at % 4], animal, *THINGS[at % 4 :]]]
        ]
        sums = [
            {"question": f"What is {7 * at} plus {at + 5}?", "answer": f"{7 * at} plus {at + 5} is {8 * at + 5}."}
            for at in range(SAMPLES)
        ]
        for name, rows in (("choices", choices), ("sums", sums)):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
        (folder / "config.py").write_text(CONFIG.replace("FOLDER", str(folder)), encoding="utf-8")

    def run(self, *command: str | int | Path) -> None:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout[-3000:]

    def whole(self) -> dict[str, dict[str, float]]:
        """The numbers that `opencompass` itself gives."""
        self.run(PLACE / "opencompass", "config.py", "-w", "whole", "--debug")
        results = {path.stem: json.loads(path.read_text()) for path in self.folder.glob("whole/*/results/silly/*.json")}
        return {
            name: {metric: value for metric, value in result.items() if isinstance(value, int | float)}
            for name, result in results.items()
        }

    def by_shards(self, name: str, *cuts: int) -> dict[str, float]:
        """The scores of shards between these numbers."""
        python = PLACE / "python"
        for start, end in pairwise(cuts):
            self.run(python, ADAPTER, "infer", self.model, name, start, end, f"{name}-{start:03}", "config.py")
        merged = "".join(path.read_text() for path in sorted(self.folder.glob(f"{name}-*")))
        (self.folder / f"all-{name}").write_text(merged)
        self.run(python, ADAPTER, "score", name, f"all-{name}", f"scores-{name}", "config.py")
        return json.loads((self.folder / f"scores-{name}").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    assert (PLACE / "opencompass").is_file(), f"{PLACE / 'opencompass'} is missing: `make soak` gets it"
    with tempfile.TemporaryDirectory(prefix="logdoctor-opencompass-") as scratch:
        yield Harness(Path(scratch))


def test_shards_are_scored_as_opencompass_scores_the_whole(harness: Harness) -> None:
    whole = harness.whole()
    assert set(whole) == {"choices", "sums"}
    assert 0 < whole["sums"]["score"] < 100, "a BLEU that tells something"
    assert harness.by_shards("choices", 0, 5, SAMPLES) == whole["choices"]  # accuracy: a mean
    assert harness.by_shards("sums", 0, 3, 4, SAMPLES - 1) == whole["sums"]  # BLEU: none
