"""Trial files are read strictly."""

from typing import Any

import pytest

from logdoctor.errors import TrialError
from logdoctor.trials.commands import INFER, filled, words
from logdoctor.trials.trial_file import read_trial
from tests.trials.conftest import Trials, eval_set


def test_paths_are_relative_to_the_file(trials: Trials) -> None:
    (trials.folder / "set.jsonl").touch()
    trial = trials.trial(eval_set("a", "set.jsonl"), eval_set("b", "hub/name"))
    assert trial.model.path == str(trials.folder / "checkpoint")
    assert [one.dataset for one in trial.sets] == [str(trials.folder / "set.jsonl"), "hub/name"]
    assert trial.here == str(trials.folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"infer": "run {start} {end} {out"}, r"set a: infer does not name \{out\}"),
        ({"infer": "run {model} {start} {out}"}, r"does not name \{end\}"),
        (
            {"infer": "run {modell} {start} {end} {out}"},
            r"names \{modell\}, which is not known. There are \{adapters\}, \{dataset\}",
        ),
        ({"infer": "run 'unclosed {start} {end} {out}"}, "cannot be split into words"),
        ({"infer": ""}, "set a: infer is empty"),
        ({"score": "score {outputs}"}, r"set a: score does not name \{out\}"),
        ({"score": "score {outputs} {out} {judge}"}, r"names \{judge\}"),
        ({"judge": "gpt", "score": "s {outputs} {out} {judge}"}, "asks the judge 'gpt', which is not in `judges`"),
        ({"samples": 0}, "has no samples"),
        ({"samples": "many"}, r"Expected `int`, got `str` - at `\$.sets\[0\].samples`"),
        ({"smaples": 3}, r"unknown field `smaples` - at `\$.sets\[0\]`"),
        ({"name": "../a"}, "set '../a' is no name"),
    ],
)
def test_a_wrong_set_is_refused_with_its_field(trials: Trials, change: dict[str, Any], said: str) -> None:
    with pytest.raises(TrialError, match=said):
        trials.trial(eval_set("a") | change)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sets": []}, "has no sets"),
        ({"sets": [eval_set("a"), eval_set("a")]}, "set a is there twice"),
        ({"model": {"path": "x", "name": "y", "gpu": 1}}, r"unknown field `gpu` - at `\$.model`"),
        ({"model": {"path": "x", "name": "y", "gpus": -1}}, "below 0"),
        ({"worker": 2}, "unknown field `worker`"),
        ({"judges": [{"name": "a", "per_minute": 0}]}, "per_minute"),
        ({"judges": [{"name": "a", "per_minute": 1, "url": "file:///etc"}]}, "no http or https URL"),
        ({"sandbox": {"memroy": 1}}, "memroy"),
    ],
)
def test_a_wrong_trial_is_refused_with_its_field(trials: Trials, more: dict[str, Any], said: str) -> None:
    with pytest.raises(TrialError, match=said):
        trials.trial(eval_set("a"), **more)


def test_what_is_no_yaml_is_refused(trials: Trials) -> None:
    for text, said in (
        ("{", "is not YAML"),
        ("[]", "Expected `object`"),
        ("!!python/object/apply:os.system [ls]", "is not YAML"),
    ):
        path = trials.folder / "trial.yaml"
        path.write_text(text)
        with pytest.raises(TrialError, match=said):
            read_trial(path)
    with pytest.raises(TrialError, match="cannot be read"):
        read_trial(trials.folder / "absent.yaml")


def test_values_are_words_whatever_is_in_them() -> None:
    template = words("infer", "run '{model} x' --args={\"a\":1} {out}", INFER)
    values = {"model": "/a b/{out}; rm -rf $HOME", "out": "/out"}
    assert filled(template, values) == ["run", "/a b/{out}; rm -rf $HOME x", "--args={a:1}", "/out"]
