"""What cannot be said to a trial."""

from collections.abc import Callable

import pytest

from tests.test_cli import Ran, run
from tests.trials.conftest import Trials, eval_set, trials

__all__ = ["run", "trials"]  # fixtures


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "trial.yaml", "--out", "out", "--step", "3"], "--step is of another --checkpoint"),
        (["run", "trial.yaml", "--out", "out", "--ray", "auto", "--slurm"], "--ray and --slurm cannot be combined"),
        (["run", "trial.yaml", "--out", "out", "--slurm", "--slurm-option", "x"], "is not NAME=VALUE"),
        (["status", "."], "holds no trial"),
        (["resume", "."], "holds no trial"),
    ],
)
def test_what_cannot_be_is_said(
    trials: Trials, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    trials.file(eval_set("a"))
    monkeypatch.chdir(trials.folder)
    ran = run("trials", *arguments)
    assert ran.code == 2 and said in ran.err, ran.err
