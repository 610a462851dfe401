"""Files of torch (zip) and safetensors: whether they are whole, and the data in them."""

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

from logdoctor.job.recovery.catalogue.files import Stat, opened, stat_of
from logdoctor.job.recovery.catalogue.pickled import MOST_BYTES, NotRead, TooLarge, budget_for, unpickled
from logdoctor.safe.budget import Overspent, json_of

_END = b"PK\x05\x06"
_END_BYTES = 22
_COMMENT = 1 << 16
_DIRECTORY = 16 << 20  # bytes of a zip directory that are read
_HEADER = 100 << 20  # bytes of a header; the limit of safetensors itself
_BLOCK = 1 << 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError, OSError, KeyError)


class Part(io.RawIOBase):
    """A byte range of a file as a read-only file."""

    def __init__(self, file: IO[bytes], begin: int, length: int) -> None:
        super().__init__()
        self._file, self._begin, self._length, self._at = file, begin, length, 0

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to an offset, and return it."""
        self._at = max(0, (0, self._at, self._length)[whence] + offset)
        return self._at

    def tell(self) -> int:
        """Return the offset."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes of the part."""
        left = max(0, self._length - self._at)
        self._file.seek(self._begin + self._at)
        data = self._file.read(left if size is None or size < 0 else min(size, left))
        self._at += len(data)
        return data


def cut_off(path: Path, size: Stat | None = None) -> str:
    """Return why a file of torch or safetensors is not whole; "" when no defect is found.

    torch writes the directory of its zip files last, so a truncated one has none. Other formats, torch's old one
    included, cannot be judged by their form.
    """
    try:
        found = size or stat_of(path)
        if found is None:
            return "is missing"
        if found.bytes == 0:
            return "is empty"
        if path.name.endswith(".safetensors"):
            return _short_of_header(path, found.bytes)
        if found.bytes < _END_BYTES:
            return "was cut off"
        with opened(path) as file:
            return _short_of_directory(file, found.bytes) if file.read(2) == b"PK" else ""
    except TooLarge:
        return ""
    except NotRead as error:
        return str(error)
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _short_of_directory(file: IO[bytes], size: int) -> str:
    """Return why a zip file does not end with its directory; "" when it does."""
    file.seek(max(0, size - _END_BYTES - _COMMENT))
    tail = file.read(_END_BYTES + _COMMENT)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_BYTES:
        return "was cut off: the directory at its end is missing"
    length, begin = struct.unpack("<II", tail[at + 12 : at + 20])
    beyond = size - len(tail) + at
    if length != 0xFFFFFFFF and begin != 0xFFFFFFFF and begin + length > beyond:
        return "was cut off: its directory names more bytes than it has"
    return ""


def _short_of_header(path: Path, size: int) -> str:
    """Return why a safetensors file does not hold what its header names; "" when it does."""
    with opened(path) as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            return "was cut off in its header"
        if length > _HEADER:
            raise TooLarge("has a header that is not read")
        wanted = 8 + length + _named_bytes(file.read(length))
    return "" if wanted == size else f"has {size:,} bytes, its header names {wanted:,}"


def _named_bytes(header: bytes) -> int:
    """Return where the last tensor named in a header ends."""
    try:
        named = json_of(header)
        ends = [one["data_offsets"][1] for name, one in named.items() if name != "__metadata__"]
    except Overspent as error:
        raise NotRead(f"has a header that {error}") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise NotRead("has a header that is no JSON of safetensors") from error
    if not all(type(end) is int for end in ends):
        raise NotRead("has a header whose offsets are no numbers")
    return max(ends, default=0)


def saved_object(path: Path) -> Any:
    """Return what torch saved in a file, without tensors, as `pickled` reads it. `NotRead` when it is not whole or in
    torch's old format, `TooLarge` beyond the limits, `Overspent` when it expands too far."""
    with opened(path) as file, _zip(file) as archive:
        names = [name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
        if not names:
            raise NotRead("holds no data.pkl")
        about = archive.getinfo(names[0])
        if about.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others are decompressed all at once
            raise NotRead("holds a data.pkl that is compressed in another way than is read")
        budget = budget_for(min(about.compress_size, file.seek(0, 2)))
        try:
            with archive.open(names[0]) as entry:
                data = entry.read(min(budget.left, MOST_BYTES) + 1)
        except _DAMAGE as error:
            raise NotRead("holds a data.pkl that cannot be read") from error
    try:
        return unpickled(data, budget)
    except Overspent as error:
        raise Overspent(f"{path.name} {error}") from None


def damaged_entry(file: IO[bytes] | Part) -> str:
    """Return which entry of a zip file fails its checksum; "" when all match. torch neither compresses nor overlaps
    entries. Compressed ones are skipped and overlapping ones refused: reading them might never end."""
    with _zip(file) as archive:
        every = archive.infolist()
        if sum(entry.compress_size for entry in every) > file.seek(0, 2):
            return "is damaged: its directory names more bytes than it has"
        for entry in every:
            if entry.compress_type != zipfile.ZIP_STORED:
                continue
            try:
                with archive.open(entry) as part:
                    while part.read(_BLOCK):
                        pass
            except _DAMAGE:
                return f"is damaged: {entry.filename} has another checksum than when it was written"
    return ""


def _zip(file: IO[bytes] | Part) -> zipfile.ZipFile:
    """Open a zip file whose directory is no larger than a checkpoint needs."""
    file.seek(0, 2)
    size = file.tell()
    file.seek(max(0, size - _END_BYTES - _COMMENT))
    tail = file.read(_END_BYTES + _COMMENT)
    at = tail.rfind(_END)
    length = _directory_bytes(file, tail, at, size)
    if length is None:
        raise NotRead("is no whole zip file")
    if length > _DIRECTORY:
        raise TooLarge(f"has a directory of {length:,} bytes")
    try:
        return zipfile.ZipFile(file)
    except _DAMAGE as error:
        raise NotRead("has a directory that cannot be read") from error


def _directory_bytes(file: IO[bytes] | Part, tail: bytes, at: int, size: int) -> int | None:
    """Return the directory size that a zip file declares; None when it has no valid end record."""
    if at < 0 or len(tail) - at < _END_BYTES:
        return None
    found: int = struct.unpack("<I", tail[at + 12 : at + 16])[0]
    if at >= 20 and tail[at - 20 : at - 16] == b"PK\x06\x07":  # locator of the zip64 end record
        begin: int = struct.unpack("<Q", tail[at - 12 : at - 4])[0]
        if begin + 56 > size:
            return None
        file.seek(begin)
        found = int(struct.unpack("<Q", file.read(56)[40:48])[0])
    return found
