"""The pages of nodes and of their tests as a browser gets them: what they tell, what they do, and who may."""

import re
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from logdoctor.nodes.cordon.caps import Caps
from logdoctor.nodes.cordon.cordoning import Cordoning
from logdoctor.nodes.cordon.dry_run import DryRun
from logdoctor.service.acting import Actor
from logdoctor.service.service import Service
from logdoctor.store import schema
from logdoctor.store.jobs.records import JobFacts
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types import Suspect
from logdoctor.types.nodes import Conclusion, Finding, NodeState
from logdoctor.web.nodes import background
from logdoctor.web.nodes import words as node_wording
from logdoctor.web.nodes.pages import PAGE
from tests import waiting
from tests.recorded_nodes import FAULTY, LINK, NOW, OPEN, RecordedLauncher, kept_test
from tests.web.conftest import Guarded
from tests.web.test_nodes import NAMES, acting, begin, ended
from tests.web.test_pages import HOSTILE, Page, changed, checked, page, publish, sign_in

DAY = 86_400.0


@pytest.fixture
def launcher() -> RecordedLauncher:
    """Four nodes, of which one is faulty."""
    return RecordedLauncher(NAMES, ["gpu-02"])


@pytest.fixture
def actor(service: Service, launcher: RecordedLauncher, tmp_path: Path) -> Actor:
    """What acts on them in the service, which `client` and `guarded` start; cordons go to a file, at most two."""
    return acting(service, launcher, tmp_path)


@pytest.fixture
def kept(service: Service) -> NodeRecords:
    """What is on record of nodes."""
    return NodeRecords(service.records.database)


def suspect(service: Service, job: str, node: str, at: float | None = None, why: str = "its memory is broken") -> int:
    """A verdict on a failure that suspects a node."""
    verdict = changed(suspects=(Suspect(node, 3, None, why),))
    return publish(service, job, verdict, time.time() if at is None else at).id


def rehearsing(actor: Actor) -> None:
    """Let an actor cordon in dry runs only."""
    cordoning = Cordoning(actor.records, DryRun(None, lambda: NAMES), "logdoctor", Caps(0.5, 2, 10))
    actor._means = actor._means._replace(cordoning=cordoning)


def named(shown: Page) -> list[str]:
    """The nodes that a list has, in order."""
    found = [tag.attributes["href"] for tag in shown.all("a") if "name" in tag.attributes.get("class", "")]
    return [target.removeprefix("/nodes/") for target in found if target.startswith("/nodes/")]


def buttons(shown: Page) -> list[str]:
    """What the buttons of a page say."""
    return ["".join(tag.text).strip() for tag in shown.all("button")]


def filled(shown: Page, **given: str) -> dict[str, str]:
    """The hidden fields of a page's form and what a person adds."""
    hidden = {
        tag.attributes["name"]: tag.attributes["value"] for tag in shown.all("input") if "value" in tag.attributes
    }
    return {**hidden, **given}


def post(client: TestClient, path: str, **given: str) -> Any:
    """The answer to the form on a page that is filled in."""
    form = filled(page(client, path), **given)
    return client.post(urlsplit(path).path, data=form, follow_redirects=False)


# --- the list


def test_repeat_offenders_of_the_last_month_come_first(client: TestClient, service: Service) -> None:
    for number in range(5):
        suspect(service, f"old-{number}", "gpu-old", time.time() - (40 + number) * DAY)
    for number in range(2):
        suspect(service, f"new-{number}", "gpu-new", time.time() - number * DAY)
    shown = page(client, "/nodes")
    assert named(shown) == ["gpu-new", "gpu-old"]
    assert "2 / 2" in shown.text and "0 / 5" in shown.text
    assert named(page(client, "/nodes?order=all")) == ["gpu-old", "gpu-new"]
    assert named(page(client, "/nodes?order=name")) == ["gpu-new", "gpu-old"]


