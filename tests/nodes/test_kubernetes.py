"""What the Kubernetes launcher asks of the API, and what it makes of the answers, where no pod is started."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import LaunchError
from logdoctor.nodes.kubernetes_api import Cluster
from logdoctor.nodes.launch.kubernetes import KubernetesLauncher, PodOptions, job, job_name, label, without_latecomers
from logdoctor.nodes.launching import LaunchTask, ProbeAnswer, ProbeOptions
from logdoctor.types.nodes import Node, World
from tests.nodes import make_kube_schema
from tests.nodes.kube_server import (
    NAME_FORM,
    NAMESPACE,
    SCHEMA,
    VALUE_FORM,
    KubeServer,
    Refusal,
    documented_rules,
    running,
)

POD = PodOptions("registry.local/torch:2", NAMESPACE)
STARTUP = 600.0
"""Seconds that a pod may take to start; until then a test has let them pass or is over."""
SECONDS = 1200.0

Launch = Callable[..., KubernetesLauncher]


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeServer]:
    """A cluster of four nodes that is all right in the end."""
    with running(tmp_path, "gpu-1", "gpu-2", "gpu-3", "gpu-4") as kube:
        yield kube


@pytest.fixture
def launch(kube: KubeServer) -> Launch:
    """Launchers of the cluster that look often."""

    def make(pod: PodOptions = POD, seconds: float = 300.0, **options: Any) -> KubernetesLauncher:
        given = {"pause": 0.05, "startup": STARTUP, **options}
        return KubernetesLauncher(Cluster(kube.kubeconfig(), seconds=seconds), pod, **given)

    return make


def task(*names: str, number: int = 1, port: int = 1, address: str = "127.0.0.2", **probe: Any) -> LaunchTask:
    nodes = tuple(Node(name, address if rank == 0 else "127.0.0.3") for rank, name in enumerate(names))
    options = ProbeOptions(**{"seconds": SECONDS, **probe})
    return LaunchTask("t12", World(number, 1, names, "a pair"), nodes, port, options)


def test_pods_that_begin_together_stay_judged() -> None:
    pair = task("a", "b", seconds=40.0)
    said = [
        ProbeAnswer(name, True, json.dumps({"node": name, "ok": False, "stage": "gather"}).encode()) for name in "ab"
    ]
    assert without_latecomers(pair, said, [100.0, 109.0]) == said
    assert [each.started for each in without_latecomers(pair, said, [111.0, 100.0])] == [False, True]
    well = [each._replace(output=each.output.replace(b"false", b"true").replace(b"gather", b"done")) for each in said]
    assert without_latecomers(pair, well, [111.0, 100.0]) == well


def test_every_right_that_is_asked_for_is_used(kube: KubeServer, launch: Launch) -> None:
    asked = {
        (group, resource, verb)
        for rule in documented_rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert len(asked) == len(SCHEMA["operations"])


def test_a_wrong_token_is_told(kube: KubeServer, tmp_path: Path) -> None:
    path = Path(kube.kubeconfig())
    path.write_text(path.read_text().replace("s3cret", "old"))
    with pytest.raises(LaunchError, match=r"answers 401.*Renew"):
        asyncio.run(KubernetesLauncher(Cluster(str(path)), POD).inventory([]))


def test_a_slow_cluster_does_not_hold_up_for_ever(kube: KubeServer, launch: Launch) -> None:
    kube.hold = lambda seen: kube.closed.wait()
    with pytest.raises(LaunchError, match=r"does not answer within 0\.3 s"):
        asyncio.run(launch(seconds=0.3).inventory([]))


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
    with pytest.raises(LaunchError, match="429: too many requests"):
        asyncio.run(launch().inventory([]))


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
        with pytest.raises(LaunchError, match="does not answer within"):
            asyncio.run(KubernetesLauncher(Cluster(config, seconds=0.3), POD).inventory([]))
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


def test_a_namespace_that_is_not_there(launch: Launch) -> None:
    with pytest.raises(LaunchError, match=r'namespaces "else" not found.*Create the namespace'):
        asyncio.run(launch(POD._replace(namespace="else")).run(task("gpu-1", "gpu-2")))


def test_a_cluster_that_is_down_is_told_at_once(kube: KubeServer, launch: Launch) -> None:
    kube.stop()
    for ask in (
        lambda launcher: launcher.inventory([]),
        lambda launcher: launcher.run(task("gpu-1", "gpu-2")),
        lambda launcher: launcher.sweep("t12"),
    ):
        with pytest.raises(LaunchError, match=r"127\.0\.0\.1.*cannot be reached.*Check whether it is running"):
            asyncio.run(ask(launch()))


def test_the_worlds_of_a_round_share_their_looks(kube: KubeServer, launch: Launch) -> None:
    async def looked() -> None:
        launcher = launch()
        await asyncio.gather(*(launcher._look() for _ in range(4)))
        assert kube.looks() == 1
        await launcher._look()
        await launcher.close()

    asyncio.run(looked())
    assert kube.looks() == 2
