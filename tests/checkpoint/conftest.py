"""A writer whose steps can be held up."""

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logdoctor.checkpoint import Checkpointer
from logdoctor.checkpoint.hashing import HashedFile
from logdoctor.checkpoint.staging import Copy


class Gate:
    """Something that waits in the writer's thread until it is opened."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self._open.wait(600)

    def open(self) -> None:
        self._open.set()


def _gated(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Iterator[Gate]:
    gate, real = Gate(), getattr(owner, name)

    def held_up(self: Any, *arguments: Any) -> Any:
        gate.wait()
        return real(self, *arguments)

    monkeypatch.setattr(owner, name, held_up)
    yield gate
    gate.open()


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Holds up the copy of large tensors."""
    yield from _gated(monkeypatch, Copy, "run")


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Holds up the disk."""
    yield from _gated(monkeypatch, HashedFile, "write")


def opening(checkpoints: Checkpointer, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Open a gate each time that training begins to wait for the writer; for how long it would wait, each time."""
    real, waited = checkpoints._wait, list[float]()

    def waits(event: threading.Event, patience: float = math.inf) -> bool:
        assert not event.is_set()
        waited.append(patience)
        gate.open()
        return real(event, patience)

    monkeypatch.setattr(checkpoints, "_wait", waits)
    return waited


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Torch says at each save and load that it is alone."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore:torch.distributed is disabled"))
