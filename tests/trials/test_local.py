"""Each worker of a machine has its share of the GPUs."""

import os
import sys
from pathlib import Path

import msgspec
import pytest

from logdoctor.trials.local import LocalPlace, visible_gpus
from logdoctor.trials.served import Server
from tests.trials.conftest import Trials, eval_set


@pytest.mark.parametrize(
    ("gpus", "visible", "workers", "shares"),
    [
        (1, "0,1,2", 3, ["0", "1", "2"]),
        (2, "0,1,2,3", 2, ["0,1", "2,3"]),
        (0.5, "4,5", 4, ["4", "4", "5", "5"]),
        (1, "GPU-a,GPU-b", 2, ["GPU-a", "GPU-b"]),
        (2, "0", 1, ["0"]),
    ],
)
def test_workers_share_the_gpus(
    trials: Trials, monkeypatch: pytest.MonkeyPatch, gpus: float, visible: str, workers: int, shares: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    trial = trials.trial(eval_set("a"), workers=0)
    place = LocalPlace(msgspec.structs.replace(trial, model=msgspec.structs.replace(trial.model, gpus=gpus)))
    assert place.workers == workers
    assert [place._share(number)["CUDA_VISIBLE_DEVICES"] for number in range(workers)] == shares


def test_a_worker_on_cores_has_none(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert visible_gpus() == ["0", "1"]
    assert LocalPlace(trials.trial(eval_set("a")))._share(0) == {}


def test_what_a_serving_command_prints_may_be_anything(tmp_path: Path) -> None:
    code = """input(); print('{"out": "a", "more": ' + '[' * 9000 + ']' * 9000 + '}'); print('{"out": "a"}')"""
    server = Server([sys.executable, "-c", code], tmp_path, dict(os.environb))
    try:
        assert server.ask("x", "a", 600) == ""
    finally:
        server.close()
