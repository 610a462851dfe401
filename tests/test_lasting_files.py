"""Files that are there whole or not at all."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from logdoctor.safe.lasting_files import Folder, new_file

USES: dict[str, Callable[[Folder, str], object]] = {
    "open": lambda folder, name: os.close(folder.open(name, os.O_WRONLY | os.O_CREAT)),
    "read": lambda folder, name: folder.read(name),
    "write": lambda folder, name: folder.write(name, b"theirs"),
    "make": lambda folder, name: folder.make(name),
    "remove": lambda folder, name: folder.remove(name),
    "remove all": lambda folder, name: folder.remove_all(name),
    "move": lambda folder, name: folder.move(name, "mine"),
    "move to": lambda folder, name: folder.move("file", name),
    "names": lambda folder, name: folder.names(name),
    "sync": lambda folder, name: folder.sync(name),
}


def test_what_stood_there_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 250)
    for content in (b"one", b"two"):
        with new_file(place) as file:
            file.write(content)
            assert not place.exists() or place.read_bytes() == b"one"
        assert place.read_bytes() == content
    with pytest.raises(RuntimeError), new_file(place) as file:
        file.write(b"half")
        raise RuntimeError
    assert place.read_bytes() == b"two" and list(tmp_path.iterdir()) == [place]


def test_what_came_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    place = tmp_path / "a"
    with pytest.raises(FileExistsError), new_file(place, over=False) as file:
        file.write(b"new")
        place.write_bytes(b"theirs")
    assert place.read_bytes() == b"theirs" and list(tmp_path.iterdir()) == [place]
    with new_file(tmp_path / "b", over=False) as file:
        file.write(b"new")
    assert (tmp_path / "b").read_bytes() == b"new"


def test_permissions_are_those_asked_for_or_those_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for name, mode, wanted in (("a", None, 0o640), ("b", 0o666, 0o666)):
            with new_file(tmp_path / name, mode) as file:
                file.write(b"x")
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == wanted
    finally:
        os.umask(before)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder whose content must stay as it is."""
    (folder := tmp_path / "elsewhere").mkdir()
    (folder / "a").write_bytes(b"a secret")
    (folder / "b").mkdir()
    return folder


@pytest.fixture
def folder(tmp_path: Path, elsewhere: Path) -> Folder:
    (path := tmp_path / "folder").mkdir()
    (path / "file").write_bytes(b"mine")
    (path / "to").symlink_to(elsewhere)
    (path / "to-a").symlink_to(elsewhere / "a")
    (path / "to-none").symlink_to(elsewhere / "none")
    (path / "deep").mkdir()
    (path / "deep" / "to").symlink_to(elsewhere)
    return Folder(path)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", ["to/a", "to/b", "to/none", "deep/to/a", "deep/to/none"])
def test_nothing_is_reached_through_a_link(folder: Folder, elsewhere: Path, use: str, name: str) -> None:
    with pytest.raises(OSError) as raised:
        USES[use](folder, name)
    assert "is a link to another place" in str(raised.value)
    assert raised.value.filename == folder.path_of(name.rpartition("/")[0])
    assert sorted(path.name for path in elsewhere.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("use", ["open", "read", "make", "names", "sync"])
@pytest.mark.parametrize("name", ["to-a", "to-none", "to"])
def test_a_link_in_the_place_of_a_file_is_not_followed(folder: Folder, elsewhere: Path, use: str, name: str) -> None:
    with pytest.raises(OSError, match="is a link to another place"):
        USES[use](folder, name)
    assert not (elsewhere / "none").exists()


@pytest.mark.parametrize("use", ["write", "remove", "remove all", "move", "move to"])
@pytest.mark.parametrize("name", ["to-a", "to-none", "to"])
def test_what_takes_the_place_of_a_link_leaves_alone_what_it_leads_to(
    folder: Folder, elsewhere: Path, use: str, name: str
) -> None:
    USES[use](folder, name)
    assert not Path(folder.path_of(name)).is_symlink()
    assert (elsewhere / "a").read_bytes() == b"a secret"
    assert sorted(path.name for path in elsewhere.iterdir()) == ["a", "b"]


def test_what_is_in_a_removed_folder_goes_but_not_what_links_in_it_lead_to(folder: Folder, elsewhere: Path) -> None:
    folder.remove_all("deep")
    assert "deep" not in folder.names() and (elsewhere / "a").exists()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", ["..", "../elsewhere/a", "deep/../file", ".", "deep//to", "a\0b"])
def test_names_do_not_leave_the_folder(folder: Folder, use: str, name: str) -> None:
    with pytest.raises(OSError, match="no name in a folder"):
        USES[use](folder, name)


def test_the_folder_that_somebody_named_may_be_a_link(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "named").symlink_to(folder.path)
    named = Folder(tmp_path / "named")
    named.make("x/y")
    named.write("x/y/z", b"1")
    assert folder.read("x/y/z") == b"1" and named.names("x") == ["y"]


def test_a_private_folder_is_ours_alone(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = Folder(folder.path, private=True)
    assert private.read("file") == b"mine"
    (tmp_path / "named").symlink_to(folder.path)
    for named in (tmp_path / "named", f"{tmp_path}/named/"):
        with pytest.raises(OSError, match="is a link to another place"):
            Folder(named, private=True).names()
    os.chmod(folder.path, 0o770)
    with pytest.raises(PermissionError, match="can be written by others"):
        private.read("file")
    os.chmod(folder.path, 0o700)
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    for call in (lambda: private.read("file"), lambda: private.write("x", b""), private.make):
        with pytest.raises(PermissionError, match=f"belongs to uid {user}"):
            call()


def test_a_file_of_others_is_none_of_ours_but_one_of_root_is(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    user, real = os.getuid(), os.fstat
    assert folder.read("file", ours=True) == b"mine"
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result((*real(file)[:4], 1234, *real(file)[5:])))
    with pytest.raises(PermissionError, match="belongs to uid 1234"):
        folder.read("file", ours=True)
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result((*real(file)[:4], 0, *real(file)[5:])))
    assert folder.read("file", ours=True) == b"mine"


def test_a_pipe_is_not_waited_for(folder: Folder) -> None:
    os.mkfifo(folder.path_of("pipe"))
    with pytest.raises(OSError, match="is no regular file"):
        folder.read("pipe")


def test_a_folder_that_is_made_outlives_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    Folder(tmp_path / "a" / "b").make("c/d", lasting=True)
    assert sorted(synced) == [str(tmp_path / path) for path in ("", "a", "a/b", "a/b/c")]
