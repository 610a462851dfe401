"""What is confirmed becomes a rule that is watched, knows the failure again, and goes back when it is contradicted."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.learning.diagnoses.teacher import TeachingTerms
from logdoctor.learning.files.files import export
from logdoctor.learning.filters.book import Books
from logdoctor.rules.check import check
from logdoctor.rules.load import load_book
from logdoctor.rules.scanner import Scanner
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from logdoctor.store.schema import learned_rules
from logdoctor.types import DecidedBy
from tests.at_once import at_once
from tests.failure_agent.write_back.conftest import HEAD, HEALTHY, JAM, JAM_AGAIN, LEASE, LEASE_AGAIN, MakeWorld, World

LINE = 41
"""Of what stands behind HEAD."""


def test_a_confirmed_failure_is_known_again_after_it_was_watched(world: World) -> None:
    assert world.judged(HEAD + LEASE).reason == "Unknown"
    world.settle("a", HEAD + LEASE)
    lesson = world.teach("a", HEAD + LEASE, "OS Error", LINE, fix="ask for quota")
    rule = world.rules.one(lesson.rule)
    assert (lesson.status, rule.status, rule.jobs, rule.kind) == ("shadow", "shadow", 1, DIAGNOSIS)
    assert rule.claim and (rule.claim.reason, rule.claim.recovery, rule.claim.suggestion) == (
        "OS Error",
        "fix_first",
        "ask for quota",
    )
    assert world.judged(HEAD + LEASE_AGAIN).reason == "Unknown", "in shadow it decides nothing"
    assert world.settle("b", HEAD + LEASE_AGAIN).promoted == (lesson.rule,)
    verdict = world.judged("".join(HEAD + LEASE.replace("12 nodes", "99 nodes")))
    assert (verdict.reason, verdict.recovery, verdict.decided_by.rule) == ("OS Error", "fix_first", lesson.rule)
    assert verdict.suggestion == "ask for quota" and verdict.evidence[0].line == LINE
    assert [event.step for event in world.rules.events(lesson.rule)] == ["promote", "added"]


def test_the_same_attempt_settled_twice_is_one(world: World) -> None:
    world.teach("a", HEAD + LEASE, "OS Error", LINE)
    for _ in range(3):
        assert world.settle("a", HEAD + LEASE).promoted == ()
    assert world.settle("b", HEAD + LEASE_AGAIN).promoted != ()


def test_where_nothing_was_cited_the_most_suspicious_line_is_taken(world: World) -> None:
    lesson = world.teach("a", HEAD + LEASE, "OS Error")
    assert lesson.lines == (LEASE.strip(),)


def test_a_last_line_without_an_error_word_names_a_failure(world: World) -> None:
    quiet, died = f"{HEAD}the shuttle has run out of indigo thread\n", ReportedEnd(exit_code=1)
    assert world.judged(quiet, died).reason == "Unknown"
    assert world.teach("loom-1", quiet, "Dataset Loading Error", LINE).status == "shadow"
    world.settle("loom-2", quiet, died)
    verdict = world.judged(quiet, died)
    assert (verdict.reason, verdict.evidence[0].line) == ("Dataset Loading Error", LINE)
    assert world.judged(HEAD, died).reason == "Unknown", "where the line is not, it does not decide"


def test_what_may_take_nodes_out_waits_for_a_person(world: World) -> None:
    lesson = world.teach("a", HEAD + JAM, "CUDA Error", LINE)
    assert world.rules.one(lesson.rule).waits_for.startswith("cordon")
    for job in "bcd":
        assert world.settle(job, HEAD + JAM_AGAIN).promoted == ()
    assert world.rules.one(lesson.rule).jobs == 4
    assert world.rules.approve(lesson.rule, "user-17", "seen it", 5.0).status == "active"
    verdict = world.judged(HEAD + JAM_AGAIN)
    assert (verdict.reason, verdict.recovery, verdict.first_rank) == ("CUDA Error", "isolate_and_restart", 11)


def test_a_verdict_of_another_reason_does_not_count(world: World) -> None:
    lesson = world.teach("a", HEAD + LEASE, "OS Error", LINE)
    other = HEAD + LEASE_AGAIN + "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    assert world.judged(other).reason == "ECC Error"
    assert world.settle("b", other).promoted == () and world.rules.one(lesson.rule).jobs == 1


def test_a_rule_that_would_do_harm_by_now_is_retired_instead_of_promoted(world: World) -> None:
    lesson = world.teach("a", HEAD + LEASE, "OS Error", LINE)
    world.settle("fine", HEAD + LEASE_AGAIN + HEALTHY)
    steps = world.settle("b", HEAD + LEASE_AGAIN)
    assert steps.promoted == () and steps.demoted == (lesson.rule,)
    assert "healthy" in world.rules.events(lesson.rule)[0].why


def active(world: World) -> str:
    """A rule that was watched and is active."""
    world.settle("a", HEAD + LEASE)
    lesson = world.teach("a", HEAD + LEASE, "OS Error", LINE)
    assert world.settle("b", HEAD + LEASE_AGAIN).promoted == (lesson.rule,)
    return lesson.rule


def test_a_correction_of_its_verdict_puts_a_rule_back_for_good(world: World) -> None:
    rule = active(world)
    lesson = world.teach("c", HEAD + LEASE.replace("12", "8"), "Permission Error", LINE)
    assert lesson.demoted == (rule,) and world.rules.one(rule).status == "shadow"
    event = world.rules.events(rule)[0]
    assert event.step == "demote" and "user-17 confirmed Permission Error for c/1" in event.why
    assert world.judged(HEAD + LEASE).reason == "Unknown"
    for job in "def":
        assert world.settle(job, HEAD + LEASE).promoted == (), "it stays until a person approves it"
    assert lesson.rule == "" and lesson.refused[-1].guard == "others", "a/1 was confirmed otherwise"


def test_a_narrower_rule_tells_two_failures_apart(world: World) -> None:
    active(world)
    lesson = world.teach("c", HEAD + LEASE_AGAIN, "Permission Error", LINE)
    assert lesson.rule and lesson.refused[0].guard == "others"
    world.rules.approve(lesson.rule, "user-17", "", 1.0)
    assert world.judged(HEAD + LEASE_AGAIN).reason == "Permission Error"
    assert world.judged(HEAD + LEASE).reason == "Unknown"


def test_a_recovery_that_a_person_corrects_counts_too(world: World) -> None:
    rule = active(world)
    assert world.teach("c", HEAD + LEASE_AGAIN, "OS Error", LINE, recovery="restart").demoted == (rule,)


def test_what_is_confirmed_later_of_its_own_attempt_retires_it(world: World) -> None:
    first = world.teach("a", HEAD + LEASE, "OS Error", LINE)
    second = world.teach("a", HEAD + LEASE, "Permission Error", LINE)
    assert second.demoted == (first.rule,) and world.rules.one(first.rule).status == "retired"
    assert second.rule and world.rules.one(second.rule).claim is not None
    assert second.rule != first.rule


def test_settling_heeds_what_was_confirmed_meanwhile(world: World) -> None:
    rule = active(world)
    world.confirm("c", HEAD + LEASE, "Key Error", LINE)
    assert world.settle("c", HEAD + LEASE).demoted == (rule,)


def test_a_withdrawn_confirmation_takes_its_rule_along(world: World) -> None:
    lesson = world.teach("a", HEAD + LEASE, "OS Error", LINE)
    gone = world.confirmed.withdraw(world.confirmed.page().items[0].id, "user-18", "mistaken", 9.0)
    assert world.teacher.withdrawn(gone) == (lesson.rule,)
    assert world.rules.one(lesson.rule).status == "retired" and world.teacher.taught() == ()


def test_what_is_known_is_not_taught_again(world: World) -> None:
    first = world.teach("a", HEAD + LEASE, "OS Error", LINE)
    again = world.teach("b", HEAD + LEASE_AGAIN, "OS Error", LINE)
    assert again.rule == first.rule and "already being watched" in again.why
    shipped = world.teach("c", HEAD + "KeyError: 'labels'\n", "Key Error")
    assert shipped.rule == "" and "already covers it" in shipped.why
    assert len(world.rules.list(DIAGNOSIS)) == 1 and world.guards() == {}


def test_attempts_that_agree_confirm_together(world: World) -> None:
    verdict = msgspec.structs.replace(
        world.judged(HEAD + LEASE), reason="OS Error", recovery="fix_first", decided_by=DecidedBy("agent", "agent")
    )
    records = world.read(HEAD + LEASE)
    digest = ""
    for job in ("a", "b", "c"):
        world.teacher.settled(job, 1, records, verdict)
        digest = next(past.digest for past in world.confirmed.past())
        assert world.teacher.agreeing(job, verdict, digest) == (job == "c")
        assert not world.teacher.agreeing("a", verdict, digest) or job == "c"
    by_two = msgspec.structs.replace(verdict, decided_by=DecidedBy("rule", "diagnosis/x", model="tiny"))
    assert world.teacher.agreeing("d", by_two, "another", is_read=True) and not world.teacher.agreeing(
        "d", by_two, "another"
    )
    by_case = msgspec.structs.replace(verdict, decided_by=DecidedBy("case", "case/1"))
    assert not world.teacher.agreeing("d", by_case, digest)
    world.confirm("e", HEAD + LEASE.replace("12", "7"), "Permission Error", LINE)
    for is_read in (False, True):
        agreeing = world.teacher.agreeing("c", verdict, digest, is_read)
        assert not agreeing, "a person said otherwise of the same failure"


def test_nobody_agrees_when_only_people_confirm(make_world: MakeWorld) -> None:
    world = make_world(TeachingTerms(2, 0))
    assert not world.teacher.agreeing("a", world.judged(HEAD + LEASE), "d")
    assert not world.teacher.agreeing("a", world.judged(HEAD + LEASE), "d", is_read=True)


def test_a_guess_about_the_same_failure_does_not_forbid_its_correction(world: World) -> None:
    log = (
        HEAD + 'Traceback (most recent call last):\n  File "/a/b.py", line 3, in load\nValueError: warp table is torn\n'
    )
    assert world.judged(log).decided_by.kind == "structure"
    for job in ("old-1", "old-2"):
        world.settle(job, log)
    lesson = world.teach("a", log, "Dataset Loading Error")
    assert lesson.rule and lesson.lines == ("ValueError: warp table is torn",)


def test_it_goes_on_with_a_rule_that_does_not_compile(world: World) -> None:
    rule = active(world)
    bad = world.teach("x", HEAD + JAM, "CUDA Error", LINE)
    with world.records.database.writing() as connection:
        connection.execute(sa.update(learned_rules).where(learned_rules.c.id == bad.rule).values(pattern="^(a"))
    world.rules.retire(rule, "user-17", "", 1.0)
    world.rules.approve(rule, "user-17", "", 2.0)
    assert [one.id for one in world.teacher.taught()] == [rule]


def test_threads_may_teach_and_settle_at_once(world: World) -> None:
    logs = {"OS Error": HEAD + LEASE, "CUDA Error": HEAD + JAM}
    parts = {reason: (world.confirm(reason, log, reason, LINE), world.read(log)) for reason, log in logs.items()}
    records, verdict = world.read(HEAD + LEASE), world.judged(HEAD + LEASE)
    acts: list[Callable[[], object]] = [
        partial(world.teacher.teach, *part) for part in parts.values() for _ in range(2)
    ]
    acts += [partial(world.teacher.settled, f"j{n}", 1, records, verdict) for n in range(3)]
    at_once(lambda act: act(), acts)
    assert len(world.rules.list(DIAGNOSIS)) == 2 and len(list(world.confirmed.past())) == 3


@pytest.mark.parametrize("lines", [(), (LINE,)])
def test_an_anomaly_has_no_line_of_its_own(world: World, lines: tuple[int, ...]) -> None:
    lesson = world.teach("a", HEAD + "controller: 96 of 96 tasks run, age 4200s\n", "Hang", *lines)
    assert lesson.rule == "" and lesson.refused[0].guard == "evidence"


def test_learned_rules_pass_the_check_of_rule_files(world: World, tmp_path: Path) -> None:
    active(world)
    world.teach("x", HEAD + JAM, "CUDA Error", LINE)
    folder = tmp_path / "out"
    export(world.rules.list(DIAGNOSIS), world.rules, folder)
    book = load_book(folder)
    assert len(book.diagnoses) == 2 and check(book, Scanner(book)) == []


def test_no_diagnosis_rule_ever_takes_a_line(world: World) -> None:
    rule = active(world)
    books = Books(world.scanner, world.rules)
    books.refresh()
    assert books.kinds == [] and books.load(DIAGNOSIS) is world.scanner
    assert world.teacher.lines() == list(world.rules.one(rule).examples)
