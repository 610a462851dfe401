"""Files are on the disk as they were handed over, whatever their sizes, with the kernel's cache or around it."""

import fcntl
import os
import random
from pathlib import Path
from typing import Any

import pytest
import xxhash

from logdoctor.checkpoint import hashing
from logdoctor.checkpoint.hashing import HashedFile, hash_file

CHUNK = hashing._CHUNK
SIZES = (0, 1, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 4096, 2 * CHUNK + 13)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "cached"])
def test_files_of_any_size_are_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool) -> None:
    real = os.open

    def refused(path: Any, how: int, mode: int = 0o777, **place: Any) -> int:
        if how & os.O_DIRECT and how & os.O_CREAT:
            os.close(real(path, how & ~os.O_DIRECT, mode, **place))  # as some file systems do
        if how & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, how, mode, **place)

    if not direct:
        monkeypatch.setattr(os, "open", refused)
    dice = random.Random(1)
    for size in SIZES:
        data, path, at = dice.randbytes(size), tmp_path / str(size), 0
        file = HashedFile(path)
        while at < size:
            part = dice.choice((1, 5000, 3 << 20, 2 * CHUNK))
            assert file.write(data[at : at + part]) == len(data[at : at + part])
            at += part
        assert file.tell() == size
        file.close()
        file.close()
        assert path.read_bytes() == data
        expected = (str(size), size, xxhash.xxh3_128_hexdigest(data))
        assert file.as_file() == hash_file(path) == hash_file(path, from_disk=True) == expected


def test_a_file_system_that_refuses_only_when_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("write", "readv"):
        real = getattr(os, name)

        def refused(file: int, data: Any, _real: Any = real) -> int:
            if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(22, "Invalid argument")
            return int(_real(file, data))

        monkeypatch.setattr(os, name, refused)
    data = random.Random(3).randbytes(CHUNK + 4096 + 5)
    file = HashedFile(tmp_path / "a")
    file.write(data)
    file.close()
    assert (tmp_path / "a").read_bytes() == data
    assert file.as_file() == hash_file(tmp_path / "a", from_disk=True)


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(FileExistsError):
        HashedFile(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old"


def test_writes_that_the_system_cuts_short_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, dice = os.write, random.Random(2)
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[: dice.choice((4096, 8192, len(data)))]))
    data = dice.randbytes(CHUNK + 77)
    file = HashedFile(tmp_path / "a")
    file.write(data)
    file.close()
    assert (tmp_path / "a").read_bytes() == data
