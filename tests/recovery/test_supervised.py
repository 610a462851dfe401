"""The supervisor's questions about checkpoints, answered from a folder."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from logdoctor.job.recovery.catalogue.supervised import FolderCheckpoints
from logdoctor.job.recovery.catalogue.times import timestamp
from logdoctor.job.recovery.checkpoints import Chosen, FaultTolerantCheckpoints
from tests.recovery.makers import NOON, ours


@pytest.fixture
def checkpoints(tmp_path: Path) -> FolderCheckpoints:
    for step in (10, 20, 30):
        ours(tmp_path, step, data_position=step + 5, loss=1.0)
    (tmp_path / "step-30.attempt-1" / "manifest.json").unlink()
    return FolderCheckpoints(str(tmp_path))


def path_of(tmp_path: Path, step: int) -> str:
    return str(tmp_path / f"step-{step}.attempt-1")


def test_the_newest_complete_one_is_chosen(checkpoints: FolderCheckpoints, tmp_path: Path) -> None:
    assert checkpoints.complete() == {path_of(tmp_path, 10): 10, path_of(tmp_path, 20): 20}
    assert checkpoints.best() == Chosen(path_of(tmp_path, 20), 20)


def test_who_goes_back_before_a_spike_never_comes_to_what_was_saved_after_it(
    checkpoints: FolderCheckpoints, tmp_path: Path
) -> None:
    before = Chosen(path_of(tmp_path, 10), 10)
    assert checkpoints.best(before_step=20) == before
    assert checkpoints.best() == Chosen(path_of(tmp_path, 20), 20), "to ask changes nothing"
    checkpoints.suspect(20)
    assert checkpoints.best() == before


def test_one_that_kills_who_loads_it_is_passed_over_after_two_tries(
    checkpoints: FolderCheckpoints, tmp_path: Path
) -> None:
    for tries in range(2):
        assert checkpoints.best() == Chosen(path_of(tmp_path, 20), 20), tries
        checkpoints.not_loaded(path_of(tmp_path, 20))
    assert checkpoints.best() == Chosen(path_of(tmp_path, 10), 10)
    checkpoints.loaded(path_of(tmp_path, 20))
    assert checkpoints.best() == Chosen(path_of(tmp_path, 20), 20)


def test_a_folder_that_is_empty_or_not_there_yet_has_none(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "later"):
        checkpoints = FolderCheckpoints(str(folder))
        assert checkpoints.best() is None and not checkpoints.complete()


def test_a_folder_that_fails_is_told_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    said: list[str] = []
    checkpoints = FaultTolerantCheckpoints(FolderCheckpoints(str(tmp_path / "file")), said.append)
    assert checkpoints.best() is None and checkpoints.complete() == {}
    assert len(said) == 2 and "file" in said[0]


def here(work: Callable[[], str]) -> str:
    return work()


def damage(path: str) -> None:
    (Path(path) / "__1_0.distcp").write_bytes(b"20 9" * 50)  # as many bytes as before


def test_the_one_that_could_not_be_loaded_is_passed_over_once_its_bytes_say_so(
    checkpoints: FolderCheckpoints, tmp_path: Path
) -> None:
    newest = path_of(tmp_path, 20)
    assert checkpoints.unreadable(newest, True, here) == ""
    assert checkpoints.best() == Chosen(newest, 20)
    damage(newest)
    assert "step-20.attempt-1 is damaged (__1_0.distcp" in checkpoints.unreadable(newest, False, here)
    assert checkpoints.best() == Chosen(path_of(tmp_path, 10), 10)
    assert FolderCheckpoints(str(tmp_path)).best() == Chosen(newest, 20), "nothing was noted"
    again = FolderCheckpoints(str(tmp_path))
    assert "step-20.attempt-1" in again.unreadable("", True, here), "the newest, where the program chose"
    assert FolderCheckpoints(str(tmp_path)).best() == Chosen(path_of(tmp_path, 10), 10)
    assert "step-20.attempt-1" in again.unreadable(newest, True, here), "also what a loader has found before"


def test_what_reading_it_whole_does_not_confirm_counts_for_nothing(checkpoints: FolderCheckpoints) -> None:
    assert checkpoints.unreadable("", True, lambda work: "") == "", "somebody asked to end before it was read"
    chosen = checkpoints.best()
    assert chosen and chosen.step == 20


def test_one_after_a_spike_is_not_taken_though_the_folder_takes_no_note(
    checkpoints: FolderCheckpoints, tmp_path: Path
) -> None:
    """Before, the mark was lost, and the next restart went on from the poisoned one."""
    (tmp_path / ".logdoctor").write_bytes(b"")  # no folder can be made there
    said: list[str] = []
    forgiving = FaultTolerantCheckpoints(checkpoints, said.append)
    forgiving.suspect(20)
    assert forgiving.best() == Chosen(path_of(tmp_path, 10), 10) and len(said) == 1
    (tmp_path / ".logdoctor").unlink()
    forgiving.suspect(20)  # is written down as soon as it can be
    assert FolderCheckpoints(str(tmp_path)).best() == Chosen(path_of(tmp_path, 10), 10)
    shutil.rmtree(path_of(tmp_path, 20))
    ours(tmp_path, 20, saved_at=timestamp(NOON + 7200))  # the program went back, and has saved it anew
    assert forgiving.best() == Chosen(path_of(tmp_path, 20), 20)
