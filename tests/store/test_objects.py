"""Objects are whole or not there, outlive a loss of power, and nobody writes over them; in a folder and in a bucket."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import LogdoctorError, StorageFull, StoreError
from logdoctor.store.log.objects import FolderObjects
from tests.at_once import at_once
from tests.service.disks import fill, small_disk
from tests.store.objects import ObjectsContract


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


class TestContract(ObjectsContract):
    """A folder keeps the contract."""

    @pytest.fixture
    def objects(self, folder: Path) -> FolderObjects:
        return FolderObjects(folder)


@pytest.fixture
def objects(folder: Path) -> FolderObjects:
    return FolderObjects(folder)


def test_what_is_put_is_synced_before_it_has_its_name_and_then_the_name(
    folder: Path, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sync, link = os.fsync, os.link

    def synced(descriptor: int) -> None:
        order.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).relative_to(folder.parent)}")
        sync(descriptor)

    def linked(source: str, target: str, *, dst_dir_fd: int, **rest: Any) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{dst_dir_fd}"), target)
        order.append(f"link {place.relative_to(folder.parent)}")
        link(source, target, dst_dir_fd=dst_dir_fd, **rest)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    objects.put("job/1/a.zst", b"bytes")
    assert order[:3] == ["sync .", "sync archive", "sync archive/job"]
    assert order[3].startswith("sync archive/job/1/.")
    assert order[4:] == ["link archive/job/1/a.zst", "sync archive/job/1"]
    order.clear()
    objects.put("job/1/b.zst", b"bytes")
    assert order[1:] == ["link archive/job/1/b.zst", "sync archive/job/1"]


def test_nobody_else_may_read_them(folder: Path, objects: FolderObjects) -> None:
    objects.put("job/1/a.zst", b"bytes")
    modes = {path.relative_to(folder).as_posix(): path.stat().st_mode & 0o777 for path in folder.rglob("*")}
    assert modes == {"job": 0o700, "job/1": 0o700, "job/1/a.zst": 0o600}


@pytest.mark.parametrize("dying", ["fdopen", "fsync", "link"])
def test_whoever_dies_while_writing_leaves_nothing_that_is_seen(
    folder: Path, objects: FolderObjects, dying: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.put("job/1/a.zst", b"whole")
    if (child := os.fork()) == 0:
        setattr(os, dying, lambda *_, **__: os._exit(9))
        objects.put("job/1/b.zst", b"torn")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert [facts.name for facts in objects.walk()] == ["job/1/a.zst"]
    assert objects.size("job/1/b.zst") is None
    assert len(list((folder / "job" / "1").iterdir())) == 2
    objects.sweep()
    assert len(list((folder / "job" / "1").iterdir())) == 2, "it may still be written"
    objects.sweep(older=-1.0)
    assert [path.name for path in (folder / "job" / "1").iterdir()] == ["a.zst"]
    objects.put("job/1/b.zst", b"whole now")


def test_a_put_that_fails_leaves_nothing(folder: Path, objects: FolderObjects) -> None:
    objects.put("job/1/a.zst", b"one")
    with pytest.raises(StoreError, match="exists already"):
        objects.put("job/1/a.zst", b"two")
    assert [path.name for path in (folder / "job" / "1").iterdir()] == ["a.zst"]


@given(st.text(max_size=20), st.sampled_from(["put", "get", "size", "delete"]))
def test_no_name_leaves_the_folder(tmp_path: Path, name: str, what: str) -> None:
    objects = FolderObjects(tmp_path / "inner" / "archive")
    calls: dict[str, Callable[[str], object]] = {
        "put": lambda name: objects.put(name, b"x"),
        "get": lambda name: objects.get(name, 0, 1),
        "size": objects.size,
        "delete": objects.delete,
    }
    for tried in (name, f"../{name}", f"a/../../{name}", f"/{name}", f"a/{name}/../../../b", "..", "."):
        try:
            calls[what](tried)
        except (LogdoctorError, UnicodeEncodeError):
            continue
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and "archive" not in path.parts]
    assert not outside


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/etc/outside", ".hidden", "a//b", "", "a/", "a\0b"])
def test_a_name_that_is_none_is_refused(folder: Path, objects: FolderObjects, name: str) -> None:
    with pytest.raises(StoreError, match="no name of an object"):
        objects.put(name, b"x")
    with pytest.raises(StoreError, match="no name of an object"):
        objects.get(name, 0, 1)


def test_the_longest_names_fit(objects: FolderObjects) -> None:
    name = f"{'j' * 240}/999999/{'s' * 240}.0123abcd.state"
    objects.put(name, b"x")
    assert objects.get(name, 0, 1) == b"x"


def test_errors_name_the_file_and_what_to_do(folder: Path, objects: FolderObjects) -> None:
    objects.put("job/1/a.zst", b"12345")
    (folder / "file").write_bytes(b"")
    for what, call in {
        "is missing": lambda: objects.get("job/1/b.zst", 0, 1),
        "ends at byte 5, not 9": lambda: objects.get("job/1/a.zst", 2, 9),
        "cannot be used": lambda: objects.put("file/1/a.zst", b"x"),
    }.items():
        with pytest.raises(StoreError) as raised:
            call()
        assert what in str(raised.value) and str(folder) in str(raised.value) and raised.value.next_step


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        objects = FolderObjects(disk / "archive")
        objects.put("job/1/a.zst", b"before")
        ballast = fill(disk, 300_000)
        with pytest.raises((StoreError, StorageFull)) as raised:
            objects.put("job/1/b.zst", os.urandom(1 << 20))
        assert "No space left" in str(raised.value)
        assert [path.name for path in (disk / "archive" / "job" / "1").iterdir()] == ["a.zst"]
        ballast.unlink()
        objects.put("job/1/b.zst", b"after")


def test_folders_that_become_empty_go_while_others_write_into_them(objects: FolderObjects, folder: Path) -> None:
    def work(name: str) -> None:
        for _ in range(150):
            objects.put(f"job/1/{name}", b"x" * 9)
            assert objects.get(f"job/1/{name}", 0, 9) == b"x" * 9
            objects.delete(f"job/1/{name}")

    at_once(work, ["0.zst", "1.zst", "2.zst"])
    assert list(folder.iterdir()) == []