def test_the_url_holds_the_search_and_the_filters(client: TestClient, kept: NodeRecords, service: Service) -> None:
    kept_test(kept)
    suspect(service, "j", "rack-7", NOW)
    kept.step_cordon(kept.want_cordon("gpu-03", "file", "ops", NOW, "hot").id, "standing", "ops", "", NOW)
    assert named(page(client, "/nodes?text=GPU-0")) == ["gpu-02", "gpu-01", "gpu-03", "gpu-04"]
    assert named(page(client, "/nodes?standing=faulty")) == ["gpu-02"]
    assert named(page(client, "/nodes?standing=untested")) == ["rack-7"]
    shown = page(client, "/nodes?service=cordoned")
    assert named(shown) == ["gpu-03"] and "by ops" in shown.text and "hot" in shown.text
    assert shown.links()["Faulty"] == "/nodes?standing=faulty&service=cordoned"
    sent = client.get("/nodes?text=gpu&standing=&service=&testing=&order=", follow_redirects=False)
    assert (sent.status_code, sent.headers["location"]) == (303, "/nodes?text=gpu")
    assert page(client, "/nodes?service=elsewhere", 400).text.count("Choose from the list") == 1


def test_a_name_that_was_never_heard_of_is_said_to_be(actor: Actor, client: TestClient) -> None:
    shown = page(client, "/nodes?text=gpu-99")
    assert "No recorded node matches" in shown.text
    assert shown.links()["Open gpu-99 anyway"] == "/nodes/gpu-99"
    there = page(client, "/nodes/gpu-99")
    assert "There are no records of gpu-99" in there.text and "does not know it either" in there.text
    assert "The cluster knows it" in page(client, "/nodes/gpu-04").text
    assert page(client, "/nodes/gpu%2099", 404)


def test_pages_of_nodes_show_each_once(client: TestClient, service: Service, kept: NodeRecords) -> None:
    names = [f"gpu-{number:03}" for number in range(2 * PAGE + 10)]
    verdict = suspect(service, "j", names[0], 1.0)
    with service.records.database.writing() as connection:
        rows = [{"node": name, "at": float(place % 3), "verdict": verdict} for place, name in enumerate(names[1:])]
        connection.execute(sa.insert(schema.nodes), rows)
    seen, url = [], "/nodes"
    while url:
        shown = page(client, url)
        seen += named(shown)
        url = shown.links().get("Next page", "")
    assert sorted(seen) == names and len(seen) == len(set(seen))
    told, cursor = [], None
    while True:
        listed = client.get("/v1/nodes", params={"limit": 40} | ({"cursor": cursor} if cursor else {})).json()
        told += [one["node"] for one in listed["items"]]
        if (cursor := listed["next"]) is None:
            break
    assert sorted(told) == names
    for cursor in ("x", "1_2", "0_0_0_nan_gpu-1", "0_0_0_0.0", "9" * 500):
        assert client.get("/v1/nodes", params={"cursor": cursor}).status_code == 400
        assert page(client, f"/nodes?cursor={cursor}", 400)


def test_a_large_fleet_is_a_light_page(client: TestClient, service: Service) -> None:
    verdict = suspect(service, "j", "gpu-0000", 1.0)
    with service.records.database.writing() as connection:
        rows = [{"node": f"gpu-{number:04}", "at": 1.0, "verdict": verdict} for number in range(1, 2000)]
        connection.execute(sa.insert(schema.nodes), rows)
    answer = client.get("/nodes")
    assert len(answer.content) < 200_000 and "2,000 nodes on record" in checked(answer).text


# --- one node


def test_a_node_shows_its_history_with_the_proof(client: TestClient, service: Service, kept: NodeRecords) -> None:
    test = kept_test(kept)
    verdict = suspect(service, "llama", "gpu-02", NOW - 50 * DAY)
    shown = page(client, "/nodes/gpu-02")
    assert "wrong data: failed with gpu-04" in shown.text and "llama" in shown.text
    targets = {tag.attributes["href"] for tag in shown.all("a")}
    assert {
        f"/incidents/1?verdict={verdict}",
        f"/node-tests/{test}",
        f"/node-tests/{test}#world-4",
        "/audit?node=gpu-02",
    } <= targets
    assert "2 worlds as evidence" in shown.text and "gpu-02: wrong data: 1 value" in shown.text


