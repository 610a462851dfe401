"""Verdicts are told to those who listen, once each, and to nobody else."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from logdoctor.service.service import Service
from logdoctor.web import events, gate
from tests import waiting
from tests.web.conftest import FAILED, Served, bearer, options, serving


class Listener:
    """What a listener has heard so far."""

    def __init__(self, url: str, headers: dict[str, str], params: dict[str, str]) -> None:
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.comments = 0
        self.ended = False
        self.status = 0
        self.error = ""
        self._url, self._headers, self._params = url, headers, params
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()
        waiting.until(lambda: self.status)

    def _listen(self) -> None:
        try:
            with (
                httpx.Client(timeout=None) as client,
                client.stream("GET", f"{self._url}/v1/events", headers=self._headers, params=self._params) as response,
            ):
                block: dict[str, str] = {}
                if response.status_code != 200:
                    response.read()
                self.status = response.status_code
                for line in response.iter_lines() if self.status == 200 else ():
                    self._take(line, block)
        except httpx.HTTPError as error:
            self.error = repr(error)
        self.ended = True

    def _take(self, line: str, block: dict[str, str]) -> None:
        name, _, value = line.partition(": ")
        if line.startswith(":"):
            self.comments += 1
        elif line:
            block[name] = value
        elif block.get("event") == "verdict":
            self.events.append((int(block["id"]), json.loads(block["data"])))
            block.clear()

    def jobs(self) -> list[str]:
        return [verdict["job"] for _, verdict in self.events if verdict["final"]]


@contextmanager
def listening(served: Served, headers: dict[str, str] | None = None, **params: str) -> Iterator[Listener]:
    """A listener that has begun to listen; it ends with the server."""
    listener = Listener(served.url, headers or {}, params)
    yield listener


def heard(listener: Listener, job: str) -> bool:
    """Whether a listener has heard of a job."""
    return job in listener.jobs()


def has(listener: Listener, count: int) -> bool:
    """Whether a listener has heard so many events."""
    return len(listener.events) >= count


def fail(served: Served, job: str, headers: dict[str, str] | None = None) -> None:
    """A job whose log is sent and that ends."""
    with served.client(headers=headers or {}) as client:
        log = f"/v1/jobs/{job}/attempts/1/streams/main/log"
        assert client.post(log, params={"offset": 0}, content=FAILED).status_code == 200
        assert client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1}).status_code == 202


def test_a_verdict_is_told_when_an_attempt_ends(service: Service) -> None:
    with serving(service) as served:
        fail(served, "before")
        verdict = f"{served.url}/v1/jobs/before/attempts/1/verdict"
        waiting.until(lambda: httpx.get(verdict, timeout=None).status_code == 200)
        with listening(served) as first, listening(served) as second:
            fail(served, "one")
            waiting.until(lambda: first.events and second.events)
            fail(served, "two")
            waiting.until(lambda: "two" in first.jobs() and "two" in second.jobs())
        assert first.events == second.events
        assert first.jobs() == ["one", "two"]
        ids = [number for number, _ in first.events]
        assert ids == sorted(set(ids))
        number, told = first.events[-1]
        assert told == httpx.get(f"{served.url}/v1/jobs/two/attempts/1/verdict", timeout=None).json()
        assert told["event"] == number
    assert first.ended and second.ended


def test_a_listener_goes_on_where_it_was(service: Service) -> None:
    with serving(service) as served:
        with listening(served, after="0") as first:
            for job in ("one", "two", "three"):
                fail(served, job)
                waiting.until(partial(heard, first, job))
        for place, (number, _) in enumerate(first.events):
            with listening(served, {"Last-Event-ID": str(number)}) as again:
                waiting.until(partial(has, again, len(first.events) - place - 1))
                assert again.events == first.events[place + 1 :]
        with listening(served, {"Last-Event-ID": ""}, after="0") as everything:
            waiting.until(lambda: len(everything.events) == len(first.events))
        with listening(served, {"Last-Event-ID": "99999999999999999999"}) as beyond:
            fail(served, "four")
            waiting.until(lambda: beyond.jobs() == ["four"])


def test_nobody_hears_of_jobs_that_are_not_theirs(service: Service) -> None:
    mine = bearer(service.tokens.create("mine", ["read"], ["team-a-"])[1])
    every = bearer(service.tokens.create("every", ["read", "ingest"])[1])
    with serving(service, options(wants_token=True)) as served:
        with listening(served, mine, after="0") as bound, listening(served, every) as free:
            for job in ("team-b-1", "team-a-1", "team-b-2", "team-a-2"):
                fail(served, job, every)
                waiting.until(partial(heard, free, job))
            waiting.until(lambda: bound.jobs() == ["team-a-1", "team-a-2"])
            assert {verdict["job"] for _, verdict in bound.events} == {"team-a-1", "team-a-2"}
        with listening(served) as nobody:
            assert nobody.status == 401


def test_a_stop_ends_all_listeners(service: Service) -> None:
    with serving(service) as served:
        listeners = [Listener(served.url, {}, {}) for _ in range(20)]
        served.stop()
        for listener in listeners:
            listener.thread.join()
            assert listener.ended and not listener.error


def test_silence_is_broken_by_comments(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_HEARTBEAT", 0.05)
    with serving(service) as served, listening(served) as listener:
        waiting.until(lambda: listener.comments >= 3)
        assert listener.events == []


def test_a_listener_too_many_is_told_so(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_LISTENERS", 2)
    with serving(service) as served:
        one, two, three = (Listener(served.url, {}, {}) for _ in range(3))
        assert (one.status, two.status, three.status) == (200, 200, 503)


def test_one_caller_does_not_take_the_places_of_all(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_OF_ONE", 2)
    one, other = (bearer(service.tokens.create(name, ["read"])[1]) for name in ("one", "other"))
    with serving(service, options(wants_token=True)) as served:
        listeners = [Listener(served.url, headers, {}) for headers in (one, one, one, other)]
        assert [listener.status for listener in listeners] == [200, 200, 503, 200]


def test_what_is_new_is_read_once_for_all_listeners(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    newer = service.records.newer
    monkeypatch.setattr(service.records, "newer", lambda last, most: read.append(last) or newer(last, most))
    with serving(service) as served:
        listeners = [Listener(served.url, {}, {"after": "0"}) for _ in range(30)]
        for job in ("before", "one"):  # by the first they have read what there was
            read.clear()
            fail(served, job)
            for listener in listeners:
                waiting.until(partial(heard, listener, job))
        assert len(read) < 30


def test_listeners_that_went_away_are_forgotten(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_LISTENERS", 5)
    with serving(service) as served:

        def is_heard() -> bool:
            with httpx.stream("GET", f"{served.url}/v1/events", timeout=None) as response:
                return response.status_code == 200 and next(response.iter_lines()).startswith("retry:")

        for _ in range(30):
            waiting.until(is_heard)


@pytest.mark.parametrize("bad", ["x", "-1", "1" * 21, "\u0663".encode()])
def test_a_place_to_begin_must_be_one(lasting: TestClient, bad: str | bytes) -> None:
    assert lasting.get("/v1/events", headers={"Last-Event-ID": bad}).status_code == 422
    if isinstance(bad, str):
        assert lasting.get("/v1/events", params={"after": bad}).status_code == 422


def test_a_revoked_token_hears_no_more(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_REMEMBERED", 0.0)
    monkeypatch.setattr(events, "_HEARTBEAT", 0.1)
    with serving(service, options(wants_token=True)) as served:
        _, secret = service.tokens.create("r", ["read"])
        with listening(served, bearer(secret)) as listener:
            service.tokens.revoke("r")
            waiting.until(lambda: listener.ended)
