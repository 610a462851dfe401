"""The file that describes a trial: a model, the sets it is evaluated on, and its resources."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from logdoctor.errors import TrialError
from logdoctor.safe.plain_yaml import document
from logdoctor.trials.commands import INFER, SCORE, SERVE, words
from logdoctor.trials.types import EvalSet, Model

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of sets and judges, also used as file names."""
_MOST = 4 << 20  # bytes of a trial file
_PROMPT = "docs/trials.md has a whole trial file."

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class Judge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A judge that scoring commands ask, at most so many times a minute. Without a `url`, `{judge}` only tells them
    when they may go on."""

    name: str
    per_minute: Positive
    url: str = ""


class Sandbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of code that a model wrote, while it is scored: seconds, processor seconds and bytes of memory per process
    and for all together, bytes of a file and of all it writes, open files, and processes."""

    seconds: Positive = 1800.0
    cpu_seconds: Count = 600
    memory: Count = 8 << 30
    memory_of_all: Count = 32 << 30
    file: Count = 1 << 30
    disk: Count = 4 << 30
    files: Count = 1024
    processes: Count = 256


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A trial: a model and its sets. `workers` is their number, 0 for as many as fit. `serve` is a command that is
    started once per worker and makes the outputs of all its shards, for sets without `infer`. With `share_model` the
    checkpoint is copied once to each node, into the folder `memory` or, without room there, the folder `cache`.
    `{here}` in commands is the folder of the trial file. A shard may take `shard_seconds`, the scoring of a set
    `score_seconds`."""

    model: Model
    sets: tuple[EvalSet, ...]
    judges: tuple[Judge, ...] = ()
    workers: Annotated[int, msgspec.Meta(ge=0)] = 0
    serve: str = ""
    share_model: bool = True
    memory: str = "/dev/shm"
    cache: str = ""
    sandbox: Sandbox = Sandbox()
    here: str = ""
    shard_seconds: Positive = 12 * 3600.0
    score_seconds: Positive = 12 * 3600.0

    def set(self, name: str) -> EvalSet:
        """Return the set with this name; `KeyError` if there is none."""
        return {one.name: one for one in self.sets}[name]


def read_trial(path: Path) -> Trial:
    """Return the trial that a YAML file describes; `TrialError` names the wrong field. Relative paths of models and
    data sets are relative to the file's folder."""
    try:
        if path.stat().st_size > _MOST:
            raise TrialError(str(path), f"has more than {_MOST >> 20} MB", "Name a trial file.")
        text = path.read_text(encoding="utf-8")
        data = document(text)
    except OSError as error:
        raise TrialError(str(path), f"cannot be read ({error.strerror})", "Check the path.") from error
    except ValueError as error:
        said = " ".join(str(error).split())[:300]
        raise TrialError(str(path), f"is not YAML ({said})", _PROMPT) from error
    return _placed(made(data, str(path)), path.parent.resolve())


def made(data: Any, where: str) -> Trial:
    """Return the trial that data describe, checked; `TrialError` names the wrong field, and `where`."""
    try:
        _require_known(data)
        trial = msgspec.convert(data, Trial, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise TrialError(where, f"is no trial ({error})", _PROMPT) from error
    _check(trial, where)
    return trial


def _require_known(data: Any) -> None:
    """Refuse misspelt fields of the model and of sets, whose types others share."""
    if isinstance(data, dict):
        sets = data.get("sets")
        for at, kind, given in (
            ("model", Model, data.get("model")),
            *((f"sets[{n}]", EvalSet, one) for n, one in enumerate(sets if isinstance(sets, list) else ())),
        ):
            if isinstance(given, dict):
                if unknown := [str(name) for name in given if name not in kind.__struct_fields__]:
                    raise msgspec.ValidationError(f"Object contains unknown field `{unknown[0]}` - at `$.{at}`")
                if kind is EvalSet:
                    given.setdefault("infer", "")  # for when a command serves all sets


def _check(trial: Trial, where: str) -> None:
    if not trial.sets:
        raise TrialError(where, "has no sets", "Name at least one in `sets`.")
    _check_names(where, "set", [one.name for one in trial.sets])
    _check_names(where, "judge", [one.name for one in trial.judges])
    model = trial.model
    if not model.path or not model.name or model.gpus < 0 or (model.billions is not None and model.billions <= 0):
        raise TrialError(f"{where}: model", "has an empty path or name, or a number below 0", "Correct it.")
    if trial.serve:
        words(f"{where}: serve", trial.serve, SERVE)
    judges = {one.name for one in trial.judges}
    for one in trial.sets:
        _check_set(f"{where}: set {one.name}", one, judges, bool(trial.serve))
    for judge in trial.judges:
        if judge.url and not judge.url.startswith(("http://", "https://")):
            raise TrialError(f"{where}: judge {judge.name}", "has no http or https URL", "Correct `url`.")


def _check_set(where: str, one: EvalSet, judges: set[str], served: bool) -> None:
    if one.samples < 1 or (one.tokens is not None and one.tokens < 0):
        raise TrialError(where, "has no samples", "Give the number of its samples.")
    if one.infer or not served:
        split = ("start", "end") if one.splittable else ()
        words(f"{where}: infer", one.infer, INFER, ("out", *split))
    asks = {"judge"} if one.judge is not None else set()
    words(f"{where}: score", one.score, (SCORE - {"judge"}) | asks, ("outputs", "out", *asks))
    if one.judge is not None and one.judge not in judges:
        raise TrialError(where, f"asks the judge {one.judge!r}, which is not in `judges`", "Add it there.")
    if one.judge is not None and one.runs_code:
        cause = "runs code of the model and asks a judge, but that code is kept from the network"
        raise TrialError(where, cause, "Make two sets of it.")


def _check_names(where: str, what: str, names: Sequence[str]) -> None:
    for name in names:
        if not NAME.fullmatch(name):
            step = "Use up to 100 letters, digits, dots, dashes and underscores."
            raise TrialError(f"{where}: {what} {name[:100]!r}", "is no name", step)
        if names.count(name) > 1:
            raise TrialError(f"{where}: {what} {name}", "is there twice", "Rename one.")


def _placed(trial: Trial, folder: Path) -> Trial:
    def path(given: str) -> str:
        return str(folder / given) if given else ""

    model = msgspec.structs.replace(trial.model, path=path(trial.model.path))
    sets = tuple(msgspec.structs.replace(one, dataset=_dataset(one.dataset, folder)) for one in trial.sets)
    return msgspec.structs.replace(trial, model=model, sets=sets, cache=path(trial.cache), here=str(folder))


def _dataset(given: str, folder: Path) -> str:
    """Return the path of a data set; what is no file here is a name for the harness."""
    return str(folder / given) if given and (folder / given).exists() else given
