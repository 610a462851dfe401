"""A checkpoint that is evaluated is kept from being removed."""

import time
from pathlib import Path

import pytest

from logdoctor.job.recovery import catalogue
from logdoctor.trials import pinning
from logdoctor.trials.pinning import PinnedCheckpoint
from tests import waiting
from tests.recovery import makers


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    makers.ours(tmp_path, 100)
    return tmp_path


def pin_now(folder: Path) -> catalogue.Pin | None:
    (one,) = catalogue.read(folder)
    return one.pinned


def test_it_is_pinned_while_it_is_evaluated(checkpoints: Path) -> None:
    (one,) = catalogue.read(checkpoints)
    for path in (Path(one.path), next(path for path in Path(one.path).rglob("*") if path.is_file())):
        pinned = PinnedCheckpoint(path, "is evaluated", print)
        now = pin_now(checkpoints)
        assert now is not None and now.why == "is evaluated" and now.until is not None and now.until > time.time()
        pinned.release()
        assert pin_now(checkpoints) is None


def test_a_pin_of_others_stays_as_it_is(checkpoints: Path) -> None:
    (one,) = catalogue.read(checkpoints)
    catalogue.pin(one, "ada", "for the paper")
    pinned = PinnedCheckpoint(Path(one.path), "is evaluated", print)
    pinned.release()
    now = pin_now(checkpoints)
    assert now is not None and (now.by, now.until) == ("ada", None)


def test_it_is_renewed(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "_RENEW", 0.05)
    (one,) = catalogue.read(checkpoints)
    catalogue.pin(one, "ada", "a moment")
    pinned = PinnedCheckpoint(Path(one.path), "is evaluated", print)
    now = pin_now(checkpoints)
    assert now is not None and now.by == "ada"
    catalogue.unpin(one.folder, one.name)
    waiting.until(lambda: (now := pin_now(checkpoints)) is not None and now.by != "ada")
    pinned.release()
    assert pin_now(checkpoints) is None


def test_what_is_in_no_catalogue_is_not_pinned(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    pinned = PinnedCheckpoint(tmp_path / "model.bin", "is evaluated", pytest.fail)
    pinned.release()
    assert not (tmp_path / "pins").exists()
