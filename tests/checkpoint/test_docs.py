"""The example of the documentation runs, and goes on where it was broken off."""

import re
from pathlib import Path
from typing import Any

import pytest

from logdoctor.checkpoint import latest

PAGE = Path(__file__).parents[2] / "docs/checkpoints.md"


def test_the_example_runs_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    monkeypatch.chdir(tmp_path)
    first: dict[str, Any] = {}
    exec(found[1].replace("101", "41"), first)
    assert first["loaded"] is None and first["step"] == 40
    second: dict[str, Any] = {}
    exec(found[1], second)
    assert second["loaded"].step == 40 and second["step"] == 100
    newest = latest(tmp_path / "checkpoints")
    assert newest and (newest.step, newest.data_position, newest.epoch) == (100, 1600, 2)
