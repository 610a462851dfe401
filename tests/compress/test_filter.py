"""Nothing vanishes uncounted (law 1), and what is counted is counted right."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.compress import cut as cutting
from logdoctor.compress.cut import cut
from logdoctor.compress.filter import RuleTally, compress, tally, without_learned
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import FilterRule
from logdoctor.types import RuleCount
from tests.rules.learned import KIND, learned_rule

STEP = b" [2024-03-02 11:08:47] iteration      %d/  500000 | consumed samples:       122880 | elapsed time per " + (
    b"iteration (ms): 2270.9 | learning rate: 9.8E-05 | global batch size:  1024 | lm loss: 6.81E+00 |"
)
ERROR = b"RuntimeError: CUDA error: an illegal memory access was encountered"


def account(data: bytes, scanner: Scanner, block: int) -> RuleTally:
    """The account of a stream cut into segments of about `block` bytes."""
    total = RuleTally(len(scanner.book.filters))
    for segment in cut("main", (data[i : i + block] for i in range(0, len(data), block)), block):
        total.add(tally(compress(segment, scanner), len(scanner.book.filters)))
    return total


def counts(total: RuleTally, scanner: Scanner) -> dict[str, RuleCount]:
    return total.counts(scanner.book.filters)


def mixed(data: st.DataObject, book_lines: list[bytes]) -> bytes:
    """A log of real lines and random bytes."""
    line = st.one_of(
        st.sampled_from(book_lines), st.sampled_from(book_lines).map(lambda x: b"\x1b[32m[rank3]: " + x + b"\x1b[0m\r")
    )
    lines = data.draw(st.lists(st.one_of(line, st.binary(max_size=60)), max_size=15))
    return b"\n".join(lines) + data.draw(st.sampled_from([b"", b"\n"]))


@given(data=st.data(), block=st.integers(1, 3000), longest=st.sampled_from([20, 100, 1 << 20]))
def test_property_lines_left_and_lines_taken_are_lines_in(
    scanner: Scanner, book_lines: list[bytes], data: st.DataObject, block: int, longest: int
) -> None:
    log = mixed(data, book_lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "MAX_LINE", longest)
        whole, cut_up = account(log, scanner, len(log) + 1), account(log, scanner, block)
    for total in (whole, cut_up):
        taken = sum(count.lines for count in counts(total, scanner).values())
        assert total.lines_in == log.count(b"\n") + (not log.endswith(b"\n") and log != b"")
        assert total.lines_kept + taken == total.lines_in
        assert total.bytes_in == len(log)
        assert 0 <= total.bytes_kept <= total.bytes_in
    assert counts(whole, scanner) == counts(cut_up, scanner)
    assert (whole.lines_kept, whole.bytes_kept) == (cut_up.lines_kept, cut_up.bytes_kept)


@given(data=st.data())
def test_property_what_a_line_hits_does_not_depend_on_its_neighbours(
    scanner: Scanner, book_lines: list[bytes], data: st.DataObject
) -> None:
    log = mixed(data, book_lines)
    (segment,) = cut("main", [log], len(log) + 1) if log else [None]
    if segment is None:
        return
    residual = compress(segment, scanner)
    for place, line in enumerate(log.removesuffix(b"\n").split(b"\n") if log != b"\n" else [b""]):
        (alone,) = cut("main", [line + b"\n"], len(line) + 2)
        single = compress(alone, scanner).scan
        assert residual.raw(place) == line
        assert residual.scan.owner[place] == single.owner[0]
        assert residual.scan.metric[place] == single.metric[0]
        assert residual.scan.strong[place] == single.strong[0]
        evidence = residual.scan.evidence
        assert evidence[evidence[:, 0] == place, 1].tolist() == single.evidence[:, 1].tolist()


def test_counts_name_the_first_and_the_last_line(scanner: Scanner) -> None:
    lines = [b"odd one", STEP % 1, STEP % 2, ERROR, STEP % 3, b"odd two"]
    log = b"\n".join(lines) + b"\n"
    for block in (1, 200, 1 << 20):
        total = account(log, scanner, block)
        assert counts(total, scanner) == {"filter/megatron/iteration": RuleCount(3, 2, 5)}
        assert (total.lines_in, total.lines_kept) == (6, 3)
        assert total.bytes_kept == sum(len(lines[i]) + 1 for i in (0, 3, 5))


def test_colours_and_carriage_returns_do_not_hide_a_line_and_count_as_bytes(scanner: Scanner) -> None:
    log = b"\x1b[32m" + STEP % 1 + b"\x1b[0m\r\nodd\r\n"
    total = account(log, scanner, 1 << 20)
    assert counts(total, scanner) == {"filter/megatron/iteration": RuleCount(1, 1, 1)}
    assert total.bytes_kept == 5


def test_a_long_line_is_never_taken_but_is_evidence(scanner: Scanner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MAX_LINE", 400)
    log = STEP % 1 + b" " * 400 + b"\n" + STEP % 2 + b"\n" + ERROR + b"." * 400 + b"\n"
    total = account(log, scanner, 1 << 20)
    assert counts(total, scanner) == {"filter/megatron/iteration": RuleCount(1, 2, 2)}
    assert (total.lines_in, total.lines_kept) == (3, 2)
    (piece, *_) = [s for s in cut("main", [log], 1 << 20) if s.piece == 0 and s.line == 3]
    assert len(compress(piece, scanner).scan.evidence)


def test_residual_lines_and_raw_lines(scanner: Scanner) -> None:
    log = b"\x1b[1ma\x1b[0m\r\n\nb\x00\xff"
    (segment,) = cut("main", [log], 100)
    residual = compress(segment, scanner)
    assert [residual.line(i) for i in range(3)] == [b"a\r", b"", b"b\x00\xff"]
    assert [residual.raw(i) for i in range(3)] == [b"\x1b[1ma\x1b[0m\r", b"", b"b\x00\xff"]


def test_kept_are_the_lines_that_no_rule_takes(scanner: Scanner) -> None:
    log = b"\n".join([STEP % 1, b"odd", STEP % 2, ERROR])
    (segment,) = cut("main", [log], 10_000)
    assert compress(segment, scanner).kept.tolist() == [1, 3]


def test_most_of_a_healthy_log_is_taken(scanner: Scanner) -> None:
    log = b"".join(STEP % i + b"\n" for i in range(1000))
    total = account(log, scanner, 4096)
    assert Counter({rule: count.lines for rule, count in counts(total, scanner).items()}) == {
        "filter/megatron/iteration": 1000
    }
    assert total.bytes_kept == 0


# learned rules


LEARNED_LINES = [b"the gizmo number %d turns" % number for number in range(9)] + [b"gadget ok", b"gizmo failed", b""]
GIZMO, GADGET, EVERYTHING = r"^the gizmo number \d+ turns$", "^gadget ok$", "^.+$"


_compiled: dict[tuple[object, ...], Scanner] = {}


def with_rules(scanner: Scanner, *rules: FilterRule) -> Scanner:
    """The scanner with these rules; compiled once, for rules hold what cannot be hashed."""
    key = tuple((rule.patterns, rule.status, rule.harmless, rule.metrics, rule.id) for rule in rules)
    if key not in _compiled:
        _compiled[key] = scanner.learning(KIND, rules)
    return _compiled[key]


@given(
    data=st.data(),
    block=st.integers(1, 2000),
    longest=st.sampled_from([20, 1 << 20]),
    statuses=st.tuples(*[st.sampled_from(["active", "shadow", "retired"])] * 3),
    harmless=st.booleans(),
)
def test_property_lines_are_conserved_with_learned_rules(
    scanner: Scanner,
    book_lines: list[bytes],
    data: st.DataObject,
    block: int,
    longest: int,
    statuses: tuple[str, str, str],
    harmless: bool,
) -> None:
    patterns = (GIZMO, GADGET, EVERYTHING)
    rules = (
        learned_rule(pattern, f"r{number}", status, harmless=harmless)
        for number, (pattern, status) in enumerate(zip(patterns, statuses, strict=True))
    )
    learned = with_rules(scanner, *rules)
    log = mixed(data, [*book_lines, *LEARNED_LINES * 50])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "MAX_LINE", longest)
        before = account(log, scanner, len(log) + 1)
        whole, cut_up = account(log, learned, len(log) + 1), account(log, learned, block)
    for total in (whole, cut_up):
        assert total.lines_in == before.lines_in and total.bytes_in == len(log)
        assert total.lines_kept + int(total.lines.sum()) == total.lines_in
        assert 0 <= total.bytes_kept <= before.bytes_kept
    shipped = len(scanner.book.filters)
    assert whole.lines[:shipped].tolist() == before.lines.tolist(), "shipped rules take what they took"
    assert counts(whole, learned) == counts(cut_up, learned)
    assert whole.watched.tolist() == cut_up.watched.tolist()
    assert whole.lines_kept == cut_up.lines_kept
    assert int(whole.watched.sum()) <= whole.lines_kept, "what is watched is kept"
    for number, status in enumerate(statuses, shipped):
        assert not (status != "active" and whole.lines[number]) and not (status != "shadow" and whole.watched[number])


def test_a_rule_in_shadow_counts_what_the_active_one_takes(scanner: Scanner) -> None:
    log = b"\n".join([*LEARNED_LINES, STEP % 1, ERROR, *LEARNED_LINES])
    active, shadow = (with_rules(scanner, learned_rule(GIZMO, status=status)) for status in ("active", "shadow"))
    takes, watches = account(log, active, 100), account(log, shadow, 100)
    place = len(scanner.book.filters)
    assert counts(takes, active)[f"learned/{KIND}/one"] == RuleCount(18, 1, 23)
    assert (int(takes.watched[place]), int(watches.watched[place]), int(watches.lines[place])) == (0, 18, 0)
    assert watches.lines_kept == takes.lines_kept + 18


def test_a_piece_of_a_long_line_is_neither_taken_nor_watched(scanner: Scanner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MAX_LINE", 400)
    log = b"the gizmo number 1 turns " * 100 + b"\nthe gizmo number 2 turns\n"
    for status in ("active", "shadow"):
        total = account(log, with_rules(scanner, learned_rule(EVERYTHING, status=status)), 1 << 20)
        assert int(total.lines.sum() + total.watched.sum()) == 1 and total.lines_in == 2


def test_without_learned_rules_their_lines_stay_and_metrics_are_read(scanner: Scanner) -> None:
    log = b"\n".join([b"the gizmo number 1 turns", STEP % 1, b"odd", ERROR, b"gadget ok"]) + b"\n"
    rules = (learned_rule(GIZMO, metrics=(r"number (?P<step>\d+)",)), learned_rule(GADGET, "two", "shadow"))
    learned = with_rules(scanner, *rules)
    (segment,) = cut("main", [log], 1 << 20)
    plain, freed = compress(segment, scanner), without_learned(compress(segment, learned), learned)
    assert freed.kept.tolist() == plain.kept.tolist() == [0, 2, 3, 4]
    assert compress(segment, learned).kept.tolist() == [2, 3, 4]
    assert freed.scan.metric[0] == len(scanner.book.filters)
    assert tally(freed, len(learned.book.filters)).lines_kept == 4
    untouched = compress(segment, scanner)
    assert without_learned(untouched, scanner).kept.tolist() == plain.kept.tolist()


def test_a_tally_grows_with_the_book(scanner: Scanner) -> None:
    total = account(STEP % 1 + b"\nodd\n", scanner, 1 << 20)
    before = counts(total, scanner)
    learned = with_rules(scanner, learned_rule("^odd$"))
    total.grow(len(learned.book.filters))
    assert counts(total, learned) == before
    (segment,) = cut("main", [b"odd\nodd\n"], 1 << 20)
    total.add(tally(compress(segment, learned), len(learned.book.filters)), shift=2)
    assert counts(total, learned) == before | {f"learned/{KIND}/one": RuleCount(2, 3, 4)}
    assert total.lines_kept + int(total.lines.sum()) == total.lines_in == 4
    total.grow(len(learned.book.filters))
    assert total.lines_in == 4
