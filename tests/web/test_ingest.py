"""Bytes in, whichever way they come; numbers, listings and verdicts out."""

import gzip
import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zstandard
from click.testing import CliRunner
from starlette.testclient import TestClient

from logdoctor import pipeline
from logdoctor.cli import cli
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.types import Verdict
from tests import waiting
from tests.at_once import at_once
from tests.soak import SOAKING
from tests.web.conftest import BOUNDS, FAILED, Served, local_client, new_service, serving

CORPUS = Path(__file__).parents[2] / "eval" / "corpus"
LOGS = sorted(CORPUS.glob("*/*.log*"))[:: 1 if SOAKING else 8]
LOG = "/v1/jobs/j/attempts/1/streams/main/log"
STREAM = "/v1/jobs/j/attempts/1/streams/main"
LINES = b"".join(b"line %d of a log\n" % n for n in range(40_000))


def post(client: Any, path: str, offset: int, data: Any, encoding: str | None = None) -> Any:
    """The answer to bytes sent as they are, with the name of an encoding."""
    headers = {"Content-Encoding": encoding} if encoding else {}
    return client.post(path, params={"offset": offset}, content=data, headers=headers)


def gzip_members(data: bytes) -> bytes:
    return b"".join(gzip.compress(data[at : at + 100_000], 1) for at in range(0, len(data), 100_000))


def zstd_frames(data: bytes) -> bytes:
    return b"".join(zstandard.compress(data[at : at + 100_000], 1) for at in range(0, len(data), 100_000))


ENCODINGS: dict[str | None, Callable[[bytes], bytes]] = {None: bytes, "gzip": gzip_members, "zstd": zstd_frames}


def pieces(data: bytes, chance: random.Random) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = chance.choice((1, 7, 1000, 70_000, 300_000))
        yield data[at : at + size]
        at += size


def log_of(client: Any, path: str = LOG, lines: str = "1-100000") -> bytes:
    """The raw lines, which may take several requests."""
    first, last = map(int, lines.split("-"))
    found = b""
    while first <= last:
        answer = client.get(path, params={"line": f"{first}-{last}"})
        assert answer.status_code == 200, answer.text
        found += answer.content
        count = answer.content.count(b"\n")
        first += count
        if not count or (answer.headers["x-complete"] == "true" and count < 10_000):
            break
    return found


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("streamed", [False, True])
def test_bytes_are_taken_in_every_encoding_and_chunking(served: Served, encoding: str | None, streamed: bool) -> None:
    chance = random.Random(f"{encoding} {streamed}")
    with served.client() as client:
        reached = 0
        for end in (1, 5000, 5001, 300_000, len(LINES)):
            packed = ENCODINGS[encoding](LINES[reached:end])
            answer = post(client, LOG, reached, pieces(packed, chance) if streamed else packed, encoding)
            assert answer.status_code == 200, answer.text
            reached = end
            standing = answer.json()
            assert (standing["next_offset"], standing["lines_in"]) == (end, LINES[:end].count(b"\n"))
        assert log_of(client) == LINES
        done = waiting.until(lambda: (s := client.get(STREAM).json())["lines_scanned"] == 40_000 and s)
        assert done["next_offset"] == len(LINES)


def test_an_empty_body_tells_where_a_stream_stands(client: TestClient) -> None:
    for encoding in ENCODINGS:
        answer = post(client, LOG, 0, b"", encoding)
        assert answer.status_code == 200
        assert answer.json() == {"next_offset": 0, "lines_in": 0, "lines_scanned": 0, "lines_kept": 0}
    assert post(client, LOG, 0, gzip.compress(b""), "gzip").json()["next_offset"] == 0
    assert post(client, LOG, 0, zstandard.compress(b""), "zstd").json()["next_offset"] == 0


def test_an_unknown_stream_is_not_found(client: TestClient) -> None:
    assert client.get(STREAM).status_code == 404
    assert client.get(LOG, params={"line": "1-2"}).status_code == 404
    assert client.get("/v1/jobs/j/attempts/1").status_code == 404  # asking has made nothing


