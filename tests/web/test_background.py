"""Acts that pages do not wait for."""

import asyncio
import threading

import pytest

from logdoctor.errors import Busy
from logdoctor.web.nodes import background
from logdoctor.web.nodes.background import Deeds


def test_acts_that_begin_together_are_counted() -> None:
    deeds, go, begun = Deeds("/nodes"), threading.Event(), []

    def act() -> str:
        begun.append(1)
        go.wait(60)
        return "/nodes"

    async def begin_all() -> list[object]:
        found = await asyncio.gather(*(deeds.begin("x", "/", act) for _ in range(40)), return_exceptions=True)
        return list(found)

    try:
        answers = asyncio.run(begin_all())
    finally:
        go.set()
    assert sum(isinstance(one, Busy) for one in answers) == 40 - background._AT_WORK
    assert len(begun) == background._AT_WORK


def test_an_act_that_is_done_at_once_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_SOON", 60.0)
    deeds = Deeds("/nodes")
    assert asyncio.run(deeds.begin("x", "/", lambda: "/done")) == "/done" and not deeds._known
