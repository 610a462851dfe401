"""What is looked for in a log is found, all of it and once, however often the search is gone on with."""

from pathlib import Path

import pytest

from logdoctor.errors import RuleError
from logdoctor.service.sifting import AROUND, Sieve, Sifted, rank_of, sieve, sift
from logdoctor.service.view import StreamView
from tests.service.test_log_page import view_of

HOUR = 3600.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "j" / "1" / "main.zst"


def words(text: str, is_pattern: bool = False, ignore_case: bool = True, rank: int | None = None) -> Sieve:
    return sieve(text, is_pattern, ignore_case, rank)


def all_hits(view: StreamView, wanted: Sieve, most: int = 7, seconds: float = HOUR) -> list[int]:
    """The hits of a search that is gone on with until the end."""
    hits: list[int] = []
    at: int | None = 1
    while at is not None:
        found = sift(view, at, wanted, most, seconds)
        assert len(found.hits) <= most and found.first == at and (found.next is None or found.next > at)
        hits += found.hits
        at = found.next
    return hits


CONTENT = b"".join(
    b"step %d \x1b[31mEr\x1b[0mror[%d]: disk (C:\\) full\n" % (n, n) if n % 10 == 0 else b"step %d is fine\n" % n
    for n in range(1, 5001)
)
TENTHS = list(range(10, 5001, 10))


@pytest.mark.parametrize("frame", [1 << 20, 777])
def test_words_are_found_in_every_part_and_behind_colours(path: Path, frame: int) -> None:
    view = view_of(path, CONTENT, frame)
    for text in ("Error", "error[", "(C:\\)", "\\) FULL"):
        assert all_hits(view, words(text)) == TENTHS
    assert all_hits(view, words("error", ignore_case=False)) == []
    assert all_hits(view, words("Error", ignore_case=False), most=100) == TENTHS
    assert all_hits(view, words(r"^step \d*7 is", is_pattern=True)) == [n for n in range(1, 5001) if n % 10 == 7]
    assert all_hits(view, words("step"), most=400) == list(range(1, 5001))
    assert all_hits(view, words("not there")) == []


def test_a_search_without_time_goes_on_all_the_same(path: Path) -> None:
    view = view_of(path, CONTENT, 5000)
    assert all_hits(view, words("error"), seconds=0) == TENTHS


def test_hits_come_with_the_lines_around_them(path: Path) -> None:
    found = sift(view_of(path, CONTENT), 1, words("error[20]"), 10, HOUR)
    assert found == Sifted(1, 5000, [20], found.lines, None, len(CONTENT))
    assert [line.number for line in found.lines] == list(range(20 - AROUND, 20 + AROUND + 1))
    assert found.lines[AROUND].head == b"step 20 Error[20]: disk (C:\\) full"


def test_long_lines_are_searched_and_shown_around_the_hit(path: Path) -> None:
    for size in (5000, 3 << 20):
        long = b"a" * size + b"the needle" + b"b" * 5000
        view = view_of(path, b"one\n" + long + b"\nthe needle again")
        found = sift(view, 1, words("needle"), 10, HOUR)
        assert found.hits == [2, 3] and found.next is None
        line = next(line for line in found.lines if line.number == 2)
        assert b"the needle" in line.head and len(line.head) < 1000 and line.size == len(long)


def test_a_needle_where_blocks_meet_within_a_long_line(path: Path) -> None:
    long = b"a" * ((2 << 20) - 4) + b"needle" + b"b" * (2 << 20)
    assert all_hits(view_of(path, long + b"\n"), words("needle")) == [1]


@pytest.mark.parametrize("pattern", ["(", "a*", r"(?=x)a", r"(a)\1", "a{1,65}", "a{100}", "x" * 301, "[", "é{2}("])
def test_what_may_not_be_linear_is_refused(pattern: str) -> None:
    with pytest.raises(RuleError):
        words(pattern, is_pattern=True)


def test_any_words_can_be_looked_for(path: Path) -> None:
    odd = ["(", "a*", "[", "\\", "^", "$", "{1}", "tab\there", "ö ü", "#", " ", "x" * 300, "(?i)", "\\Q"]
    view = view_of(path, "\n".join(odd).encode() + b"\n")
    for number, text in enumerate(odd, 1):
        assert number in all_hits(view, words(text)), text


