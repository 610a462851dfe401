"""A checkpoint lies once on a node, whole or not at all, and goes with its last living owner."""

import os
import time
from pathlib import Path

import pytest

from logdoctor.errors import TrialError
from logdoctor.trials import node_folder, precursor
from logdoctor.trials.node_folder import NodeFolder, shared_folder
from logdoctor.trials.precursor import hold


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "sub").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(os.urandom(100_000))
    (folder / "sub" / "config.json").write_text("{}")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_a_copy_that_was_broken_off_is_never_seen(
    checkpoint: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[str] = []
    real = precursor._copy

    def broken(source: Path, target: Path, files: list[precursor._File]) -> str:
        real(source, target, files[:1])
        copied.append("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(precursor, "_copy", broken)
    with pytest.raises(KeyboardInterrupt):
        hold(checkpoint, [root])
    monkeypatch.undo()
    assert copied == ["half"] and list(root.iterdir()) == []
    held = hold(checkpoint, [root])
    assert held.copied and {path.name for path in held.path.iterdir()} == {"model.safetensors", "sub"}
    held.release()


def test_an_owner_of_another_namespace_lives_as_long_as_it_touches_its_mark(
    checkpoint: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_folder, "_namespace", lambda: "4026530000")
    held = hold(checkpoint, [root])
    monkeypatch.undo()
    folder = NodeFolder(shared_folder(root))
    folder.sweep()
    assert held.path.exists()
    (mark,) = (folder.folder / "owners" / held.digest).iterdir()
    os.utime(mark, (0, time.time() - node_folder.LIVES - 1))
    folder.sweep()
    assert list(root.iterdir()) == []
    held.release()


def test_a_folder_without_room_is_passed_over(checkpoint: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = root / "small"
    small.mkdir()
    real = precursor._room
    monkeypatch.setattr(precursor, "_room", lambda place: 64 << 10 if place == small else real(place))
    held = hold(checkpoint, [small, root])
    assert held.path.is_relative_to(shared_folder(root)) and list(small.iterdir()) == []
    held.release()
    monkeypatch.setattr(precursor, "_room", lambda place: 64 << 10)
    with pytest.raises(TrialError, match=r"has no room on this node: 0.00 GB are needed, .*Name a folder with room"):
        hold(checkpoint, [small, root])


def test_a_disk_that_becomes_full_is_passed_over(checkpoint: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = root / "full"
    full.mkdir()
    real = precursor._copy

    def fails(source: Path, target: Path, files: list[precursor._File]) -> str:
        if target.is_relative_to(full):
            raise OSError(28, "No space left on device")
        return real(source, target, files)

    monkeypatch.setattr(precursor, "_copy", fails)
    held = hold(checkpoint, [full, root])
    assert not held.path.is_relative_to(full) and list(full.iterdir()) == []
    held.release()


def test_the_same_content_has_one_place_and_other_content_another(checkpoint: Path, root: Path, tmp_path: Path) -> None:
    held = hold(checkpoint, [root])
    twin = tmp_path / "twin"
    checkpoint.rename(twin)
    again = hold(twin, [root])
    assert again.path == held.path
    (twin / "model.safetensors").write_bytes(b"other")
    other = hold(twin, [root])
    assert other.digest != held.digest
    for one in (held, again, other):
        one.release()
    assert list(root.iterdir()) == []


def test_what_is_no_plain_checkpoint_is_refused(checkpoint: Path, root: Path) -> None:
    for bad, said in (
        (lambda: os.mkfifo(checkpoint / "pipe"), "pipe is no file"),
        (lambda: (checkpoint / "loop").symlink_to(checkpoint), "is a link to a folder"),
    ):
        bad()
        with pytest.raises(TrialError, match=said):
            hold(checkpoint, [root])
        for name in ("pipe", "loop"):
            (checkpoint / name).unlink(missing_ok=True)
    with pytest.raises(TrialError, match="cannot be copied"):
        hold(checkpoint / "absent", [root])
    assert list(root.iterdir()) == []


def test_a_link_to_a_file_is_that_file(checkpoint: Path, root: Path, tmp_path: Path) -> None:
    (checkpoint / "model.safetensors").rename(tmp_path / "blob")
    (checkpoint / "model.safetensors").symlink_to(tmp_path / "blob")
    held = hold(checkpoint, [root])
    assert not (held.path / "model.safetensors").is_symlink()
    held.release()


def test_a_folder_of_others_is_not_used(checkpoint: Path, root: Path) -> None:
    shared_folder(root).mkdir(mode=0o777)
    shared_folder(root).chmod(0o777)
    with pytest.raises(TrialError, match="can be written by other users"):
        hold(checkpoint, [root])
