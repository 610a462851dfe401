"""Each kind has the book of its own rules, in their places, whoever changes them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.learning.filters.book import Books
from logdoctor.learning.form import as_filter
from logdoctor.rules.scanner import Scanner
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.learned import ERROR_WORD, LearnedRules
from tests.log_agent.samples import KIND, new_rule
from tests.rules.books import owner_of, scan_line


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/records.sqlite"


@pytest.fixture
def rules(url: str) -> Iterator[LearnedRules]:
    records = Records(url)
    yield LearnedRules(records.database)
    records.close()


@pytest.fixture
def elsewhere(url: str, rules: LearnedRules) -> Iterator[LearnedRules]:
    """The same rules, as another process sees them."""
    records = Records(url)
    yield LearnedRules(records.database)
    records.close()


@pytest.fixture
def books(scanner: Scanner, rules: LearnedRules) -> Books:
    return Books(scanner, rules)


def test_a_kind_without_rules_has_the_shipped_book(scanner: Scanner, books: Books) -> None:
    assert books.scanner("unknown") is scanner is books.load("unknown")
    assert books.kinds == [] and books.alive_that_match("anything") == []


def test_rules_are_tried_on_their_kind_only(scanner: Scanner, rules: LearnedRules, books: Books) -> None:
    one, other = rules.add([new_rule("^tick$"), new_rule("^tock$", "other/kind")], "me", 1.0)
    for rule in (one, other):
        rules.move(rule.id, "active", "me", "", 2.0)
    assert books.refresh() and set(books.kinds) == {KIND, "other/kind"}
    mine, theirs = books.scanner(KIND), books.scanner("other/kind")
    assert (owner_of(mine, "tick"), owner_of(mine, "tock")) == (one.id, None)
    assert (owner_of(theirs, "tick"), owner_of(theirs, "tock")) == (None, other.id)
    assert owner_of(scanner, "tick") is None


def test_a_rule_keeps_its_place_while_others_come_and_go(scanner: Scanner, rules: LearnedRules, books: Books) -> None:
    first = len(scanner.book.filters)
    added = rules.add([new_rule(f"^{word}$") for word in ("tick", "tock", "tack")], "me", 1.0)
    rules.retire(added[1].id, "me", "no", 2.0)
    books.refresh()
    rules.add([new_rule("^tuck$")], "me", 3.0)
    books.refresh()
    book = books.scanner(KIND).book
    assert [rule.id for rule in book.filters[first:]] == [rule.id for rule in rules.list(KIND)]
    assert [rule.id for rule in book.filters[first : first + 3]] == [rule.id for rule in added]
    assert scan_line(books.scanner(KIND), "tack").shadow[0] == first + 2
    assert scan_line(books.scanner(KIND), "tock").shadow[0] == -1


def test_steps_of_another_process_are_noticed(rules: LearnedRules, elsewhere: LearnedRules, books: Books) -> None:
    (rule,) = elsewhere.add([new_rule("^tick$")], "me", 1.0)
    assert books.refresh() and not books.refresh()
    assert scan_line(books.scanner(KIND), "tick").shadow[0] >= 0
    elsewhere.move(rule.id, "active", "me", "", 2.0)
    assert books.refresh() and owner_of(books.scanner(KIND), "tick") == rule.id
    elsewhere.retire(rule.id, "me", "no", 3.0)
    assert owner_of(books.scanner(KIND), "tick") == rule.id, "until it is asked for"
    assert books.refresh() and owner_of(books.scanner(KIND), "tick") is None
    elsewhere.hits.count(KIND, "job-2", 1, {}, 4.0)
    assert not books.refresh(), "counting changes no book"


def test_a_kind_that_did_not_change_is_not_compiled_again(rules: LearnedRules, books: Books) -> None:
    rules.add([new_rule("^tick$"), new_rule("^tock$", "other/kind")], "me", 1.0)
    books.refresh()
    before = books.scanner(KIND)
    rules.add([new_rule("^tuck$", "other/kind")], "me", 2.0)
    books.refresh()
    assert books.scanner(KIND) is before is books.load(KIND)


def test_load_brings_one_kind(rules: LearnedRules, books: Books) -> None:
    rules.add([new_rule("^tick$"), new_rule("^tock$", "other/kind")], "me", 1.0)
    assert len(books.load(KIND).book.learned) == 1 and books.kinds == [KIND]
    assert books.refresh() and len(books.kinds) == 2


def test_rules_of_all_kinds_that_match_a_line(rules: LearnedRules, books: Books) -> None:
    added = rules.add(
        [
            new_rule(r"^tick \d+$"),
            new_rule(r"^t.*$"),
            new_rule(r"^tick \d+$", "other/kind"),
            new_rule(r"^\w+ 7$", "third/kind"),
            new_rule("^tack$"),
        ],
        "me",
        1.0,
    )
    rules.retire(added[1].id, "me", "no", 2.0)
    rules.move(added[3].id, "active", "me", "", 2.0)
    books.refresh()
    found = books.alive_that_match("[rank1]: tick 7")
    assert {rule.id for rule in found} == {added[0].id, added[2].id, added[3].id}
    assert books.alive_that_match("tuck") == []


def test_a_rule_that_cannot_be_compiled_keeps_no_other_from_working(rules: LearnedRules, books: Books) -> None:
    """No guard lets such a pattern in, but databases outlive guards."""
    bad, good, _ = rules.add(
        [new_rule("^a(?=b)$", "a/first"), new_rule("^tick$", "a/first"), new_rule("^tock$", "z/last")], "me", 1.0
    )
    assert books.refresh() and not books.refresh()
    assert scan_line(books.scanner("z/last"), "tock").shadow[0] >= 0
    scanner = books.scanner("a/first")
    assert [rule.id for rule in scanner.book.learned] == [bad.id, good.id], "places are kept"
    assert scanner.book.filters[scan_line(scanner, "tick").shadow[0]].id == good.id


def test_as_filter_has_what_the_book_needs(rules: LearnedRules) -> None:
    waits = f"{ERROR_WORD}: x"
    (rule,) = rules.add([new_rule("^it failed$", status="proposed", waits_for=waits)], "me", 86_400.0 * 365)
    rules.approve(rule.id, "user-17", "fine", 2.0)
    made = as_filter(rules.retire(rule.id, "user-17", "no", 86_400.0 * 366))
    assert (made.id, made.patterns, made.harmless, made.status) == (rule.id, ("^it failed$",), True, "retired")
    assert made.scope == {"kind": KIND} and made.origin.at.year == 1971 and made.origin.source == "job-1/1"
    assert made.retired is not None and made.retired.at.year == 1971


def test_many_rules_all_work_whatever_the_order(rules: LearnedRules, books: Books) -> None:
    """More than are tried first."""
    words = ["".join(chr(ord("a") + int(digit)) for digit in str(number)) for number in range(1000, 1150)]
    added = rules.add([new_rule(f"^the {word} turns$") for word in words], "me", 1.0)
    for rule in added[::2]:
        rules.move(rule.id, "active", "me", "", 2.0)
    books.refresh()
    scanner = books.scanner(KIND)
    first = len(scanner.book.filters) - len(added)
    for number in (0, 1, 2, 74, 75, 148, 149):
        scan = scan_line(scanner, f"the {words[number]} turns")
        column = scan.owner if number % 2 == 0 else scan.shadow
        assert column[0] == first + number