def test_names_out_of_logs_do_no_harm(client: TestClient, service: Service) -> None:
    suspect(service, "j", HOSTILE)
    shown = page(client, "/nodes")
    assert "<script>alert(1)" in shown.text and named(shown) == []


# --- cordons


def test_a_node_is_cordoned_and_put_back(actor: Actor, client: TestClient, service: Service, tmp_path: Path) -> None:
    service.records.put_job("runs", JobFacts(nodelist="gpu-[01-02]"), time.time())
    service.records.open_attempt("runs", 1, time.time())
    verdict = suspect(service, "llama", "gpu-02")
    asked = page(client, f"/nodes/gpu-02/cordon?verdict={verdict}")
    assert "0 of 4 nodes" in asked.text and "at most 2 (50% of the fleet" in asked.text
    assert "its memory is broken" in asked.text and "ECC Error in llama/1" not in asked.text.split("Reason")[0]
    assert "runs / 1" in asked.text.replace("\xa0", " ") and "Cordon gpu-02" in buttons(asked)
    assert not (tmp_path / "cordoned").exists(), "nothing is done by looking"
    answer = post(client, f"/nodes/gpu-02/cordon?verdict={verdict}", reason="its memory is broken")
    assert answer.status_code == 303
    done = page(client, answer.headers["location"])
    assert "gpu-02 is cordoned (file, cordon 1)" in done.text and "its memory is broken" in done.text
    assert f"verdict {verdict}" in (tmp_path / "cordoned").read_text()

    again = checked(post(client, "/nodes/gpu-03/cordon", reason="x") and client.get("/nodes/gpu-02/cordon"))
    assert "gpu-02 is already cordoned" in again.text and "Cordon gpu-02" not in buttons(again)

    back = page(client, "/nodes/gpu-02/uncordon")
    assert "its memory is broken" in back.text and "Uncordon gpu-02" in buttons(back)
    answer = post(client, "/nodes/gpu-02/uncordon", why="board replaced")
    assert "gpu-02 is in service again" in page(client, answer.headers["location"]).text
    assert "gpu-02" not in (tmp_path / "cordoned").read_text()
    assert "logdoctor has no cordon" in page(client, "/nodes/gpu-02/uncordon").text


def test_a_cap_is_told_before_and_after(actor: Actor, client: TestClient) -> None:
    form = filled(page(client, "/nodes/gpu-03/cordon"), reason="x")
    for name in ("gpu-01", "gpu-02"):
        assert post(client, f"/nodes/{name}/cordon", reason="x").status_code == 303
    told = page(client, "/nodes/gpu-03/cordon")
    assert "LOGDOCTOR_CORDON_SHARE" in told.text and "reached" in told.text and "Cordon gpu-03" not in buttons(told)
    refused = client.post("/nodes/gpu-03/cordon", data=form, follow_redirects=False)
    assert refused.status_code == 409 and "would exceed the cap" in checked(refused).text
    assert client.get("/v1/nodes/gpu-03").json()["cordons"][0]["state"] == "refused"


def test_cordons_of_others_are_left_alone(actor: Actor, client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "cordoned").write_text("gpu-03 # cable, ops\n")
    assert "already cordoned by others" in page(client, "/nodes/gpu-03/cordon").text
    assert "cordoned by others" in page(client, "/nodes/gpu-03").text
    assert "cable, ops" in page(client, "/nodes/gpu-03/uncordon").text
    form = filled(page(client, "/nodes/gpu-04/cordon"), reason="x")
    answer = client.post("/nodes/gpu-03/cordon", data=form, follow_redirects=False)
    assert answer.status_code == 409 and "by others" in checked(answer).text
    assert (tmp_path / "cordoned").read_text() == "gpu-03 # cable, ops\n"


