"""Nodes over HTTP: who may test and cordon them, what is told while a test goes on, and what is refused."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from logdoctor.errors import LaunchError
from logdoctor.nodes.board import NodeTestTerms
from logdoctor.nodes.cordon.caps import Caps
from logdoctor.nodes.cordon.cordoning import Cordoning
from logdoctor.nodes.cordon.file import FileCordoner
from logdoctor.nodes.launching import ProbeOptions
from logdoctor.nodes.policy import Modes
from logdoctor.nodes.slurm import expanded
from logdoctor.service.acting import Actor, Means
from logdoctor.service.service import Service
from logdoctor.service.testing import Bench
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types.nodes import Action
from tests import waiting
from tests.diagnose.logs import ECC
from tests.recorded_nodes import CORDON, NODES, NOW, RecordedLauncher, kept_test
from tests.web.conftest import Guarded, local_client, options, serving
from tests.web.test_rules import items

NAMES = [node.name for node in NODES]
CAPS = Caps(share=0.5, at_once=2, per_hour=10)


def acting(service: Service, launcher: RecordedLauncher, folder: Path, modes: Modes = Modes()) -> Actor:  # noqa: B008
    """What acts on the nodes of a launcher, in a service that is not started yet; cordons go to a file."""
    records = NodeRecords(service.records.database)
    cordoner = FileCordoner(folder / "cordoned", lambda: launcher.names)

    def launchers(name: str) -> RecordedLauncher:
        if name != launcher.name:
            raise LaunchError(f"launcher {name}", "is not set up", "Use another one.")
        return launcher

    bench = Bench(launchers, lambda nodes, _: list(nodes), NodeTestTerms(), ProbeOptions(seconds=5.0))
    cordoning = Cordoning(records, cordoner, "logdoctor", CAPS)
    means = Means(bench, "local", cordoning, cordoner.nodes, expanded, modes)
    service.actor = Actor(means, service.records, records, folder, taking_up=True)
    return service.actor


@pytest.fixture
def launcher() -> RecordedLauncher:
    """Four nodes, of which one is faulty."""
    return RecordedLauncher(NAMES, ["gpu-02"])


@pytest.fixture
def actor(service: Service, launcher: RecordedLauncher, tmp_path: Path) -> Actor:
    """What acts on them in the service, which `client`, `guarded` and `serving` start."""
    return acting(service, launcher, tmp_path)


def begin(client: TestClient, **wanted: Any) -> int:
    """The number of a test that was begun."""
    answer = client.post("/v1/node-tests", json={"nodes": NAMES, **wanted})
    assert answer.status_code == 202, answer.text
    return int(answer.json()["id"])


def ended(client: TestClient, test: int) -> dict[str, Any]:
    """A test with its worlds, when it has ended."""

    def found() -> Any:
        told = client.get(f"/v1/node-tests/{test}").json()
        return told if told["test"]["state"] != "running" else None

    return waiting.until(found)  # type: ignore[no-any-return]


def events(text: str) -> list[tuple[str, str, Any]]:
    """Number, name and content of server-sent events."""
    found = [block.strip() for block in text.split("\n\n") if "data: " in block]
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in found]
    return [(block["id"], block["event"], json.loads(block["data"])) for block in blocks]


# --- tests


def test_a_test_names_the_faulty_node_with_its_proof(actor: Actor, client: TestClient) -> None:
    test = begin(client)
    told = ended(client, test)
    assert (told["test"]["state"], told["test"]["by"], told["test"]["launcher"]) == ("finished", "testclient", "local")
    findings = {one["node"]: one for one in told["test"]["conclusion"]["findings"]}
    assert {name: one["standing"] for name, one in findings.items()} == {
        "gpu-01": "healthy",
        "gpu-02": "faulty",
        "gpu-03": "healthy",
        "gpu-04": "healthy",
    }
    failed = {one["world"]["number"] for one in told["worlds"] if one["ended"] == "failed"}
    assert set(findings["gpu-02"]["worlds"]) <= failed and len(findings["gpu-02"]["partners"]) >= 2
    assert items(client, "/v1/node-tests")[0] == told["test"]
    assert items(client, "/v1/node-tests", node="gpu-09") == []
    listed = client.get("/v1/nodes").json()
    assert listed["items"][0]["node"] == "gpu-02" and listed["cluster"] == []
    assert client.get("/v1/nodes/gpu-02").json()["findings"][0]["standing"] == "faulty"


def test_all_nodes_are_tested_when_that_is_said(actor: Actor, client: TestClient) -> None:
    test = begin(client, nodes=[], all=True, regroups=0)
    told = ended(client, test)
    assert [node["name"] for node in told["test"]["nodes"]] == NAMES and told["test"]["options"]["regroups"] == 0
    rest = client.get(f"/v1/node-tests/{test}", params={"after": 1}).json()
    assert rest["worlds"] == told["worlds"][1:] and rest["test"] == told["test"]
    assert client.get(f"/v1/node-tests/{test}", params={"after": -1}).status_code == 422


def test_what_cannot_be_tested_begins_nothing(actor: Actor, client: TestClient) -> None:
    wrong: tuple[tuple[Any, int, str], ...] = (
        ({"nodes": ["gpu-01", "gpu-99"]}, 422, "gpu-99"),
        ({"nodes": ["-x"]}, 400, "not a valid node name"),
        ({"nodes": ["gpu-01; reboot"]}, 400, "not a valid node name"),
        ({"nodes": []}, 422, "neither nodes nor a verdict"),
        ({"verdict": 99}, 409, "verdict 99"),
        ({"nodes": NAMES, "launcher": "ssh"}, 422, "is not set up"),
        ({"nodes": NAMES, "launcher": "telnet"}, 422, "launcher"),
        ({"nodes": NAMES, "seconds": 0}, 422, "seconds"),
        ({"nodes": NAMES, "regroups": -1}, 422, "regroups"),
        ({"all": False}, 422, "neither nodes nor a verdict"),
        ({"nodes": NAMES, "by": "somebody"}, 422, "by"),
        ({"nodes": "gpu-01"}, 422, "nodes"),
    )
    for body, status, words in wrong:
        answer = client.post("/v1/node-tests", json=body)
        assert answer.status_code == status, (body, answer.text)
        assert words in answer.text and answer.json()["error"]["next_step"]
    assert items(client, "/v1/node-tests") == []


def test_a_test_is_cancelled(actor: Actor, client: TestClient, launcher: RecordedLauncher) -> None:
    launcher.going.clear()
    test = begin(client)
    waiting.until(lambda: launcher.runs == 2)
    assert client.post(f"/v1/node-tests/{test}/cancel").status_code == 202
    told = ended(client, test)
    assert told["test"]["state"] == "aborted" and "testclient" in told["test"]["why"]
    assert told["test"]["conclusion"] is None and launcher.ended == launcher.runs
    assert client.post(f"/v1/node-tests/{test}/cancel").status_code == 409
    assert client.post("/v1/node-tests/99/cancel").status_code == 404


def test_what_is_not_there_is_not_found(actor: Actor, client: TestClient) -> None:
    for path in ("/v1/node-tests/9", "/v1/node-tests/9/events"):
        assert client.get(path).status_code == 404
    for path in ("/v1/actions/9/approve", "/v1/actions/9/refuse"):
        assert client.post(path, json={}).status_code == 404
    assert client.get("/v1/nodes/gpu-99").json()["failures"] == []
    assert client.get("/v1/nodes/gpu%2099").status_code == 422


# --- live


def test_worlds_are_told_as_they_end(service: Service, actor: Actor, launcher: RecordedLauncher) -> None:
    launcher.going.clear()
    with serving(service) as served, served.client() as client:
        test = client.post("/v1/node-tests", json={"nodes": NAMES}).json()["id"]
        with client.stream("GET", f"/v1/node-tests/{test}/events") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = response.iter_lines()
            assert next(lines) == "retry: 2000"
            launcher.going.set()
            heard = events("\n".join(lines) + "\n\n")
        told = client.get(f"/v1/node-tests/{test}").json()
        assert [name for _, name, _ in heard] == ["world"] * len(told["worlds"]) + ["test"]
        assert [content for _, name, content in heard if name == "world"] == told["worlds"]
        assert heard[-1][2] == told["test"]
        assert [number for number, _, _ in heard] == [str(place + 1) for place in range(len(heard))]


def test_a_stop_ends_listeners_and_worlds(service: Service, actor: Actor, launcher: RecordedLauncher) -> None:
    launcher.going.clear()
    with serving(service) as served, served.client() as client:
        test = client.post("/v1/node-tests", json={"nodes": NAMES}).json()["id"]
        with client.stream("GET", f"/v1/node-tests/{test}/events") as response:
            lines = response.iter_lines()
            assert next(lines) == "retry: 2000"
            waiting.until(lambda: launcher.runs)
            served.stop()
            assert not events("\n".join(lines))
    assert launcher.ended == launcher.runs


def test_a_listener_goes_on_where_it_was(client: TestClient, service: Service) -> None:
    test = kept_test(NodeRecords(service.records.database))
    path = f"/v1/node-tests/{test}/events"
    whole = events(client.get(path).text)
    assert [content["world"]["number"] for _, name, content in whole if name == "world"] == [2, 1, 3, 4]
    for seen in range(6):
        by_header = client.get(path, headers={"Last-Event-ID": str(seen)})
        by_query = client.get(path, params={"after": seen})
        assert by_header.text == by_query.text
        if seen < 5:
            assert events(by_header.text) == whole[seen:]
        else:
            assert by_header.status_code == 204, "a browser asks no more"
    assert client.get(path, headers={"Last-Event-ID": "x"}).status_code == 422


def test_a_test_that_was_stopped_is_told_of(service: Service, client: TestClient) -> None:
    records = NodeRecords(service.records.database)
    test = kept_test(records, None, worlds=2)
    records.abort_test(test, "stopped by ops", NOW)
    heard = events(client.get(f"/v1/node-tests/{test}/events").text)
    assert [name for _, name, _ in heard] == ["world", "world", "test"] and heard[-1][2]["state"] == "aborted"


# --- cordons


def test_a_node_is_taken_out_and_put_back(actor: Actor, client: TestClient, tmp_path: Path) -> None:
    answer = client.post("/v1/nodes/gpu-02/cordon", json={"reason": "wrong data"})
    assert answer.status_code == 200, answer.text
    cordon = answer.json()
    assert (cordon["state"], cordon["by"], cordon["how"], cordon["node"]) == (
        "standing",
        "testclient",
        "file",
        "gpu-02",
    )
    listed = client.get("/v1/nodes", params={"cluster": True}).json()
    assert [state["name"] for state in listed["cluster"] if state["cordoned"]] == ["gpu-02"]
    assert listed["items"][0]["cordon"] == cordon
    assert client.post("/v1/nodes/gpu-02/cordon", json={"reason": "again"}).status_code == 409
    answer = client.post("/v1/nodes/gpu-02/uncordon", json={"why": "board replaced"})
    assert answer.status_code == 200 and answer.json()["state"] == "undone"
    assert client.post("/v1/nodes/gpu-02/uncordon", json={}).status_code == 409
    steps = [(one["step"], one["by"]) for one in items(client, "/v1/audit", node="gpu-02") if one["what"] == "cordon"]
    assert ("wanted", "testclient") in steps and ("undone", "testclient") in steps


def test_a_node_that_nobody_knows_is_not_cordoned(actor: Actor, client: TestClient) -> None:
    assert client.post("/v1/nodes/gpu-99/cordon", json={"reason": "x"}).status_code == 404
    assert client.post("/v1/nodes/gpu-01/cordon", json={}).status_code == 422
    assert client.post("/v1/nodes/gpu-01/cordon", json={"reason": ""}).status_code == 422
    assert client.get("/v1/nodes").json()["items"] == []


def test_a_proof_that_is_not_on_record_is_none(actor: Actor, client: TestClient) -> None:
    for proof in ({"verdict": 99}, {"test": 77}):
        answer = client.post("/v1/nodes/gpu-01/cordon", json={"reason": "x", **proof})
        assert answer.status_code == 404 and next(iter(proof)) in answer.text
    assert client.get("/v1/nodes/gpu-01").json()["cordons"] == []


def test_a_cluster_that_does_not_do_it_is_told_apart(actor: Actor, client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "cordoned").mkdir()
    for answer in (
        client.post("/v1/nodes/gpu-01/cordon", json={"reason": "x"}),
        client.get("/v1/nodes", params={"cluster": True}),
    ):
        assert answer.status_code == 502 and answer.json()["error"]["code"] == "cluster_failed", answer.text


# --- actions


def test_an_action_waits_for_a_person(actor: Actor, client: TestClient) -> None:
    kept_test(actor.records, at=time.time())  # not so old that the service ends it
    for action in (
        CORDON,
        Action("test_nodes", tuple(NAMES), "ask", "it hangs"),
        Action("reboot", ("gpu-02",), "ask", "so"),
    ):
        assert actor.records.propose(action, "j", 1, NOW) is not None
    assert [one["id"] for one in items(client, "/v1/actions", state="waiting")] == [3, 2, 1]
    refused = client.post("/v1/actions/3/refuse", json={"why": "not now"}).json()
    assert (refused["state"], refused["by"], refused["why"]) == ("refused", "testclient", "not now")
    done = client.post("/v1/actions/1/approve", json={}).json()
    assert (done["state"], done["test"]) == ("done", None)
    assert client.get("/v1/nodes", params={"cluster": True}).json()["cluster"][1]["cordoned"]
    approved = client.post("/v1/actions/2/approve", json={"why": "go on"}).json()
    assert (approved["state"], approved["test"]) == ("approved", 2), "the test that it began"
    waiting.until(lambda: {one["id"]: one["state"] for one in items(client, "/v1/actions")}[2] == "done")
    assert ended(client, 2)["test"]["conclusion"] is not None
    for id in (1, 3):
        assert client.post(f"/v1/actions/{id}/approve", json={}).status_code == 409
        assert client.post(f"/v1/actions/{id}/refuse", json={}).status_code == 409


# --- who may


def told_to_fail(guarded: Guarded, job: str, line: str, *scopes: str) -> dict[str, Any]:
    """The verdict on a job whose nodes and log somebody tells with a token that is bound to such jobs."""
    sender, path = guarded.token(*scopes, prefixes=("alpha-",)), f"/v1/jobs/{job}"
    put = guarded.client.put(path, json={"nodelist": "local-[0-3]"}, headers=sender)
    assert put.status_code == 200 and put.json()["facts"]["placed"] == ("place" in scopes)
    log = f"{path}/attempts/1/streams/main/log"
    guarded.client.post(log, params={"offset": 0}, content=line.encode(), headers=sender).raise_for_status()
    guarded.client.post(f"{path}/attempts/1/end", json={"exit_code": 1}, headers=sender).raise_for_status()
    reader = guarded.token("read")

    def found() -> Any:
        answer = guarded.client.get(f"{path}/attempts/1/verdict", headers=reader)
        return answer.json()["verdict"] if answer.status_code == 200 and answer.json()["final"] else None

    return waiting.until(found)  # type: ignore[no-any-return]


def test_who_may_only_send_logs_has_no_nodes_tested(service: Service, tmp_path: Path) -> None:
    launcher = RecordedLauncher([f"local-{number}" for number in range(4)])
    actor = acting(service, launcher, tmp_path, Modes(test="auto", cordon="auto"))
    service.listeners.append(actor.handle)
    with local_client(service, options(wants_token=True)) as client:
        guarded = Guarded(client, service)
        verdict = told_to_fail(guarded, "alpha-x", f"local-2: {ECC}", "ingest")
        assert (verdict["reason"], verdict["suspects"][0]["node"]) == ("ECC Error", "local-2")
        (waits,) = waiting.until(lambda: actor.records.actions().items)
        assert (waits.action.kind, waits.state) == ("test_nodes", "waiting")
        assert not actor.records.tests().items and not launcher.runs
        assert told_to_fail(guarded, "alpha-y", f"local-1: {ECC}", "ingest", "place")["reason"] == "ECC Error"
        (test,) = waiting.until(lambda: actor.records.tests().items)
        assert test.by == "policy" and {node.name for node in test.nodes} == set(launcher.names)


def test_a_node_of_another_job_is_no_suspect(service: Service, guarded: Guarded) -> None:
    verdict = told_to_fail(guarded, "alpha-x", f"gpu-09: {ECC}", "ingest")
    assert (verdict["reason"], verdict["suspects"]) == ("ECC Error", [])
    assert "Named in the log, but not part of this job: gpu-09." in verdict["why"]


def test_a_service_that_acts_on_no_nodes_still_tells_of_them(client: TestClient, service: Service) -> None:
    kept_test(NodeRecords(service.records.database))
    assert client.get("/v1/nodes").json()["items"][0]["node"] == "gpu-02"
    assert client.get("/v1/nodes", params={"cluster": True}).status_code == 409
    assert client.post("/v1/node-tests", json={"nodes": NAMES}).status_code == 409
    assert client.post("/v1/nodes/gpu-02/cordon", json={"reason": "x"}).status_code == 409
