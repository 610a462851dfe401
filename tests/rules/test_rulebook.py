"""The shipped rules: whole, proven, able to say every reason, and linear in time (law 9)."""

import re
import time

import numpy as np
import pytest

from logdoctor import taxonomy
from logdoctor.compress.cut import cut, newlines_of
from logdoctor.compress.excerpt import excerpt
from logdoctor.compress.filter import compress
from logdoctor.compress.progress import read as read_metrics
from logdoctor.rules.check import check
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.text import origin, seconds_of, shown
from tests.soak import SOAKING

FRAMEWORKS = 20
GROUPS = {"step", "total", "loss", "throughput", "accuracy", "rank", "node", "alias"}
SECONDS = 5.0
ADVERSARIES = [
    b"a",
    b"a1",
    b"a.",
    b" ",
    b"\t",
    b"\x1b[",
    b"\x1b[1;",
    b"\r",
    b"\x00",
    b"\xff",
    b"Traceback ",
    b"[",
    b"](",
    b"1",
    b"1:",
    b"-",
    b"%|",
    b"Error: ",
    b"error ",
    b"Traceback (most recent call last):",
    b'File "',
    b"[rank1]:",
    b"12:34:56 ",
    b"iteration 1/ 2 | ",
    b"loss: 1 ",
    b"step=1 ",
    b"NCCL INFO ",
    b"NVRM: Xid (",
    b"'loss': ",
]


def test_the_rule_book_has_no_problem(scanner: Scanner) -> None:
    assert [str(problem) for problem in check(scanner.book, scanner)] == []


def test_there_are_packs_for_many_frameworks(book: RuleBook) -> None:
    assert len({rule.id.split("/")[1] for rule in book.filters}) >= FRAMEWORKS


def test_every_reason_can_be_reached(book: RuleBook) -> None:
    """By a rule, by a row of a table, or by the class of an exception."""
    reached = {taxonomy.reason_of_exception(name) for name in taxonomy._BY_EXCEPTION}
    reached |= {reason for _, reason in taxonomy._BY_FAMILY}
    for rule in book.diagnoses:
        if rule.status == "active":
            reached.add(rule.verdict.reason)
            if rule.verdict.lookup:
                reached |= {row["reason"] for row in book.knowledge(rule.verdict.lookup).values()}
    anomalies_of_progress = {"Hang", "Loss Spike"}
    assert set(taxonomy.REASONS) - reached - anomalies_of_progress - {"Unknown"} == set()


def test_every_outcome_but_failure_has_a_rule(book: RuleBook) -> None:
    outcomes = {rule.verdict.outcome for rule in book.diagnoses if rule.status == "active"}
    assert {"completed", "cancelled", "recovered"} <= outcomes


def test_every_group_of_a_metric_is_known(book: RuleBook) -> None:
    for rule in book.filters:
        for metric in rule.metrics:
            assert set(re.compile(metric).groupindex) <= GROUPS, rule.id
            assert re.compile(metric).groupindex, f"{rule.id} reads nothing with {metric}"


def test_every_metric_reads_something_from_an_example(book: RuleBook, scanner: Scanner) -> None:
    for number, rule in enumerate(book.filters):
        if not rule.metrics:
            continue
        for metric in rule.metrics:
            found = [match for text in rule.must_match if (match := re.search(metric, text))]
            assert any(any(match.groupdict().values()) for match in found), f"{rule.id}: {metric}"
        read = 0
        for text in rule.must_match:
            (segment,) = cut("main", [text.encode()], 1 << 20)
            residual = compress(segment, scanner)
            if residual.scan.metric[0] == number:
                meter = read_metrics(residual, book)
                read += bool(meter.readings or meter.placements or meter.aliases)
        assert read, f"{rule.id} reads no value from any of its examples"


def test_numbers_of_metrics_are_numbers(book: RuleBook) -> None:
    for rule in book.filters:
        for metric in rule.metrics:
            for text in rule.must_match:
                match = re.search(metric, text)
                for name in {"step", "total", "throughput", "rank"} & set(match.groupdict() if match else ()):
                    value = match[name] if match else None
                    assert value is None or float(value.replace(",", "")) >= 0, (rule.id, text)


def test_what_an_example_hits_does_not_depend_on_its_neighbours(scanner: Scanner, book_lines: list[bytes]) -> None:
    buffer = b"\n".join(book_lines)
    together = scanner.scan(buffer, newlines_of(buffer))
    for place, line in enumerate(book_lines):
        alone = scanner.scan(line, np.empty(0, np.int64))
        assert together.owner[place] == alone.owner[0], line
        assert together.evidence[together.evidence[:, 0] == place, 1].tolist() == alone.evidence[:, 1].tolist(), line


@pytest.mark.more_in_soak
@pytest.mark.parametrize("unit", ADVERSARIES if SOAKING else ADVERSARIES[::6])
@pytest.mark.parametrize("width", [4000, 1 << 20])
def test_a_megabyte_of_repetition_is_examined_in_linear_time(scanner: Scanner, unit: bytes, width: int) -> None:
    line = unit * (width // len(unit))
    buffer = b"\n".join([line] * ((1 << 20) // width))
    begin = time.process_time()
    for segment in cut("main", [buffer], len(buffer)):
        part = excerpt(compress(segment, scanner), scanner)
        for kept in (*part.lines, *part.first, *part.last):
            origin(shown(kept.text))
            seconds_of(kept.text)
    assert time.process_time() - begin < SECONDS


def test_metrics_are_read_in_linear_time(book: RuleBook) -> None:
    """From lines that begin like an example and go on as badly as they can."""
    begin = time.process_time()
    for number, expressions in book.metrics.items():
        for text in book.filters[number].must_match:
            for unit in (text, text[: len(text) // 2], " ", "1", "| ", "a="):
                line = (text[: len(text) // 2] + unit * 4096).encode()[:4096]
                for expression in expressions:
                    expression.search(line)
    assert time.process_time() - begin < SECONDS
