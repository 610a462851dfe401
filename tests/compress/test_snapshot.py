"""A stream that goes on from a snapshot gives the record of one that was never interrupted."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.compress import snapshot
from logdoctor.compress.cut import MAX_LINE, Cutter, cut
from logdoctor.compress.excerpt import Recorder, excerpt
from logdoctor.compress.filter import compress
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Segment
from tests.compress.records import content, recorded
from tests.rules.learned import KIND, learned_rule


def interrupted(chunks: list[bytes], scanner: Scanner, every: int) -> Recorder:
    """A recorder that was packed and unpacked after every few chunks; what was held back is sent again."""
    whole = b"".join(chunks)
    cutter, recorder = Cutter("main"), Recorder("main", "a.log", scanner)
    sent = 0
    for number, chunk in enumerate(chunks, 1):
        for segment in cutter.push(chunk):
            recorder.add(excerpt(compress(segment, scanner), scanner), 0)
        sent += len(chunk)
        if number % every == 0:
            resumed = snapshot.resume("main", "a.log", snapshot.take(cutter, recorder, scanner), scanner)
            assert resumed is not None
            cutter, recorder = resumed
            for segment in cutter.push(whole[cutter.offset : sent]):
                recorder.add(excerpt(compress(segment, scanner), scanner), 0)
    for segment in cutter.finish():
        recorder.add(excerpt(compress(segment, scanner), scanner), 0)
    return recorder


def mixed_log(lines: list[bytes], seed: int, count: int) -> bytes:
    """Known lines, progress with a loss, and words, shuffled."""
    rng = random.Random(seed)
    step = 0
    parts = []
    for _ in range(count):
        if rng.random() < 0.5:
            step += 1
            parts.append(
                b"[2026-01-02 03:%02d:%02d] step: %d loss: %.4f" % (step // 60 % 60, step % 60, step, 9 / step)
            )
        else:
            parts.append(rng.choice(lines) if rng.random() < 0.8 else b"plain words %d" % rng.randrange(99))
    return b"\n".join(parts)


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(50, 3000))
def test_property_a_snapshot_changes_nothing(
    scanner: Scanner, book_lines: list[bytes], seed: int, every: int, width: int
) -> None:
    log = mixed_log(book_lines, seed, 150)
    chunks = [log[at : at + width] for at in range(0, len(log), width)]
    assert content(interrupted(chunks, scanner, every).record()) == content(recorded(chunks, scanner, 1 << 20))


def test_a_snapshot_inside_a_long_line(scanner: Scanner) -> None:
    log = b"step: 1 loss: 2.0\n" + b"x" * (3 * MAX_LINE + 5) + b"\nRuntimeError: it broke\n"
    chunks = [log[at : at + 700_000] for at in range(0, len(log), 700_000)]
    assert content(interrupted(chunks, scanner, 1).record()) == content(recorded(chunks, scanner, 1 << 20))


def test_many_small_parts_are_put_together(scanner: Scanner, book_lines: list[bytes]) -> None:
    log = mixed_log(book_lines, 7, 1000)
    chunks = [line + b"\n" for line in log.split(b"\n")]
    record = interrupted(chunks, scanner, 10**9).record()
    assert len(record.texts) <= 65
    assert content(record) == content(recorded([log + b"\n"], scanner, 1 << 20))


@pytest.mark.parametrize(
    "spoil", [lambda s: s[:-3], lambda s: b"", lambda s: b"\xff" + s, lambda s: b"\x93\x01\x02\x03"]
)
def test_a_damaged_snapshot_is_not_used(scanner: Scanner, spoil: object) -> None:
    whole = snapshot.take(Cutter("main"), Recorder("main", "a.log", scanner), scanner)
    assert snapshot.resume("main", "a.log", whole, scanner) is not None
    assert callable(spoil)
    assert snapshot.resume("main", "a.log", spoil(whole), scanner) is None


def test_a_snapshot_of_other_rules_is_not_used(scanner: Scanner) -> None:
    whole = snapshot.take(Cutter("main"), Recorder("main", "a.log", scanner), scanner)
    other = whole.replace(scanner.book.digest.encode(), b"0" * len(scanner.book.digest))
    assert snapshot.resume("main", "a.log", other, scanner) is None


# learned rules


def learned_books(scanner: Scanner) -> list[Scanner]:
    """The shipped rules; with a learned rule in shadow; with it active and another behind it."""
    plain = r"^plain words \d+$"
    reads = (r"words (?P<step>\d+)",)
    return [
        scanner,
        scanner.learning(KIND, (learned_rule(plain, status="shadow", metrics=reads),)),
        scanner.learning(KIND, (learned_rule(plain, metrics=reads), learned_rule(r"^step: 1\d .*$", "two"))),
    ]


@pytest.fixture(scope="module")
def books(scanner: Scanner) -> list[Scanner]:
    return learned_books(scanner)


@given(st.integers(0, 10**6), st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(50, 3000))
def test_property_a_snapshot_changes_nothing_while_the_book_grows(
    books: list[Scanner], book_lines: list[bytes], seed: int, growth: list[int], width: int
) -> None:
    """Two recorders see the same books at the same bytes; one of them is packed and unpacked with the next book."""
    log = mixed_log(book_lines, seed, 60)
    cutter, recorder, plain = Cutter("main"), Recorder("main", "a.log", books[0]), Recorder("main", "a.log", books[0])
    stage = 0

    def add(segments: Iterable[Segment]) -> None:
        for segment in segments:
            part = excerpt(compress(segment, books[stage]), books[stage])
            recorder.add(part, 0)
            plain.add(part, 0)

    stages = iter(sorted(growth))
    for at in range(0, len(log), width):
        packed = snapshot.take(cutter, recorder, books[stage])
        stage = next(stages, stage)
        resumed = snapshot.resume("main", "a.log", packed, books[stage])
        assert resumed is not None
        cutter, recorder = resumed
        plain.adopt(books[stage])
        add(cutter.push(log[cutter.reached : at + width]))
    add(cutter.finish())
    assert content(recorder.record()) == content(plain.record())
    assert recorder.hits() == plain.hits()
    account = recorder.record().compression
    assert account.lines_kept + sum(count.lines for count in account.rules.values()) == account.lines_in
    assert account.bytes_in == len(log)


def test_a_noticed_line_is_in_the_snapshot(books: list[Scanner]) -> None:
    recorder = Recorder("main", "a.log", books[1])
    recorder.notice(7, "the door is open")
    resumed = snapshot.resume("main", "a.log", snapshot.take(Cutter("main"), recorder, books[1]), books[2])
    assert resumed is not None
    assert [(line.number, line.weak) for line in resumed[1].record().lines] == [(7, True)]


def test_a_snapshot_is_used_only_with_a_book_that_begins_like_its_own(scanner: Scanner, books: list[Scanner]) -> None:
    other = scanner.learning("another/kind", (learned_rule("^x$"), learned_rule("^y$", "y"), learned_rule("^z$", "z")))

    def is_used(before: Scanner, after: Scanner) -> bool:
        whole = snapshot.take(Cutter("main"), Recorder("main", "a.log", before), before)
        return snapshot.resume("main", "a.log", whole, after) is not None

    assert [is_used(books[1], after) for after in (*books, other)] == [False, True, True, False]
    assert [is_used(books[2], after) for after in (*books, other)] == [False, False, True, False]
    assert [is_used(books[0], after) for after in (*books, other)] == [True] * 4


def test_a_recorder_that_is_one_book_behind_is_not_resumed_askew(books: list[Scanner]) -> None:
    """The recorder has adopted nothing yet, but the snapshot is taken with a book that has grown."""
    recorder = Recorder("main", "a.log", books[0])
    resumed = snapshot.resume("main", "a.log", snapshot.take(Cutter("main"), recorder, books[2]), books[2])
    assert resumed is not None
    (segment,) = cut("main", [b"plain words 3\n"], 1 << 20)
    resumed[1].add(excerpt(compress(segment, books[2]), books[2]), 0)
    assert resumed[1].hits() == {f"learned/{KIND}/one": (1, 1)}