def test_a_wrong_offset_is_answered_with_the_right_one(client: TestClient) -> None:
    post(client, LOG, 0, b"abc")
    for offset in (0, 2, 4, 1 << 62):
        answer = post(client, LOG, offset, b"xyz")
        assert answer.status_code == 409
        error = answer.json()["error"]
        assert (error["code"], error["next_offset"]) == ("offset_mismatch", 3)
    assert post(client, LOG, 3, b"\n").json()["next_offset"] == 4
    assert log_of(client) == b"abc\n"


def test_of_many_senders_each_byte_comes_from_one(served: Served) -> None:
    size = 400

    def send(number: int) -> int:
        """How often a sender was told to go on elsewhere."""
        mine, reached, refused = bytes([65 + number]), 0, 0
        with served.client() as client:
            while reached < 20 * size:
                answer = post(client, LOG, reached, (mine * (size - 1) + b"\n") * 2)
                if answer.status_code == 409:
                    refused += 1
                    reached = answer.json()["error"]["next_offset"]
                else:
                    reached = max(answer.json()["next_offset"], reached + 2 * size)
        return refused

    assert any(at_once(send, range(6)))
    with served.client() as client:
        lines = log_of(client).splitlines()
        assert len(lines) * size == client.get(STREAM).json()["next_offset"]
        assert all(len(line) == size - 1 and len(set(line)) == 1 for line in lines)
        assert all(lines[n] == lines[n + 1] for n in range(0, len(lines), 2))


def test_a_body_that_breaks_off_leaves_what_came_whole(served: Served) -> None:
    with served.client() as client:
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            head = f"POST {LOG}?offset=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(LINES)}\r\n\r\n"
            connection.sendall(head.encode() + LINES[:600_000])
            waiting.until(lambda: client.get(STREAM).json().get("next_offset", 0) >= 256 << 10)
        reached = post(client, LOG, 1 << 40, b"").json()["error"]["next_offset"]
        assert 256 << 10 <= reached <= 600_000
        while (answer := post(client, LOG, reached, LINES[reached:])).status_code == 409:
            reached = answer.json()["error"]["next_offset"]
        assert answer.status_code == 200
        assert log_of(client) == LINES


def test_lines_are_the_same_before_and_after_archiving_and_restart(tmp_path: Path, scanner: Scanner) -> None:
    lines = [b"%d " % n + random.Random(n).randbytes(n % 90).replace(b"\n", b".") for n in range(30_000)]
    data = b"\n".join(lines)  # the last one without a newline

    def check(client: Any) -> None:
        for first, last in ((1, 1), (1, 3), (29_999, 30_000), (30_000, 30_001), (15_000, 15_400), (1, 10_000)):
            answer = client.get(LOG, params={"line": f"{first}-{last}"})
            wanted = b"".join(line + b"\n" for line in lines[first - 1 : last])
            assert answer.content == wanted, (first, last)
            assert answer.headers["x-first-line"] == str(first)
        assert client.get(LOG, params={"line": "7"}).content == lines[6] + b"\n"
        assert client.get(LOG, params={"line": "40000-40001"}).content == b""

    service = new_service(tmp_path, scanner)
    with local_client(service) as client:
        for at in range(0, len(data), 200_000):
            post(client, LOG, at, data[at : at + 200_000])
            if at == 600_000:
                service.holding.archive_all()
        check(client)
        service.holding.archive_all()
        check(client)
    with local_client(new_service(tmp_path, scanner)) as client:
        check(client)
        assert client.get(STREAM).json()["next_offset"] == len(data)
        assert client.get(STREAM).json()["lines_in"] == 29_999
        assert post(client, LOG, len(data), b"\nmore").status_code == 200
        assert client.get(LOG, params={"line": "30000-30001"}).content == lines[-1] + b"\nmore\n"


def test_a_line_range_must_be_one(client: TestClient) -> None:
    post(client, LOG, 0, b"a\nb\n")
    for bad in ("", "0-1", "2-1", "a-b", "-1", "1-", "1-2-3", "1" * 16, "1_0", " 1", "\u0663"):
        answer = client.get(LOG, params={"line": bad})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid"), bad
    assert client.get(LOG).status_code == 422
    assert client.get(LOG, params={"line": "1-999999999999999"}).content == b"a\nb\n"


