"""The options of a supervisor: what cannot be used is said, and starts nothing."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from logdoctor.errors import SendError
from logdoctor.job.recovery import __main__ as program
from logdoctor.job.send.environment import read_environment
from logdoctor.job.send.notices import ShippingNotices


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for what is known of jobs, in an environment without anything else."""
    for name in os.environ:
        if name.startswith(("LOGDOCTOR_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LOGDOCTOR_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--restart", "--resume-arg", "--load x"), "does not contain {checkpoint}"),
        (("--restart", "--skip-arg", "'{ranges}"), "cannot be read"),
        (("--restart", "--attempt", "3"), "does not go with --restart"),
        (("--restart", "--restart-by", "slurm"), "not in a batch script"),
        (("--restart", "--stacks", "gdb"), "Choose of faulthandler, py-spy, flight-recorder."),
        (("--max-restarts", "3"), "--max-restarts needs --restart"),
    ],
)
def test_options_that_cannot_be_used_start_nothing(
    options: tuple[str, ...], told: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["run", "--job", "j", *options, "--", "false"]) == 2
    assert told in capsys.readouterr().err and not state.exists()


def test_it_does_not_supervise_the_tasks_of_a_step(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert program.main(["run", "--job", "j", "--restart", "--", "false"]) == 2
    assert "Put it around srun" in capsys.readouterr().err and not state.exists()


def watcher(state: Path, *options: str, stacks: tuple[str, ...] = ()) -> Callable[[str], int] | None:
    """What watches an attempt of a supervisor with these options."""
    given, environment = program.options_of(["run", "--restart", *options]), read_environment({})
    target = program.target_of(given, environment, ["false"])
    asked = program._Asked(given, ["false"], environment, target)
    return program._watch(asked, str(state), None, ShippingNotices(), stacks)


def test_nothing_is_ended_unless_that_was_asked_for(state: Path) -> None:
    assert watcher(state) is None
    assert watcher(state, "--end-on", "hang, loss-spike") is not None


def test_reasons_that_are_none_are_refused(state: Path) -> None:
    with pytest.raises(SendError, match="--end-on 'boredom' is no such reason"):
        watcher(state, "--end-on", "boredom")
    for options in ((), ("--end-on", "loss-spike")):
        with pytest.raises(SendError, match="--stacks is for jobs that hang"):
            watcher(state, *options, stacks=("py-spy",))
