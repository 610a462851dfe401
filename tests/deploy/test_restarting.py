"""The sbatch file and the JobSet by which jobs are started again say what the program and its contract know."""

import re
import subprocess
from typing import Any

import kubernetes.client
import pydantic
import pytest
import yaml

from logdoctor.cli.runs import runs_show
from logdoctor.job.recovery import contract
from logdoctor.job.recovery.__main__ import options_of
from tests.deploy.files import DEPLOY, ROOT

SBATCH = DEPLOY / "slurm" / "train.sbatch"
JOBSET: dict[str, Any] = yaml.safe_load((DEPLOY / "jobset" / "train.yaml").read_text())
JOBS: dict[str, dict[str, Any]] = {one["name"]: one["template"]["spec"] for one in JOBSET["spec"]["replicatedJobs"]}
FIELDS = {
    "spec": {"network", "successPolicy", "failurePolicy", "replicatedJobs"},
    "failurePolicy": {"maxRestarts", "restartStrategy", "rules"},
    "rule": {"name", "action", "onJobFailureReasons", "targetReplicatedJobs"},
}
"""Of JobSet v1alpha2, those in use."""
ACTIONS = {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"}
REASONS = {"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"}


@pytest.mark.parametrize("name", JOBS)
def test_its_jobs_are_what_kubernetes_takes(name: str) -> None:
    kubernetes.client.V1JobSpec.model_validate(JOBS[name])
    with pytest.raises(pydantic.ValidationError):
        kubernetes.client.V1JobSpec.model_validate(JOBS[name] | {"backoffLimits": 0})


def test_its_own_fields_are_those_of_jobset() -> None:
    spec = JOBSET["spec"]
    assert JOBSET["apiVersion"] == "jobset.x-k8s.io/v1alpha2" and JOBSET["kind"] == "JobSet"
    assert spec.keys() <= FIELDS["spec"] and spec["failurePolicy"].keys() <= FIELDS["failurePolicy"]
    for rule in spec["failurePolicy"]["rules"]:
        assert rule.keys() <= FIELDS["rule"] and rule["action"] in ACTIONS
        assert set(rule["onJobFailureReasons"]) <= REASONS and set(rule["targetReplicatedJobs"]) <= JOBS.keys()
        assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])


def test_exit_codes_lead_to_what_the_contract_says() -> None:
    """A job fails for good with the codes that no restart helps; with all others it is started again."""
    (rule,) = JOBS["leader"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert set(rule["onExitCodes"]["values"]) == {2, contract.FIX_FIRST, contract.ASK}
    actions = {rule["onJobFailureReasons"][0]: rule["action"] for rule in JOBSET["spec"]["failurePolicy"]["rules"]}
    assert actions == {"PodFailurePolicy": "FailJobSet", "BackoffLimitExceeded": "RestartJobSet"}
    assert JOBS["leader"]["backoffLimit"] == 0
    workers = JOBS["workers"]["podFailurePolicy"]["rules"]
    assert {rule["action"] for rule in workers} == {"Ignore"}  # they do not decide


def test_all_pods_send_to_the_same_attempt() -> None:
    containers = [job["template"]["spec"]["containers"][0] for job in JOBS.values()]
    keys = {word for one in containers for word in one["args"] if word.startswith("--attempt-key")}
    assert keys == {"--attempt-key=$(JOBSET_UID).$(RESTART)"}
    assert all({"JOBSET_UID", "RESTART"} <= {one["name"] for one in each["env"]} for each in containers)


@pytest.mark.parametrize("name", JOBS)
def test_the_options_of_its_pods_are_known(name: str) -> None:
    (container,) = JOBS[name]["template"]["spec"]["containers"]
    given = options_of([*container["command"], *container["args"]][1:])
    assert given.restart == (name == "leader") and given.command_line[:2] == ["--", "torchrun"]
    assert not given.restart or (given.restart_by == "exit-code" and not given.resume_arg)
    assert given.grace < JOBS[name]["template"]["spec"]["terminationGracePeriodSeconds"]


def test_the_batch_script_is_one_and_its_options_are_known() -> None:
    assert subprocess.run(["bash", "-n", SBATCH], capture_output=True).returncode == 0
    text = SBATCH.read_text().replace("\\\n", " ")
    assert "#SBATCH --requeue\n" in text and "#SBATCH --open-mode=append\n" in text
    (line,) = re.findall(r"^exec logdoctor (.*)", text, re.MULTILINE)
    words = [word.strip("'\"") for word in re.findall(r"'[^']*'|\S+", line)]
    given = options_of(words)
    assert given.restart and given.command_line[:2] == ["--", "srun"]


def test_the_document_has_the_codes() -> None:
    text = (ROOT / "docs" / "recovery.md").read_text()
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    codes = {contract.RESTART, contract.RESTART_ELSEWHERE, contract.FIX_FIRST, contract.ASK, contract.HELD}
    assert table == codes | {contract.DONE, 2}


def test_the_options_that_the_document_names_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options_of(["run", "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) | {"--requeue"}  # the last one is of sbatch
    known |= {name for parameter in runs_show.params for name in parameter.opts}
    named = set(re.findall(r"[` (](--[a-z]+(?:-[a-z]+)*)", (ROOT / "docs" / "recovery.md").read_text()))
    assert named - {"--load", "--skip-batches", "--nproc-per-node"} <= known and len(named) > 15
