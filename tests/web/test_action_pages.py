"""The queue of actions and the audit as a browser gets them: what will happen is said, and who was quicker."""

import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from logdoctor.service.acting import Actor
from logdoctor.service.service import Service
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types.nodes import Action
from logdoctor.web.gate import Caller
from logdoctor.web.nodes.actions_pages import PAGE, waiting
from tests.recorded_nodes import CORDON, NOW, RecordedLauncher, kept_test
from tests.web.conftest import Guarded
from tests.web.test_node_pages import buttons, filled, named, post, rehearsing
from tests.web.test_nodes import NAMES, acting, ended
from tests.web.test_pages import HOSTILE, checked, page, sign_in

TEST = Action("test_nodes", tuple(NAMES), "ask", "it hangs", None, None)
REBOOT = Action("reboot", ("gpu-02",), "ask", "Reboot it and test it again: wrong data.", None, 1)


@pytest.fixture
def actor(service: Service, tmp_path: Path) -> Actor:
    """What acts on four nodes; one test of them is on record, and three actions wait: 1 a cordon, 2 a test, 3 a
    reboot."""
    actor = acting(service, RecordedLauncher(NAMES, ["gpu-02"]), tmp_path)
    kept_test(actor.records, at=time.time())
    for action in (CORDON, TEST, REBOOT):
        assert actor.records.propose(action, "llama", 1, NOW) is not None
    return actor


def test_the_queue_says_what_waits_and_why(actor: Actor, client: TestClient) -> None:
    shown = page(client, "/actions")
    assert "Waiting 3" in shown.text and "Done 0" in shown.text
    for words in ("Cordon gpu-02", "test 1 found gpu-02 faulty", "Test gpu-01, gpu-02 and 2 more", "advice: somebody"):
        assert words in shown.text
    assert set(named(shown)) == set(NAMES) and "/node-tests/1" in shown.links().values()
    assert shown.links()["Approve"] == "/actions/1/approve"
    assert "3 actions wait for approval" in page(client, "/nodes").text
    assert (
        "Reboot gpu-02" in page(client, "/nodes/gpu-02").text
        and "Waiting for" not in page(client, "/nodes/gpu-09").text
    )


def test_a_cordon_is_approved_with_its_caps_in_sight(actor: Actor, client: TestClient, tmp_path: Path) -> None:
    asked = page(client, "/actions/1/approve")
    assert "Cordon gpu-02" in buttons(asked) and "0 of 4 nodes" in asked.text
    assert not (tmp_path / "cordoned").exists()
    answer = post(client, "/actions/1/approve", why="go on")
    assert (answer.status_code, answer.headers["location"]) == (303, "/actions/1")
    done = page(client, "/actions/1")
    assert "done" in done.text and "by testclient" in done.text and (tmp_path / "cordoned").read_text()
    assert "Cordon gpu-02" in page(client, "/actions?state=done").text and "Waiting 2" in page(client, "/actions").text


def test_a_dry_run_is_told_to_have_changed_nothing(actor: Actor, client: TestClient) -> None:
    rehearsing(actor)
    asked = page(client, "/actions/1/approve")
    assert "Dry run: nothing will be changed on gpu-02" in asked.text and "Cordon gpu-02 (dry run)" in buttons(asked)
    assert post(client, "/actions/1/approve").status_code == 303
    assert "nothing was changed" in page(client, "/actions/1").text
    assert "dry run, nothing was changed" in page(client, "/actions?state=done").text


def test_an_approved_test_is_watched(actor: Actor, client: TestClient) -> None:
    asked = page(client, "/actions/2/approve")
    assert set(named(asked)) >= set(NAMES) and "no round starts after 30 min" in asked.text
    answer = post(client, "/actions/2/approve")
    assert answer.headers["location"] == "/node-tests/2"
    assert ended(client, 2)["test"]["options"]["action"] == 2
    assert "requested by action 2" in page(client, "/node-tests/2").text


def test_a_test_of_nodes_that_the_launcher_does_not_have_is_not_offered(actor: Actor, client: TestClient) -> None:
    elsewhere = Action("test_nodes", ("gpu-01", "rack-9"), "ask", "it hangs", None, None)
    proposed = actor.records.propose(elsewhere, "llama", 2, NOW)
    assert proposed is not None
    asked = page(client, f"/actions/{proposed.id}/approve")
    assert "Not now. Node rack-9 is not known here. Check its name." in asked.text
    assert buttons(asked) == ["I did it"] and "Refuse instead" in asked.links()
    assert "logdoctor nodes test --launcher=slurm --nodes=gpu-01,rack-9" in asked.text
    form = filled(page(client, f"/actions/{proposed.id}/refuse"))
    answer = client.post(f"/actions/{proposed.id}/approve", data=form, follow_redirects=False)
    assert answer.status_code == 409
    told = checked(answer).text
    assert f"Action {proposed.id} was not done: node rack-9 is not known here" in told and "waits again" in told


def test_advice_is_for_people(actor: Actor, client: TestClient) -> None:
    asked = page(client, "/actions/3/approve")
    assert "logdoctor does not do this itself" in asked.text
    assert post(client, "/actions/3/approve").status_code == 303 and "done" in page(client, "/actions/3").text


