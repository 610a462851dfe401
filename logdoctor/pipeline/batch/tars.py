"""Unpacks the logs in a tar, of any compression, into a folder, one shard at a time."""

import io
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from logdoctor.compress.cut import unpack
from logdoctor.errors import InputError
from logdoctor.pipeline import ReadLimits
from logdoctor.pipeline.batch.sources import Source, SourceFile, Tar

_LONGEST_HEADER = 1 << 20  # bytes of one member's headers, which are read into memory
_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_DIGITS = re.compile(rb"[0-9]{100}")
"""Longer than any number in a header record; tarfile takes quadratic time for them."""
_IS_LONGER = 504  # offset, in a block of an old sparse map, of the flag for a further block
_PIECE = 1 << 20
_PLAIN = "Pack it without --sparse."


def members(
    tar: Tar, file: IO[bytes], limits: ReadLimits, takes: Callable[[str], bool], folder: Callable[[], Path]
) -> Iterator[tuple[Source, int]]:
    """Yield each log in a tar, written to `folder()`, and its bytes in the tar.

    Links, devices and members not named like logs are skipped. What cannot be read becomes a source with an error: a
    sparse file; or a tar that is damaged or expands too much, which then ends. A repeated name gets a number: `a.log
    (2)`.
    """
    problems: list[str] = []
    chunks = unpack(tar.name, cast(BinaryIO, file), limits.block, limits.unpacked, limits.expansion, problems.append)
    before = number = 0
    seen = Counter[int]()  # hashes of names, which take less than names
    try:
        opened: Any  # its list of members is missing in its type
        with _Tar.open(fileobj=_Chunks(chunks), mode="r|") as opened:
            while (member := opened.next()) is not None:
                opened.members.clear()  # or it would grow with the tar
                opened.header_bytes = 0
                if member.size < 0:
                    raise tarfile.ReadError("a member has a size below 0")
                if not member.isreg() or not takes(os.path.basename(member.name)):
                    continue
                seen[hash(member.name)] += 1
                again = seen[hash(member.name)]
                name = f"{tar.name}/{member.name}" + (f" ({again})" if again > 1 else "")
                if member.sparse is not None:
                    yield Source(name, error=InputError(name, "is a sparse file, which is not read", _PLAIN)), 0
                    continue
                content = opened.extractfile(member)
                assert content is not None
                place = folder() / str(number)
                with place.open("wb") as copy:
                    while piece := content.read(_PIECE):
                        copy.write(piece)
                changed = f"{tar.changed} {tar.size}"
                yield Source(name, (SourceFile("main", str(place), member.size, changed, name),)), file.tell() - before
                before, number = file.tell(), number + 1
    except RecursionError:
        problems.append("a member has too many headers; what came before it was read")
    except (tarfile.TarError, EOFError, ValueError) as error:
        problems.append(f"{error or 'it ends in the middle'}; what came before it was read")
    except InputError as error:
        yield Source(tar.name, error=error), 0
        return
    if problems:
        cause = problems[0].removeprefix(f"{tar.name}: ")[:200]
        yield Source(tar.name, error=InputError(tar.name, f"is damaged ({cause})", "Get a copy that is whole.")), 0


class _Chunks(io.RawIOBase):
    """Chunks of bytes as a file that is read once. It returns its end once, then raises `EOFError`: tarfile skips a
    member by reading as often as its size claims, whatever comes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._left, self._ended = chunks, memoryview(b""), False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes; b"" at the end, once."""
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                if self._ended:
                    raise EOFError
                self._ended = True
                return b""
            self._left = memoryview(chunk)
        piece, self._left = self._left[:size], self._left[size:]
        return bytes(piece)


class _Again:
    """A file that returns some bytes already read before the rest."""

    def __init__(self, held: bytes, file: Any) -> None:
        self._held, self._file = held, file

    def read(self, size: int) -> bytes:
        """Return the bytes already read, then the rest."""
        held, self._held = self._held, b""
        return held or bytes(self._file.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Header(tarfile.TarInfo):
    """A header of bounded size: tarfile reads names and sparse maps into memory, whatever size they claim. It skips
    sparse maps, as sparse files are not read, and global headers, which tarfile would keep and copy for each member."""

    def _proc_member(self, tar: Any) -> tarfile.TarInfo:
        if self.type in _HEADERS:
            tar.header_bytes += self.size
            if tar.header_bytes > _LONGEST_HEADER:
                raise tarfile.ReadError("a header is too long")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return] # no method that has a type

    def _proc_pax(self, tar: Any) -> tarfile.TarInfo:
        """Read a header of records, unless parsing it could take disproportionately long."""
        file = tar.fileobj
        held = file.read(self._block(self.size))  # type: ignore[attr-defined] # of tarfile
        if self.type == tarfile.XGLTYPE:
            return self.fromtarfile(tar)
        if _DIGITS.search(held):
            raise tarfile.ReadError("a header holds a number that none has")
        tar.fileobj = _Again(held, file)
        try:
            return super()._proc_pax(tar)  # type: ignore[misc, no-any-return] # no method that has a type
        finally:
            tar.fileobj = file

    def _proc_sparse(self, tar: Any) -> tarfile.TarInfo:
        """Skip the map of the old form, in blocks behind the header."""
        _, is_longer, _ = self._sparse_structs  # type: ignore[attr-defined] # set by tarfile as it reads the header
        while is_longer:
            block = tar.fileobj.read(tarfile.BLOCKSIZE)
            if len(block) < tarfile.BLOCKSIZE:
                raise tarfile.ReadError("it ends in the middle")
            is_longer = bool(block[_IS_LONGER])
        self.sparse = b""
        self.offset_data = tar.fileobj.tell()
        tar.offset = self.offset_data + -(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        return self

    def _proc_gnusparse_10(self, member: Any, *_: object) -> None:
        """Skip the map of form 1.0, with which the content begins."""
        member.sparse = b""


class _Tar(tarfile.TarFile):
    """A tar with bounded headers."""

    tarinfo = _Header
    header_bytes = 0  # of the current member
