"""What a trial cannot have of Slurm is said before anything is submitted."""

import sys
from pathlib import Path

import msgspec
import pytest

from logdoctor.errors import TrialError
from logdoctor.wiring.slurm_trials import SlurmPlace
from tests.trials.conftest import Trials, eval_set, trials

__all__ = ["trials"]  # a fixture


def test_what_slurm_cannot_do_is_said_before(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = trials.trial(eval_set("a"), workers=1)
    half = msgspec.structs.replace(trial, model=msgspec.structs.replace(trial.model, gpus=0.5))
    with pytest.raises(TrialError, match="Slurm gives whole ones"):
        SlurmPlace(trials.folder / "slurm", half, 1, {})
    with pytest.raises(TrialError, match="does not say how many workers"):
        SlurmPlace(trials.folder / "slurm", msgspec.structs.replace(trial, workers=0), 0, {})
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    with pytest.raises(TrialError, match="there is no sbatch here"):
        SlurmPlace(trials.folder / "slurm", trial, 1, {})
