"""What a lesson would be is told without a change of anything, in bounded time."""

from collections.abc import Iterator
from typing import Any

from logdoctor.learning.backtest import BackTest
from logdoctor.store.learning.confirmed import Confirmation, Kept, NewConfirmation, Past
from tests.failure_agent.write_back.conftest import HEAD, HEALTHY, LEASE, LEASE_AGAIN, World

LINE = 41
"""Of what stands behind HEAD."""


def attempts(number: int) -> Iterator[Past]:
    """Kept attempts, the newest first."""
    for n in range(number):
        line = Kept("main", 7, f"line {n}")
        yield Past(f"j{n}", 1, "failed", "OS Error", "", "rule", "", False, (line,))


def test_a_back_test_ends_in_time_and_says_how_far_it_came() -> None:
    clock = iter(float(n) for n in range(100))
    tried = BackTest(5.0, lambda: next(clock))
    for past in tried.course(attempts(50)):
        tried.enter(0, past, [("main", 7)], "agrees")
    found = tried.of(0)
    assert (found.attempts, found.complete, found.agree, found.contradict) == (4, False, 4, 0)
    assert [(hit.job, hit.text) for hit in found.hits] == [(f"j{n}", f"line {n}") for n in range(4)]
    assert tried.of(1).hits == () and tried.of(None).attempts == 4


def test_a_back_test_shows_some_of_each_sort_and_counts_all() -> None:
    tried = BackTest(60.0)
    for n, past in enumerate(tried.course(attempts(60))):
        tried.enter(0, past, [("main", 7)], ("agrees", "contradicts", "open")[n % 3])  # type: ignore[arg-type]
    found = tried.of(0)
    assert (found.attempts, found.complete) == (60, True)
    assert (found.agree, found.contradict, found.open, len(found.hits)) == (20, 20, 20, 30)
    assert [hit.says for hit in found.hits[:10]] == ["contradicts"] * 10


def test_a_secret_of_a_past_log_is_not_shown() -> None:
    tried = BackTest(60.0)
    secret = "AKIAIOSFODNN7EXAMPLE"
    one = next(attempts(1))._replace(lines=(Kept("main", 7, f"aws_secret_access_key={secret}abcdefghij0123456789"),))
    for each in tried.course([one]):
        tried.enter(0, each, [("main", 7)], "open")
    assert secret not in tried.of(0).hits[0].text


# --- previews


def drafted(world: World, job: str, log: str, reason: str, **said: Any) -> Confirmation:
    """What would be confirmed; nothing is."""
    kept = world.confirm(job, log, reason, LINE, **said)
    world.confirmed.withdraw(kept.id, "test", "only drafted", 2.0)
    names = NewConfirmation.__struct_fields__
    return world.confirmed.drafted(NewConfirmation(**{name: getattr(kept, name) for name in names}), 1.0)


def test_a_preview_says_what_is_taught_and_changes_nothing(world: World) -> None:
    world.settle("b", HEAD + LEASE_AGAIN)
    draft = drafted(world, "a", HEAD + LEASE, "OS Error")
    before = (world.rules.version(), world.guards(), world.confirmed.version())
    seen = world.teacher.preview(draft, world.read(HEAD + LEASE), 60.0)
    assert (world.rules.version(), world.guards(), world.confirmed.version()) == before
    assert seen.rule is not None and seen.candidate is not None and seen.candidate.line == LINE
    assert (seen.tried.attempts, seen.tried.complete, seen.tried.open) == (1, True, 1) and seen.asks == ""
    lesson = world.teach("a", HEAD + LEASE, "OS Error", LINE)
    rule = world.rules.one(lesson.rule)
    assert (rule.pattern, rule.title, rule.status, rule.claim) == (
        seen.rule.pattern,
        seen.rule.title,
        seen.rule.status,
        seen.rule.claim,
    )
    assert rule.examples == seen.rule.examples


def test_a_preview_names_a_rule_that_was_retired(world: World) -> None:
    lesson = world.teach("a", HEAD + LEASE, "OS Error", LINE)
    world.rules.retire(lesson.rule, "ops", "not so", 3.0)
    draft = drafted(world, "b", HEAD + LEASE_AGAIN, "OS Error")
    seen = world.teacher.preview(draft, world.read(HEAD + LEASE_AGAIN), 60.0)
    assert seen.rule is None and f"{lesson.rule} has the same pattern and is retired" in seen.why
    assert world.teach("b", HEAD + LEASE_AGAIN, "OS Error", LINE).why == seen.why


def test_a_preview_out_of_time_says_so(world: World) -> None:
    world.settle("fine", HEAD + LEASE_AGAIN + HEALTHY)
    draft = drafted(world, "a", HEAD + LEASE, "OS Error")
    seen = world.teacher.preview(draft, world.read(HEAD + LEASE), 0.0)
    assert seen.rule is not None and (seen.tried.attempts, seen.tried.complete) == (0, False)
    whole = world.teacher.preview(draft, world.read(HEAD + LEASE), 60.0)
    assert {one.guard for one in whole.refused} == {"healthy"} and whole.tried.attempts == 1
    assert whole.rule is None or whole.rule.pattern != seen.rule.pattern, "what it would do harm with is found in time"


def test_a_preview_puts_back_only_in_thought(world: World) -> None:
    world.settle("a", HEAD + LEASE)
    rule = world.teach("a", HEAD + LEASE, "OS Error", LINE).rule
    assert world.settle("b", HEAD + LEASE_AGAIN).promoted == (rule,)
    log = HEAD + LEASE.replace("12", "8")
    draft = drafted(world, "c", log, "Permission Error")
    seen = world.teacher.preview(draft, world.read(log), 60.0)
    assert [(step.rule.id, step.status) for step in seen.steps] == [(rule, "shadow")]
    assert world.rules.one(rule).status == "active"
