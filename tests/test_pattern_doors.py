"""No pattern from outside keeps a core busy: one that would take minutes to compile is refused at once (law 9)."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from logdoctor.compress.whole_log import WholeLog
from logdoctor.errors import RuleError
from logdoctor.failure_agent.brief import Pages, write
from logdoctor.failure_agent.query_engine import Toolbox
from logdoctor.learning.diagnoses.guards import DiagnosisGuards
from logdoctor.learning.files.imports import File, Imported, import_files
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.llm.chat import ToolCall
from logdoctor.rules.load import load_book
from logdoctor.rules.match import Matcher, hyperscan_complaint
from logdoctor.rules.pattern_size import WRITTEN_OUT, require_small
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.why import why
from logdoctor.service.sifting import sieve
from tests.failure_agent.conftest import Ask
from tests.failure_agent.conftest import ask as ask
from tests.failure_agent.test_brief import PROMPT
from tests.rule_files.learned import opened
from tests.rules.books import diagnosis, filter_rule, small_scanner, write_rules

HUGE = "(((a|b|c)?x{64}){64}){8}"
"""24 characters; Hyperscan compiles it in 73 seconds."""
ALLOWED = 10.0  # seconds of work


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    began = time.thread_time()
    yield
    assert time.thread_time() - began < ALLOWED


DOORS: dict[str, Callable[[Path], object]] = {
    "the log viewer": lambda folder: sieve(HUGE, True, True, None),
    "a look into the whole log": lambda folder: WholeLog({"main": lambda: iter([b"x\n"])}).grep(HUGE, None, 5),
    "any matcher": lambda folder: Matcher(["fine", HUGE]),
    "the filter rules of a folder": lambda folder: Scanner(load_book(write_rules(folder, filter_rule("x", HUGE)))),
    "its diagnosis rules": lambda folder: Scanner(load_book(write_rules(folder, diagnosis("x", HUGE)))),
    "rules that are not alive": lambda folder: list(
        why(small_scanner(folder, filter_rule("x", HUGE, status="shadow", must_match=["x"])), "x")
    ),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS.keys())
def test_a_huge_pattern_is_refused_at_once(door: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"too large"):
        door(tmp_path)


@pytest.mark.parametrize("part", ["x{4000}", "(a?){0,4000}", "[", "[^a", "[[:a"])
def test_a_long_pattern_is_measured_at_once(part: str) -> None:
    with pytest.raises(RuleError, match=r"too large"):
        require_small((part * 9000)[:9000], WRITTEN_OUT)


def test_the_model_is_told_that_its_pattern_is_refused(ask: Ask) -> None:
    question = ask("a line\n" * 50, look=True)
    assert question.log is not None
    pages = Pages(question, str)
    said = Toolbox(question.log, pages, write(PROMPT, pages), None).run(ToolCall("1", "grep", {"pattern": HUGE}))
    assert said.startswith("The pattern is refused")


@pytest.mark.parametrize("pattern", [HUGE, f"^{HUGE}$", f"^{HUGE.replace('(', '(?:')}$", "^a(?:x{64}y{64}){64}$"])
def test_imported_rules_are_refused(pattern: str, tmp_path: Path) -> None:
    scanner = small_scanner(tmp_path / "book", filter_rule("fine", "fine"))
    guards = FilterGuards(["an error"]), DiagnosisGuards(scanner.book, scanner, lambda without: iter(()))
    files = [
        filter_rule("learned/huge", pattern, must_match=["x"], scope={"kind": "k"}),
        diagnosis("learned/huge", pattern, must_match=[{"text": "x"}]),
    ]
    sent = [File("a.yaml", lambda one=one: yaml.safe_dump(one).encode()) for one in files]  # type: ignore[misc]
    said: list[Imported] = import_files(sent, None, guards[0], opened(tmp_path / "data"), "user-18", 5.0, 9, guards[1])
    assert [one.outcome for one in said] == ["refused", "refused"]
    assert all(one.guard in ("anchor", "form", "grammar", "compile") for one in said)


def test_rules_that_were_stored_once_are_refused() -> None:
    assert "is too large" in str(hyperscan_complaint(HUGE))
