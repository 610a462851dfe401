"""A job that runs is ended for a hang or a bad loss, by real watchers."""

import os
from pathlib import Path

from logdoctor.job.recovery.contract import ASK
from logdoctor.job.recovery.watching import LocalLook
from logdoctor.job.send.copy import OutputCopy
from tests import waiting
from tests.diagnose.logs import steps
from tests.recovery.conftest import Job


def test_a_growing_copy_is_judged_here(tmp_path: Path) -> None:
    copy = OutputCopy(str(tmp_path), 1 << 20)
    look = LocalLook(str(tmp_path))
    copy.append(steps(0, 60).encode())
    assert look() is None
    copy.append(steps(60, 80, lambda step: 50.0).encode())
    verdict = waiting.until(look)
    assert verdict is not None
    assert (verdict["reason"], verdict["onset_step"]) == ("Loss Spike", 60)


def test_a_bad_loss_ends_the_job_while_it_runs(job: Job) -> None:
    """No checkpoint is known, so a person chooses one."""
    assert job.run([{"steps": [0, 80], "spike": [80, 120], "hang": True}], "--end-on", "loss-spike") == ASK
    (ended,) = job.events("ended")
    assert (ended["judged"]["reason"], ended["judged"]["onset"]) == ("Loss Spike", 80)
    assert job.decisions == ["ask"] and "no checkpoint is known to be older" in job.err
    assert "its verdict is Loss Spike: it is ended." in job.err


def test_a_job_whose_pauses_are_not_known_hangs_after_the_longer_limit(alone: Job) -> None:
    alone.environment |= {"LOGDOCTOR_HANG_LEAST_SECONDS": "1", "LOGDOCTOR_HANG_SECONDS": "2"}
    assert alone.run([{"steps": [0, 5], "hang": True}, {}], "--end-on", "hang") == 0
    assert [event["judged"] and event["judged"]["reason"] for event in alone.events("ended")] == ["Hang", None]


def test_a_silence_after_the_same_step_ends_it_for_a_person_the_third_time_whatever_was_saved(alone: Job) -> None:
    alone.environment |= {"LOGDOCTOR_HANG_LEAST_SECONDS": "1", "LOGDOCTOR_HANG_SECONDS": "3"}
    plan = [{"steps": [0, 5], "save": {"step": number}, "hang": True} for number in range(1, 6)]
    options = "--end-on", "hang", "--checkpoints", str(alone.folder / "ckpt")
    assert alone.run(plan, *options, module="tests.recovery.catalogue") == ASK
    assert [event["saved"] for event in alone.events("ended")] == [1, 2, 3]
    assert alone.decisions == ["restart", "restart", "ask"] and "raise LOGDOCTOR_HANG_SECONDS" in alone.err
    first, _, third = (event["seconds"] for event in alone.events("ended"))
    assert third > first + 4


def test_a_hang_of_a_gpu_that_is_lost_is_judged_by_what_its_node_tells(alone: Job) -> None:
    lost = "Unable to determine the device handle for GPU0: 0000:17:00.0: GPU is lost."
    (alone.folder / "nvidia-smi").write_text(f"#!/bin/sh\necho '{lost}'; exit 15\n")
    (alone.folder / "nvidia-smi").chmod(0o755)
    alone.environment |= {"LOGDOCTOR_HANG_LEAST_SECONDS": "1", "LOGDOCTOR_HANG_SECONDS": "2"}
    alone.environment |= {"LOGDOCTOR_WITNESS_SECONDS": "60", "PATH": f"{alone.folder}:{alone.environment['PATH']}"}
    assert alone.run([{"steps": [0, 5], "hang": True}], "--end-on", "hang") == ASK
    (ended,) = alone.events("ended")
    assert (ended["judged"]["reason"], ended["judged"]["nodes"]) == ("CUDA Error", [os.uname().nodename])
    assert "its verdict is Hang: it is ended." in alone.err and "The verdict is CUDA Error" in alone.err
