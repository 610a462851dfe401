"""Recipes are run as they stand in docs/recipes, with other names, counts and addresses. Those of Slurm are run in
tests/recovery/story_slurm.py, where there is a cluster."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from tests import waiting
from tests.deploy.test_kubernetes import checked
from tests.recipes.pages import RECIPES, block
from tests.send.service import Service

URL = "http://logdoctor:8080"
BIN = str(Path(sys.executable).parent)
ROOT = RECIPES.parents[1]
TRAIN = """\
import os
rank = int(os.environ.get("RANK", "0"))
for step in range(3):
    print(f"step {step} loss {2 - step / 10}", flush=True)
if rank == 1:
    {}["prompt_len"]
"""


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "train.py").write_text(TRAIN)
    with TemporaryDirectory(prefix="ray-") as ours:  # Ray looks there for a cluster, and would join one of another test
        yield _environment(tmp_path) | {"RAY_TMPDIR": ours}


def _environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "80",
        "LOGDOCTOR_SPOOL_DIR": str(tmp_path / "spool"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def ran(script: str, folder: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)


def test_torchrun_without_a_service(tmp_path: Path, environment: dict[str, str]) -> None:
    done = ran(block("torchrun.md", "bash", {"node=8": "node=2"}), tmp_path, {**environment, "COLUMNS": "200"})
    assert done.returncode == 1
    panel = done.stdout[done.stdout.index("╭─ Key Error") :]
    assert "> " in panel and "KeyError: 'prompt_len'" in panel and "attempt_0/1/stderr.log" in panel


def test_torchrun_with_a_service(tmp_path: Path, environment: dict[str, str], service: Service) -> None:
    done = ran(block("torchrun.md", "bash", {"node=8": "node=2", URL: service.url}, 1), tmp_path, environment)
    assert done.returncode == 1 and "step 2" in done.stdout
    assert [end["exit_code"] for end in service.ends if end["exit_code"]] == [1]
    assert b"KeyError: 'prompt_len'" in b"".join(map(bytes, service.streams.values()))


def test_what_ray_prints_is_sent(tmp_path: Path, environment: dict[str, str], service: Service) -> None:
    (tmp_path / "driver.py").write_text(block("ray.md", "python", {}))
    (tmp_path / "training.py").write_text(
        'def train(rank):\n    print("step 1 of", rank, flush=True)\n    {}["mask"]\n'
    )
    done = ran(block("ray.md", "bash", {URL: service.url}), tmp_path, environment)
    assert done.returncode == 1
    assert b"KeyError: 'mask'" in b"".join(map(bytes, service.streams.values()))
    (tmp_path / "driver.log").write_text(done.stdout + done.stderr)
    verdict = ran("logdoctor diagnose driver.log", tmp_path, environment)
    assert verdict.stdout.startswith("╭─ Key Error"), verdict.stdout


def test_the_pod_is_what_kubernetes_takes_and_its_sidecar_sends(
    tmp_path: Path, environment: dict[str, str], service: Service
) -> None:
    job = yaml.safe_load(block("kubernetes.md", "yaml", {}))
    pod = checked(job).spec.template.spec
    sidecar, train = pod.init_containers[0], pod.containers[0]
    assert sidecar.restart_policy == "Always" and {m.name for m in (*sidecar.volume_mounts, *train.volume_mounts)} == {
        "logs"
    }
    logs = tmp_path / "logs"
    logs.mkdir()
    here = {
        **environment,
        "LOGDOCTOR_URL": service.url,
        "LOGDOCTOR_ATTEMPT_KEY": "uid-7",
        "LOGDOCTOR_JOB": "llm-7b",
        "RANK": "1",
    }
    assert {one.name for one in sidecar.env} <= here.keys() | {"LOGDOCTOR_TOKEN"}
    shipping = subprocess.Popen([word.replace("/logs", str(logs)) for word in sidecar.command], env=here, cwd=tmp_path)
    trained = subprocess.run([word.replace("/logs", str(logs)) for word in train.command], env=here, cwd=tmp_path)
    assert trained.returncode == 1
    waiting.until(lambda: bool(service.streams), "the sidecar sends")
    shipping.send_signal(signal.SIGTERM)  # as a kubelet does when the last container has ended
    assert shipping.wait() == 0
    assert [end["exit_code"] for end in service.ends] == [1] and set(service.keys) == {"uid-7"}
    assert b"KeyError: 'prompt_len'" in b"".join(map(bytes, service.streams.values()))
