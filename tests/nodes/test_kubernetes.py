"""The Kubernetes launcher against a local server that speaks its API and really runs what Jobs say."""

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import LaunchError
from logdoctor.node_types import Node, Result, World
from logdoctor.nodes.kubernetes_api import Cluster
from logdoctor.nodes.launch.kubernetes import KubernetesLauncher, PodOptions, job, job_name, label, without_latecomers
from logdoctor.nodes.launching import LaunchTask, ProbeAnswer, ProbeOptions, result
from tests.nodes import make_kube_schema
from tests.nodes.kube_server import (
    NAME_FORM,
    NAMESPACE,
    SCHEMA,
    VALUE_FORM,
    Fault,
    KubeServer,
    Refusal,
    documented_rules,
    running,
)
from tests.nodes.launchers import LauncherContract

POD = PodOptions("registry.local/torch:2", NAMESPACE)

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
time.sleep(60 if mode == "waits" else 0.2)
why = "connection: lost" if mode == "fails" else ""
print(json.dumps({{"node": node, "ok": not why, "stage": "done", "why": why}}))
print("bye", file=sys.stderr)
"""
"""Says what the probe says, without torch: for tests of what Kubernetes does."""

Launch = Callable[..., KubernetesLauncher]


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeServer]:
    """A cluster of four nodes that is all right in the end."""
    with running(tmp_path, "gpu-1", "gpu-2", "gpu-3", "gpu-4") as kube:
        yield kube


@pytest.fixture
def launch(kube: KubeServer) -> Launch:
    """Launchers of the cluster that look often."""

    def make(pod: PodOptions = POD, seconds: float = 5.0, **options: Any) -> KubernetesLauncher:
        return KubernetesLauncher(Cluster(kube.kubeconfig(), seconds=seconds), pod, **{"pause": 0.05, **options})

    return make


@pytest.fixture
def python(tmp_path: Path) -> str:
    """The path of a program that says what the probe says."""
    path = tmp_path / "python"
    path.write_text(PROBE.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def task(*names: str, number: int = 1, port: int = 29411, address: str = "127.0.0.2", **probe: Any) -> LaunchTask:
    nodes = tuple(Node(name, address if rank == 0 else "127.0.0.3") for rank, name in enumerate(names))
    return LaunchTask("t12", World(number, 1, names, "a pair"), nodes, port, ProbeOptions(**{"seconds": 10.0, **probe}))


def run(launcher: KubernetesLauncher, *tasks: LaunchTask) -> list[Result]:
    """How the worlds end that run at once."""

    async def all_of() -> list[Result]:
        try:
            answers = await asyncio.gather(*(launcher.run(each) for each in tasks))
        finally:
            await launcher.close()
        return [result(each, answer, 1.0) for each, answer in zip(tasks, answers, strict=True)]

    return asyncio.run(all_of())


def answers(launcher: KubernetesLauncher, each: LaunchTask) -> list[ProbeAnswer]:
    async def one() -> list[ProbeAnswer]:
        try:
            return await launcher.run(each)
        finally:
            await launcher.close()

    return asyncio.run(one())


class TestContract(LauncherContract):
    nodes = ("gpu-2", "gpu-1")

    @pytest.fixture
    def launcher(self, launch: Launch) -> KubernetesLauncher:
        return launch()


# Real gathers


def test_worlds_really_gather_and_a_killed_command_fails_its_own_alone(kube: KubeServer, launch: Launch) -> None:
    kube.faults["gpu-4"] = "killed"
    probe = {"python": sys.executable, "sizes": (65536,)}
    pair = task("gpu-1", "gpu-2", number=1, port=29431, seconds=50.0, **probe)
    other = task("gpu-3", "gpu-4", number=2, port=29432, address="127.0.0.4", seconds=10.0, **probe)
    passed, failed = run(launch(), pair, other)
    assert (passed.ended, passed.why, [reading.ok for reading in passed.readings]) == ("passed", "", [True, True])
    assert {reading.tool for reading in passed.readings} == {"torch/gloo"}
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
    (found,) = run(launch(startup=1.5), task("gpu-1", "gpu-2", python=python))
    assert (found.ended, found.unreached) == ("void", ("gpu-2",))
    assert words in found.why


def test_who_could_not_run_is_known_before_the_world_is_given_up(kube: KubeServer, launch: Launch, python: str) -> None:
    kube.faults |= {"gpu-1": "slow image", "gpu-2": "image"}
    kube.slow_seconds = 0.6
    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python))
    assert (found.ended, found.unreached) == ("void", ("gpu-2",))


def test_a_node_that_is_not_ready_is_not_reached(kube: KubeServer, launch: Launch, python: str) -> None:
    kube.not_ready("gpu-2")
    (found,) = run(launch(startup=1.5), task("gpu-1", "gpu-2", python=python))
    assert (found.ended, found.unreached) == ("void", ("gpu-2",))
    assert "Kubelet stopped posting node status" in found.why


def test_a_node_that_left_the_cluster_is_not_reached(kube: KubeServer, launch: Launch, python: str) -> None:
    del kube.nodes["gpu-2"]
    (found,) = run(launch(startup=1.5), task("gpu-1", "gpu-2", python=python))
    assert (found.ended, found.unreached) == ("void", ("gpu-2",))
    assert "no longer knows the node" in found.why


@pytest.mark.parametrize("fault", ["killed", "gone", "hangs"])
def test_a_probe_that_began_and_says_nothing_fails_its_world(
    kube: KubeServer, launch: Launch, python: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logdoctor.nodes.launching.GRACE", 0.5)
    kube.faults["gpu-2"] = fault
    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python, seconds=2.5))
    assert (found.ended, found.unreached) == ("failed", ())
    assert [reading.ok for reading in found.readings] == [True, False]


def test_a_cordoned_and_tainted_node_is_tested(kube: KubeServer, launch: Launch, python: str) -> None:
    kube.nodes["gpu-2"]["spec"] |= {"unschedulable": True, "taints": [{"key": "hurt", "effect": "NoExecute"}]}
    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python))
    assert found.ended == "passed"


def test_limits_go_through_the_scheduler(kube: KubeServer, launch: Launch, python: str) -> None:
    kube.nodes["gpu-1"]["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    pod = POD._replace(resources={"nvidia.com/gpu": "8"})
    (found,) = run(launch(pod, startup=1.5), task("gpu-1", "gpu-2", python=python))
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
    kube.slow_seconds = 8.0
    (found,) = run(launch(), task("gpu-1", "gpu-2", python=python, seconds=12.0, env=("MODE=fails",)))
    assert (found.ended, found.unreached) == ("void", ("gpu-2",))
    assert "late" in found.why


def test_pods_that_begin_together_stay_judged() -> None:
    pair = task("a", "b", seconds=40.0)
    said = [
        ProbeAnswer(name, True, json.dumps({"node": name, "ok": False, "stage": "gather"}).encode()) for name in "ab"
    ]
    assert without_latecomers(pair, said, [100.0, 109.0]) == said
    assert [each.started for each in without_latecomers(pair, said, [111.0, 100.0])] == [False, True]
    well = [each._replace(output=each.output.replace(b"false", b"true").replace(b"gather", b"done")) for each in said]
    assert without_latecomers(pair, well, [111.0, 100.0]) == well


def test_a_world_ends_at_its_deadline_and_nothing_runs_on(
    kube: KubeServer, launch: Launch, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logdoctor.nodes.launching.GRACE", 0.5)
    began = time.monotonic()
    found = answers(launch(), task("gpu-1", "gpu-2", python=python, seconds=1.5, env=("MODE=waits",)))
    assert time.monotonic() - began < 40
    assert [(each.started, each.output, each.exit) for each in found] == [(True, b"", None)] * 2


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


def test_every_right_that_is_asked_for_is_used(kube: KubeServer, launch: Launch) -> None:
    asked = {
        (group, resource, verb)
        for rule in documented_rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert len(asked) == len(SCHEMA["operations"])


def test_a_namespace_that_is_not_there(kube: KubeServer, launch: Launch, python: str) -> None:
    with pytest.raises(LaunchError, match=r'namespaces "else" not found.*Create the namespace'):
        run(launch(POD._replace(namespace="else")), task("gpu-1", "gpu-2", python=python))


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


def test_a_wrong_token_is_told(kube: KubeServer, tmp_path: Path) -> None:
    path = Path(kube.kubeconfig())
    path.write_text(path.read_text().replace("s3cret", "old"))
    with pytest.raises(LaunchError, match=r"answers 401.*Renew"):
        asyncio.run(KubernetesLauncher(Cluster(str(path)), POD).inventory([]))


def test_a_cluster_that_is_down_is_told_at_once(kube: KubeServer, launch: Launch, python: str) -> None:
    kube.stop()
    for ask in (
        lambda launcher: launcher.inventory([]),
        lambda launcher: launcher.run(task("gpu-1", "gpu-2", python=python)),
        lambda launcher: launcher.sweep("t12"),
    ):
        began = time.monotonic()
        with pytest.raises(LaunchError, match=r"127\.0\.0\.1.*cannot be reached.*Check whether it is running"):
            asyncio.run(ask(launch()))
        assert time.monotonic() - began < 60


def test_a_cluster_that_goes_down_in_the_middle_is_told_by_the_deadline(
    kube: KubeServer, launch: Launch, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logdoctor.nodes.launching.GRACE", 0.5)
    kube.refusals = [Refusal("GET", "/pods", 504, "gateway time-out")]
    began = time.monotonic()
    with pytest.raises(LaunchError, match="504: gateway time-out"):
        run(launch(), task("gpu-1", "gpu-2", python=python, seconds=1.5))
    assert time.monotonic() - began < 60


def test_a_slow_cluster_does_not_hold_up_for_ever(kube: KubeServer, launch: Launch, python: str) -> None:
    kube.delay = 12.0
    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"does not answer within 0\.3 s"):
        asyncio.run(launch(seconds=0.3).inventory([]))
    assert time.monotonic() - began < 11


def test_an_answer_that_is_no_answer_is_told(kube: KubeServer, launch: Launch) -> None:
    kube.nodes["odd"] = {"metadata": {"name": ["?"]}}
    with pytest.raises(LaunchError, match="not from its API"):
        asyncio.run(launch().inventory([]))


@pytest.mark.parametrize("pause", ["100000", "soon", "-1", "9" * 400])
def test_the_cluster_does_not_say_how_long_we_sleep(
    kube: KubeServer, launch: Launch, pause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logdoctor.nodes.kubernetes_api._LONGEST_PAUSE", 0.1)
    kube.refusals = [Refusal("GET", "/nodes", 429, "too many requests", headers={"Retry-After": pause})]
    began = time.monotonic()
    with pytest.raises(LaunchError, match="429: too many requests"):
        asyncio.run(launch().inventory([]))
    assert time.monotonic() - began < 60


def test_an_answer_without_end_is_not_kept(kube: KubeServer, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logdoctor.nodes.kubernetes_api.ANSWER_LIMIT", 1 << 20)
    kube.nodes["gpu-1"]["metadata"]["annotations"]["much"] = "x" * (2 << 20)
    with pytest.raises(LaunchError, match="an answer has more than 1 MiB"):
        asyncio.run(launch().inventory([]))


def test_an_answer_that_drips_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logdoctor.nodes.kubernetes_api.CONNECT_SECONDS", 0.2)
    ended = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not ended.wait(0.05):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, args=(server,), daemon=True).start()
        config = KubeServer(tmp_path).kubeconfig(server=f"http://127.0.0.1:{server.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(LaunchError, match="does not answer within"):
            asyncio.run(KubernetesLauncher(Cluster(config, seconds=0.3), POD).inventory([]))
        assert time.monotonic() - began < 60
        ended.set()


@pytest.mark.parametrize("text", ["", "a: [", "[]", "current-context: x\n", "\0"])
def test_a_kubeconfig_that_is_wrong_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(LaunchError, match=r"kubeconfig .*cannot be used"):
        asyncio.run(KubernetesLauncher(Cluster(str(path)), POD).inventory([]))


def test_a_certificate_that_is_not_known_is_told(tmp_path: Path, certificate: tuple[str, str]) -> None:
    with running(tmp_path, "gpu-1", tls=certificate) as kube:
        config = kube.kubeconfig()
        with pytest.raises(LaunchError, match=r"no secure connection.*certificate"):
            asyncio.run(KubernetesLauncher(Cluster(config), POD).inventory([]))
        known = Cluster(kube.kubeconfig(**{"certificate-authority": certificate[0]}))
        assert [node.name for node in asyncio.run(KubernetesLauncher(known, POD).inventory([]))] == ["gpu-1"]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = tmp_path / "cert.pem", tmp_path / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return str(paths[0]), str(paths[1])


# Nothing is left


def test_a_cancelled_run_deletes_its_jobs(kube: KubeServer, launch: Launch, python: str) -> None:
    async def cancel_when_it_runs() -> None:
        launcher = launch()
        running = asyncio.create_task(launcher.run(task("gpu-1", "gpu-2", python=python, env=("MODE=waits",))))
        while len(kube.processes()) < 2:
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert kube.jobs == {}
        await launcher.close()

    asyncio.run(cancel_when_it_runs())


@pytest.mark.parametrize("after", [0.0, 0.05, 0.15, 0.3, 0.45])
def test_a_run_that_is_cancelled_at_any_moment_leaves_no_job(
    kube: KubeServer, launch: Launch, python: str, after: float
) -> None:
    kube.delay = kube.post_delay = 0.15

    async def cancel_after_a_while() -> None:
        launcher = launch()
        running = asyncio.create_task(launcher.run(task("gpu-1", "gpu-2", python=python, env=("MODE=waits",))))
        await asyncio.sleep(after)
        running.cancel()
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert kube.jobs == {}
        await launcher.close()

    asyncio.run(cancel_after_a_while())


def test_a_job_that_the_cluster_made_and_did_not_tell_of_is_deleted(
    kube: KubeServer, launch: Launch, python: str
) -> None:
    kube.post_delay = 1.0
    with pytest.raises(LaunchError, match="does not answer within"):
        run(launch(seconds=0.4), task("gpu-1", python=python))
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
    end = time.monotonic() + 10
    while not kube.processes() and time.monotonic() < end:
        time.sleep(0.02)
    while kube.processes() and time.monotonic() < end:
        time.sleep(0.02)
    assert time.monotonic() < end
    assert kube.jobs.pop("left")["spec"]["ttlSecondsAfterFinished"] > 0


def test_the_worlds_of_a_round_share_their_looks(kube: KubeServer, launch: Launch, python: str) -> None:
    names = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
    found = run(launch(pause=0.2), *(task(name, number=number, python=python) for number, name in enumerate(names, 1)))
    assert [each.ended for each in found] == ["passed"] * 4
    looks = [seen for seen in kube.seen if seen.path.endswith("/pods")]
    assert len(looks) < 12


# What is sent


def test_a_job_with_all_options_is_of_the_published_form() -> None:
    options = PodOptions(
        "image",
        "space",
        resources={"nvidia.com/gpu": "8", "memory": "64Gi"},
        shared_memory="16Gi",
        capabilities=("IPC_LOCK",),
        service_account="probes",
        pull_secrets=("registry",),
        runtime_class="nvidia",
        priority_class="high",
    )
    made = job(task("n" * 200, "gpu-2"), 0, "logdoctor-t12-w1-r0-00", "aa", options, "me")
    validator = jsonschema.Draft7Validator({"$ref": "#/definitions/V1Job", "definitions": SCHEMA["definitions"]})
    assert list(validator.iter_errors(made)) == []
    made["spec"]["template"]["spec"]["containers"][0]["resources"]["limit"] = {}
    assert "'limit' was unexpected" in next(validator.iter_errors(made)).message
    assert made["spec"]["activeDeadlineSeconds"] > task("a").deadline


def test_the_pod_is_pinned_and_the_command_comes_as_it_is() -> None:
    each = task("gpu-1", "gpu-2", env=("A=$(HOSTNAME)$$",))
    pod = job(each, 1, "name", "aa", POD, "me")["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-2"]}]}]
    assert pod["containers"][0]["command"][-1] == "A=$$(HOSTNAME)$$$$"
    assert [word.replace("$$", "$") for word in pod["containers"][0]["command"]] == list(each.command(1, False))


def test_the_schema_is_that_of_the_client_that_is_installed() -> None:
    assert make_kube_schema.schema() == SCHEMA


@given(st.text(max_size=300))
def test_labels_and_names_are_such_that_the_api_takes_them(text: str) -> None:
    assert VALUE_FORM.fullmatch(label(text))
    name = job_name(task("a", number=10**6)._replace(test=text), 588)
    assert NAME_FORM.fullmatch(name)
    assert len(name) <= 57


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_labels_of_different_texts_differ(one: str, other: str) -> None:
    assert (label(one) == label(other)) == (one == other)


# Inventory


def test_inventory_tells_address_group_and_gpu(kube: KubeServer, launch: Launch) -> None:
    product = {"nvidia_com__gpu_product": "NVIDIA-H200"}
    kube.add_node("a", "10.0.0.1", topology_kubernetes_io__zone="z1", topology_kubernetes_io__rack="r7", **product)
    kube.add_node("b", "fd00::1", topology_kubernetes_io__zone="z1")
    kube.add_node("c", mine="left")
    del kube.nodes["c"]["status"]["addresses"]
    found = asyncio.run(launch().inventory(["b", "a", "c"]))
    assert found == [
        Node("b", "fd00::1", "z1"),
        Node("a", "10.0.0.1", "z1", "NVIDIA-H200"),  # not by its rack, which nobody else tells
        Node("c", "c"),
    ]
    assert asyncio.run(launch(group_labels=["mine"]).inventory(["c"])) == [Node("c", "c", "left")]


def test_inventory_of_a_large_cluster_and_of_a_part(kube: KubeServer, launch: Launch) -> None:
    for number in range(600):
        kube.add_node(f"n{number}", part="x" if number % 2 else "y")
    assert len(asyncio.run(launch().inventory([]))) == 604
    assert len(asyncio.run(launch(selector="part=x").inventory([]))) == 300
    assert [node.name for node in asyncio.run(launch(selector="part=x").inventory(["n2"]))] == ["n2"]


def test_nodes_that_are_not_there_are_named(kube: KubeServer, launch: Launch) -> None:
    with pytest.raises(LaunchError, match=r"node 'x'.*no such node and 1 more"):
        asyncio.run(launch().inventory(["gpu-1", "x", "y"]))
