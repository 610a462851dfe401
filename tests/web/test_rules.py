"""Learned rules over HTTP: who sees which, who may decide, and what is written down of it."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from logdoctor.cli import cli
from logdoctor.learning.files.files import rules_in
from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.settings import Settings
from logdoctor.store.learning.learned import Learned, Source
from logdoctor.store.learning.refusals import Refused, Votes
from logdoctor.types import Evidence
from logdoctor.web import health
from logdoctor.wiring import running
from logdoctor.wiring.learning import log_agent
from tests import waiting
from tests.rule_files.learned import EVIL, HEARTBEAT, KIND, SHARD, active, entered, new
from tests.web.conftest import TIMING, Guarded, bearer, local_client, new_service, options
from tests.web.test_pages import changed, publish

RULES = "/v1/rules"


def items(client: TestClient, path: str = RULES, headers: dict[str, str] | None = None, **params: Any) -> list[Any]:
    """All items of a list, page by page."""
    found: list[Any] = []
    while True:
        answer = client.get(path, params=params, headers=headers)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["items"]
        if page["next"] is None:
            return found
        params["cursor"] = page["next"]


@pytest.fixture
def some(service: Service) -> list[Learned]:
    """Rules of two kinds and two jobs, the oldest first."""
    pattern, example = "^shuffle buffer filled [0-9]+/[0-9]+$", "shuffle buffer filled 3/9"
    other = new(pattern=pattern, examples=(example,), kind="nemo/train.py", source=Source("team-b-1", 1))
    return entered(service.rules, SHARD, HEARTBEAT, other)


def test_rules_are_listed_newest_first_and_filtered(client: TestClient, some: list[Learned]) -> None:
    ids = [rule.id for rule in some]
    assert [rule["id"] for rule in items(client)] == ids[::-1]
    assert [rule["id"] for rule in items(client, limit=1)] == ids[::-1]
    assert [rule["id"] for rule in items(client, status="proposed")] == [ids[1]]
    assert [rule["id"] for rule in items(client, kind="nemo/train.py")] == [ids[2]]
    assert items(client, agent="nobody") == [] == items(client, kind="\x00")
    assert client.get(RULES, params={"status": "bad"}).status_code == 422
    assert client.get(RULES, params={"cursor": "x"}).json()["error"]["code"] == "bad_cursor"


def test_one_rule_with_its_story(client: TestClient, some: list[Learned]) -> None:
    rule = client.get(f"{RULES}/{some[0].id}").json()
    assert rule["source"]["job"] == "llama-7b" and rule["votes"]["agreed"] == [0, 1, 3, 4]
    assert rule["pattern"] == SHARD.pattern and rule["status"] == "shadow"
    steps = items(client, f"{RULES}/{some[0].id}/events")
    assert [(step["step"], step["by"], step["to_status"]) for step in steps] == [("added", "logdoctor", "shadow")]


@pytest.mark.parametrize(
    "id",
    ["learned/none", "learned/a/b/c", "learned/megatron/pretrain-gpt-py", "learned/" + "a" * 200, "learned/x/events"],
)
def test_a_rule_that_does_not_exist(lasting: TestClient, id: str) -> None:
    for answer in (lasting.get(f"{RULES}/{id}"), lasting.post(f"{RULES}/{id}/approve", json={})):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "id", ["x", "filter/nccl/info", "learned/../x", "learned/%00", "learned/\u202e", "learned/" + "a" * 400]
)
def test_hostile_ids_are_refused(lasting: TestClient, id: str) -> None:
    for answer in (lasting.get(f"{RULES}/{id}"), lasting.post(f"{RULES}/{id}/retire", json={})):
        assert answer.status_code in (404, 405, 422), answer.text
        assert answer.json()["error"]["code"]


def test_steps_are_taken_and_written_down(guarded: Guarded, some: list[Learned]) -> None:
    client, read = guarded.client, guarded.token("read")
    operate = bearer(guarded.secret("operate", name="a token"))
    url = f"{RULES}/{some[1].id}"

    def step(name: str, status: int = 200, **body: str) -> Any:
        answer = client.post(f"{url}/{name}", json=body, headers=operate)
        assert answer.status_code == status, answer.text
        return answer.json()

    approved = step("approve", why="read it")
    assert (approved["id"], approved["status"], approved["harmless"]) == (some[1].id, "shadow", True)
    assert approved == client.get(url, headers=read).json()
    assert step("approve")["status"] == "active"
    error = step("approve", 409)["error"]
    assert (error["code"], error["cause"]) == ("rule_refused", "is already active")
    assert step("undo", why="too early")["status"] == "shadow"
    assert step("retire")["status"] == "retired"
    story = items(client, f"{url}/events", headers=read)
    assert [(one["step"], one["by"], one["why"]) for one in story[1:4:2]] == [
        ("undo", "a token", "too early"),
        ("approve", "a token", "read it"),
    ]
    assert {one["rule"] for one in items(client, f"{RULES}/events", headers=read, limit=2)} == {r.id for r in some}
    for body in ({"why": "x" * 3000}, {"who": "me"}, {"why": 7}, [], "x"):
        assert client.post(f"{url}/approve", json=body, headers=operate).status_code == 422


def test_a_token_bound_to_jobs_sees_what_was_learned_from_these_only(guarded: Guarded, some: list[Learned]) -> None:
    client, rules = guarded.client, guarded.service.rules
    bound = guarded.token("admin", prefixes=("team-b-",))
    imported = entered(rules, new(pattern="^read shard [0-9]+$", source=Source()))[0]
    rules.refusals.add(KIND, "llama-7b", 1, "miner", [Refused("^.*$", "grammar", "no")], 1.0)
    rules.refusals.add(KIND, "team-b-2", 1, "miner", [Refused("^.+$", "grammar", "no", Votes(5, (0,), ""))], 1.0)
    active(rules, new(pattern=some[2].pattern, kind="nemo/train.py"))
    rules.move(some[2].id, "shadow", "logdoctor", "matches evidence of secret-job/1: secret line", 3.0, "demote")
    mine = some[2].id
    assert [rule["id"] for rule in items(client, headers=bound, limit=1)] == [mine]
    assert {one["rule"] for one in items(client, f"{RULES}/events", headers=bound, limit=1)} == {mine}
    assert [one["job"] for one in items(client, f"{RULES}/refusals", headers=bound)] == ["team-b-2"]
    for hidden in (some[0].id, imported.id, "learned/none"):
        for path in ("", "/events"):
            assert client.get(f"{RULES}/{hidden}{path}", headers=bound).status_code == 404
    assert client.get(f"{RULES}/{mine}", headers=bound).status_code == 200
    told = "".join(
        client.get(f"{RULES}{path}", headers=bound).text
        for path in (
            "",
            "/events",
            "/refusals",
            "/export?status=shadow",
            f"/{mine}/events",
            f"/why?line={SHARD.examples[0]}",
        )
    )
    assert "secret" not in told and SHARD.pattern not in told and some[0].id not in told
    assert "secret line" in client.get(f"{RULES}/events", headers=guarded.token("read")).text


def test_a_token_bound_to_jobs_decides_nothing(guarded: Guarded, some: list[Learned]) -> None:
    bound = guarded.token("admin", prefixes=("team-b-",))
    for rule in some:
        for step in ("approve", "retire", "undo"):
            answer = guarded.client.post(f"{RULES}/{rule.id}/{step}", json={}, headers=bound)
            assert answer.status_code == 403 and "all jobs of its kind" in answer.text
    assert guarded.client.post(f"{RULES}/import", content=b"", headers=bound).status_code == 403


def test_why(client: TestClient, some: list[Learned]) -> None:
    answer = client.get(f"{RULES}/why", params={"line": SHARD.examples[0]}).json()
    assert answer["line"] == SHARD.examples[0]
    (said,) = answer["said"]
    assert said["kind"] == KIND and said["findings"][0].startswith(f"would take {some[0].id}")
    elsewhere = client.get(f"{RULES}/why", params={"line": SHARD.examples[0], "kind": "nemo/train.py"}).json()
    assert elsewhere["said"][0]["kind"] == "" and "no rule matches it" in elsewhere["said"][0]["findings"][-1]
    for line in ("a\nb", "x" * 9000):
        assert client.get(f"{RULES}/why", params={"line": line}).status_code == 422
    assert client.get(f"{RULES}/why", params={"line": EVIL.replace("\n", "")}).status_code == 200


def test_refusals_are_paged(client: TestClient, service: Service) -> None:
    refused = [Refused(f"^{n}.*$", "grammar" if n % 2 else "literal", "no") for n in range(7)]
    service.rules.refusals.add(KIND, "llama-7b", 1, "miner", refused, 1.0)
    found = items(client, f"{RULES}/refusals", limit=2)
    assert [one["pattern"] for one in found] == [one.pattern for one in refused[::-1]]
    assert len(items(client, f"{RULES}/refusals", guard="literal", limit=500)) == 4
    assert client.get(f"{RULES}/refusals", params={"cursor": "-1"}).status_code == 400


def test_an_export_is_imported_elsewhere(
    client: TestClient, some: list[Learned], tmp_path: Path, scanner: Scanner
) -> None:
    text = client.get(f"{RULES}/export", params={"status": "shadow"}).text
    assert len(rules_in(text.encode(), "x")) == 2
    with local_client(new_service(tmp_path / "other", scanner)) as other:
        for outcome in ("entered", "known"):
            answer = other.post(f"{RULES}/import", content=text)
            assert answer.status_code == 200, answer.text
            assert {one["outcome"] for one in answer.json()["rules"]} == {outcome}
        assert {rule["id"] for rule in items(other)} == {some[0].id, some[2].id}
        (story,) = items(other, f"{RULES}/{some[0].id}/events")
        assert (story["step"], story["to_status"]) == ("import", "shadow")


def test_a_bad_import_is_refused_as_a_whole(client: TestClient, service: Service) -> None:
    good = {
        "id": "filter/x",
        "kind": "filter",
        "status": "active",
        "title": "t",
        "patterns": ["^loaded shard [0-9]+ of [0-9]+$"],
        "must_match": ["loaded shard 3 of 9"],
        "origin": {"by": "me", "at": "2026-01-01", "source": "s"},
    }
    body = yaml.safe_dump_all([good, good | {"id": "filter/y", "patterns": ["^.*$"]}])
    error = client.post(f"{RULES}/import", params={"kind": KIND}, content=body).json()["error"]
    assert error["code"] == "rules_refused" and "nothing was entered" in error["cause"]
    (refused,) = error["refused"]
    assert (refused["rule"], refused["guard"]) == ("filter/y", "grammar") and "wildcard" in refused["cause"]
    for content, status in (
        (b"", 422),
        (b"a: &a [*a]", 422),
        (b"kind: 1" + b":1" * 250 + b":1.0", 422),
        (b"kind: 1" + b":1" * 900_000, 422),
        (b"\xff", 422),
        (yaml.safe_dump_all([good] * 201).encode(), 422),
        (b"#" * (3 << 20), 413),
    ):
        answer = client.post(f"{RULES}/import", params={"kind": KIND}, content=content)
        assert answer.status_code == status, content[:20]
    assert service.rules.list() == []
    assert client.post(f"{RULES}/import", params={"kind": KIND}, content=yaml.safe_dump(good)).status_code == 200


def test_an_import_may_not_take_a_line_that_was_cited_since_the_start(client: TestClient, service: Service) -> None:
    cited = Evidence("main", "main", 3, "loaded shard 3 of 9", "diagnosis/x")
    publish(service, verdict=changed(evidence=(cited,)))
    rule = {
        "id": "filter/x",
        "kind": "filter",
        "status": "active",
        "title": "t",
        "patterns": ["^loaded shard [0-9]+ of [0-9]+$"],
        "must_match": ["loaded shard 4 of 9"],
        "origin": {"by": "me", "at": "2026-01-01", "source": "s"},
    }
    answer = client.post(f"{RULES}/import", params={"kind": KIND}, content=yaml.safe_dump(rule))
    (refused,) = answer.json()["error"]["refused"]
    assert refused["guard"] == "evidence" and "loaded shard 3 of 9" in refused["cause"]


def samples(client: TestClient, headers: dict[str, str] | None = None) -> dict[tuple[str, str], float]:
    """The service's samples by name and the one label they may have beside that of the process."""
    families = text_string_to_metric_families(client.get("/metrics", headers=headers).text)
    return {
        (
            sample.name.removeprefix("logdoctor_"),
            next((v for n, v in sample.labels.items() if n != "worker"), ""),
        ): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def learning(tmp_path: Path, scanner: Scanner) -> Service:
    """A service that learns."""
    settings = Settings(learn="miner", data_dir=tmp_path / "data")
    (tmp_path / "data").mkdir()
    plan = running.plan(settings)._replace(min_free=0, timing=TIMING)
    return Service(tmp_path / "data", scanner, plan, partial(log_agent, settings, scanner))


def test_figures_of_what_was_learned(learning: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_NAMED", 2)
    assert learning.learner is not None
    rules, lines = learning.rules, learning.learner.lines
    rule = active(rules)
    entered(rules, HEARTBEAT)
    rules.refusals.add(KIND, "llama-7b", 1, "miner", [Refused("^.*$", "grammar", "no")] * 3, 1.0)
    lines |= {"filter/a": 5, rule.id: 7, "filter/b": 1}
    with local_client(learning, options(wants_token=True)) as client:
        guarded = Guarded(client, learning)
        read = guarded.token("read")
        found = samples(client, read)
        assert found["filter_lines_total", rule.id] == 7 and found["filter_lines_total", "filter/a"] == 5
        assert found["filter_lines_total", "other"] == 1 and ("filter_lines_total", "filter/b") not in found
        assert (found["learned_rules", "active"], found["learned_rules", "proposed"]) == (1, 1)
        assert found["refused_proposals_total", "grammar"] == 3 and found["refused_proposals_total", "secret"] == 0
        assert found["lessons_total", ""] == 0 and found["model_breaker", ""] == 0
        assert found["model_calls_total", "answered"] == 0 and found["model_tokens_total", "in"] == 0
        lines["filter/b"] = 1000
        rules.retire(rule.id, "user-17", "", 9.0)
        later = samples(client, read)
        assert later["filter_lines_total", "other"] == 1000, "a counter may not go down when a rule grows"
        assert (later["learned_rules", "active"], later["learned_rules", "retired"]) == (0, 1)


@pytest.mark.in_sqlite
def test_what_the_command_line_changes_reaches_running_streams(tmp_path: Path, learning: Service) -> None:
    (rule,) = entered(learning.rules, SHARD)
    log = "".join(f"Opening data shard {n} of 900 at /data/abc\n" for n in range(9)).encode()
    with local_client(learning) as client:
        client.put("/v1/jobs/llama-7b", json={"framework": "megatron", "command": "torchrun pretrain_gpt.py"})
        stream, sent = "/v1/jobs/llama-7b/attempts/1/streams/main", 0

        def kept() -> int:
            """Lines of the next part of the stream that no rule takes."""
            nonlocal sent
            before = client.get(stream).json()["lines_kept"] if sent else 0
            answer = client.post(f"{stream}/log", params={"offset": sent}, content=log).json()
            sent = answer["next_offset"]
            done = waiting.until(lambda: (s := client.get(stream).json())["lines_scanned"] == s["lines_in"] and s)
            return int(done["lines_kept"]) - before

        assert kept() == 9
        ran = CliRunner().invoke(cli, ["rules", "approve", rule.id, "--data-dir", str(tmp_path / "data")])
        assert ran.exit_code == 0, ran.output
        assert client.get(f"/v1/rules/{rule.id}").json()["status"] == "active"
        waiting.until(lambda: kept() == 0)
