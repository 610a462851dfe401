"""Acts that pages do not wait for."""

import asyncio
import threading

import pytest

from logdoctor.errors import Busy
from logdoctor.web.nodes import background
from logdoctor.web.nodes.background import Deeds
from tests import waiting


def test_acts_that_begin_together_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_SOON", 0.1)  # none of them is done before all have begun
    deeds, go, begun = Deeds("/nodes"), threading.Event(), []

    def act() -> str:
        begun.append(1)
        go.wait()
        return "/nodes"

    async def begin_all() -> list[object]:
        found = await asyncio.gather(*(deeds.begin("x", "/", act) for _ in range(40)), return_exceptions=True)
        return list(found)

    try:
        answers = asyncio.run(begin_all())
        waiting.until(lambda: len(begun) >= background._AT_WORK)
    finally:
        go.set()
    assert sum(isinstance(one, Busy) for one in answers) == 40 - background._AT_WORK
    assert len(begun) == background._AT_WORK


def test_an_act_that_is_done_at_once_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_SOON", 60.0)
    deeds = Deeds("/nodes")
    assert asyncio.run(deeds.begin("x", "/", lambda: "/done")) == "/done" and not deeds._known
