"""Budget, back-off and breaker, with a clock of its own; the faults come from a real server."""

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from logdoctor.errors import BudgetSpent, ModelError, ModelNonsense, ModelUnavailable
from logdoctor.learning.filters.model import Patterns
from logdoctor.llm.chat import Message, Reply, estimate
from logdoctor.llm.langchain import LangChainModel
from logdoctor.llm.scripted import ScriptedModel
from logdoctor.llm.spending import Budget, Guarded, MemoryLedger
from tests import waiting
from tests.llm import server as ways
from tests.llm.server import model_server

GOOD = '{"patterns": [], "errors": [3]}'
DOWN = ModelUnavailable("the model", "is down", "Wait.")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A guarded model with its script, ledger and clock; no chance in its waits."""

    def __init__(self, *replies: str | Reply | ModelError, budget: Budget | None = None) -> None:
        self.clock = Clock()
        self.ledger = MemoryLedger()
        self.model = ScriptedModel(replies)
        self.guarded = Guarded(self.model, self.ledger, budget, self.clock, lambda: 0.0)

    def ask(self, job: str = "j") -> Patterns:
        return self.guarded.answer(job, "test", [Message("user", "hi")], Patterns, temperature=0.0, max_tokens=10)

    def fail(self) -> ModelError:
        with pytest.raises(ModelError) as caught:
            self.ask()
        return caught.value

    def wait(self) -> float:
        """How long it asks to be left alone; 0 when it does not. Asks nothing."""
        asked = len(self.model.asked)
        error = self.fail()
        assert len(self.model.asked) == asked and isinstance(error, ModelUnavailable)
        return error.retry_after or 0.0


def test_an_answer_is_counted_with_its_price() -> None:
    world = World(Reply(GOOD, 1000, 500), budget=Budget(dollars_in=2.0, dollars_out=10.0))
    assert world.ask().errors == [3]
    (entry,) = world.ledger.entries()
    assert entry == ("j", "scripted", "test", 1000, 500, pytest.approx(0.007), "", world.clock.now)
    assert world.guarded.counts() == ({"answered": 1}, 1000, 500, pytest.approx(0.007), "closed")


def test_nonsense_is_sent_back_once_with_its_reason() -> None:
    world = World('{"patterns": 3}', GOOD)
    assert world.ask().errors == [3]
    first, second = world.model.asked
    assert second[: len(first)] == first
    assert second[1] == Message("assistant", '{"patterns": 3}') and "Expected `array`" in second[2].text
    assert [entry.failure for entry in world.ledger.entries()] == ["nonsense", ""]
    assert world.guarded.counts().calls == {"nonsense": 1, "answered": 1}


def test_the_repair_keeps_to_its_tokens() -> None:
    world = World("{" + "\N{SNOWMAN}" * 10_000, GOOD)
    world.ask()
    assert sum(estimate(message.text) for message in world.model.asked[1][1:]) < 1000


def test_nonsense_twice_is_nonsense_and_does_not_close_the_door() -> None:
    world = World("no", "no again", GOOD)
    assert isinstance(world.fail(), ModelNonsense)
    assert world.ask().errors == [3]


def test_the_repair_counts_in_the_budget() -> None:
    world = World("no", GOOD, budget=Budget(calls_per_job=1))
    assert isinstance(world.fail(), ModelNonsense)
    assert len(world.model.asked) == 1
    assert isinstance(world.fail(), BudgetSpent)


def test_a_refusal_of_the_protocol_is_not_asked_to_repair() -> None:
    world = World(ModelNonsense("the answer", "is a refusal", "Try another."), GOOD)
    assert isinstance(world.fail(), ModelNonsense) and len(world.model.asked) == 1


def test_back_off_grows_to_its_most_and_ends_with_an_answer() -> None:
    world = World(*[DOWN] * 14, GOOD, DOWN)
    waits = []
    for _ in range(14):
        world.fail()
        waits.append(world.wait())
        world.clock.now += waits[-1] - 0.001
        world.wait()  # not a moment earlier
        world.clock.now += 0.002
    assert waits == pytest.approx([min(2.0**n, 600) for n in range(14)])
    world.ask()
    world.fail()
    assert world.wait() == pytest.approx(1.0)


def test_jitter_spreads_the_waits() -> None:
    world = World(DOWN)
    world.guarded = Guarded(world.model, world.ledger, None, world.clock, lambda: 0.5)
    world.fail()
    assert world.wait() == pytest.approx(1.5)


@pytest.mark.parametrize(("asked", "waited"), [(0.2, 1.0), (90.0, 90.0), (1e9, 3600.0)])
def test_retry_after_is_kept_within_reason(asked: float, waited: float) -> None:
    world = World(ModelUnavailable("the model", "429", "Wait.", asked))
    world.fail()
    assert world.wait() == pytest.approx(waited)


def test_a_clock_that_was_set_back_does_not_lock_the_model_out() -> None:
    world = World(DOWN, GOOD)
    world.fail()
    world.clock.now -= 86_400
    world.ask()


@pytest.mark.parametrize("fault", [DOWN, "nonsense"])
def test_the_breaker_opens_tries_once_and_closes(fault: str | ModelError) -> None:
    world = World(*[fault] * 6, GOOD, GOOD)
    states = []
    while len(world.model.asked) < 5:
        world.fail()
        states.append(world.guarded.counts().breaker)
        world.clock.now += 20 if states[-1] == "closed" else 0
    assert states[-1] == "open" and set(states[:-1]) <= {"closed"}
    first = world.wait()
    world.clock.now += first
    assert world.guarded.counts().breaker == "half-open"
    world.fail()  # the trial
    assert world.guarded.counts().breaker == "open" and len(world.model.asked) == 6
    second = world.wait()
    assert second > first
    world.clock.now += second
    world.ask()
    assert world.guarded.counts().breaker == "closed"
    world.ask()


class Slow:
    """A model that answers when it is told to."""

    name = "slow"

    def __init__(self) -> None:
        self.may = threading.Event()
        self.asked = threading.Semaphore(0)

    def ask(self, messages: Sequence[Message], **_: Any) -> Reply:
        self.asked.release()
        self.may.wait()
        return Reply(GOOD, 100, 10)


def ask_together(guarded: Guarded, threads: int, at_once: int) -> list[object]:
    """What so many threads get, of which some are answered at once, while the model is busy with the others."""
    results: list[object] = []

    def ask() -> None:
        try:
            results.append(guarded.answer("j", "t", [Message("user", "x")], Patterns, temperature=0, max_tokens=10))
        except ModelError as error:
            results.append(error)

    running = [threading.Thread(target=ask) for _ in range(threads)]
    for thread in running:
        thread.start()
    slow = guarded._model
    assert isinstance(slow, Slow) and slow.asked.acquire()
    waiting.until(lambda: len(results) == at_once)
    slow.may.set()
    for thread in running:
        thread.join()
    return results


def test_half_open_lets_one_of_many_threads_through() -> None:
    clock = Clock()
    guarded = Guarded(ScriptedModel([DOWN] * 5), MemoryLedger(), None, clock, lambda: 0.0)
    for _ in range(5):
        with pytest.raises(ModelUnavailable):
            guarded.answer("j", "t", [], Patterns, temperature=0, max_tokens=1)
        clock.now += 100
    guarded._model = Slow()
    results = ask_together(guarded, 8, at_once=7)
    assert sum(isinstance(result, Patterns) for result in results) == 1
    assert guarded.counts().calls["waiting"] == 7 and guarded.counts().breaker == "closed"


def test_calls_at_one_time_cannot_overdraw_together() -> None:
    guarded = Guarded(Slow(), MemoryLedger(), Budget(calls_per_job=5), Clock())
    results = ask_together(guarded, 10, at_once=5)
    assert sum(isinstance(result, Patterns) for result in results) == 5
    assert sum(isinstance(result, BudgetSpent) for result in results) == 5


def test_budgets_of_a_job_and_of_an_hour() -> None:
    world = World(*[GOOD] * 99, budget=Budget(calls_per_job=3, calls_per_hour=5))
    for _ in range(3):
        world.ask("a")
    with pytest.raises(BudgetSpent, match="CALLS_PER_JOB"):
        world.ask("a")
    world.ask("b")
    world.ask("b")
    with pytest.raises(BudgetSpent, match="CALLS_PER_HOUR"):
        world.ask("b")
    world.clock.now += 3601
    world.ask("b")
    with pytest.raises(BudgetSpent, match="CALLS_PER_JOB"):
        world.ask("a")
    assert world.guarded.counts().calls == {"answered": 6, "budget": 3}


def test_the_budget_of_tokens_holds_before_the_call() -> None:
    world = World(*[Reply(GOOD, 400, 100)] * 9, budget=Budget(tokens_per_hour=1010))
    world.ask()
    world.ask()
    with pytest.raises(BudgetSpent, match="TOKENS_PER_HOUR"):
        world.ask()
    assert world.ledger.spent(None, 0.0).tokens == 1000


@pytest.mark.parametrize(
    ("budget", "name", "since"),
    [
        (Budget(tokens_per_job=1010), "TOKENS_PER_JOB", 0.0),
        (Budget(tokens_per_day=1010), "TOKENS_PER_DAY", 86_401.0),
        (Budget(tokens_in_all=1010), "TOKENS_IN_ALL", 0.0),
        (Budget(dollars_per_day=0.00101, dollars_in=1.0, dollars_out=1.0), "DOLLARS_PER_DAY", 86_401.0),
        (Budget(dollars_in_all=0.00101, dollars_in=1.0, dollars_out=1.0), "DOLLARS_IN_ALL", 0.0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_budget_holds_before_the_call(budget: Budget, name: str, since: float) -> None:
    world = World(*[Reply(GOOD, 400, 100)] * 9, budget=budget)
    world.ask()
    world.ask()
    world.clock.now += 4000
    for _ in range(2):
        with pytest.raises(BudgetSpent, match=name):
            world.ask()
    assert len(world.model.asked) == 2
    if name == "TOKENS_PER_JOB":
        world.ask("another")
    elif since:
        world.clock.now += since
        world.ask()
    else:
        world.clock.now += 1e9
        with pytest.raises(BudgetSpent, match=name):
            world.ask("another")


def test_a_limit_of_none_is_none() -> None:
    world = World(*[Reply(GOOD, 40_000, 10_000)] * 3, budget=Budget(dollars_in=1e6, dollars_out=1e6))
    for _ in range(3):
        world.ask()
    assert world.ledger.spent(None, 0.0).dollars == 150_000


def test_no_budget_means_no_call() -> None:
    world = World(GOOD, budget=Budget(calls_per_job=0))
    assert isinstance(world.fail(), BudgetSpent) and world.model.asked == []


def test_a_bug_in_a_model_leaves_the_guard_whole() -> None:
    world = World(GOOD)

    class Broken(Slow):
        def ask(self, messages: Sequence[Message], **_: Any) -> Reply:
            raise ZeroDivisionError

    world.guarded._model = Broken()
    with pytest.raises(ZeroDivisionError):
        world.ask()
    world.guarded._model = world.model
    world.clock.now += 10
    assert world.ask().errors == [3]


FAULTS = {
    "429": ways.status(429, retry_after="30"),
    "half a JSON": ways.half,
    "wrong schema": ways.saying('{"patterns": "all of them"}'),
}
"""One of each sort; what else becomes a `ModelError` is in test_langchain.py."""


@pytest.mark.parametrize("fault", FAULTS)
def test_with_a_server_that_fails_calls_back_off_and_the_breaker_opens(fault: str) -> None:
    clock = Clock()
    with model_server() as server:
        server.behave(FAULTS[fault])
        guarded = Guarded(LangChainModel(server.url, "m", "", "text", 300), MemoryLedger(), None, clock)
        for turn in itertools.count():
            with pytest.raises(ModelError):
                guarded.answer("j", "t", [Message("user", "x")], Patterns, temperature=0, max_tokens=10)
            if guarded.counts().breaker == "open":
                break
            clock.now += 40
            assert turn < 20
        sent = len(server.got)
        assert sent == 5
        for _ in range(50):
            with pytest.raises(ModelUnavailable):
                guarded.answer("j", "t", [Message("user", "x")], Patterns, temperature=0, max_tokens=10)
        assert len(server.got) == sent, "an open breaker sends nothing"
        server.behave(ways.saying())
        clock.now += 4000
        guarded.answer("j", "t", [Message("user", "x")], Patterns, temperature=0, max_tokens=10)
        assert guarded.counts().breaker == "closed"
