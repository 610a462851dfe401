"""A log over its budget: senders are told to come again, and nothing that was acknowledged is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.web.jobs import ingest
from tests import waiting
from tests.service.disks import Away
from tests.web.conftest import BOUNDS, local_client, new_service

LOG = "/v1/jobs/j/attempts/1/streams/main/log"
PART = b"%09d\n" * 1000
PUSH = {"streams": [{"stream": {"job": "k", "host": "gpu-1"}, "values": [["1795255505000000000", "a line"]]}]}


@pytest.fixture
def away(tmp_path: Path) -> Away:
    """Objects that cannot be written for now."""
    away = Away(tmp_path / "archive")
    away.fails = True
    return away


@pytest.fixture
def full(tmp_path: Path, scanner: Scanner, away: Away) -> Iterator[tuple[TestClient, Service]]:
    """A service that takes 50 kB of an attempt, and 80 kB in all, until it can archive."""
    bounds = BOUNDS._replace(shard_bytes=50_000, behind=80_000, unarchived=10_000)
    service = new_service(tmp_path, scanner, bounds=bounds)
    service.archive.objects = away
    with local_client(service) as client:
        yield client, service


def post(client: TestClient, offset: int, path: str = LOG) -> int:
    """The status; one that says to come again also says when."""
    answer = client.post(path, params={"offset": offset}, content=PART)
    if answer.status_code == 503:
        assert answer.json()["error"]["code"] == "busy" and int(answer.headers["retry-after"]) >= 1
        assert "waits to be archived" in answer.json()["error"]["cause"]
    return answer.status_code


def fill(client: TestClient, path: str = LOG) -> int:
    """Send until no more is taken; how much was."""
    sent = 0
    while (status := post(client, sent, path)) == 200:
        sent += len(PART)
    assert status == 503
    return sent


def test_senders_come_again(full: tuple[TestClient, Service], away: Away) -> None:
    client, service = full
    sent = fill(client)
    assert 50_000 < sent <= 70_000
    assert client.get(LOG.removesuffix("/log")).json()["next_offset"] == sent
    assert client.get(f"{LOG.removesuffix('/log')}/download").content == PART * (sent // len(PART))
    away.fails = False
    waiting.until(lambda: post(client, sent) == 200)
    assert service.logs.standing(ingest.key("j", 1, "main")).next == sent + len(PART)


def test_who_waits_too_long_for_room_is_told(
    full: tuple[TestClient, Service], away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_PATIENCE", 0.2)
    client, service = full
    for job in ("j", "a", "b", "c"):
        fill(client, LOG.replace("/j/", f"/{job}/"))
    waiting.until(lambda: service.intake.is_behind)
    assert post(client, 0, LOG.replace("/j/", "/new/")) == 503
    for path, body in (("/loki/api/v1/push", PUSH),):
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
        assert answer.headers["retry-after"]
    assert client.post("/v1/jobs/j/attempts/1/end", json={"exit_code": 0}).status_code == 202, "an end is always heard"
    away.fails = False
    waiting.until(lambda: client.post("/loki/api/v1/push", json=PUSH).status_code == 204)
    assert post(client, 0, LOG.replace("/j/", "/new/")) == 200
