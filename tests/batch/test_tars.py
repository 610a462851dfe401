"""Logs in tars that others made."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from logdoctor.pipeline import ReadLimits
from logdoctor.pipeline.batch.sources import Source, Tar
from logdoctor.pipeline.batch.tars import members

LIMITS = ReadLimits(1 << 20, 1, 1 << 30, 1000)


def found(content: bytes, folder: Path) -> list[Source]:
    tar = Tar("x.tar", len(content), "")
    return [source for source, _ in members(tar, io.BytesIO(content), LIMITS, lambda name: True, lambda: folder)]


def packed(*some: tarfile.TarInfo, style: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar with members of some bytes each."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=style) as tar:
        for member in some:
            member.size = 512
            tar.addfile(member, io.BytesIO(b"x" * 512))
    return file.getvalue()


def test_a_sparse_file_is_an_error_and_costs_no_other(tmp_path: Path) -> None:
    sparse = tarfile.TarInfo("sparse.log")
    sparse.pax_headers = {"GNU.sparse.map": "0,512", "GNU.sparse.size": str(1 << 40)}
    first, last = found(packed(sparse, tarfile.TarInfo("a.log")), tmp_path)
    assert first.name == "x.tar/sparse.log" and "is a sparse file" in str(first.error)
    assert (last.name, last.error) == ("x.tar/a.log", None)
    assert [place.stat().st_size for place in tmp_path.iterdir()] == [512]


@pytest.mark.parametrize("form", ["gnu", "posix", "oldgnu", "posix --sparse-version=0.0"])
def test_a_sparse_file_that_tar_packed_costs_no_other(tmp_path: Path, form: str) -> None:
    with (tmp_path / "sparse.log").open("wb") as file:
        for place in range(0, 64 << 20, 1 << 20):  # more holes than a header has room for
            file.seek(place)
            file.write(b"loss 1.0\n")
    (tmp_path / "z.log").write_text("the last\n")
    command = ["tar", "-S", *f"--format={form}".split(), "-C", str(tmp_path), "-cf", "-", "sparse.log", "z.log"]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    assert len(packed) < 8 << 20, "the holes were packed"
    (to := tmp_path / "unpacked").mkdir()
    first, last = found(packed, to)
    assert first.name == "x.tar/sparse.log" and "is a sparse file" in str(first.error)
    assert (last.name, last.error) == ("x.tar/z.log", None)
    assert [place.read_text() for place in to.iterdir()] == ["the last\n"]


def test_any_number_of_headers_is_no_end(tmp_path: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 6
    one = header.tobuf(tarfile.GNU_FORMAT) + b"a.log\0".ljust(512, b"\0")
    first, last = found(packed(tarfile.TarInfo("a.log"))[:1024] + one * 2000, tmp_path)
    assert (first.name, first.error) == ("x.tar/a.log", None)
    assert last.name == "x.tar" and "a member has too many headers" in str(last.error)


def test_a_name_that_is_there_twice_gets_a_number(tmp_path: Path) -> None:
    names = [one.name for one in found(packed(*map(tarfile.TarInfo, ["a.log", "b.log", "a.log", "a.log"])), tmp_path)]
    assert names == ["x.tar/a.log", "x.tar/b.log", "x.tar/a.log (2)", "x.tar/a.log (3)"]


def claiming(size: int, style: int) -> bytes:
    """A tar with a log, and behind it a member that says to have a size, and has not."""
    member = tarfile.TarInfo("x.bin")
    if style == tarfile.PAX_FORMAT:
        member.pax_headers = {"size": str(size)}
    else:
        member.size = size
    return packed(tarfile.TarInfo("a.log"))[:1024] + member.tobuf(style) + b"x" * 1000


@pytest.mark.parametrize("size", [1 << 40, 1 << 60, 10**20, 10**400])
@pytest.mark.parametrize("style", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("taken", [".log", ".bin"])
def test_a_size_that_is_not_there_is_not_read_on_and_on(tmp_path: Path, size: int, style: int, taken: str) -> None:
    if style == tarfile.GNU_FORMAT and size > 1 << 80:
        pytest.skip("no header of it has room for this")
    content = claiming(size, style)
    tar = Tar("x.tar", len(content), "")
    read = members(tar, io.BytesIO(content), LIMITS, lambda name: name.endswith((".log", taken)), lambda: tmp_path)
    first, last = (source for source, _ in read)
    assert (first.name, first.error) == ("x.tar/a.log", None)
    assert "is damaged" in str(last.error) and "what came before it was read" in str(last.error)


@pytest.mark.parametrize("size", [-1, -512, -(1 << 60)])
def test_a_size_below_nothing_is_damage(tmp_path: Path, size: int) -> None:
    first, last = found(claiming(size, tarfile.PAX_FORMAT), tmp_path)
    assert (first.name, first.error) == ("x.tar/a.log", None) and "is damaged" in str(last.error)


@pytest.mark.parametrize(("letter", "said"), [("1", "a number that none has"), ("a", "None")])
def test_a_record_of_digits_without_end_is_damage(letter: str, said: str, tmp_path: Path) -> None:
    """Of letters it is a comment; tarfile looks at each digit for each other."""
    info = tarfile.TarInfo("a.log")
    info.pax_headers = {"comment": letter * 60_000}
    (source,) = found(packed(info), tmp_path)
    assert said in str(source.error)


def header(kind: bytes, records: int) -> bytes:
    """A header of so many records."""
    body = b"".join(b"13 k%06d=x\n" % number for number in range(records))
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, len(body)
    return info.tobuf(tarfile.USTAR_FORMAT) + body + b"\0" * (-len(body) % 512)


def test_what_a_tar_says_of_all_members_is_not_kept_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patched: list[int] = []
    patch = tarfile.TarInfo._apply_pax_info  # type: ignore[attr-defined] # of tarfile

    def counted(member: tarfile.TarInfo, headers: dict[str, str], *rest: object) -> None:
        patched.append(len(headers))
        patch(member, headers, *rest)

    monkeypatch.setattr(tarfile.TarInfo, "_apply_pax_info", counted)
    log = packed(tarfile.TarInfo("a.log"))[:1024]
    content = (header(tarfile.XGLTYPE, 1000) + header(tarfile.XHDTYPE, 1) + log) * 20
    assert [str(one.error) for one in found(content, tmp_path)] == ["None"] * 20
    assert max(patched) == 1


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_the_headers_of_a_member_have_a_size_together(kind: bytes, tmp_path: Path) -> None:
    log, headers = packed(tarfile.TarInfo("a.log"))[:1024], header(kind, 20_000)
    assert [one.error for one in found((headers * 3 + log) * 3, tmp_path)] == [None] * 3
    *_, last = found(log + headers * 5 + log, tmp_path)
    assert "a header is too long" in str(last.error)
