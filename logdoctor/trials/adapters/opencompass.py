"""OpenCompass by shards: infers a range of a data set's samples, and scores all of them together.

    python {adapters}/opencompass.py infer {model} {dataset} {start} {end} {out} [OPTIONS]
    python {adapters}/opencompass.py score {dataset} {outputs} {out} [OPTIONS]

OPTIONS are those of `opencompass` for what is evaluated and how the model runs: a config file, or `--datasets`,
`--hf-type`, `--max-out-len` and so on; both commands need the same. The data set is its `abbr` there; or, without a
config among the options, a config with one data set: a file (.py, .jsonl, .csv), or a name as for `--datasets`.
`{model}` becomes the path of the config's model. Shards are ranges of the samples that the config's `test_range`
leaves. Their predictions are the outputs, and the data set's own evaluator scores all of them: BLEU is no sum.
"""

import importlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

_OF_ALL = ("MDLRetriever", "RandomRetriever", "SlidingWindowRetriever", "VotekRetriever")
"""Retrievers whose examples for a sample depend on the samples before it."""


class Refused(Exception):
    """A request that cannot be done: the thing and the cause, on one line."""


def infer(model: str, name: str, start: int, end: int, out: str, options: list[str]) -> None:
    """Write OpenCompass's predictions for the samples from `start` up to `end`."""
    asked, settings, dataset = _chosen(model, name, options)
    samples = _samples(name, dataset)
    if not 0 <= start < end <= samples:
        raise Refused(f"{name} has {samples} samples: there are none from {start} up to {end}")
    retriever = _last(dataset["infer_cfg"]["retriever"]["type"])
    if end - start < samples and retriever in _OF_ALL:
        raise Refused(f"{name} takes examples by {retriever}, which depend on the split: set `splittable: false`")
    dataset["reader_cfg"]["test_range"] = f"{_test_range(name, dataset)}[{start}:{end}]"
    with tempfile.TemporaryDirectory() as folder:
        task = _task(folder, asked, settings, dataset)
        _part("opencompass.tasks").OpenICLInferTask(task).run()
        made = _read(_place(folder, "predictions", settings, dataset))
    if set(made) != {str(number) for number in range(end - start)}:
        raise Refused(f"OpenCompass made {len(made)} predictions for the samples of {name} from {start} up to {end}")
    with open(out, "w", encoding="utf-8") as file:
        for number in range(end - start):
            file.write(json.dumps({"sample": start + number, "made": made[str(number)]}) + "\n")


def score(name: str, outputs: str, out: str, options: list[str]) -> None:
    """Write the metrics of a data set, by its own evaluator over all predictions."""
    asked, settings, dataset = _chosen("checkpoint", name, options)  # no such model is loaded
    made = _all_of(outputs, _samples(name, dataset), name)
    with tempfile.TemporaryDirectory() as folder:
        task = _task(folder, asked, settings, dataset)
        predictions = _place(folder, "predictions", settings, dataset)
        os.makedirs(os.path.dirname(predictions))
        _write(predictions, {str(number): one for number, one in enumerate(made)})
        _part("opencompass.tasks").OpenICLEvalTask(task).run()
        result = _read(_place(folder, "results", settings, dataset))
    metrics = dict(_numbers(result))
    if not metrics:
        raise Refused(f"the evaluator of {name} gave no number: {json.dumps(result)[:300]}")
    _write(out, metrics)


def _chosen(model: str, name: str, options: list[str]) -> tuple[Any, Any, Any]:
    """Return OpenCompass's parsed options, its settings of the model, and those of the data set."""
    asked = _asked([*options, "--hf-path", model])  # used if neither a config nor an option has a model
    is_within = bool(asked.config or asked.datasets or asked.custom_dataset_path)
    if not is_within:
        asked = _asked([*_as_options(name), *options, "--hf-path", model])
    try:
        config = _part("opencompass.utils.run").get_config_from_arg(asked)
    except (OSError, ValueError) as error:
        where = "its options" if is_within else name
        raise Refused(f"OpenCompass finds nothing to evaluate by {where}: {' '.join(str(error).split())}") from error
    models = config.get("models", [])
    if len(models) != 1:
        raise Refused(f"the config of {name} has {len(models)} models: it must have one, which gets the path {model}")
    models[0]["path"] = model
    return asked, models[0], _dataset(config.get("datasets", []), name if is_within else None, name)


