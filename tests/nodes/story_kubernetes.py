"""The Kubernetes launcher against a local server that speaks its API and really runs what Jobs say."""

import asyncio
import itertools
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from logdoctor.errors import LaunchError
from logdoctor.nodes.kubernetes_api import Cluster
from logdoctor.nodes.launch.kubernetes import KubernetesLauncher, job, job_name
from logdoctor.nodes.launching import GRACE, LaunchTask, ProbeAnswer, result
from logdoctor.types.nodes import Result
from tests import waiting
from tests.nodes.kube_server import NAMESPACE, Fault, KubeServer, Refusal, Seen
from tests.nodes.launchers import LauncherContract
from tests.nodes.test_kubernetes import POD, SECONDS, STARTUP, Launch, kube, launch, task
from tests.nodes.times import pass_time, with_time_enough
from tests.ports import free_port

__all__ = ["kube", "launch"]  # fixtures

PROBE = """#!{python} -S
import json, sys, time
words = sys.argv
node = words[words.index("--node") + 1]
mode = dict(pair.split("=") for word, pair in zip(words, words[1:]) if word == "--env").get("MODE", "")
if mode == "broken":
    sys.exit("ModuleNotFoundError: No module named 'json'")
print("logdoctor-probe started", node, file=sys.stderr, flush=True)
if mode == "noisy":
    sys.stderr.write(("n1:77 NCCL INFO " + "x" * 1000 + chr(10)) * 4000)
time.sleep(36000 if mode == "waits" else 0.2)
why = "connection: lost" if mode == "fails" else ""
print(json.dumps({{"node": node, "ok": not why, "stage": "done", "why": why}}))
print("bye", file=sys.stderr)
"""
"""Says what the probe says, without torch: for tests of what Kubernetes does."""


