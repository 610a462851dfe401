"""A stream is read from any line on, whatever its lines are like, and however it came into the archive."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.compress.cut import MAX_LINE
from logdoctor.errors import StoreError
from logdoctor.service.service import Service
from logdoctor.service.view import HEAD, TAIL, RawLine, StreamView, lines_of
from logdoctor.store.names import Key
from tests.service.archives import Counted, filled, stream
from tests.service.services import send

KEY = Key("job", 1, "rank 0")
_LINES = st.lists(st.one_of(st.just(b""), st.integers(1, 30).map(lambda size: b"x" * size)), max_size=25)


def viewed(path: Path, archived: list[bytes], tail: list[bytes]) -> StreamView:
    """A stream of which some chunks are archived, each in a frame of its own, and some are not there yet."""
    file = stream(path, archived)
    newlines = file.newlines + sum(chunk.count(b"\n") for chunk in tail)
    return StreamView(file, file.offset, newlines, tail)


def all_lines(view: StreamView, first: int = 1, last: int = 1 << 60) -> list[RawLine]:
    return [line for run in view.runs(first, last) for line in lines_of(run)]


def split(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@given(
    _LINES,
    st.sampled_from([b"\n", b"", b"\n\n"]),
    st.lists(st.integers(0, 400), max_size=10),
    st.integers(0, 10),
    st.integers(1, 30),
    st.integers(0, 30),
)
def test_any_lines_come_with_their_places(
    path: Path, lines: list[bytes], ending: bytes, cuts: list[int], archived: int, first: int, more: int
) -> None:
    content = b"\n".join(lines) + ending
    bounds = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    chunks = [content[begin:end] for begin, end in pairwise(bounds) if end > begin]
    view = viewed(path, chunks[:archived], chunks[archived:])
    wanted = split(content)
    assert (view.bytes, view.newlines, view.count()) == (len(content), content.count(b"\n"), len(wanted))
    found = all_lines(view, first, first + more)
    assert [line.head for line in found] == wanted[first - 1 : first + more]
    assert [line.number for line in found] == list(range(first, first + len(found)))
    assert all(content[line.offset : line.offset + line.size] == line.head for line in found)
    assert b"".join(view.chunks()) == content
    begin, end = sorted((first * 3, more * 5))
    assert b"".join(view.between(begin, end)) == content[begin:end]
    before = view.first_before(first, 5, 100)
    assert max(1, first - 5) <= before <= max(first - 1, 1)


@pytest.mark.parametrize("ended", [True, False])
def test_what_lies_within_a_long_line_is_not_read(path: Path, ended: bool) -> None:
    long = b"A" * 5000 + b"x" * (20 << 20) + b"Z" * 5000
    content = b"one\n" + long + (b"\nlast\n" if ended else b"")
    file = filled(KEY, objects := Counted(path), [content])
    view = StreamView(file, file.offset, file.newlines, [])
    found = all_lines(view, 1, 3)
    assert found[1] == RawLine(2, 4, len(long), long[:HEAD], long[-TAIL:])
    assert [line.head for line in found[2:]] == ([b"last"] if ended else [])
    assert objects.gets <= 6
    assert view.first_before(3, 100, 1 << 20) <= 2


def test_a_line_just_longer_than_a_block_is_long(path: Path) -> None:
    for size in (MAX_LINE - 1, MAX_LINE, MAX_LINE + 1, MAX_LINE + 5000):
        view = viewed(path, [b"a\n" * 1000 + b"y" * size + b"\nend\n"], [])
        run = next(run for run in view.runs(1001, 1002))
        assert (run.long is not None) == (size > MAX_LINE)
        found = all_lines(view, 1001)
        assert [(line.number, line.size) for line in found] == [(1001, size), (1002, 3)]


def test_a_stream_is_seen_as_it_stood_whatever_comes_then(service: Service) -> None:
    send(service, KEY, b"zero\n")
    service.holding.archive(service.holding.attempts["job", 1])
    send(service, KEY, b"one\nt")
    send(service, KEY, b"wo\nthr")
    view = service.logs.view(KEY)
    send(service, KEY, b"ee\nfour\n")
    for _ in range(2):
        assert (view.count(), [line.head for line in all_lines(view)]) == (4, [b"zero", b"one", b"two", b"thr"])
        lines = [line.head for line in all_lines(service.logs.view(KEY))]
        assert lines == [b"zero", b"one", b"two", b"three", b"four"]
        service.holding.archive(service.holding.attempts["job", 1])


def test_a_log_that_is_deleted_meanwhile_is_told(path: Path) -> None:
    view = viewed(path, [b"one\n"], [])
    (path / "object.zst").unlink()
    with pytest.raises(StoreError, match="missing"):
        all_lines(view)
