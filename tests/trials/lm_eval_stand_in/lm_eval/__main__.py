"""Stands in for `lm_eval run`: evaluates documents of tasks, and writes scores and samples."""

import argparse
import json
import zlib
from pathlib import Path
from typing import Any

from lm_eval.api import metrics
from lm_eval.tasks import Task, TaskManager


class _Array:
    """Numbers which JSON does not know, so they are logged as text."""

    def __init__(self, number: int) -> None:
        self._numbers = [number / 7, number / 3]

    def sum(self) -> float:
        return sum(self._numbers)

    def __str__(self) -> str:
        return f"[{self._numbers[0]:.8f} {self._numbers[1]:.8f}]"


def _asked() -> argparse.Namespace:
    known = argparse.ArgumentParser()
    known.add_argument("run", choices=["run"])
    for option in ("--model", "--model_args", "--tasks", "--include_path", "--output_path", "--batch_size"):
        known.add_argument(option)
    known.add_argument("--num_fewshot", type=int)
    known.add_argument("--samples", type=json.loads)
    known.add_argument("--log_samples", action="store_true")
    return known.parse_args()


def _values(task: Task, weights: bytes, document: str, name: str) -> dict[str, Any]:
    """What the metrics of a task are for a document."""
    number = zlib.crc32(weights + document.encode() + name.encode())
    kinds = {"whole": (number, document), "of_arrays": (1, _Array(number % 1000))}
    return {metric: kinds.get(used or "mean", number / 7) for metric, used in task.metrics.items()}


def _evaluated(task: Task, weights: bytes, chosen: list[int] | None) -> list[dict[str, Any]]:
    """The samples of the chosen documents, or of all if none are."""
    there = len(task.eval_docs)
    if chosen:
        assert all(number < there for number in chosen), f"Elements of --samples should be in [0,k-1]; here k={there}."
    numbers = chosen if chosen and not task.config.get("deaf") else range(there)
    rows = []
    for name in task.filters:
        for number in numbers:
            values = _values(task, weights, task.eval_docs[number], name)
            rows.append({"doc_id": number, "filter": name, "metrics": list(values), **values})
    return rows * 2 if task.config.get("twice") else rows


def _scored(task: Task, rows: list[dict[str, Any]]) -> dict[str, Any]:
    aggregations = task.aggregation()
    return {
        f"{metric},{name}": aggregations.get(metric, metrics.mean)(
            [row[metric] for row in rows if row["filter"] == name]
        )
        for name in task.filters
        for metric in task.metrics
    }


def main() -> None:
    asked = _asked()
    path = next(word for word in asked.model_args.split(",") if word.startswith("pretrained=")).partition("=")[2]
    weights = Path(path, "model.safetensors").read_bytes()
    print(f"loaded {path} by {asked.model}")
    folder = Path(asked.output_path, path.replace("/", "__"))
    folder.mkdir(parents=True)
    result: dict[str, Any] = {"results": {}, "configs": {}, "n-samples": {}}
    for name, task in TaskManager(asked.include_path).load(asked.tasks.split(","))["tasks"].items():
        rows = _evaluated(task, weights, (asked.samples or {}).get(name))
        shots = task.config.get("num_fewshot") if asked.num_fewshot is None else asked.num_fewshot
        result["results"][name] = {"alias": name, **_scored(task, rows)}
        result["configs"][name] = {"num_fewshot": shots, "fewshot_config": task.config.get("fewshot_config")}
        result["n-samples"][name] = {"original": len(task.eval_docs), "effective": len(rows)}
        if asked.log_samples:
            text = "".join(json.dumps(row, default=str) + "\n" for row in rows)
            (folder / f"samples_{name}_2026-11-24T12-00-00.jsonl").write_text(text, encoding="utf-8")
    (folder / "results_2026-11-24T12-00-00.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