@pytest.fixture
def python(tmp_path: Path) -> str:
    """The path of a program that says what the probe says."""
    path = tmp_path / "python"
    path.write_text(PROBE.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


Meanwhile = Callable[[], Coroutine[Any, Any, None]]


async def nothing() -> None:
    """Do nothing while a world runs."""


def run(launcher: KubernetesLauncher, *tasks: LaunchTask, meanwhile: Meanwhile = nothing) -> list[Result]:
    """How the worlds end that run at once, while something is done."""
    told = asyncio.run(_answers(launcher, tasks, meanwhile))
    return [result(each, answer, 1.0) for each, answer in zip(tasks, told, strict=True)]


def answers(launcher: KubernetesLauncher, each: LaunchTask, meanwhile: Meanwhile = nothing) -> list[ProbeAnswer]:
    return asyncio.run(_answers(launcher, [each], meanwhile))[0]


async def _answers(
    launcher: KubernetesLauncher, tasks: Sequence[LaunchTask], meanwhile: Meanwhile
) -> list[list[ProbeAnswer]]:
    try:
        *told, _ = await asyncio.gather(*(launcher.run(each) for each in tasks), meanwhile())
        return told
    finally:
        await launcher.close()


async def seen(kube: KubeServer, truth: Callable[[], object]) -> None:
    """Wait until something is true of the pods, and the launcher has looked at them and drawn its conclusions."""
    await asyncio.to_thread(waiting.until, truth)
    looks = kube.looks()
    await asyncio.to_thread(waiting.until, lambda: kube.looks() > looks + 1)


def in_phase(kube: KubeServer, phase: str, *nodes: str) -> bool:
    """Whether the pods of these nodes are in a phase."""
    phases = {pod.object["spec"].get("nodeName"): pod.object["status"]["phase"] for pod in list(kube.pods.values())}
    return all(phases.get(node) == phase for node in nodes)


def given_up(kube: KubeServer) -> Meanwhile:
    """Wait until the pod of gpu-1 has done its work, and then until the time is up for pods that did not start."""

    async def wait() -> None:
        await seen(kube, lambda: in_phase(kube, "Succeeded", "gpu-1"))
        pass_time(STARTUP + 1)

    return wait


class TestContract(LauncherContract):
    nodes = ("gpu-2", "gpu-1")

    @pytest.fixture
    def launcher(self, launch: Launch) -> KubernetesLauncher:
        return launch()


# Real gathers


def test_worlds_really_gather_and_a_killed_command_fails_its_own_alone(kube: KubeServer, launch: Launch) -> None:
    kube.faults["gpu-4"] = "killed"
    probe = {"python": sys.executable, "sizes": (65536,)}

    def both(seconds: float) -> Result:
        pair = task("gpu-1", "gpu-2", number=1, port=free_port(), **probe)
        other = task("gpu-3", "gpu-4", number=2, port=free_port(), address="127.0.0.4", seconds=seconds, **probe)
        passed, failed = run(launch(), pair, other)
        assert (passed.ended, passed.why, [reading.ok for reading in passed.readings]) == ("passed", "", [True, True])
        assert {reading.tool for reading in passed.readings} == {"torch/gloo"}
        return failed

    failed = with_time_enough(both, 10.0)
    assert (failed.ended, failed.unreached) == ("failed", ())
    assert [reading.ok for reading in failed.readings] == [False, False]


# What Kubernetes does to a world


def test_all_is_well(kube: KubeServer, launch: Launch, python: str) -> None:
    (found,) = run(launch(), task("gpu-1", "gpu-2", "gpu-3", python=python))
    assert (found.ended, len(found.readings)) == ("passed", 3)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("image", "ErrImagePull: failed to pull"),
        ("no python", "StartError"),
        ("evicted", "The node was low on resource"),
        ("out of memory", "OOMKilled"),
        ("deleted", "deleted"),
        ("no log", "its log cannot be read"),
        ("quota", "exceeded quota"),
        ("full", "Insufficient nvidia.com/gpu"),
    ],
)
def test_what_kubernetes_could_not_do_is_no_failure_of_a_node(
    kube: KubeServer, launch: Launch, python: str, fault: Fault, words: str
) -> None:
    kube.faults["gpu-2"] = fault
    meanwhile = given_up(kube) if fault in ("quota", "full") else nothing
    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python), meanwhile=meanwhile)
    assert (found.ended, found.unreached) == ("void", ("gpu-2",))
    assert words in found.why


def test_who_could_not_run_is_known_before_the_world_is_given_up(kube: KubeServer, launch: Launch, python: str) -> None:
    kube.faults |= {"gpu-1": "slow image", "gpu-2": "image"}

    async def pull() -> None:
        await seen(kube, lambda: any("ErrImagePull" in str(pod.object) for pod in list(kube.pods.values())))
        kube.pulled.set()

    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python), meanwhile=pull)
    assert (found.ended, found.unreached) == ("void", ("gpu-2",))


def test_a_node_that_is_not_ready_is_not_reached(kube: KubeServer, launch: Launch, python: str) -> None:
    kube.not_ready("gpu-2")
    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python), meanwhile=given_up(kube))
    assert (found.ended, found.unreached) == ("void", ("gpu-2",))
    assert "Kubelet stopped posting node status" in found.why


def test_a_node_that_left_the_cluster_is_not_reached(kube: KubeServer, launch: Launch, python: str) -> None:
    del kube.nodes["gpu-2"]
    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python), meanwhile=given_up(kube))
    assert (found.ended, found.unreached) == ("void", ("gpu-2",))
    assert "no longer knows the node" in found.why


