"""Soft state in a real Redis, and how little it costs when that is away."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.store import redis_state
from logdoctor.store.redis_state import RedisState
from tests import waiting
from tests.redis_server import RedisServer, redis_in


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_in(tmp_path) as server:
        yield server


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_state, "_PATIENCE", 60.0)  # a loaded machine takes its time


def test_processes_share_a_bucket(server: RedisServer) -> None:
    async def taken() -> list[bool | None]:
        pair = [RedisState(server.url) for _ in range(2)]
        return [await pair[turn % 2].take("train-bot", rate=0.001, burst=6) for turn in range(10)]

    assert asyncio.run(taken()) == [True] * 6 + [False] * 4


def test_a_bucket_fills_again(server: RedisServer) -> None:
    async def taken() -> list[bool | None]:
        state = RedisState(server.url)
        first = [await state.take("a", rate=1e-3, burst=1) for _ in range(2)]
        with server.client() as client:
            client.hincrbyfloat("logdoctor:1:rate:a", "at", -1500.0)
        return [*first, await state.take("a", rate=1e-3, burst=1), await state.take("b", rate=1e-3, burst=1)]

    assert asyncio.run(taken()) == [True, False, True, True]


def test_nothing_of_a_bucket_stays_for_ever(server: RedisServer) -> None:
    asyncio.run(RedisState(server.url).take("a", rate=0.01, burst=20))
    with server.client() as client:
        assert all(0 < client.pttl(key) <= 2_001_000 for key in client.keys())  # type: ignore[operator,union-attr]


def test_a_pause_is_shared_and_ends(server: RedisServer) -> None:
    one, other = RedisState(server.url), RedisState(server.url)
    one.leave_alone("model:m", 3000.0)
    assert 2000.0 < other.left_alone("model:m") <= 3000.0 and other.left_alone("model:n") == 0.0
    other.leave_alone("model:m", 0.0)
    assert one.left_alone("model:m") == 0.0
    one.leave_alone("model:m", 0.05)
    waiting.until(lambda: other.left_alone("model:m") == 0.0)


def test_messages_come_from_all_processes_of_the_database(server: RedisServer) -> None:
    heard: list[str] = []

    def listen() -> None:
        for message in RedisState(server.url).messages():
            if message is None:
                ready.set()
            else:
                heard.append(message)
            if message == "end":
                return

    ready = threading.Event()
    listener = threading.Thread(target=listen)
    listener.start()
    assert ready.wait(300)
    RedisState(server.url.removesuffix("1") + "2").publish("of another service")
    for message in ("log", "events", "end"):
        RedisState(server.url).publish(message)
    listener.join(300)
    assert heard == ["log", "events", "end"]


@pytest.mark.parametrize("trouble", ["killed", "hanging", "full", "wrong types"])
def test_redis_that_fails_costs_a_moment(server: RedisServer, trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_state, "_PATIENCE", 3.0)
    monkeypatch.setattr(redis_state, "_LEFT_ALONE", 3000.0)
    state = RedisState(server.url)
    assert state.left_alone("m") == 0.0 and not state.is_away
    failures: list[Exception] = []
    failed = state._failed
    monkeypatch.setattr(state, "_failed", lambda error: (failures.append(error), failed(error)))
    break_it(server, trouble)
    for _ in range(50):
        state.publish("log")
        assert asyncio.run(state.take("a", 10, 10)) is None
        state.leave_alone("m", 5.0)
        assert state.left_alone("m") == 0.0 and list(state.messages()) == []
    assert state.is_away and len(failures) == 1, "nobody waits for it again"
    if trouble == "hanging":
        server.go_on()


def break_it(server: RedisServer, trouble: str) -> None:
    if trouble == "killed":
        server.kill()
    elif trouble == "hanging":
        server.pause()
    else:
        with server.client() as client:
            if trouble == "full":
                client.config_set("maxmemory", "1")
            client.set("logdoctor:1:rate:a", "no hash") if trouble == "wrong types" else None
            client.acl_setuser("default", enabled=True, nopass=True, categories=["+@all"], commands=["-publish"])


def test_more_requests_than_connections_wait_for_one(server: RedisServer) -> None:
    async def taken() -> list[bool | None]:
        state = RedisState(server.url)
        return await asyncio.gather(*(state.take("a", 1000, 1000) for _ in range(300)))

    assert asyncio.run(taken()) == [True] * 300


def test_redis_that_is_back_is_used_again(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_state, "_LEFT_ALONE", 0.2)
    state = RedisState(server.url)
    server.kill()
    state.leave_alone("m", 30.0)
    assert state.is_away
    server.start()

    def is_used() -> bool:
        state.leave_alone("m", 3000.0)
        return not state.is_away

    waiting.until(is_used)
    assert state.left_alone("m") > 2000.0