def _asked(options: list[str]) -> Any:
    sys.argv = ["opencompass", *options]
    return _part("opencompass.cli.main").parse_args()


def _as_options(name: str) -> list[str]:
    """Return the options that name a config to `opencompass`."""
    if name.endswith((".jsonl", ".csv")):
        return ["--custom-dataset-path", name]
    return [name] if name.endswith(".py") else ["--datasets", name]


def _dataset(datasets: Any, abbr: str | None, name: str) -> Any:
    """Return the data set with this `abbr`, or, without one, the only data set."""
    abbr_of = _part("opencompass.utils").dataset_abbr_from_cfg
    found = [one for one in datasets if abbr is None or abbr_of(one) == abbr]
    if len(found) == 1:
        return found[0]
    known = ", ".join(abbr_of(one) for one in datasets) or "none"
    if abbr is not None:
        raise Refused(f"{len(found)} data sets have the abbr {abbr}; the config has {known}")
    raise Refused(f"{name} has {len(found)} data sets, so name one, and the config as an option; it has {known}")


def _samples(name: str, dataset: Any) -> int:
    """Return how many samples of a data set the config leaves."""
    _test_range(name, dataset)
    return len(_part("opencompass.utils").build_dataset_from_cfg(dataset).test)


def _test_range(name: str, dataset: Any) -> str:
    """Return the config's slices of a data set, to which another can be appended."""
    found = dataset["reader_cfg"].get("test_range") or ""
    if not isinstance(found, str):
        raise Refused(f"test_range={found} draws samples of {name}, and leaves no shards: take a slice like '[:100]'")
    return found


def _task(folder: str, asked: Any, settings: Any, dataset: Any) -> Any:
    """Return the config of a task, written and read back as `opencompass` does: tasks want names for types."""
    config = _part("mmengine.config").Config
    details = {"dump_details": asked.dump_eval_details, "cal_extract_rate": asked.dump_extract_rate}
    whole = {"models": [settings], "datasets": [[dataset]], "work_dir": folder, "eval": {"runner": {"task": details}}}
    path = os.path.join(folder, "config.py")
    config(whole, format_python_code=False).dump(path)
    return config.fromfile(path, format_python_code=False)


def _place(folder: str, kind: str, settings: Any, dataset: Any) -> str:
    path: str = _part("opencompass.utils").get_infer_output_path(settings, dataset, os.path.join(folder, kind))
    return path


def _all_of(outputs: str, samples: int, name: str) -> list[Any]:
    """Return the predictions in the order of their samples; `Refused` unless each is there once."""
    with open(outputs, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    made = {row["sample"]: row["made"] for row in rows}
    lacking = next((number for number in range(samples) if number not in made), None)
    if lacking is not None:
        raise Refused(f"of the {samples} samples of {name}, sample {lacking} has no prediction")
    if len(rows) != samples:
        raise Refused(f"{name} has {samples} samples, the outputs have {len(rows)} predictions")
    return [made[number] for number in range(samples)]


def _numbers(result: Any, before: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a result, nested ones under joined names; no lists, and nothing of single samples."""
    for key, value in result.items():
        if isinstance(value, dict) and key != "details":
            yield from _numbers(value, f"{before}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{before}{key}", float(value)


def _last(kind: Any) -> str:
    """Return the last part of a class name, given as a class or as text."""
    return str(getattr(kind, "__name__", kind)).rpartition(".")[2]


def _part(module: str) -> Any:
    """Return a module of OpenCompass's environment."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed for {sys.executable}"
        raise Refused(missing if error.name == "opencompass" else f"OpenCompass cannot start: {missing}") from error


def _read(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _write(path: str, value: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def main(arguments: list[str]) -> int:
    """Run a command; return the exit code."""
    try:
        match arguments:
            case ["infer", model, name, start, end, out, *options]:
                infer(model, name, int(start), int(end), out, options)
            case ["score", name, outputs, out, *options]:
                score(name, outputs, out, options)
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))  # else `opencompass` would be this file
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != folder]
    sys.exit(main(sys.argv[1:]))
