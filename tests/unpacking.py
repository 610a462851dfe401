"""How much work unpacking is."""

import zlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def fed_to_zlib(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[int]:
    """Return what counts the bytes that a module gives to zlib, call by call."""
    fed: list[int] = []

    class Unpacker:
        def __init__(self, wbits: int) -> None:
            self._real = zlib.decompressobj(wbits)

        def decompress(self, data: bytes, most: int) -> bytes:
            fed.append(len(data))
            return self._real.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    monkeypatch.setattr(module, "zlib", SimpleNamespace(decompressobj=Unpacker, error=zlib.error))
    return fed