def test_what_a_cordon_lacks_is_told(actor: Actor, client: TestClient) -> None:
    answer = post(client, "/nodes/gpu-01/cordon", reason="  ")
    assert answer.status_code == 422 and "gives no reason" in checked(answer).text
    assert "No cluster is configured that could tell whether gpu-99" in page(client, "/nodes/gpu-99/cordon").text


@pytest.mark.parametrize(
    ("facts", "said", "checks"),
    [
        ({}, "The name is as the log has it", True),
        ({"nodelist": "gpu-[01-04]"}, "The name is as the log has it", True),
        ({"nodelist": "gpu-[98-99]"}, "The node list of the job j names it, as a claim", True),
        ({"nodelist": "gpu-[98-99]", "placed": True}, "The node list of the job j names it.", False),
    ],
)
def test_a_node_that_the_list_of_its_job_names_is_known_by_name(
    actor: Actor, client: TestClient, service: Service, facts: dict[str, Any], said: str, checks: bool
) -> None:
    stored = publish(service, "j", changed(suspects=(Suspect("gpu-99", 3, None, ""),)), **facts)
    for path in ("/nodes/gpu-99/cordon", f"/nodes/gpu-99/cordon?verdict={stored.id}"):
        text = page(client, path).text
        assert said in text and ("Check it." in text) == checks, path
    form = filled(page(client, "/nodes/gpu-01/cordon"), reason="x", test="77")
    assert client.post("/nodes/gpu-01/cordon", data=form).status_code == 409
    assert page(client, "/nodes/gpu-01/cordon?verdict=99", 404) and page(client, "/nodes/gpu-01/cordon?test=99", 404)
    unsigned = client.post("/nodes/gpu-01/cordon", data={"reason": "x", "key": "y"}, follow_redirects=False)
    assert unsigned.status_code == 403 and client.get("/v1/nodes/gpu-01").json()["cordons"] == []


def test_a_dry_run_reads_as_one_everywhere(actor: Actor, client: TestClient) -> None:
    rehearsing(actor)
    asked = page(client, "/nodes/gpu-02/cordon")
    assert "Dry run: nothing will be changed on gpu-02" in asked.text and "Cordon gpu-02 (dry run)" in buttons(asked)
    done = page(client, post(client, "/nodes/gpu-02/cordon", reason="x").headers["location"])
    assert "Nothing was changed on the node" in done.text and "in service cordoned in a dry run only" in done.text
    listed = page(client, "/nodes")
    assert "cordoned (dry run)" in listed.text and "nothing changed" in listed.text
    assert named(page(client, "/nodes?service=cordoned")) == [] and named(page(client, "/nodes?service=dry-run"))
    assert "dry run, nothing changed" in page(client, "/audit").text
    ended_so = page(client, post(client, "/nodes/gpu-02/uncordon").headers["location"])
    assert "Dry run: cordon 1 of gpu-02 has been removed" in ended_so.text


