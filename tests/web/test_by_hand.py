"""Without a launcher or a cordoner there is something to paste, and a button that enters that it was done."""

import shlex

import pytest
from starlette.testclient import TestClient

from logdoctor.service.service import Service
from logdoctor.store.nodes.places import DRY_RUN
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types import Suspect
from logdoctor.types.nodes import Action
from logdoctor.web.nodes import by_hand
from tests.web.test_pages import changed, checked, page, publish

ODD = 'it\'s broken; $(reboot) `x` "now"\nand more'


@pytest.fixture
def kept(service: Service) -> NodeRecords:
    """What is on record of nodes."""
    return NodeRecords(service.records.database)


def advice(client: TestClient, incident: int) -> str:
    """What the page of an incident says to do."""
    (said,) = (
        one for one in page(client, f"/incidents/{incident}").all("p") if one.attributes.get("class") == "advice"
    )
    return "".join(said.text)


def listed(client: TestClient, incident: int) -> str:
    """What the list of incidents says to do about one of them."""
    tags = page(client, "/").tags
    begin = next(place for place, one in enumerate(tags) if one.attributes.get("data-id") == str(incident))
    told = next(one for one in tags[begin:] if one.attributes.get("data-label") == "What to do")
    return "".join(told.text).strip()


def test_a_cordon_is_pasted_entered_and_undone(client: TestClient, service: Service, kept: NodeRecords) -> None:
    stored = publish(service)
    asked = page(client, f"/nodes/node-1/cordon?verdict={stored.id}")
    line = "scontrol update nodename=node-1 state=drain reason='logdoctor incident 1: ECC Error'"
    assert line in asked.text and "kubectl cordon node-1" in asked.text and "state=resume" in asked.text
    assert asked.links()["Let logdoctor do it"] == "/help/nodes"
    form = {"key": asked.field("key"), "verdict": str(stored.id), "reason": asked.field("reason")}
    answer = client.post("/nodes/node-1/cordon/by-hand", data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/incidents/1?cordon=1")
    told = page(client, "/incidents/1?cordon=1")
    assert (
        "node-1 is cordoned (by-hand, cordon 1). Its page. Now restart the job, then resolve the incident." in told.text
    )
    assert told.links()["Its page"] == "/nodes/node-1?cordon=1"
    assert "is cordoned (by-hand" not in page(client, "/incidents/1?cordon=2").text
    told = page(client, "/nodes/node-1?cordon=1")
    assert "node-1 is cordoned (by-hand, cordon 1)" in told.text and "logdoctor incident 1: ECC Error" in told.text
    (cordon,) = kept.cordons("standing", "node-1")
    assert (cordon.how, cordon.by, cordon.verdict) == ("by-hand", "testclient", stored.id)
    assert [one.step for one in kept.audit(None, 9, "node-1").items] == ["standing", "wanted"]
    assert "by hand" in page(client, "/audit?node=node-1").text
    again = client.post("/nodes/node-1/cordon/by-hand", data=form)
    assert again.status_code == 409 and "already cordoned" in checked(again).text
    back = page(client, "/nodes/node-1/uncordon")
    assert "kubectl uncordon node-1" in back.text and "state=resume" in back.text
    undo = {"key": back.field("key"), "why": "board replaced"}
    answer = client.post("/nodes/node-1/uncordon/by-hand", data=undo, follow_redirects=False)
    assert answer.status_code == 303 and kept.cordons("standing", "node-1") == []
    assert kept.audit(None, 1, "node-1").items[0].why == "done by hand: board replaced"
    assert client.post("/nodes/node-1/uncordon/by-hand", data=undo).status_code == 409


def test_an_incident_whose_node_is_cordoned_says_so(client: TestClient, service: Service, kept: NodeRecords) -> None:
    stored = publish(service)
    both = (Suspect("node-1", 3, None, ""), Suspect("node-2", 4, None, ""))
    other = publish(service, "two", changed(suspects=both, fingerprint="0123456789abcdef"))
    two = service.incidents.of(other.job, 1) or 0
    assert advice(client, 1) == "Cordon the node, then restart"
    asked = page(client, f"/nodes/node-1/cordon?verdict={stored.id}")
    form = {"key": asked.field("key"), "verdict": str(stored.id), "reason": "ECC", "who": "anna"}
    client.post("/nodes/node-1/cordon/by-hand", data=form)
    assert advice(client, 1) == listed(client, 1) == "Restart: node-1 is cordoned"
    assert advice(client, two) == "Cordon node-2, then restart", "whatever the cordon was made for"
    assert listed(client, two) == "Cordon node-2, then restart"
    told_of_attempts = page(client, "/attempts").source
    assert ">Restart: node-1 is cordoned<" in told_of_attempts and ">Cordon node-2, then restart<" in told_of_attempts
    assert "anna (unverified) cordoned node-1 (by-hand)" in page(client, "/incidents/1").text
    told = [(one.step, one.note) for one in service.incidents.events(1)]
    assert told[0] == ("cordoned", "node-1 (by-hand)")
    client.post("/nodes/node-1/uncordon/by-hand", data={"key": asked.field("key"), "why": "repaired"})
    assert advice(client, 1) == "Cordon the node, then restart"
    assert "anna (unverified) uncordoned node-1 (by-hand)" in page(client, "/incidents/1").text


def test_a_dry_run_of_a_cordon_changes_no_advice(client: TestClient, service: Service, kept: NodeRecords) -> None:
    stored = publish(service)
    wanted = kept.want_cordon("node-1", DRY_RUN, "anna", 1.0, "ECC", stored.id)
    kept.step_cordon(wanted.id, "standing", "anna", "", 2.0)
    assert advice(client, 1) == "Cordon the node, then restart"
    assert "cordoned" not in [one.step for one in service.incidents.events(1)]


def test_the_name_goes_with_the_first_step(client: TestClient, service: Service, kept: NodeRecords) -> None:
    stored = publish(service)
    place = f"/nodes/node-1/cordon?verdict={stored.id}"
    asked = page(client, place)
    assert asked.text.count("Your name") == 1, "beside the button, not in a form of its own"
    form = {"key": asked.field("key"), "verdict": str(stored.id), "reason": "x", "who": "anna"}
    client.post("/nodes/node-1/cordon/by-hand", data=form)
    (cordon,) = kept.cordons("standing", "node-1")
    assert cordon.by == "anna (unverified)"
    again = page(client, "/nodes/node-1/uncordon")
    assert "Your name" not in again.text
    client.post("/nodes/node-1/uncordon/by-hand", data={"key": again.field("key"), "why": ""})
    assert kept.audit(None, 1, "node-1").items[0].by == "anna (unverified)"


def test_a_cordon_by_hand_may_resolve_its_incident(client: TestClient, service: Service, kept: NodeRecords) -> None:
    stored = publish(service)
    asked = page(client, f"/nodes/node-1/cordon?verdict={stored.id}")
    assert "I did it, and incident 1 is resolved" in asked.text
    form = {"key": asked.field("key"), "verdict": str(stored.id), "reason": "ECC", "resolve": "1", "who": "anna"}
    answer = client.post("/nodes/node-1/cordon/by-hand", data=form, follow_redirects=False)
    assert answer.headers["location"] == "/incidents/1?cordon=1"
    found = service.incidents.one(1)
    assert found is not None and (found.state, found.note) == ("resolved", "cordoned node-1 by hand")
    assert found.by == "anna (unverified)"
    assert "Now restart the job" not in page(client, "/incidents/1?cordon=1").text
    assert "is resolved</button>" not in client.get(f"/nodes/node-2/cordon?verdict={stored.id}").text


def test_a_test_is_pasted(client: TestClient, service: Service) -> None:
    stored = publish(service)
    asked = page(client, f"/node-tests/new?verdict={stored.id}")
    assert f"logdoctor nodes test --launcher=slurm --verdict={stored.id}" in asked.text
    asked = page(client, "/node-tests/new?nodes=gpu-[01-02]")
    assert "logdoctor nodes test --launcher=ssh --nodes=gpu-01,gpu-02" in asked.text


def test_an_action_is_done_by_hand(client: TestClient, service: Service, kept: NodeRecords) -> None:
    stored = publish(service)
    tests = kept.propose(Action("test_nodes", ("gpu-01", "gpu-02"), "ask", "it hangs", stored.id, None), "j", 1, 1.0)
    cordon = kept.propose(Action("cordon", ("gpu-02",), "ask", "ECC", stored.id, None), "j", 1, 2.0)
    assert tests is not None and cordon is not None
    for action, line in ((tests, "--nodes=gpu-01,gpu-02"), (cordon, "kubectl cordon gpu-02")):
        asked = page(client, f"/actions/{action.id}/approve")
        assert line in asked.text
        answer = client.post(f"/actions/{action.id}/by-hand", data={"key": asked.field("key"), "why": "quicker"})
        assert "done by hand: quicker" in checked(answer).text
    assert [kept.action(one.id).state for one in (tests, cordon)] == ["done", "done"]  # type: ignore[union-attr]
    assert [one.node for one in kept.cordons("standing", how=by_hand.HOW)] == ["gpu-02"]


@pytest.mark.parametrize("reason", [ODD, "", "x" * 5000, "\x1b[31mred"])
def test_a_shell_reads_one_command(reason: str) -> None:
    slurm, kubernetes = by_hand.to_cordon("gpu-01", reason)
    words = shlex.split(slurm.line)
    assert words[:4] == ["scontrol", "update", "nodename=gpu-01", "state=drain"] and len(words) == 5
    assert words[4].startswith("reason=") and words[4].isprintable() and len(words[4]) < 140
    assert shlex.split(kubernetes.line) == ["kubectl", "cordon", "gpu-01"]


def test_the_list_says_what_is_known_where_nothing_is_tested(client: TestClient, service: Service) -> None:
    publish(service, "a", changed(suspects=(Suspect("gpu-07", None, None, "broken"),)))
    publish(service, "b", changed(suspects=(Suspect("gpu-07", None, None, "broken"),)))
    shown = page(client, "/nodes")
    for words in ("Jobs that failed on it", "Last seen", "gpu-07", "ECC Error"):
        assert words in shown.text, words
    assert {"a", "b"} <= shown.links().keys()
    for words in ("untested", "Last test", "Faulty"):
        assert words not in shown.text, words
    assert shown.links()["how to set it up"] == "/help/nodes"
    assert "LOGDOCTOR_SSH_HOSTS" in page(client, "/help/nodes").text
