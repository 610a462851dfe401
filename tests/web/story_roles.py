"""Several processes that serve one PostgreSQL, others that compress and judge, and a Redis between them, which may be
away: whichever process is asked, the answer is the same, and what is done once is done by the one that leads."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from logdoctor.store.database import Database
from logdoctor.store.keeping.leader import LeaderLease
from tests import waiting
from tests.databases import databases
from tests.notify.receivers import SECRET, Receiver
from tests.redis_server import RedisServer, redis_in
from tests.web.conftest import FAILED, Running, bearer, running_in
from tests.web.story_service_process import final

_LEASE = "30"  # a slow machine is no reason for another to lead


class Cluster:
    """Processes over one PostgreSQL, one archive and one Redis."""

    def __init__(self, folder: Path, stack: ExitStack, redis: RedisServer, **environment: str) -> None:
        self._folder, self._stack, self.redis = folder, stack, redis
        name = databases.pool.lend()
        stack.callback(databases.pool.take_back, name)
        self.database_url = databases.server.url(name)
        self._environment = {
            "LOGDOCTOR_DATABASE_URL": self.database_url,
            "LOGDOCTOR_ARCHIVE_URL": str(folder / "archive"),
            "LOGDOCTOR_REDIS_URL": redis.url,
            "LOGDOCTOR_LEASE_SECONDS": _LEASE,
            **environment,
        }
        self._count = 0

    def web(self, **environment: str) -> Running:
        """A process that serves."""
        return self._new(environment).start("--port", "0", "--role", "web")

    def worker(self) -> Running:
        """A process that compresses and judges."""
        found = self._new({})
        found.process = found.spawn("--role", "worker")
        return found

    def _new(self, environment: dict[str, str]) -> Running:
        self._count += 1
        place = running_in(self._folder / f"process-{self._count}", **{**self._environment, **environment})
        return self._stack.enter_context(place)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    with ExitStack() as stack:
        redis = stack.enter_context(redis_in(tmp_path))
        yield lambda **environment: Cluster(tmp_path, stack, redis, **environment)


def failing(web: Running, job: str = "j") -> None:
    """Send the log of a job that failed, in two parts, and its end."""
    half = len(FAILED) // 2
    for offset, data in ((0, FAILED[:half]), (half, FAILED[half:])):
        path = f"/v1/jobs/{job}/attempts/1/streams/main/log"
        answer = web.client.post(path, params={"offset": offset}, content=data)
        assert answer.status_code == 200, answer.text
    assert web.client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1}).status_code == 202


def events_of(web: Running, path: str, got: list[Any]) -> threading.Thread:
    """Collect the events that a process tells of, until it ends."""

    def listen() -> None:
        try:
            with web.client.stream("GET", path, timeout=None) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        got.append(json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError:
            return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("with_redis", [True, False])
def test_any_process_takes_any_request(make: Callable[..., Cluster], with_redis: bool) -> None:
    cluster = make()
    if not with_redis:
        cluster.redis.kill()
    one, other, _ = cluster.web(), cluster.web(), cluster.worker()
    verdicts, incidents = list[Any](), list[Any]()
    events_of(other, "/v1/events?after=0", verdicts)
    events_of(other, "/v1/incidents/stream?after=0", incidents)
    half = len(FAILED) // 2
    path = "/v1/jobs/j/attempts/1/streams/main/log"
    for web, offset, data in ((one, 0, FAILED[:half]), (other, half, FAILED[half:])):
        assert web.client.post(path, params={"offset": offset}, content=data).status_code == 200
    assert one.client.post(path, params={"offset": 3}, content=b"again").status_code == 409
    assert other.client.post("/v1/jobs/j/attempts/1/end", json={"exit_code": 1}).status_code == 202
    found = [waiting.until(lambda web=web: final(web)) for web in (one, other)]  # type: ignore[misc]
    assert found[0] == found[1] and found[0]["verdict"]["reason"] == "Out of Memory Error"
    assert [web.client.get("/v1/jobs/j/attempts/1/streams/main/download").content for web in (one, other)] == [
        FAILED
    ] * 2
    waiting.until(lambda: any(told["final"] for told in verdicts))
    incident = waiting.until(lambda: incidents and incidents[-1])["id"]
    assert one.client.post(f"/v1/incidents/{incident}/acknowledge", json={}).status_code == 200
    waiting.until(lambda: incidents[-1]["state"] == "acknowledged")


def test_one_process_leads_and_another_takes_over(make: Callable[..., Cluster]) -> None:
    with closing(Receiver()) as receiver:
        hooks = {
            "LOGDOCTOR_NOTIFY_WEBHOOKS": f"ops={receiver.url}/hook",
            "LOGDOCTOR_NOTIFY_WEBHOOK_SECRETS": f"ops={SECRET}",
        }
        cluster = make(**hooks)
        webs = [cluster.web(), cluster.web()]
        cluster.worker()
        failing(webs[0])
        waiting.until(lambda: len(receiver.got) == 1)
        assert [is_leading(web) for web in webs] == [True, False]
        webs[0].kill()
        with closing(Database(cluster.database_url)) as database:
            LeaderLease(database, "nobody").clear()  # as if its time were over
        failing(webs[1], "another")
        waiting.until(lambda: final(webs[1], "another"))
        waiting.until(lambda: is_leading(webs[1]))
        resolved(webs[1])
        waiting.until(lambda: receiver.got[-1].json["type"] == "incident.resolved")
        waiting.until(lambda: {one["state"] for one in notices(webs[1])} == {"delivered"})  # no more is to come
        told = {got.id: got.json["type"] for got in receiver.got}  # one who dies while sending leaves it to the next
        assert list(told.values()) == ["incident.opened", "incident.resolved"]


def is_leading(web: Running) -> bool:
    return any(said.get("event") == "this process leads" for said in web.said())


def notices(web: Running) -> list[dict[str, Any]]:
    return web.client.get("/v1/notifications").json()["items"]  # type: ignore[no-any-return]


def resolved(web: Running) -> None:
    """Close the incident that is there, which is news."""
    [incident] = web.client.get("/v1/incidents").json()["items"]
    assert web.client.post(f"/v1/incidents/{incident['id']}/resolve", json={}).status_code == 200


def test_a_browser_signs_in_once_for_all_processes(make: Callable[..., Cluster]) -> None:
    cluster = make(LOGDOCTOR_AUTH="on")
    secret = created(cluster)
    one, other = cluster.web(), cluster.web()
    with httpx.Client(base_url=one.url, timeout=None) as browser:
        page = browser.get("/login")
        form = re.search(r'name="key" value="([^"]+)"', page.text)
        assert form is not None
        assert browser.post("/login", data={"token": secret, "key": form[1], "next": "/"}).status_code == 303
        assert browser.get("/").status_code == 200
        shown = browser.get(f"{other.url}/")
        assert shown.status_code == 200
        copied = dict(browser.cookies)
        key = re.search(r'name="key" value="([^"]+)"', shown.text)
        assert key is not None
        assert browser.post(f"{other.url}/logout", data={"key": key[1]}).status_code == 303
    waiting.until(lambda: httpx.get(f"{one.url}/", cookies=copied, timeout=None).status_code == 303)
    assert httpx.get(f"{other.url}/", timeout=None).status_code == 303


def created(cluster: Cluster, name: str = "first") -> str:
    """The secret of a new token."""
    process = cluster._new({})
    return process.command("tokens", "create", name, "--scope", "admin").split()[-1]


def test_the_limit_of_a_token_counts_in_all_processes(make: Callable[..., Cluster]) -> None:
    cluster = make(LOGDOCTOR_AUTH="on", LOGDOCTOR_RATE_LIMIT="5")
    first, second = (bearer(created(cluster, name)) for name in ("first", "second"))
    webs = [cluster.web(), cluster.web()]

    def allowed(headers: dict[str, str]) -> tuple[int, float]:
        begun, count = time.monotonic(), 0
        for turn in range(80):
            answer = webs[turn % 2].client.get("/v1/jobs", headers=headers)
            assert answer.status_code in (200, 429)
            count += answer.status_code == 200
        return count, time.monotonic() - begun

    count, seconds = allowed(first)
    assert 10 <= count <= 11 + 5 * seconds
    cluster.redis.kill()
    assert 20 <= allowed(second)[0], "without Redis each process counts by itself"