def test_an_action_is_refused(actor: Actor, client: TestClient) -> None:
    asked = page(client, "/actions/3/refuse")
    assert "Nothing is done" in asked.text and "Refuse" in buttons(asked)
    assert post(client, "/actions/3/refuse", why="not now").status_code == 303
    told = page(client, "/actions/3")
    assert "refused" in told.text and "not now" in told.text
    assert "not now" in page(client, "/actions?state=refused").text


@pytest.mark.parametrize(("first", "said"), [("refuse", "refused"), ("approve", "approved")])
def test_of_two_people_the_slower_one_is_told_who_was_quicker(
    actor: Actor, guarded: Guarded, first: str, said: str
) -> None:
    sign_in(guarded, guarded.secret("read", "operate", name="slower"))
    form = filled(page(guarded.client, "/actions/3/approve"), why="mine")
    body = {"why": "the vendor comes"}
    headers = {"Authorization": f"Bearer {guarded.secret('operate', name='quicker')}"}
    assert guarded.client.post(f"/v1/actions/3/{first}", json=body, headers=headers).status_code == 200
    answer = guarded.client.post("/actions/3/approve", data=form, follow_redirects=False)
    assert answer.status_code == 409
    shown = checked(answer)
    assert f"quicker decided first: the action was {said}" in shown.text
    assert buttons(shown) == ["Sign out"], "nothing can be decided any more"
    looked = page(guarded.client, "/actions/3/refuse")
    assert "quicker decided" in looked.text and buttons(looked) == ["Sign out"]


def test_what_cannot_be_done_now_waits_again_with_the_reason(actor: Actor, client: TestClient, tmp_path: Path) -> None:
    form = filled(page(client, "/actions/1/approve"), why="go on")
    for name in ("gpu-03", "gpu-04"):
        actor.cordon(name, "ops", "x")
    answer = client.post("/actions/1/approve", data=form, follow_redirects=False)
    assert answer.status_code == 409 and "would exceed the cap" in checked(answer).text
    shown = page(client, "/actions")
    assert "Waiting 3" in shown.text and "could not be done" in shown.text
    assert "Cordon gpu-02" not in buttons(page(client, "/actions/1/approve")), "it would be refused again"


def test_an_superseded_action_is_not_done(actor: Actor, client: TestClient, tmp_path: Path) -> None:
    form = filled(page(client, "/actions/1/approve"))
    actor.records.supersede(1, "a later test found gpu-02 healthy", time.time())
    answer = client.post("/actions/1/approve", data=form, follow_redirects=False)
    assert answer.status_code == 409 and "The action was superseded" in checked(answer).text
    assert "a later test found gpu-02 healthy" in page(client, "/actions?state=superseded").text
    assert not (tmp_path / "cordoned").exists()


def test_only_our_own_forms_decide(actor: Actor, client: TestClient) -> None:
    for step in ("approve", "refuse"):
        answer = client.post(f"/actions/3/{step}", data={"key": "x"}, follow_redirects=False)
        assert answer.status_code == 403
        assert page(client, f"/actions/99/{step}", 404)
    assert page(client, "/actions/99", 404) and page(client, "/actions?state=lost", 400)
    assert waiting_of(actor) == 3


def waiting_of(actor: Actor) -> int:
    """How many actions wait."""
    return actor.records.waiting()


def test_the_number_of_waiting_actions_is_for_those_who_may_see_them(
    actor: Actor, guarded: Guarded, service: Service
) -> None:
    bound = service.tokens.create("bound", ["read"], ("team-a-",))[0]
    free = service.tokens.create("free", ["read"])[0]
    assert waiting(service, Caller(None, "")) == waiting(service, Caller(free, "free")) == 3
    assert waiting(service, Caller(bound, "bound")) == 0


def test_pages_of_actions_follow_each_other(client: TestClient, service: Service) -> None:
    kept = NodeRecords(service.records.database)
    for number in range(PAGE + 3):
        kept.propose(Action("reboot", (f"n{number}",), "ask", HOSTILE, None, number + 1), None, None, NOW)
    first = page(client, "/actions")
    second = page(client, first.links()["Older"])
    assert len(set(named(first)) | set(named(second))) == PAGE + 3 and "Older" not in second.links()
    assert "<script>alert(1)" in first.text


# --- the audit


def test_the_audit_tells_each_step_and_who_took_it(actor: Actor, client: TestClient) -> None:
    post(client, "/actions/1/approve", why="go on")
    shown = page(client, "/audit?node=gpu-02")
    for words in ("cordon approved", "requested", "in effect", "testclient", "go on"):
        assert words in shown.text
    assert "/actions/1" in shown.links().values() and "/node-tests/1" in shown.links().values()
    assert "No steps for gpu-77" in page(client, "/audit?node=gpu-77").text
    assert "only test 1" in page(client, "/audit?test=1").text.lower()
    sent = client.get("/audit?node=", follow_redirects=False)
    assert (sent.status_code, sent.headers["location"]) == (303, "/audit")


def test_pages_of_the_audit_follow_each_other(client: TestClient, service: Service) -> None:
    kept = NodeRecords(service.records.database)
    for number in range(60):
        kept.propose(Action("reboot", ("gpu-02",), "ask", f"reason {number};", None, number + 1), None, None, NOW)
        kept.decide(number + 1, False, "ops", "", NOW)
    first = page(client, "/audit?node=gpu-02")
    second = page(client, first.links()["Older"])
    assert "reason 59;" in first.text and "reason 59;" not in second.text and second.links()["Newest"]
    assert "node=gpu-02" in first.links()["Older"]