def test_a_slow_cluster_holds_up_no_page(
    actor: Actor, client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(background, "_SOON", 0.02)
    monkeypatch.setattr(background, "_FRESH", 1000.0)
    goes_on = threading.Event()
    cordoner, real = actor._means.cordoning._cordoner, actor._means.cordoning._cordoner.nodes

    def slow() -> list[NodeState]:
        goes_on.wait()
        return real()

    monkeypatch.setattr(cordoner, "nodes", slow)
    monkeypatch.setattr(actor, "nodes", slow)
    asked = page(client, "/nodes/gpu-02/cordon")
    assert "has not answered yet" in asked.text and "Cordon gpu-02" in buttons(asked)
    answer = client.post("/nodes/gpu-02/cordon", data=filled(asked, reason="slow"), follow_redirects=False)
    assert answer.status_code == 303
    where = answer.headers["location"]
    assert where.startswith("/nodes/under-way/")
    under_way = client.get(where, follow_redirects=False)
    assert under_way.headers["refresh"] == "1" and "In progress" in checked(under_way).text
    goes_on.set()

    def done() -> str:
        answer = client.get(where, follow_redirects=False)
        return answer.headers.get("location", "")

    assert waiting.until(done) == "/nodes/gpu-02?cordon=1"
    assert page(client, "/nodes/under-way/AAAAAAAAAAAAAAAA", 404)


def test_a_node_that_the_cluster_does_not_know_is_not_there(actor: Actor, client: TestClient) -> None:
    asked = page(client, "/nodes/gpu-02/cordon")
    answer = client.post("/nodes/gpu-99/cordon", data=filled(asked, reason="x"), follow_redirects=False)
    assert answer.status_code == 404 and "the cluster knows no node of this name" in checked(answer).text


def test_a_cluster_that_fails_is_told_in_words(actor: Actor, client: TestClient, tmp_path: Path) -> None:
    asked = page(client, "/nodes/gpu-02/cordon")
    (tmp_path / "cordoned").mkdir()
    answer = client.post("/nodes/gpu-02/cordon", data=filled(asked, reason="x"), follow_redirects=False)
    assert answer.status_code == 502 and "cordoned" in checked(answer).text
    assert page(client, "/nodes/gpu-02") and page(client, "/nodes/gpu-02/cordon")


# --- tests


def test_a_test_is_begun_from_a_page_and_names_the_faulty_node(actor: Actor, client: TestClient) -> None:
    first = page(client, "/node-tests/new")
    assert "Continue" in buttons(first)
    asked = page(client, "/node-tests/new?nodes=gpu-[01-04]")
    assert "Test 4 nodes" in buttons(asked)
    assert "at most 12 rounds" in asked.text and "30 min" in asked.text and items_of(client) == []
    answer = post(client, "/node-tests/new?nodes=gpu-[01-04]", nodes="gpu-[01-04]", repeats="3")
    assert answer.status_code == 303
    where = answer.headers["location"]
    told = ended(client, int(where.rpartition("/")[2]))
    assert told["test"]["options"]["repeats"] == 3
    shown = page(client, where)
    assert "faulty gpu-02" in shown.text and "running" not in shown.text
    assert shown.links()["Cordon"].startswith("/nodes/gpu-02/cordon?test=1")
    proof = [tag.attributes["href"] for tag in shown.all("a") if tag.attributes["href"].startswith("#world-")]
    ids = {tag.attributes.get("id") for tag in shown.all("tr")}
    assert proof and {target[1:] for target in proof} <= ids
    assert "gpu-02" in page(client, "/node-tests").text and page(client, "/node-tests?node=gpu-09")


def test_nodes_that_the_launcher_does_not_have_are_told_before_a_test_is_begun(
    actor: Actor, client: TestClient, service: Service
) -> None:
    service.records.put_job("llama", JobFacts(nodelist="gpu-01,rack-9"), time.time())
    verdict = suspect(service, "llama", "rack-9")
    asked = page(client, f"/node-tests/new?verdict={verdict}")
    assert (
        "Not now. Node rack-9 is not known here. Check its name." in asked.text
        and "which must be able to reach" in asked.text
    )
    assert "Check again" in buttons(asked) and not [one for one in buttons(asked) if one.startswith("Test")]
    assert "".join(asked.all("textarea")[0].text) == "gpu-01,rack-9" and asked.field("verdict") == str(verdict)
    assert "Test 2 nodes" in buttons(page(client, "/node-tests/new?nodes=gpu-01,gpu-02"))
    form = filled(page(client, "/node-tests/new?nodes=gpu-01,gpu-02")) | {"nodes": "gpu-01,rack-9"}
    refused = client.post("/node-tests/new", data=form)
    assert refused.status_code == 422 and checked(refused).text.count("is not known here") == 1


def items_of(client: TestClient) -> Any:
    """The tests on record."""
    return client.get("/v1/node-tests").json()["items"]


def test_the_nodes_of_a_verdict_are_tested(actor: Actor, client: TestClient, service: Service) -> None:
    verdict = suspect(service, "llama", "gpu-02")
    service.records.put_job("llama", JobFacts(nodelist="gpu-[01-04]"), time.time())
    asked = page(client, f"/node-tests/new?verdict={verdict}")
    assert "Suspected, and tested first: gpu-02" in asked.text
    answer = post(client, f"/node-tests/new?verdict={verdict}", nodes="")
    test = ended(client, int(answer.headers["location"].rpartition("/")[2]))["test"]
    assert test["verdict"] == verdict and len(test["nodes"]) == 4
    assert test["options"]["repeats"] == 20, "the job had made steps"
    assert page(client, "/node-tests/new?verdict=99", 404)


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"nodes": "gpu-01,gpu-99"}, 422, "gpu-99"),
        ({"nodes": "-x"}, 400, "not a valid node name"),
        ({"nodes": "gpu-01; reboot"}, 400, "is not in Slurm's notation"),
        ({"nodes": ""}, 422, "neither nodes nor a verdict"),
    ],
)
def test_what_cannot_be_tested_is_told_on_the_page(
    actor: Actor, client: TestClient, given: dict[str, str], status: int, words: str
) -> None:
    answer = post(client, "/node-tests/new?nodes=gpu-01", **given)
    assert answer.status_code == status and words in checked(answer).text and items_of(client) == []


