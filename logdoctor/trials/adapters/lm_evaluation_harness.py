"""lm-evaluation-harness by shards: infers a range of a task's documents, and scores all of them together.

    python {adapters}/lm_evaluation_harness.py infer {model} {dataset} {start} {end} {out} [OPTIONS]
    python {adapters}/lm_evaluation_harness.py score {dataset} {outputs} {out} [OPTIONS]

The data set is the name of a task. OPTIONS are those of `lm_eval run`; `--include_path` is for both, and `--limit N`
for `score`, where the set is the first N documents of the task. Its logged samples are the outputs. They are scored by
the task's own aggregation over all of them: BLEU and perplexity are no sums. Random examples in prompts depend on how a
task is split, so parts of such a task are refused: use `splittable: false`, or a sampler that draws none
(`fewshot_config: {sampler: first_n}`).
"""

import argparse
import importlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from numbers import Real
from typing import Any


class Refused(Exception):
    """A request that cannot be done: the thing and the cause, on one line."""


def infer(model: str, task: str, start: int, end: int, out: str, options: list[str]) -> int:
    """Write the samples that the harness logs for documents `start` up to `end`; return its exit code."""
    if not 0 <= start < end:
        raise Refused(f"there are no documents of {task} from {start} up to {end}")
    if importlib.util.find_spec("lm_eval") is None:
        raise Refused(_missing("lm_eval"))
    with tempfile.TemporaryDirectory() as folder:
        code = _evaluate(model, task, start, end, folder, options)
        if code:
            return code
        rows = _logged(folder, task, start, end)
    with open(out, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return 0


def score(task: str, outputs: str, out: str, options: list[str]) -> None:
    """Write the metrics of a task, by its own aggregation over all samples."""
    known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    known.add_argument("--include_path")
    known.add_argument("--limit", type=int)
    asked = known.parse_known_args(options)[0]
    loaded = _task(task, asked.include_path)
    there = len(loaded.eval_docs)
    documents = there if asked.limit is None else min(asked.limit, there)
    rows = _each_once(_rows(outputs), task, 0, documents)
    scores = _scores(task, loaded.aggregation(), rows)
    with open(out, "w", encoding="utf-8") as file:
        json.dump(scores, file)


def _evaluate(model: str, task: str, start: int, end: int, folder: str, options: list[str]) -> int:
    """Run the harness on documents, logging into a folder; return its exit code."""
    chosen = json.dumps({task: list(range(start, end))})
    loads = [] if "--model" in options else ["--model", "hf"]
    given = [] if "--model_args" in options else ["--model_args", f"pretrained={model}"]
    command = [sys.executable, "-m", "lm_eval", "run", *loads, *given, "--tasks", task, "--samples", chosen]
    command += ["--log_samples", "--output_path", folder, *options]
    return subprocess.run(command, stdin=subprocess.DEVNULL).returncode


def _logged(folder: str, task: str, start: int, end: int) -> list[Any]:
    """Return the logged samples; `Refused` unless they are those of the documents, as in an unsplit run."""
    names = sorted(os.path.join(root, name) for root, _, files in os.walk(folder) for name in files)
    results = [path for path in names if os.path.basename(path).startswith("results_")]
    if len(results) != 1:
        raise Refused(f"lm_eval wrote {len(results)} files of results for {task}")
    with open(results[0], encoding="utf-8") as file:
        result = json.load(file)
    if set(result["configs"]) != {task}:
        raise Refused(f"{task} is no task, but stands for {', '.join(sorted(result['configs']))}: each is a set")
    drawn = _draws(result["configs"][task])
    if drawn and end - start < result["n-samples"][task]["original"]:
        raise Refused(f"{task} draws examples (sampler {drawn}), which depend on the split: set `splittable: false`")
    rows = [row for path in names if os.path.basename(path).startswith("samples_") for row in _rows(path)]
    return _each_once(rows, task, start, end)


def _draws(config: Any) -> str | None:
    """Return the sampler that draws a task's examples at random, if there is one."""
    sampler = str((config.get("fewshot_config") or {}).get("sampler", "default"))
    return sampler if (config.get("num_fewshot") or 0) > 0 and sampler != "first_n" else None


def _task(task: str, include_path: str | None) -> Any:
    """Return a task of the harness."""
    manager = _part("lm_eval.tasks").TaskManager(include_path=include_path)
    if task not in manager.all_subtasks:
        what = "is no task, but stands for several" if task in manager.all_tasks else "is not known to lm_eval"
        raise Refused(f"{task} {what}: name a task; those of your own need --include_path")
    return manager.load([task])["tasks"][task]


def _each_once(rows: list[Any], task: str, start: int, end: int) -> list[Any]:
    """Return samples in the order of their documents; `Refused` unless each is there once per filter."""
    what = f"of the documents of {task} from {start} up to {end}"
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["filter"], []).append(row["doc_id"])
    for name, numbers in found.items() or [("none", [])]:
        known = set(numbers)
        lacking = next((number for number in range(start, end) if number not in known), None)
        if lacking is not None:
            raise Refused(f"{what}, {lacking} has no sample (filter {name})")
        if len(numbers) != end - start:
            raise Refused(f"{what}, which are {end - start}, there are {len(numbers)} samples (filter {name})")
    return sorted(rows, key=lambda row: (row["doc_id"], row["filter"]))


def _scores(task: str, aggregations: Any, rows: list[Any]) -> dict[str, float]:
    """Return the metrics for each filter, aggregated over samples in order."""
    values: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        for metric in row["metrics"]:
            values.setdefault((metric, row["filter"]), []).append(row[metric])
    mean = _part("lm_eval.api.metrics").mean  # the harness's default aggregation
    scores = {
        f"{metric},{name}": _aggregated(task, metric, aggregations.get(metric, mean), found)
        for (metric, name), found in values.items()
    }
    numbers = {name: score for name, score in scores.items() if math.isfinite(score)}
    if not numbers:
        raise Refused(f"the metrics of {task} are no numbers: {scores}")
    return numbers


def _aggregated(task: str, metric: str, aggregation: Any, values: list[Any]) -> float:
    """Return the score of values; `Refused` for arrays, which lm_eval logs as text."""
    try:
        value = aggregation(values)
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as error:
        like = f"{values[0]!r:.200}: {' '.join(str(error).split())}"
        raise Refused(f"{metric} of {task} cannot be scored from logged samples like {like}") from error
    if isinstance(value, bool) or not isinstance(value, Real):
        raise Refused(f"{metric} of {task} is no number: {value!r:.300}")
    return float(value)


def _part(module: str) -> Any:
    """Return a module of the harness's environment."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = _missing(error.name)
        raise Refused(missing if error.name == "lm_eval" else f"lm_eval cannot start: {missing}") from error


def _missing(name: str | None) -> str:
    return f"{name} is not installed for {sys.executable}"


def _rows(path: str) -> list[Any]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main(arguments: list[str]) -> int:
    """Run a command; return the exit code."""
    try:
        match arguments:
            case ["infer", model, task, start, end, out, *options]:
                return infer(model, task, int(start), int(end), out, options)
            case ["score", task, outputs, out, *options]:
                score(task, outputs, out, options)
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