def test_more_lines_than_are_shown_at_once_are_announced(client: TestClient) -> None:
    post(client, LOG, 0, b"x\n" * 10_001)
    answer = client.get(LOG, params={"line": "1-10001"})
    assert answer.content == b"x\n" * 10_000
    assert answer.headers["x-complete"] == "false"
    for n in range(3):
        post(client, "/v1/jobs/j/attempts/1/streams/long/log", n << 22, b"y" * (1 << 22))
    answer = client.get("/v1/jobs/j/attempts/1/streams/long/log", params={"line": "1-1"})
    assert len(answer.content) <= (8 << 20) + 1
    assert answer.headers["x-complete"] == "false"


def test_facts_of_a_job_are_kept_and_changed_one_by_one(client: TestClient) -> None:
    first = client.put("/v1/jobs/j", json={"user": "u17", "nodes": 4, "labels": {"team": "x", "tier": "1"}})
    assert first.status_code == 200
    assert first.json()["facts"]["user"] == "u17"
    second = client.put("/v1/jobs/j", json={"framework": "megatron", "user": None, "labels": {"team": "y"}}).json()
    assert second["created"] == first.json()["created"] <= second["updated"]
    facts = client.get("/v1/jobs/j").json()["facts"]
    assert (facts["user"], facts["nodes"], facts["framework"]) == ("u17", 4, "megatron")
    assert facts["labels"]["team"] == "y"
    wrong: list[Any] = [
        {"unknown": 1},
        {"nodes": "four"},
        {"nodes": -1},
        {"nodes": 1.5},
        {"nodes": 1 << 70},
        {"name": 5},
        {"labels": {"a": 1}},
        {"labels": ["a"]},
        {"name": "x" * 10_001},
        {"labels": {str(n): "" for n in range(300)}},
        [],
        None,
        "x",
    ]
    for bad in wrong:
        answer = client.put("/v1/jobs/j", json=bad)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid"), bad
    assert client.get("/v1/jobs/j").json()["facts"] == facts


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"nodes": NaN}',
        b'{"nodes": ' + b"9" * 5000 + b"}",
        b'{"name": "\\ud800"}',
        b'{"labels": {"\\ud800": "x"}}',
        b'{"labels": {"\\ud800": 1}}',
        b'{"labels": {"a": "\\udfff"}}',
        b'{"\\ud800": 1}',
    ],
)
def test_what_is_no_json_is_refused(lasting: TestClient, text: bytes) -> None:
    answer = lasting.put("/v1/jobs/j", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]["next_step"]
    assert lasting.get("/v1/jobs/j").status_code == 404


@pytest.mark.parametrize("text", ["\0", "a\0b", "\x1b[2J", "\u202e"])
def test_odd_texts_do_no_harm(lasting: TestClient, text: str) -> None:
    assert lasting.put("/v1/jobs/odd", json={"name": text, "labels": {text: text}}).status_code < 500
    assert lasting.post("/v1/jobs/odd/attempts", json={"key": text}).status_code < 500
    assert lasting.post("/v1/jobs/odd/attempts/1/end", json={"scheduler_state": text}).status_code < 500
    assert lasting.get("/v1/jobs/odd").status_code == 200


def test_the_same_key_gives_the_same_attempt(client: TestClient) -> None:
    def number(key: str) -> int:
        answer = client.post("/v1/jobs/j/attempts", json={"key": key})
        assert answer.status_code == 200
        return int(answer.json()["attempt"])

    assert [number(key) for key in ("7.0", "7.0", "7.1", "\u4e2d", "7.0", "x" * 200)] == [1, 1, 2, 3, 1, 4]
    for bad in ({"key": ""}, {"key": "x" * 201}, {"key": 7}, {}, {"key": "a", "more": 1}):
        assert client.post("/v1/jobs/j/attempts", json=bad).status_code == 422