@pytest.mark.parametrize("fault", ["killed", "gone", "hangs"])
def test_a_probe_that_began_and_says_nothing_fails_its_world(
    kube: KubeServer, launch: Launch, python: str, fault: Fault
) -> None:
    kube.faults["gpu-2"] = fault

    async def until_the_deadline() -> None:
        """The cluster still says that it runs."""
        struck = _is_stopped if fault == "hangs" else _has_ended
        await seen(kube, lambda: in_phase(kube, "Succeeded", "gpu-1") and struck(kube, "gpu-2"))
        pass_time(SECONDS + GRACE + 1)

    meanwhile = nothing if fault == "killed" else until_the_deadline
    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python), meanwhile=meanwhile)
    assert (found.ended, found.unreached) == ("failed", ())
    assert [reading.ok for reading in found.readings] == [True, False]


def _has_ended(kube: KubeServer, node: str) -> bool:
    """Whether the command of a node's pod has ended."""
    there = [pod for pod in list(kube.pods.values()) if pod.process and pod.object["spec"]["nodeName"] == node]
    return bool(there) and all(pod.process.poll() is not None for pod in there)


def _is_stopped(kube: KubeServer, node: str) -> bool:
    """Whether the command of a node's pod is stopped."""
    there = [pod for pod in list(kube.pods.values()) if pod.process and pod.object["spec"]["nodeName"] == node]
    return any(Path(f"/proc/{pod.process.pid}/stat").read_text().rpartition(") ")[2][0] == "T" for pod in there)


def test_a_cordoned_and_tainted_node_is_tested(kube: KubeServer, launch: Launch, python: str) -> None:
    kube.nodes["gpu-2"]["spec"] |= {"unschedulable": True, "taints": [{"key": "hurt", "effect": "NoExecute"}]}
    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python))
    assert found.ended == "passed"


def test_limits_go_through_the_scheduler(kube: KubeServer, launch: Launch, python: str) -> None:
    kube.nodes["gpu-1"]["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    pod = POD._replace(resources={"nvidia.com/gpu": "8"})
    (found,) = run(launch(pod), task("gpu-1", "gpu-2", python=python), meanwhile=given_up(kube))
    assert (found.ended, found.unreached) == ("void", ("gpu-2",))
    assert "Insufficient nvidia.com/gpu" in found.why


def test_python_that_cannot_run_the_probe_is_the_images_fault(kube: KubeServer, launch: Launch, python: str) -> None:
    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python, env=("MODE=broken",)))
    assert found.ended == "void"
    assert "status 1 before the probe started (ModuleNotFoundError" in found.why


def test_a_noisy_log_hides_no_answer(kube: KubeServer, launch: Launch, python: str) -> None:
    found = answers(launch(), task("gpu-1", "gpu-2", python=python, env=("MODE=noisy",)))
    assert [each.output.count(b"\n") for each in found] == [1, 1]
    assert all(len(each.errors) <= 1 << 20 and each.errors.endswith(b"bye\n") for each in found)


def test_a_late_pod_makes_a_failed_world_void(kube: KubeServer, launch: Launch, python: str) -> None:
    kube.faults["gpu-2"] = "slow image"

    async def pull_late() -> None:
        await seen(kube, lambda: in_phase(kube, "Succeeded", "gpu-1"))
        pass_time(SECONDS / 3)
        kube.pulled.set()

    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python, env=("MODE=fails",)), meanwhile=pull_late)
    assert (found.ended, found.unreached) == ("void", ("gpu-2",))
    assert "late" in found.why


def test_a_world_ends_at_its_deadline_and_nothing_runs_on(kube: KubeServer, launch: Launch, python: str) -> None:
    async def wait() -> None:
        await seen(kube, lambda: in_phase(kube, "Running", "gpu-1", "gpu-2") and _say_that_they_started(kube) == 2)
        pass_time(SECONDS + GRACE + 1)

    found = answers(launch(), task("gpu-1", "gpu-2", python=python, env=("MODE=waits",)), wait)
    assert [(each.started, each.output, each.exit) for each in found] == [(True, b"", None)] * 2


def _say_that_they_started(kube: KubeServer) -> int:
    """How many pods have written that their probe started."""
    return sum(b"logdoctor-probe started" in pod.file.read_bytes() for pod in list(kube.pods.values()))


