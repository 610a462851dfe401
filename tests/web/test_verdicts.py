"""What readers get: lists, filters, pages of thousands, proof from the archive."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from logdoctor import pipeline, taxonomy
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.store import schema
from logdoctor.types import Suspect, Verdict
from tests import waiting
from tests.soak import SOAKING
from tests.web.conftest import FAILED, TIMING, local_client, new_service

CORPUS = Path(__file__).parents[2] / "eval" / "corpus"
MANY = 10_000 if SOAKING else 700  # eval/bench_pages.py measures lists of 10,000
CHOSEN = ["inf-004", "inf-006", "inf-028", "usr-001", "usr-061", "inf-012", "inf-005"]


def sent(client: TestClient, job: str, data: bytes, exit_code: int | None = None) -> dict[str, Any]:
    """The final verdict on a job whose log is sent."""
    for at in range(0, len(data), 1 << 20):
        log = f"/v1/jobs/{job}/attempts/1/streams/main/log"
        assert client.post(log, params={"offset": at}, content=data[at : at + (1 << 20)]).status_code == 200
    client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": exit_code})

    def ask() -> dict[str, Any] | None:
        answer = client.get(f"/v1/jobs/{job}/attempts/1/verdict")
        return answer.json() if answer.status_code == 200 and answer.json()["final"] else None

    return waiting.until(ask)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def verdicts(scanner: Scanner, limits: ReadLimits) -> list[Verdict]:
    """Real verdicts of some logs of the corpus."""
    paths = [CORPUS / "failures" / f"{name}.log" for name in CHOSEN]
    return [pipeline.diagnose([pipeline.LogFile("main", path)], scanner, limits) for path in paths]


@pytest.fixture(scope="module")
def crowded(
    tmp_path_factory: pytest.TempPathFactory, scanner: Scanner, verdicts: list[Verdict]
) -> Iterator[TestClient]:
    """A client of a service with many incidents."""
    service = new_service(tmp_path_factory.mktemp("crowded"), scanner)
    records, chance, begin = service.records, random.Random(1), time.time() - MANY
    for number in range(REAL):
        verdict = chance.choice(verdicts)
        node = f"node-{chance.randrange(20):03}"
        verdict = msgspec.structs.replace(verdict, suspects=(Suspect(node, 1, None, "it is named"),))
        records.open_attempt(f"job-{number:05}", 1, begin + number)
        records.publish(f"job-{number:05}", 1, verdict, final=True, at=begin + number)
    with records.database.writing() as connection:
        for table, shifted in SHIFTED.items():
            rows = [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            for shift in range(REAL, MANY, REAL):
                more = [row | {name: moved(row[name], shift) for name in shifted} for row in rows]
                connection.execute(sa.insert(table), more)
    with local_client(service) as client:
        yield client


REAL = 400 if SOAKING else 100
SHIFTED: dict[sa.Table, tuple[str, ...]] = {
    schema.jobs: ("job", "created", "updated"),
    schema.attempts: ("job", "started"),
    schema.verdicts: ("id", "event", "job", "at"),
    schema.bodies: ("verdict",),
    schema.nodes: ("verdict", "at"),
}
"""What tells the rows of one incident from those of another."""


def moved(value: Any, shift: int) -> Any:
    """A job name, number or time that is further on."""
    return f"job-{int(value[4:]) + shift:05}" if isinstance(value, str) else value + shift


@pytest.mark.more_in_soak
def test_many_incidents_are_listed_in_pages(crowded: TestClient, verdicts: list[Verdict]) -> None:
    def ask(path: str, **params: Any) -> Any:
        answer = crowded.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    seen: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        page = ask("/v1/verdicts", limit=500, **cursor)
        seen += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert len(seen) == len(set(seen)) == MANY
    assert seen == sorted(seen, reverse=True)
    first = ask("/v1/verdicts")["items"][0]
    facets = {
        "reason": verdicts[0].reason,
        "category": verdicts[0].category,
        "node": "node-007",
        "job": "job-00042",
        "outcome": "failed",
        "recovery": verdicts[0].recovery,
        "fingerprint": verdicts[0].fingerprint,
    }
    for name, value in facets.items():
        for item in ask("/v1/verdicts", **{name: value})["items"]:
            known = item if name == "job" else item["verdict"]
            assert name == "node" or known[name] == value
    assert len(ask("/v1/verdicts", node="node-007", limit=500)["items"]) >= 5
    assert ask("/v1/verdicts", user="nobody")["items"] == []
    assert ask("/v1/verdicts", **facets)["items"] is not None
    middle = first["at"] - MANY / 2
    older = ask("/v1/verdicts", until=middle)["items"]
    newer = ask("/v1/verdicts", since=middle)["items"]
    assert all(item["at"] < middle for item in older) and all(item["at"] >= middle for item in newer)
    for number in random.Random(2).sample(seen, 10):
        assert ask(f"/v1/verdicts/{number}")["id"] == number
    for number in range(0, MANY, 500):
        ask(f"/v1/jobs/job-{number:05}")
    ask("/v1/jobs", limit=500)
    for path in ("/", "/?reason=ECC+Error", f"/verdicts/{seen[5]}"):
        assert crowded.get(path).status_code == 200


def test_evidence_is_shown_with_the_lines_around_it(client: TestClient) -> None:
    data = (CORPUS / "failures" / "inf-004.log").read_bytes()
    lines = data.decode().split("\n")
    stored = sent(client, "j", data)
    detail = client.get(f"/v1/verdicts/{stored['id']}").json()
    assert {name: detail[name] for name in stored} == stored
    assert detail["history"] and detail["history"][-1] == stored["id"]
    assert len(detail["context"]) == len(stored["verdict"]["evidence"]) >= 1
    for around, proof in zip(detail["context"], stored["verdict"]["evidence"], strict=True):
        assert (around["stream"], around["line"]) == (proof["stream"], proof["line"])
        shown = {line["line"]: line["text"] for line in around["lines"]}
        assert all(lines[number - 1] == text for number, text in shown.items())
        assert proof["quote"] in shown[proof["line"]]
        assert set(range(proof["line"] - 8, proof["line"] + 9)) & set(range(1, len(lines))) == shown.keys()


def test_evidence_stays_when_the_log_is_deleted(tmp_path: Path, scanner: Scanner) -> None:
    service = new_service(tmp_path, scanner, TIMING._replace(linger=0.0))
    with local_client(service) as client:
        stored = sent(client, "j", (CORPUS / "failures" / "inf-004.log").read_bytes())
        before = client.get(f"/v1/verdicts/{stored['id']}").json()
        waiting.until(lambda: service.retention._delete("j", 1, 1.0))
        assert client.get("/v1/jobs/j/attempts/1/streams/main/log", params={"line": "1-5"}).status_code == 404
        after = client.get(f"/v1/verdicts/{stored['id']}").json()
        assert after["verdict"] == before["verdict"]
        for proof, around in zip(after["verdict"]["evidence"], after["context"], strict=True):
            assert proof["quote"] in {line["line"]: line["text"] for line in around["lines"]}[proof["line"]]


def test_a_hostile_log_comes_out_as_it_went_in(client: TestClient) -> None:
    nasty = [
        b"<script>alert(1)</script>",
        b"\x1b[31mred\x1b[0m \x00 \xff\xfe",
        "\u202e\u2028 \U0001f525".encode(),
        b'"}]}',
    ]
    data = b"\n".join([*nasty, FAILED, b"x" * 100_000, *nasty]) + b"\n"
    stored = sent(client, "<b>job", data)
    detail = client.get(f"/v1/verdicts/{stored['id']}")
    assert detail.headers["content-type"] == "application/json"
    shown = [line["text"] for line in detail.json()["context"][0]["lines"]]
    assert shown[0] == "<script>alert(1)</script>" and "\ufffd" in shown[1]
    assert all(len(text) <= 4000 for text in shown)
    log = client.get("/v1/jobs/<b>job/attempts/1/streams/main/log", params={"line": "1-100"})
    assert log.content == data


def test_the_facts_of_a_job_find_its_verdicts(client: TestClient) -> None:
    client.put("/v1/jobs/j", json={"user": "u17"})
    stored = sent(client, "j", FAILED)
    assert stored["user"] == "u17"
    assert [v["id"] for v in client.get("/v1/verdicts", params={"user": "u17"}).json()["items"]] == [stored["id"]]
    client.put("/v1/jobs/j", json={"user": "u42"})
    assert client.get("/v1/verdicts", params={"user": "u17"}).json()["items"] == []
    assert client.get(f"/v1/verdicts/{stored['id']}").json()["user"] == "u42"


@pytest.mark.usefixtures("each_database")
def test_a_filter_is_taken_at_its_word(client: TestClient) -> None:
    sent(client, "j", FAILED)
    values = ("%", "_", "' OR 1=1 --", "\0", "\ud7ff", "x" * 300, "\u202e")
    for name in ("reason", "category", "node", "user", "job", "outcome", "recovery", "fingerprint"):
        for value in values:
            answer = client.get("/v1/verdicts", params={name: value})
            assert answer.status_code == 200, answer.text
            assert answer.json() == {"items": [], "next": None}, (name, value)


def test_the_taxonomy_is_told(lasting: TestClient) -> None:
    told = lasting.get("/v1/taxonomy").json()
    assert told.keys() == set(taxonomy.REASONS)
    assert all(row.keys() == {"category", "fault", "recovery", "next_step"} for row in told.values())