def test_a_running_test_shows_its_worlds_and_is_cancelled(
    actor: Actor, client: TestClient, launcher: RecordedLauncher
) -> None:
    launcher.going.clear()
    test = begin(client)
    waiting.until(lambda: launcher.runs == 2)
    answer = client.get(f"/node-tests/{test}")
    shown = checked(answer)
    assert "Running2" in shown.text and "Running now" in shown.text
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in answer.text
    assert [tag for tag in shown.all("script") if "node_test.js" in tag.attributes["src"]]
    assert f"in test {test}" in page(client, "/nodes?testing=1").text
    assert "A test is running" in page(client, "/nodes/gpu-01").text
    ask = page(client, f"/node-tests/{test}/cancel")
    assert f"Cancel test {test}" in buttons(ask)
    assert {"gpu-03", "gpu-04"} <= set(named(ask))
    assert post(client, f"/node-tests/{test}/cancel").status_code == 303
    assert ended(client, test)["test"]["state"] == "aborted"
    over = client.get(f"/node-tests/{test}")
    assert "cancelled by testclient" in checked(over).text and "noscript" not in over.text
    late = client.post(f"/node-tests/{test}/cancel", data=filled(ask), follow_redirects=False)
    assert late.status_code == 409 and "aborted already" in checked(late).text
    assert page(client, "/node-tests/99", 404) and page(client, "/node-tests/99/cancel", 404)


def test_nodes_under_test_are_not_tested_twice(actor: Actor, client: TestClient, launcher: RecordedLauncher) -> None:
    launcher.going.clear()
    test = begin(client)
    answer = post(client, "/node-tests/new?nodes=gpu-01,gpu-02", nodes="gpu-01,gpu-02")
    assert answer.status_code == 409 and f"test {test} is running on gpu-01" in checked(answer).text
    launcher.going.set()
    ended(client, test)


@pytest.mark.parametrize(
    ("conclusion", "words"),
    [
        (FAULTY, "wrong data: failed with gpu-04"),
        (LINK, "Bad link between gpu-01 and gpu-02"),
        (OPEN, "Test these nodes together with some that are known to work"),
    ],
    ids=["faulty", "link", "open"],
)
def test_a_conclusion_is_told_with_its_worlds(
    client: TestClient, kept: NodeRecords, conclusion: Any, words: str
) -> None:
    test = kept_test(kept, conclusion)
    shown = page(client, f"/node-tests/{test}")
    for _, sentence in node_wording.answers(conclusion):
        assert sentence in " ".join(shown.text.split())
    assert words in " ".join(shown.text.split()) and "first round" in shown.text and "38 GB/s" in shown.text
    assert "World" in shown.text and page(client, f"/node-tests/{test}?round=2").text.count("accused") == 2


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (FAULTY, [("faulty", "gpu-02 is faulty: wrong data: failed with gpu-04")]),
        (
            Conclusion((Finding("a", "healthy", "x"), Finding("b", "healthy", "x")), rounds=2),
            [("healthy", "All 2 nodes are healthy")],
        ),
        (
            Conclusion(tuple(Finding(f"n{number}", "faulty", "x") for number in range(4)), rounds=2),
            [("faulty", "4 of 4 nodes are faulty: n0, n1, n2, n3")],
        ),
        (
            Conclusion((Finding("a", "slow", "half as fast"), Finding("b", "indeterminate", "x")), rounds=2),
            [("slow", "a is slow: half as fast"), ("open", "1 of 2 nodes is undecided: b")],
        ),
    ],
    ids=["faulty", "healthy", "many", "slow"],
)
def test_a_test_that_is_over_begins_with_its_answer(found: Conclusion, said: list[tuple[str, str]]) -> None:
    assert node_wording.answers(found) == said


