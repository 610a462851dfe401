"""lm-evaluation-harness by shards: a task's documents from one up to another, and the scores of all of them together.

    python {adapters}/lm_evaluation_harness.py infer {model} {dataset} {start} {end} {out} [OPTIONS]
    python {adapters}/lm_evaluation_harness.py score {dataset} {outputs} {out} [OPTIONS]

The data set is the name of a task. OPTIONS are those of `lm_eval run`; `--include_path` is for both. The samples that
it logs are the outputs. They are scored by the task's own aggregation over all of them: BLEU and perplexity are no
sums. Examples that a task draws at random for its prompts depend on how it is split: take `splittable: false` for such
tasks, or a sampler that draws none (`fewshot_config: {sampler: first_n}`).
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from typing import Any


def infer(model: str, task: str, start: int, end: int, out: str, options: list[str]) -> int:
    """Write what the harness logs of the documents from `start` up to `end`; return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = json.dumps({task: list(range(start, end))})
        loads = [] if "--model" in options else ["--model", "hf"]
        given = [] if "--model_args" in options else ["--model_args", f"pretrained={model}"]
        command = [sys.executable, "-m", "lm_eval", "run", *loads, *given, "--tasks", task, "--samples", chosen]
        done = subprocess.run([*command, "--log_samples", "--output_path", folder, *options], stdin=subprocess.DEVNULL)
        if done.returncode:
            return done.returncode
        names = [os.path.join(root, name) for root, _, files in os.walk(folder) for name in files]
        rows = [row for path in sorted(names) if os.path.basename(path).startswith("samples_") for row in _rows(path)]
        found = {row["doc_id"] for row in rows}
        if found != set(range(start, end)):
            print(f"lm_eval logged {len(found)} of the documents {start} to {end} of {task}", file=sys.stderr)
            return 1
        rows.sort(key=lambda row: (row["doc_id"], row["filter"]))
        with open(out, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return 0


def score(task: str, outputs: str, out: str, options: list[str]) -> int:
    """Write the metrics of a task by its own aggregation over all samples."""
    tasks = importlib.import_module("lm_eval.tasks")  # of the environment of the harness
    known = argparse.ArgumentParser()
    known.add_argument("--include_path")
    loaded = tasks.TaskManager(include_path=known.parse_known_args(options)[0].include_path).load([task])
    aggregations = loaded["tasks"][task].aggregation()
    values: dict[tuple[str, str], list[Any]] = {}
    for row in _rows(outputs):
        for metric in row["metrics"]:
            values.setdefault((metric, row["filter"]), []).append(row[metric])
    scores = {f"{metric},{name}": float(aggregations[metric](found)) for (metric, name), found in values.items()}
    with open(out, "w", encoding="utf-8") as file:
        json.dump(scores, file)
    return 0


def _rows(path: str) -> list[Any]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main(arguments: list[str]) -> int:
    """Do what is asked; return the exit code."""
    match arguments:
        case ["infer", model, task, start, end, out, *options]:
            return infer(model, task, int(start), int(end), out, options)
        case ["score", task, outputs, out, *options]:
            return score(task, outputs, out, options)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
