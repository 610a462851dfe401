"""Scores of checkpoints over HTTP, and as curves beside the run of their job."""

from starlette.testclient import TestClient

from logdoctor.service.service import Service
from tests.web.conftest import Guarded
from tests.web.test_runs import fill


def score(step: int, value: float, name: str = "humaneval", metric: str = "pass@1") -> dict[str, object]:
    return {"step": step, "set": name, "metric": metric, "value": value, "samples": 164}


def test_scores_are_kept_by_step_and_replaced(client: TestClient) -> None:
    sent = [score(200, 0.3), score(100, 0.1), score(100, 20.5, "wmt", "bleu")]
    assert client.post("/v1/jobs/big <b>/scores", json={"scores": sent}).json() == {"entered": 3}
    client.post("/v1/jobs/big <b>/scores", json={"scores": [score(100, 0.2)]})
    told = client.get("/v1/jobs/big <b>/scores").json()
    assert [(one["set"], one["step"], one["value"]) for one in told["scores"]] == [
        ("humaneval", 100, 0.2),
        ("humaneval", 200, 0.3),
        ("wmt", 100, 20.5),
    ]
    assert client.get("/v1/jobs/nobody/scores").status_code == 404


def test_one_that_cannot_be_stored_stores_none(client: TestClient) -> None:
    for bad in (score(-1, 0.1), score(1, 0.1, ""), score(1, 0.1, "x" * 300), score(1, 0.1) | {"more": 1}):
        assert client.post("/v1/jobs/a/scores", json={"scores": [score(1, 0.5), bad]}).status_code == 422
    infinite = '{"scores": [{"step": 1, "set": "a", "metric": "b", "value": 1e999}]}'
    headers = {"content-type": "application/json"}
    assert client.post("/v1/jobs/a/scores", content=infinite, headers=headers).status_code == 422
    refused = client.post("/v1/jobs/a/scores", json={"scores": [score(1, 0.5), score(1, 0.5, "a\nb")]})
    assert refused.status_code in (400, 422)
    assert client.get("/v1/jobs/a/scores").status_code == 404


def test_the_page_of_a_run_draws_a_curve_for_each_metric(service: Service, client: TestClient) -> None:
    fill(service)
    assert "Scores of its checkpoints" not in client.get("/jobs/big <b>").text
    sent = [score(100 * step, step / 10, "<i>set</i>") for step in range(1, 6)]
    client.post("/v1/jobs/big <b>/scores", json={"scores": sent})
    page = client.get("/jobs/big <b>").text
    assert "Scores of its checkpoints" in page and page.count('<figure class="chart">') == 1
    assert "<i>" not in page and "&lt;i&gt;set&lt;/i&gt;" in page
    assert "From 0.1 to 0.5" in page and '<th scope="row" class="number">500</th>' in page
    client.post("/v1/jobs/unknown so far/scores", json={"scores": sent})
    assert "No attempt yet" not in client.get("/jobs/unknown so far").text


def test_tokens_see_and_send_the_scores_of_their_jobs(guarded: Guarded) -> None:
    fill(guarded.service)
    sender, reader = guarded.token("ingest", prefixes=("other",)), guarded.token("read", prefixes=("other",))
    body = {"scores": [score(1, 0.5)]}
    assert guarded.client.post("/v1/jobs/other/scores", json=body, headers=sender).status_code == 200
    assert guarded.client.post("/v1/jobs/big/scores", json=body, headers=sender).status_code == 403
    assert guarded.client.post("/v1/jobs/other/scores", json=body, headers=reader).status_code == 403
    assert guarded.client.get("/v1/jobs/other/scores", headers=reader).status_code == 200
    assert guarded.client.get("/v1/jobs/big <b>/scores", headers=reader).status_code in (403, 404)