# Refusals


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (Refusal("POST", "/jobs", 403, 'jobs.batch "x" is forbidden: exceeded quota: few'), "Raise the quota"),
        (Refusal("POST", "/jobs", 422, 'Job.batch "x" is invalid'), "422: Job.batch"),
        (Refusal("POST", "/jobs", 500, "etcdserver: request timed out"), "etcdserver"),
        (Refusal("POST", "/jobs", 503, "the server is shutting down"), "shutting down"),
        (Refusal("GET", "/pods", 403, "pods is forbidden"), "docs/nodes.md"),
        (Refusal("GET", "/pods", 410, "gone\x1b[2J\u202e"), "410"),
        (Refusal("POST", "/jobs", 307, "elsewhere", headers={"Location": "http://127.0.0.1:1/"}), "307"),
    ],
)
def test_what_the_cluster_refuses_is_an_error_of_the_launcher(
    kube: KubeServer, launch: Launch, python: str, refusal: Refusal, words: str
) -> None:
    kube.refusals = [refusal]
    with pytest.raises(LaunchError) as caught:
        run(launch(), task("gpu-1", "gpu-2", python=python))
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("rule", range(3))
def test_a_right_that_is_missing_is_named(kube: KubeServer, launch: Launch, python: str, rule: int) -> None:
    taken = kube.rules[rule]["verbs"]
    for verb in [each for each in taken if each != "delete"]:
        kube.rules[rule] = {**kube.rules[rule], "verbs": [each for each in taken if each != verb]}
        resource = kube.rules[rule]["resources"][0]
        if (resource, verb) == ("jobs", "list"):
            with pytest.raises(LaunchError, match=r'cannot list resource "jobs".*docs/nodes\.md'):
                asyncio.run(launch().sweep("t12"))
        elif resource == "pods/log":
            (found,) = run(launch(), task("gpu-1", "gpu-2", python=python))
            assert found.ended == "void"
            assert 'cannot get resource "pods/log"' in found.why
        else:
            with pytest.raises(LaunchError, match=rf'cannot {verb} resource "{resource}".*docs/nodes\.md'):
                run(launch(), task("gpu-1", "gpu-2", python=python))


def test_passing_troubles_pass(kube: KubeServer, launch: Launch, python: str) -> None:
    kube.refusals = [
        Refusal("POST", "/jobs", 429, "too many requests", times=2, headers={"Retry-After": "0"}),
        Refusal("GET", "/pods", 503, "apiserver not ready", times=2),
        Refusal("GET", "/log", 500, "try again", times=1),
        Refusal("DELETE", "/jobs/", 500, "try again", times=1),
    ]
    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python))
    assert found.ended == "passed"


def test_a_name_that_is_taken_is_left_alone_and_another_one_found(
    kube: KubeServer, launch: Launch, python: str
) -> None:
    taken = []

    def take(job: dict[str, Any]) -> None:
        if not taken:
            taken.append(job["metadata"]["name"])
            kube.jobs[taken[0]] = {"metadata": {"name": taken[0], "namespace": NAMESPACE, "labels": {}}}

    kube.before_job = take
    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python))
    assert found.ended == "passed"
    assert list(kube.jobs) == taken
    kube.jobs.clear()


def test_a_cluster_that_goes_down_in_the_middle_is_told_by_the_deadline(
    kube: KubeServer, launch: Launch, python: str
) -> None:
    kube.refusals = [Refusal("GET", "/pods", 504, "gateway time-out")]

    async def wait() -> None:
        await asyncio.to_thread(waiting.until, lambda: kube.looks() > 3)
        pass_time(SECONDS + GRACE + 1)

    with pytest.raises(LaunchError, match="504: gateway time-out"):
        run(launch(), task("gpu-1", "gpu-2", python=python), meanwhile=wait)


# Nothing is left


