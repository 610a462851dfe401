"""Whole logs that are sent to be diagnosed at once: places for them, and turns."""

import asyncio
import gzip
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from starlette.testclient import TestClient

from logdoctor import pipeline
from logdoctor.errors import Busy
from logdoctor.web.jobs.ingest import LogTurns
from tests.web.conftest import Guarded, bearer


def test_one_caller_leaves_places_for_others(guarded: Guarded) -> None:
    client = guarded.client
    turns = client.app.state.logdoctor.once(LogTurns)  # type: ignore[attr-defined]
    first, second = (bearer(guarded.secret("ingest", name=name)) for name in ("first", "second"))

    def statuses() -> list[int]:
        return [client.post("/v1/diagnose", content=b"x\n", headers=one).status_code for one in (first, second)]

    with ExitStack() as held:

        def places(who: str) -> int:
            """How many somebody gets beside those that are held."""
            for count in range(100):
                try:
                    held.enter_context(turns.upload(who))
                except Busy as error:
                    assert who in error.cause
                    return count
            raise AssertionError

        assert (places("first"), places("third")) == (16, 8)
        assert statuses() == [503, 200]
    assert statuses() == [200, 200]


def test_callers_have_their_turns_one_after_the_other(guarded: Guarded) -> None:
    turns = guarded.client.app.state.logdoctor.once(LogTurns)  # type: ignore[attr-defined]
    order: list[str] = []

    async def all_of_them() -> None:
        begun: asyncio.Queue[tuple[str, asyncio.Event]] = asyncio.Queue()

        async def read(who: str) -> None:
            done = asyncio.Event()
            async with turns.diagnosis(who):
                await begun.put((who, done))
                await done.wait()

        readers = [asyncio.create_task(read(who)) for who in "aaaaaaaabbc"]
        (first, one), (second, other) = await begun.get(), await begun.get()
        order.extend((first, second))
        one.set()
        other.set()
        while len(order) < len(readers):
            who, done = await begun.get()
            order.append(who)
            done.set()
        await asyncio.gather(*readers)

    asyncio.run(all_of_them())
    assert order[:3] == ["a", "b", "c"] and sorted(order[3:5]) == ["a", "b"]


def test_a_log_is_not_read_on_while_the_service_stops(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> Iterator[bytes]:
        for count in range(1000):
            if count == 3:
                client.app.state.stopping()  # type: ignore[attr-defined]
            assert count < 5, "it was read on"
            yield b"a line\n"

    monkeypatch.setattr(pipeline, "unpack", endless)
    answer = client.post("/v1/diagnose", content=gzip.compress(b"a line\n"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
    assert "stopping" in answer.text
