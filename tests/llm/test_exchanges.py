"""Nothing is asked twice, and everything that is said is written down: in memory and in the database."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from logdoctor.errors import ModelError, ModelNonsense, ModelUnavailable
from logdoctor.learning.filters.model import Patterns
from logdoctor.llm.chat import Message, Reply, Tool, ToolCall
from logdoctor.llm.exchanges import ExchangeStore, MemoryExchanges
from logdoctor.llm.langchain import LangChainModel
from logdoctor.llm.scripted import ScriptedModel
from logdoctor.llm.spending import Budget, Guarded, MemoryLedger
from logdoctor.store.database import Database
from logdoctor.store.learning import exchanges as stored
from logdoctor.types.models import Exchange
from tests.llm import server as ways
from tests.llm.server import model_server

GOOD = '{"patterns": [], "errors": [3]}'
OTHER = '{"patterns": [], "errors": [4]}'
DOWN = ModelUnavailable("the model", "is down", "Wait.")
KEY = "sk-test-0123456789abcdefghij"
GREP = Tool("grep", "Looks.", {"type": "object", "properties": {"pattern": {"type": "string"}}})


@pytest.fixture(params=["memory", "database"])
def exchanges(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ExchangeStore]:
    if request.param == "memory":
        yield MemoryExchanges()
    else:
        database = Database(f"sqlite:///{tmp_path}/records.sqlite")
        yield stored.Exchanges(database)
        database.close()


class World:
    """A guarded model that writes down what is said."""

    def __init__(self, exchanges: ExchangeStore, *replies: Any, key: str = "", budget: Budget | None = None) -> None:
        self.now = 1_000_000.0
        self.exchanges = exchanges
        self.ledger = MemoryLedger()
        self.model = ScriptedModel(replies)
        self.guarded = Guarded(
            self.model, self.ledger, budget or Budget(dollars_in=1.0, dollars_out=2.0), lambda: self.now,
            lambda: 0.0, exchanges, key,
        )  # fmt: skip

    def ask(self, text: str = "hi", temperature: float = 0.0, sample: int = 0, **more: Any) -> list[int]:
        asked = [Message("user", text)]
        terms = {"temperature": temperature, "max_tokens": 10, "attempt": 7, "sample": sample, "prompt": "d1g"}
        return self.guarded.answer("j", "why", asked, Patterns, **terms | more).errors

    def said(self) -> Sequence[Any]:
        if isinstance(self.exchanges, MemoryExchanges):
            return self.exchanges.entries()
        assert isinstance(self.exchanges, stored.Exchanges)
        return self.exchanges.of("j", 7)


def test_the_same_is_never_paid_twice(exchanges: ExchangeStore) -> None:
    world = World(exchanges, Reply(GOOD, 100, 50), OTHER)
    assert world.ask() == world.ask() == world.ask() == [3]
    counts = world.guarded.counts()
    assert len(world.model.asked) == 1 and counts.calls == {"answered": 1, "cached": 2}
    assert (counts.tokens_in, counts.tokens_out) == (100, 50) and len(world.ledger.entries()) == 1
    first, second, _ = world.said()
    assert not first.cached and (first.tokens_in, first.tokens_out, first.dollars) == (100, 50, pytest.approx(2e-4))
    assert second.cached and (second.tokens_in, second.tokens_out, second.dollars) == (0, 0, 0.0)
    assert first.sent == second.sent and first.got == second.got == GOOD


OTHERS: dict[str, dict[str, Any]] = {
    "text": {"text": "ho"},
    "temperature": {"temperature": 0.7},
    "sample": {"sample": 1},
    "length": {"max_tokens": 11},
    "tools": {"tools": (GREP,), "run": lambda call: "x", "most_tool_calls": 1},
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_request_has_another_answer(exchanges: ExchangeStore, what: str) -> None:
    world = World(exchanges, GOOD, OTHER)
    assert world.ask() == [3] and world.ask(**OTHERS[what]) == [4]
    assert world.ask() == [3] and world.ask(**OTHERS[what]) == [4]


def test_samples_are_drawn_once_each(exchanges: ExchangeStore) -> None:
    world = World(exchanges, GOOD, OTHER)
    for _ in range(2):
        assert [world.ask(temperature=0.7, sample=sample) for sample in (1, 2)] == [[3], [4]]
    assert len(world.model.asked) == 2


def test_another_model_is_asked_itself(exchanges: ExchangeStore) -> None:
    assert World(exchanges, GOOD).ask() == [3]
    world = World(exchanges, OTHER)
    world.guarded.name = "another"
    assert world.ask() == [4]


def test_an_answer_outlives_the_process(exchanges: ExchangeStore) -> None:
    assert World(exchanges, GOOD).ask() == World(exchanges).ask() == [3]


def test_what_was_answered_is_given_while_the_model_is_down_or_the_budget_spent(exchanges: ExchangeStore) -> None:
    world = World(exchanges, GOOD, DOWN, budget=Budget(calls_per_job=2))
    world.ask()
    with pytest.raises(ModelUnavailable):
        world.ask("ho")
    with pytest.raises(ModelError):
        world.ask("ho")
    assert world.ask() == [3]


def test_nonsense_and_failures_are_written_down_and_asked_again(exchanges: ExchangeStore) -> None:
    refusal = ModelNonsense("the answer", "is a refusal", "Try another.")
    world = World(exchanges, DOWN, "no", refusal, GOOD)
    for _ in range(2):
        with pytest.raises(ModelError):
            world.ask()
        world.now += 100
    assert world.ask() == [3]
    told = [(one.failure, one.cause, one.got) for one in world.said()]
    assert told == [
        ("unavailable", "is down", ""),
        ("nonsense", "is not JSON", "no"),
        ("nonsense", "is a refusal", ""),
        ("", "", GOOD),
    ]
    assert world.said()[0].tokens_in > 0, "the server may have read it"


def test_all_of_an_exchange_is_written_down(exchanges: ExchangeStore) -> None:
    world = World(exchanges, ToolCall("theirs", "grep", {"pattern": "x"}), GOOD)
    world.ask(tools=(GREP,), run=lambda call: "found", most_tool_calls=2)
    first, second = world.said()
    assert (first.job, first.attempt, first.purpose, first.model, first.prompt) == ("j", 7, "why", "scripted", "d1g")
    assert first.at == world.now and 0 <= first.seconds < 5 and first.got == ""
    assert [call["name"] for call in json.loads(first.calls)] == ["grep"] and second.calls == "[]"
    request = json.loads(first.request)
    assert request["temperature"] == 0 and request["max_tokens"] == 10 and request["schema"]["title"] == "Patterns"
    assert [tool["name"] for tool in request["tools"]] == ["grep"]
    assert second.sent == (("user", "hi"), ("assistant", 'grep({"pattern": "x"})'), ("tool", "found"))


def test_looks_are_not_paid_twice_either(exchanges: ExchangeStore) -> None:
    world = World(exchanges, ToolCall("a", "grep", {"pattern": "x"}), GOOD, OTHER)
    look = {"tools": (GREP,), "most_tool_calls": 2}
    assert world.ask(**look, run=lambda call: "found") == world.ask(**look, run=lambda call: "found") == [3]
    assert len(world.model.asked) == 2
    assert world.ask(**look, run=lambda call: "found something else") == [4], "another log has another answer"


def test_a_check_is_asked_of_kept_answers_too(exchanges: ExchangeStore) -> None:
    world = World(exchanges, GOOD, OTHER)
    complain: Callable[[Patterns], str] = lambda value: "is wrong" if value.errors == [3] else ""  # noqa: E731
    assert world.ask(check=complain) == world.ask(check=complain) == [4]
    assert len(world.model.asked) == 2


def test_the_key_is_neither_sent_nor_kept(exchanges: ExchangeStore) -> None:
    world = World(exchanges, f'{{"patterns": [], "errors": [3], "said": "{KEY}"}}', key=KEY)
    world.ask(f"env: KEY={KEY}")
    (asked,) = world.model.asked[0]
    assert asked.text == "env: KEY=<secret>"
    (one,) = world.said()
    assert KEY not in str(one) and "<secret>" in one.got
    short = World(exchanges, GOOD, key="EMPTY")
    short.ask("EMPTY pipeline")
    assert short.model.asked[0][0].text == "EMPTY pipeline"


def test_a_server_that_says_the_key_back_is_not_believed(exchanges: ExchangeStore) -> None:
    with model_server() as server:
        server.behave(ways.status(401, f"Incorrect key {KEY}"))
        guarded = Guarded(
            LangChainModel(server.url, "m", KEY, seconds=300), MemoryLedger(), exchanges=exchanges, key=KEY
        )
        with pytest.raises(ModelUnavailable):
            guarded.answer("j", "t", [Message("user", "x")], Patterns, temperature=0, max_tokens=10, attempt=7)
        assert f"Bearer {KEY}" in server.got[0][0].values()
    world = World(exchanges)
    world.guarded = guarded
    (one,) = world.said()
    assert KEY not in str(one) and "Incorrect key" in one.cause


class Slow:
    """A model that answers when it is told to."""

    name = "slow"

    def __init__(self) -> None:
        self.may = threading.Event()
        self.asked = threading.Semaphore(0)
        self.calls = 0

    def ask(self, messages: Sequence[Message], **_: Any) -> Reply:
        self.calls += 1
        self.asked.release()
        self.may.wait()
        return Reply(GOOD, 100, 10)


def test_who_asks_the_same_at_the_same_time_waits_for_the_answer(exchanges: ExchangeStore) -> None:
    slow = Slow()
    guarded = Guarded(slow, MemoryLedger(), exchanges=exchanges)
    results: list[object] = []

    def ask() -> None:
        asked = [Message("user", "x")]
        results.append(guarded.answer("j", "t", asked, Patterns, temperature=0, max_tokens=10, attempt=7))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert slow.asked.acquire()
    slow.may.set()
    for thread in threads:
        thread.join()
    assert len(results) == 6 and slow.calls == 1 and guarded.counts().calls == {"answered": 1, "cached": 5}
    assert not guarded._turns._locks and not guarded._turns._waiting


def test_odd_text_is_written_down(exchanges: ExchangeStore) -> None:
    world = World(exchanges, GOOD)
    assert world.ask("half \ud800 a pair \0 and \x1b[0m") == [3]
    assert len(world.said()) == 1


def test_the_memory_forgets_the_oldest() -> None:
    memory = MemoryExchanges(most=2)
    world = World(memory, GOOD, GOOD, GOOD)
    for text in "abc":
        world.ask(text)
    assert [one.sent for one in memory.entries()] == [(("user", "b"),), (("user", "c"),)]
    assert isinstance(memory.entries()[0], Exchange)