def test_a_cancelled_run_deletes_its_jobs(kube: KubeServer, launch: Launch, python: str) -> None:
    async def cancel_when_it_runs() -> None:
        launcher = launch()
        running = asyncio.create_task(launcher.run(task("gpu-1", "gpu-2", python=python, env=("MODE=waits",))))
        await asyncio.to_thread(waiting.until, lambda: len(kube.processes()) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert kube.jobs == {}
        await launcher.close()

    asyncio.run(cancel_when_it_runs())


@pytest.mark.parametrize("requests", range(6))
def test_a_run_that_is_cancelled_at_any_moment_leaves_no_job(
    kube: KubeServer, launch: Launch, python: str, requests: int
) -> None:
    came = itertools.count(1)
    enough = threading.Event()

    def hold(seen: Seen) -> None:
        if next(came) >= requests:
            enough.set()
            kube.closed.wait(0.1)  # so that it is cancelled in the middle

    kube.hold = hold

    async def cancel_after_a_while() -> None:
        launcher = launch()
        running = asyncio.create_task(launcher.run(task("gpu-1", "gpu-2", python=python, env=("MODE=waits",))))
        await asyncio.sleep(0)
        if requests:
            await asyncio.to_thread(enough.wait)
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert kube.jobs == {}
        await launcher.close()

    asyncio.run(cancel_after_a_while())


def test_a_job_that_the_cluster_made_and_did_not_tell_of_is_deleted(
    kube: KubeServer, launch: Launch, python: str
) -> None:
    def hold(seen: Seen) -> None:
        """The Job is made once the launcher has given it up, and before it asks again."""
        methods = [each.method for each in list(kube.seen)]
        if seen.method == "POST" or methods:
            other = "DELETE" if seen.method == "POST" else "POST"
            waiting.until(lambda: other in [each.method for each in list(kube.seen)])

    kube.hold = hold
    with pytest.raises(LaunchError, match="does not answer within"):
        run(launch(seconds=4.0), task("gpu-1", python=python))
    assert [seen.method for seen in kube.seen] == ["DELETE", "POST", "DELETE"]


def test_sweep_ends_what_an_earlier_process_left_of_this_test_alone(
    kube: KubeServer, launch: Launch, python: str
) -> None:
    cluster = Cluster(kube.kubeconfig())

    def leave(test: str, owner: str) -> str:
        each = task("gpu-1", "gpu-2", python=python, env=("MODE=waits",))._replace(test=test)
        name = job_name(each, 0)
        cluster.create_job(NAMESPACE, job(each, 0, name, "run", POD, owner))
        return name

    ours = {leave("t12", "logdoctor"), leave("t12", "logdoctor")}
    others = {leave("t13", "logdoctor"), leave("t12", "other")}
    assert set(kube.jobs) == ours | others
    launcher = launch()
    assert asyncio.run(launcher.sweep("t12")) == 2
    assert set(kube.jobs) == others
    assert {pod.job["metadata"]["name"] for pod in kube.pods.values()} == others
    assert asyncio.run(launcher.sweep("t12")) == 0
    for test, owner in (("t13", "logdoctor"), ("t12", "other")):
        assert asyncio.run(launch(owner=owner).sweep(test)) == 1


def test_what_nobody_deletes_the_cluster_ends(kube: KubeServer, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logdoctor.nodes.launching.GRACE", 0.1)
    monkeypatch.setattr("logdoctor.nodes.launch.kubernetes.MARGIN", 0)
    each = task("gpu-1", "gpu-2", python=python, seconds=0.5, env=("MODE=waits",))
    Cluster(kube.kubeconfig()).create_job(NAMESPACE, job(each, 0, "left", "run", POD, "logdoctor"))
    waiting.until(lambda: kube.commands)
    waiting.until(lambda: not kube.processes())
    assert kube.jobs.pop("left")["spec"]["ttlSecondsAfterFinished"] > 0