def test_when_attempts_run_out_that_is_told(client: TestClient) -> None:
    post(client, "/v1/jobs/j/attempts/999999/streams/main/log", 0, b"x\n")
    answer = client.post("/v1/jobs/j/attempts", json={"key": "next"})
    assert 400 <= answer.status_code < 500, answer.text


def test_many_nodes_that_ask_at_once_get_one_number(served: Served) -> None:
    def ask(key: str) -> Any:
        return httpx.post(f"{served.url}/v1/jobs/j/attempts", json={"key": key}, timeout=None).json()["attempt"]

    assert at_once(ask, "k" * 16) == [1] * 16


def verdict_on(client: Any, job: str, attempt: int = 1, final: bool = True) -> dict[str, Any]:
    """The verdict on an attempt, once it stands."""

    def ask() -> dict[str, Any] | None:
        answer = client.get(f"/v1/jobs/{job}/attempts/{attempt}/verdict")
        return answer.json() if answer.status_code == 200 and answer.json()["final"] == final else None

    return waiting.until(ask)  # type: ignore[no-any-return]


def test_the_end_of_the_only_stream_and_of_the_whole_bring_the_verdict(client: TestClient) -> None:
    post(client, LOG, 0, FAILED)
    answer = client.post("/v1/jobs/j/attempts/1/end", json={"stream": "main", "exit_code": 1})
    assert answer.status_code == 202
    assert verdict_on(client, "j")["verdict"]["reason"] == "Out of Memory Error"
    assert client.get(answer.json()["verdict"]).json()["job"] == "j"
    post(client, "/v1/jobs/k/attempts/1/streams/a/log", 0, b"fine\n")
    post(client, "/v1/jobs/k/attempts/1/streams/b/log", 0, FAILED)
    client.post("/v1/jobs/k/attempts/1/end", json={"stream": "a", "exit_code": 0})
    assert verdict_on(client, "k", final=False)["verdict"]["outcome"] != "completed"  # b still runs
    client.post("/v1/jobs/k/attempts/1/end", json={"exit_code": 1})
    found = verdict_on(client, "k")
    assert found["verdict"]["evidence"][0]["stream"] == "b"
    attempt = client.get("/v1/jobs/k/attempts/1").json()
    assert attempt["streams"] == ["a", "b"]
    assert {end["stream"]: end["exit_code"] for end in attempt["ends"]} == {"a": 0, "": 1}
    waiting.until(lambda: client.get("/v1/jobs/k/attempts/1").json()["settled"])
    assert attempt["ended"] >= attempt["started"]
    assert client.get("/v1/jobs/k/attempts/1").json()["verdict"] == found["id"]


def test_an_end_that_is_told_again_changes_nothing_more(client: TestClient) -> None:
    post(client, LOG, 0, FAILED)
    for _ in range(3):
        assert client.post("/v1/jobs/j/attempts/1/end", json={"exit_code": 1}).status_code == 202
    found = verdict_on(client, "j")
    client.post("/v1/jobs/j/attempts/1/end", json={"exit_code": 1})
    client.post("/v1/jobs/later/attempts/1/end", json={"exit_code": 1})
    verdict_on(client, "later")  # so that what was told before it has been heard, too
    again = verdict_on(client, "j")
    assert again["verdict"]["fingerprint"] == found["verdict"]["fingerprint"]
    history = client.get(f"/v1/verdicts/{again['id']}").json()["history"]
    assert len(history) == 1, "the same verdict again is no new one"


def test_an_end_can_be_told_of_what_sent_nothing(client: TestClient) -> None:
    codes = [{"exit_code": code} for code in ("x", True, 1 << 31)]
    for bad in (*codes, {"signal": -1}, {"stream": ""}, {"more": 1}):
        assert client.post("/v1/jobs/j/attempts/1/end", json=bad).status_code == 422
    assert client.get("/v1/jobs/j").status_code == 404
    assert client.post("/v1/jobs/j/attempts/1/end", json={"exit_code": 137, "signal": 9}).status_code == 202
    assert verdict_on(client, "j")["verdict"]["reason"] == "Unknown"