RANKED = {
    b"[rank17]: error": 17,
    b"[rank 17] x": 17,
    b"[Rank_17] x": 17,
    b"[default17]: x": 17,
    b"17: x": 17,
    b"017:\tx": 17,
    b" 17: indented": None,
    b"[1,17]<stdout>: x": 17,
    b"Rank 17[123][main]: x": 17,
    b"node-1: [rank17]: x": 17,
    b"2024-03-02 11:17:47 [rank17] x": 17,
    b"\x1b[31m[rank17]:\x1b[0m x": 17,
    b"[rank017]: x": 17,
    b"3: [rank17]: x": 17,
    b"[rank1]: 17: x": 1,
    b"[rank171]: x": 171,
    b"117: x": 117,
    b"17:23:24 x": None,
    b"rank 17 is late": 17,
    b"[E ProcessGroupNCCL.cpp:915] [Rank 17] NCCL watchdog thread terminated": 17,
    b"[E ProcessGroupNCCL.cpp:632] [PG ID 0 Rank 17] Watchdog caught": 17,
    b"3: [E cpp:915] [Rank 17] x": 17,
    b"5: rank: 17, of 64": 17,
    b"Rank 17": 17,
    b"[E cpp:915] [Rank 171] x": 171,
    b"[E cpp:915] [Rank 7] x": 7,
    b"[E cpp:915] [Rank 1] x": 1,
    b"local_rank 17 of its node": None,
    b"Rank 17th": None,
    b"Frank 17": None,
    b"": None,
}


def test_lines_of_a_rank_are_those_whose_prefix_says_so(path: Path) -> None:
    for line, rank in RANKED.items():
        assert rank_of(line) == rank, line
    view = view_of(path, b"\n".join(RANKED) + b"\n")
    for rank in (1, 17, 171, 117, 7, 0):
        wanted = [number for number, one in enumerate(RANKED.values(), 1) if one == rank]
        assert all_hits(view, words("", rank=rank)) == wanted, rank
    assert all_hits(view, words("ERROR", rank=17)) == [1]
    assert all_hits(view, words("]: x", rank=171)) == [list(RANKED.values()).index(171) + 1]


def test_lines_that_name_no_rank_are_of_the_rank_of_their_stream(path: Path) -> None:
    view = view_of(path, b"a\n\n[rank3]: b\nc [Rank 77] d\ne\n")
    for stream, rank, wanted in (
        ("rank_77", 77, [1, 4, 5]),
        ("rank_77", 3, [3]),
        ("rank_77", 7, []),
        ("main", 77, [4]),
    ):
        assert all_hits(view, sieve("", False, True, rank, stream)) == wanted
    assert all_hits(view, sieve("a", False, True, 77, "1/77/stderr.log")) == [1, 4]


def test_a_rank_that_prints_nothing_costs_no_look_at_every_line(path: Path) -> None:
    view = view_of(path, b"2024-03-02 11:17:17 [rank3]: x\n" * 50_000)
    assert all_hits(view, words("", rank=17)) == []


def test_words_of_one_rank_are_read_where_the_rank_may_be_named_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [b"[rank%d]: word %d\n" % (n % 8, n) if n % 2 else b"%d: word %d\n" % (n % 8, n) for n in range(1, 2001)]
    view = view_of(path, b"".join(lines))
    asked = []

    def counted(line: bytes, own: int | None = None) -> int | None:
        asked.append(line)
        return rank_of(line, own)

    monkeypatch.setattr("logdoctor.service.sifting.rank_of", counted)
    assert all_hits(view, words("word", rank=5), most=3000) == [n for n in range(1, 2001) if n % 8 == 5]
    assert len(asked) < 2 * 2000 // 8
    assert all_hits(view, words("word", rank=4), most=3000) == [n for n in range(1, 2001) if n % 8 == 4]
    assert all_hits(view, words("no such word", rank=5)) == [] == all_hits(view, words("word", rank=77))
    named = sieve("word", False, True, 3, "rank-3.log")
    assert all_hits(view, named, most=3000) == [n for n in range(1, 2001) if n % 8 == 3]


@pytest.mark.parametrize(
    ("pattern", "cause"),
    [
        ("a\\", "a single backslash"),
        ("a*", "where there is no text"),
        ("[", "Unterminated character class)"),
        (r"(a)\2", "Invalid back reference"),
    ],
)
def test_a_refusal_speaks_of_what_was_typed(pattern: str, cause: str) -> None:
    with pytest.raises(RuleError) as refused:
        words(pattern, is_pattern=True)
    told = str(refused.value)
    assert f'pattern "{pattern}"' in told and cause in told
    assert "(?i)" not in told and "Hyperscan" not in told and "HS_" not in told and "index" not in told


def test_words_hold_any_character(path: Path) -> None:
    view = view_of(path, b"a\x00b\nab\na\n\\\n")
    assert all_hits(view, words("\x00")) == all_hits(view, words("a\x00b")) == [1]
    assert all_hits(view, words("\\")) == [4] == all_hits(view, words("\\\\", is_pattern=True))
