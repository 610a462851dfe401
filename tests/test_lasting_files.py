"""Files that are there whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from logdoctor.lasting_files import new_file


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