def test_late_bytes_bring_a_new_verdict(client: TestClient) -> None:
    post(client, LOG, 0, b"starting\n")
    client.post("/v1/jobs/j/attempts/1/end", json={"exit_code": 1})
    first = verdict_on(client, "j")
    assert first["verdict"]["reason"] == "Unknown"
    post(client, LOG, 9, FAILED)
    waiting.until(lambda: verdict_on(client, "j")["verdict"]["reason"] == "Out of Memory Error")
    detail = client.get(f"/v1/verdicts/{verdict_on(client, 'j')['id']}").json()
    assert first["id"] in detail["history"]
    old = client.get(f"/v1/verdicts/{first['id']}").json()
    assert (old["current"], old["superseded_by"]) == (False, detail["id"])


def test_jobs_and_attempts_are_listed(client: TestClient) -> None:
    names = [f"job \u4e2d {n}" for n in range(7)]
    for name in names:
        client.put(f"/v1/jobs/{name}", json={})
    post(client, f"/v1/jobs/{names[3]}/attempts/5/streams/main/log", 0, b"x\n")
    client.post(f"/v1/jobs/{names[3]}/attempts", json={"key": "k"})
    seen: list[str] = []
    cursor = None
    while True:
        page = client.get("/v1/jobs", params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
        seen += [job["job"] for job in page["items"]]
        if not (cursor := page["next"]):
            break
    assert seen == names[::-1]
    assert [a["number"] for a in client.get(f"/v1/jobs/{names[3]}").json()["attempts"]] == [5, 6]
    assert client.get("/v1/jobs/unheard").status_code == 404
    for bad in ("x", "", "=" * 100, "\u00e9", "e30="):
        assert client.get("/v1/jobs", params={"cursor": bad}).status_code == 400, bad
    assert client.get("/v1/jobs", params={"limit": 0}).status_code == 422


def plain(verdict: Verdict) -> dict[str, Any]:
    """What must be the same for the same bytes."""
    return json.loads(msgspec.json.encode(verdict)) | {"seconds": 0}  # type: ignore[no-any-return]


@pytest.mark.more_in_soak
def test_verdicts_of_streams_are_those_of_files(served: Served, scanner: Scanner, limits: ReadLimits) -> None:
    """Law 1, over HTTP: random pieces in random encodings, many jobs at a time."""
    chance = random.Random(7)
    with served.client() as client:
        for path in LOGS:
            data, at = path.read_bytes(), 0
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            while at < len(data):
                part = data[at : at + chance.choice((1, 100, 5000, 80_000, 300_000))]
                encoding = chance.choice(list(ENCODINGS))
                target = f"/v1/jobs/{path.stem}/attempts/1/streams/main/log"
                assert post(client, target, at, ENCODINGS[encoding](part), encoding).status_code == 200
                at += len(part)
            client.post(f"/v1/jobs/{path.stem}/attempts/1/end", json={})
        for path in LOGS:
            stream = pipeline.LogFile("main", path, f"{path.stem}/1/main")
            wanted = plain(pipeline.diagnose([stream], scanner, limits))
            assert verdict_on(client, path.stem)["verdict"] | {"seconds": 0} == wanted, path.name


def test_a_whole_log_in_a_body_gets_the_verdict_of_the_command_line(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (CORPUS / "failures" / "inf-028.log").read_bytes()
    logs = {"a.log": data, "b.log.gz": gzip.compress(data), "c.log.zst": zstandard.compress(data)}
    for name, content in logs.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(cli, ["diagnose", "--json", *logs])
    for (name, content), line in zip(logs.items(), told.stdout.splitlines(), strict=True):
        wanted = json.loads(line) | {"seconds": 0}
        answer = client.post("/v1/diagnose", params={"name": name}, content=content)
        assert answer.status_code == 200
        assert answer.json() | {"seconds": 0} == wanted
        packed = {"params": {"name": name}, "headers": {"Content-Encoding": "gzip"}}
        answer = client.post("/v1/diagnose", content=gzip.compress(content), **packed)
        assert answer.json() | {"seconds": 0} == wanted
    assert not list((tmp_path / "data" / "scratch").iterdir())


def test_a_whole_log_comes_with_what_it_cannot_tell(client: TestClient) -> None:
    def outcome(**told: str | int) -> str:
        return str(client.post("/v1/diagnose", params=told, content=b"a line that says nothing\n").json()["outcome"])

    assert [outcome(), outcome(exit_code=1), outcome(died="true"), outcome(exit_code=0)] == [
        *("unknown", "failed", "failed", "completed")
    ]
    refused = client.post("/v1/diagnose", params={"exit_code": 0, "died": "true"}, content=b"x")
    assert refused.status_code == 400 and "contradicts" in refused.text
    assert client.post("/v1/diagnose", params={"exit_code": "x"}, content=b"x").status_code == 422


def test_a_whole_log_may_be_empty_or_damaged(client: TestClient) -> None:
    assert client.post("/v1/diagnose", content=b"").status_code == 200
    damaged = client.post("/v1/diagnose", content=gzip.compress(FAILED * 100)[:-20])
    assert damaged.status_code in (200, 400)
    if damaged.status_code == 200:
        assert damaged.json()["problems"]


def test_slow_uploads_of_whole_logs_do_not_keep_others_waiting(service: Service) -> None:
    head = b"POST /v1/diagnose HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
    with (
        serving(service) as served,
        socket.create_connection(("127.0.0.1", served.port)) as one,
        socket.create_connection(("127.0.0.1", served.port)) as two,
    ):
        for slow in (one, two):
            slow.sendall(head)
            assert slow.recv(1000).startswith(b"HTTP/1.1 100 ")  # its body is read
            slow.sendall(b"x")
        assert httpx.post(f"{served.url}/v1/diagnose", content=FAILED, timeout=None).status_code == 200


def test_what_was_taken_is_there_after_a_stop_at_any_time(tmp_path: Path, scanner: Scanner) -> None:
    reached = 0
    for _ in range(4):
        with serving(new_service(tmp_path, scanner)) as served, served.client() as client:
            if reached:
                assert client.get(STREAM).json()["next_offset"] == reached
            for _ in range(5):
                part = LINES[reached : reached + 3001]
                reached = post(client, LOG, reached, part).json()["next_offset"]
            assert log_of(client).rstrip(b"\n") == LINES[:reached].rstrip(b"\n")


def loki(**streams: list[str]) -> dict[str, Any]:
    """A push of lines to one job's streams, at times that no other push has."""
    now = time.time_ns()
    return {
        "streams": [
            {
                "stream": {"job": "j", "logdoctor_stream": name},
                "values": [[str(now + n), line] for n, line in enumerate(lines)],
            }
            for name, lines in streams.items()
        ]
    }


def test_a_stream_over_its_limit_costs_no_other_its_lines(tmp_path: Path, scanner: Scanner) -> None:
    bounds = BOUNDS._replace(stream_bytes=100)
    with local_client(new_service(tmp_path / "data", scanner, bounds=bounds)) as client:
        answer = client.post("/loki/api/v1/push", json=loki(a=["one"], big=["x" * 300], z=["two"]))
        assert answer.status_code == 422 and answer.json()["error"]["code"] == "limit_reached"
        for name, text in (("a", b"one\n"), ("z", b"two\n")):
            path = f"/v1/jobs/j/attempts/1/streams/{name}/log"
            assert client.get(path, params={"line": "1-9"}).content == text


def test_records_without_a_time_are_all_kept(client: TestClient) -> None:
    record = {"body": {"stringValue": "same line"}}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "j"}}]}
    body = {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": [record]}]}]}
    for _ in range(2):
        assert client.post("/v1/logs", json=body).status_code == 200
    assert client.get("/v1/jobs/j/attempts/1/streams/main/log", params={"line": "1-9"}).content == b"same line\n" * 2


def test_a_push_that_is_repeated_is_taken_once(client: TestClient) -> None:
    push = loki(a=["one", "two"])
    for _ in range(3):
        assert client.post("/loki/api/v1/push", json=push).status_code == 204
    assert client.get("/v1/jobs/j/attempts/1/streams/a/log", params={"line": "1-9"}).content == b"one\ntwo\n"