def test_hostile_words_of_nodes_do_no_harm(client: TestClient, kept: NodeRecords) -> None:
    test = kept_test(kept, None, 0, time.time())
    kept.abort_test(test, HOSTILE, NOW)
    assert "<script>alert(1)" in page(client, f"/node-tests/{test}").text
    assert page(client, "/node-tests") and page(client, "/audit") and page(client, "/nodes/gpu-01")


# --- who may


PAGES = (
    "/nodes",
    "/nodes/gpu-02",
    "/nodes/gpu-02/cordon",
    "/nodes/gpu-02/uncordon",
    "/nodes/under-way/AAAAAAAAAAAAAAAA",
    "/node-tests",
    "/node-tests/new",
    "/node-tests/1",
    "/node-tests/1/cancel",
    "/actions",
    "/actions/1",
    "/actions/1/approve",
    "/actions/1/refuse",
    "/audit",
)


def test_a_token_that_is_bound_to_jobs_sees_none_of_it(guarded: Guarded, actor: Actor) -> None:
    kept_test(actor.records, at=time.time())
    sign_in(guarded, guarded.secret("admin", prefixes=("team-a-",)))
    for path in PAGES:
        shown = page(guarded.client, path, 403)
        assert "nodes are shared by all jobs" in shown.text and "wrong data" not in shown.text, path


def test_who_only_reads_is_offered_nothing_to_do(guarded: Guarded, actor: Actor) -> None:
    kept_test(actor.records, at=time.time())
    sign_in(guarded, guarded.secret("read"))
    for path in ("/nodes", "/nodes/gpu-02", "/node-tests", "/node-tests/1", "/actions"):
        targets = [tag.attributes["href"] for tag in page(guarded.client, path).all("a")]
        assert not [target for target in targets if re.search(r"/(cordon|uncordon|new|cancel|approve)", target)], path
    for path in ("/nodes/gpu-02/cordon", "/node-tests/new", "/node-tests/1/cancel"):
        assert page(guarded.client, path, 403)
        key = page(guarded.client, "/nodes").field("key")
        assert guarded.client.post(path, data={"key": key, "reason": "x"}).status_code == 403


def test_who_acts_is_the_name_of_the_token(guarded: Guarded, actor: Actor) -> None:
    sign_in(guarded, guarded.secret("read", "operate", name="ops"))
    assert post(guarded.client, "/nodes/gpu-02/cordon", reason="x").status_code == 303
    assert actor.records.history("gpu-02").cordons[0].by == "ops"


def test_a_service_that_acts_on_no_nodes_says_what_to_set(client: TestClient, service: Service) -> None:
    kept_test(NodeRecords(service.records.database))
    assert "LOGDOCTOR_LAUNCHER" in page(client, "/nodes").text
    assert "LOGDOCTOR_CORDON_WITH" in page(client, "/nodes/gpu-02/cordon").text
    assert "LOGDOCTOR_LAUNCHER" in page(client, "/node-tests/new?nodes=gpu-02").text
    assert page(client, "/nodes/gpu-02/uncordon") and page(client, "/nodes/gpu-02") and page(client, "/node-tests/1")
    key = page(client, "/cases")  # a session
    assert key and client.post("/nodes/gpu-02/cordon", data={"reason": "x", "key": "x"}).status_code == 403
