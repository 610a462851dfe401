"""Two tables row by row."""

from pathlib import Path

import msgspec

from logdoctor.pipeline.batch.comparing import COLUMNS, Truth, compare, truths
from logdoctor.pipeline.batch.places import Place
from logdoctor.pipeline.batch.rows import Provenance, Row, read_rows, table, write
from logdoctor.store.learning.confirmed import Confirmation
from tests.batch.test_summary import failure


def changed(row: Row, **changes: object) -> Row:
    return msgspec.structs.replace(row, **changes)


A = failure(
    "a", recovery="isolate_and_restart", suspects=("gpu-1", "gpu-2"), quote="ECC", quote_stream="main", quote_line=7
)
B = failure("b", recovery="fix_first", reason="Key Error", rule=None, decided_by="structure")
TRUTH = Truth(1, "anna", "ECC Error", "isolate_and_restart")


def test_equal_rows_are_no_change() -> None:
    later = [changed(B, seconds=9.0, confidence=0.1, logdoctor="9"), changed(A, suspects=("gpu-2", "gpu-1"))]
    found = compare("old", [A, B], "new", later, {})
    assert (found.same, found.changed, found.added, found.vanished, found.groups) == (2, 0, 0, 0, ())
    assert found.new.made_with == {"9": 1, f"{A.logdoctor}": 1}


def test_changes_are_grouped_by_the_rules_that_made_them() -> None:
    new = [
        changed(A, reason="Network Error", rule="diagnosis/new", quote="link down"),
        changed(B, reason="Network Error", rule="diagnosis/new"),
        failure("c"),
    ]
    gone = failure("gone")
    found = compare("old", [A, B, gone], "new", new, {})
    assert (found.same, found.changed, found.added, found.vanished) == (0, 2, 1, 1)
    assert [(group.old_rule, group.new_rule) for group in found.groups] == [
        ("diagnosis/infrastructure/ecc", "diagnosis/new"),
        ("structure", "diagnosis/new"),
    ]
    (change,) = found.groups[0].changes
    assert (change.fields, change.old.quote, change.new.quote) == (("reason",), "ECC", "link down")
    assert (change.old.quote_stream, change.old.quote_line) == ("main", 7)


def test_all_that_is_compared_is_read(tmp_path: Path) -> None:
    old, new = [A, B, failure("c")], [changed(A, suspects=("gpu-1",)), changed(B, error="b.log is damaged.", quote="x")]
    for place, some in ((tmp_path / "old.parquet", old), (tmp_path / "new.parquet", new)):
        write(place, [table(some, Provenance())], Provenance())
    read = [read_rows(tmp_path / f"{name}.parquet", COLUMNS) for name in ("old", "new")]
    assert compare("old", read[0], "new", read[1], {Place("a", 1): TRUTH}) == compare(
        "old", old, "new", new, {Place("a", 1): TRUTH}
    )


def test_runs_of_one_log_are_compared_apart_and_no_person_spoke_of_them() -> None:
    old, new = [changed(A, run=1), A], [changed(A, run=1, reason="Hang"), A]
    found = compare("old", old, "new", new, {Place("a", 1): TRUTH})
    assert (found.same, found.changed, found.confirmed) == (1, 1, 1)
    assert (found.groups[0].changes[0].run, found.groups[0].changes[0].truth) == (1, None)


def test_each_field_counts() -> None:
    for name, value in (
        ("outcome", "recovered"),
        ("reason", "Hang"),
        ("recovery", "restart"),
        ("suspects", ("gpu-1",)),
    ):
        found = compare("old", [A], "new", [changed(A, **{name: value})], {})
        assert found.groups[0].changes[0].fields == (name,)


def test_a_log_that_cannot_be_read_any_more_is_a_change() -> None:
    found = compare("old", [A], "new", [Row(source=A.source, job="a", error="a.log: is damaged. Try again.")], {})
    (group,) = found.groups
    assert (group.new_rule, group.changes[0].new.error) == ("unreadable", "a.log: is damaged. Try again.")


def test_what_a_person_said_is_the_truth() -> None:
    other = changed(A, reason="Network Error", recovery="restart")
    known = {Place("a", 1): TRUTH}
    for old, new, went in (
        (other, A, "right"),
        (A, other, "wrong"),
        (other, changed(other, reason="Hang"), "still wrong"),
        (A, changed(A, suspects=()), "still right"),
    ):
        found = compare("old", [old], "new", [new], known)
        assert found.groups[0].changes[0].went == went
    found = compare("old", [other], "new", [A], known)
    assert (found.confirmed, found.right_before, found.right_now, found.groups[0].right) == (1, 0, 1, 1)
    unchanged = compare("old", [A], "new", [A], known)
    assert (unchanged.confirmed, unchanged.right_before, unchanged.right_now) == (1, 1, 1)


def test_attempts_are_told_apart_by_their_numbers() -> None:
    second = changed(A, source="b.log", attempt="attempt_2", reason="Hang")
    found = compare("old", [second], "new", [changed(second, reason="Key Error")], {Place("a", 1): TRUTH})
    assert found.confirmed == 0


def test_withdrawn_cases_are_no_truth() -> None:
    case = Confirmation("a", 1, "anna", "ECC Error", id=3, at=0.0, withdrawn=False)
    assert truths([case]) == {Place("a", 1): Truth(3, "anna", "ECC Error", "isolate_and_restart")}
    assert truths([msgspec.structs.replace(case, withdrawn=True)]) == {}


def test_a_table_with_a_source_twice_does_not_differ_from_itself() -> None:
    twice = [A, changed(A, reason="Network Error"), B]
    found = compare("old", twice, "new", twice, {})
    assert (found.same, found.changed, found.added, found.vanished) == (3, 0, 0, 0)
    found = compare("old", twice, "new", [A, B], {})
    assert (found.same, found.added, found.vanished) == (2, 0, 1)


def test_a_truth_is_that_of_one_row_or_of_none() -> None:
    other = changed(A, source="other.log", reason="Network Error")
    known = {Place("a", 1): TRUTH}
    assert compare("old", [A], "new", [A], known).confirmed == 1
    found = compare("old", [A, other], "new", [A, changed(other, reason="Hang")], known)
    assert (found.confirmed, found.groups[0].changes[0].truth) == (0, None)


def test_rows_that_rules_did_not_decide_are_counted() -> None:
    found = compare("old", [A, changed(B, decided_by="agent")], "new", [A, B], {})
    assert (found.old.beyond_rules, found.new.beyond_rules) == ({"agent": 1}, {})
