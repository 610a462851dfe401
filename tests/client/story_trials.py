"""A trial beside a real service: what failed in it is diagnosed there, its scores are curves of the job."""

from pathlib import Path

from tests import waiting
from tests.test_cli import program
from tests.trials.conftest import Trials, eval_set, trials
from tests.web.conftest import running_in

__all__ = ["trials"]  # a fixture


def test_scores_and_failures_of_a_trial_are_with_its_job(trials: Trials, tmp_path: Path) -> None:
    file = trials.file(eval_set("a"), eval_set("b", "bad-0", splittable=False))
    with running_in(tmp_path / "data", LOGDOCTOR_AUTH="on") as running:
        admin = running.start_with_token()
        secret = running.command("tokens", "create", "slurm", "--scope", "ingest").strip()
        place = {"LOGDOCTOR_URL": running.url, "LOGDOCTOR_TOKEN": secret, "LOGDOCTOR_DATA_DIR": str(tmp_path / "mine")}
        out = str(trials.folder / "out")
        done = program("trials", "run", file, "--out", out, "--job", "llama", **place)
        assert done.code == 1, done.err
        told = running.client.get("/v1/jobs/llama/scores", headers=admin).json()["scores"]
        assert {(one["step"], one["set"], one["metric"]) for one in told} == {
            (100, "a", name) for name in ("ordered", "whole", "samples")
        }
        waiting.until(lambda: len(running.client.get("/v1/jobs/llama/run", headers=admin).json()["attempts"]) == 3)

        def reasons() -> set[str]:
            return {one["reason"] for one in running.client.get("/v1/jobs/llama/run", headers=admin).json()["attempts"]}

        waiting.until(lambda: reasons() == {"Out of Memory Error"})
        running.stop()
        away = program("trials", "resume", out, "--job", "llama", **place)
        assert away.code == 1 and "The scores are not entered into the service" in away.err
        assert "Traceback" not in away.err
