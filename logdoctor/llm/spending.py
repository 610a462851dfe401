"""A model behind its masking, its budget, its breaker and what it was asked before.

Nothing is sent but through here, and all that is sent is masked here, whoever asks. What was answered once is given
again and costs nothing. What is new is asked within the budget, and not while the model fails. Nothing here sleeps: a
call that may not be made now is refused at once.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from logdoctor.errors import BudgetSpent, LogdoctorError, ModelNonsense, ModelUnavailable
from logdoctor.llm.answers import Form, parse, schema
from logdoctor.llm.breaker import OPENS_AFTER, Breaker, SharedPauses, State
from logdoctor.llm.budget import Budget, Cost, Ledger, MemoryLedger, Purse
from logdoctor.llm.chat import ChatModel, Message, Reply, Tool, ToolCall, estimate, weight
from logdoctor.llm.exchanges import ExchangeStore, ExchangeTurns, Request, read, written
from logdoctor.llm.masking import SECRET, Masker
from logdoctor.llm.talk import Run, Talk
from logdoctor.types.models import Exchange

__all__ = ["Budget", "Counts", "Guarded", "Ledger", "MemoryLedger"]

MOST_TOKENS_IN = 6000
"""Tokens that are sent in one call, with what tools gave, at most."""

LOOKING_SECONDS = 120.0
"""After so long nothing more is looked up: the model is to answer with what it has."""

_SHORTEST_KEY = 8  # a shorter one is no secret, but a word such as EMPTY that local servers are given
_KEPT = 300  # tokens for what is said of an answer that cannot be used

Hide = Callable[[str], str]


class Counts(NamedTuple):
    """What went through a `Guarded` since it was made, for the metrics.

    `calls` counts by result: `answered`, `unavailable`, `nonsense`, and, not sent at all, `cached`, `budget` and
    `waiting`.
    """

    calls: Mapping[str, int]
    tokens_in: int
    tokens_out: int
    dollars: float
    breaker: State


class _For(NamedTuple):
    """Whom a call is made for."""

    job: str
    attempt: int | None
    purpose: str
    prompt: str


class Guarded:
    """A model behind its budget and breaker; any thread may call. `clock` gives seconds since the epoch.

    `masker` makes what masks one conversation. With `exchanges` everything that is said is written down there, and
    nothing is asked twice. `key` is the secret of the server, which is neither sent in a message nor written down. One
    that `bears_nonsense` leaves a model alone only when it is away, not when its answers cannot be used. Through
    `pauses` other processes learn that the breaker is open.
    """

    def __init__(
        self,
        model: ChatModel,
        ledger: Ledger,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
        exchanges: ExchangeStore | None = None,
        key: str = "",
        bears_nonsense: bool = False,
        masker: Callable[[], Masker] = Masker,
        pauses: SharedPauses | None = None,
    ) -> None:
        self.name = model.name
        self.masker = masker
        self._model, self._pauses, self._has_told = model, pauses, False
        self._ledger = ledger
        self._budget = budget or Budget()
        self._clock = clock
        self._exchanges = exchanges
        self._key = key if len(key) >= _SHORTEST_KEY else ""
        self._lock = threading.Lock()
        self._breaker = Breaker(chance, bears_nonsense)
        self._purse = Purse(self._budget, ledger)
        self._turns = ExchangeTurns()
        self._calls: Counter[str] = Counter()
        self._tokens = (0, 0)
        self._dollars = 0.0

    def answer(
        self,
        job: str,
        purpose: str,
        messages: Sequence[Message],
        form: type[Form],
        *,
        temperature: float,
        max_tokens: int,
        attempt: int | None = None,
        sample: int = 0,
        prompt: str = "",
        tools: Sequence[Tool] = (),
        run: Run | None = None,
        most_tool_calls: int = 0,
        most_tokens_in: int = MOST_TOKENS_IN,
        check: Callable[[Form], str] | None = None,
        masker: Masker | None = None,
    ) -> Form:
        """Return the model's answer in its form. One without the form is sent back once, with what is wrong with it.

        So is one that `check` complains of: it returns words that follow "it", "" when the answer is good.

        `sample` numbers runs that are to differ; the same run is asked once ever. `prompt` is the digest of the
        prompt's file. The model may use `tools`, which `run` carries out, `most_tool_calls` times; what is sent stays
        within `most_tokens_in`.

        Messages, tools, their results and the schema are masked before they are sent. Those who mask what they show,
        because they choose it by its length or look for quotes in it, give the `masker` that did: its marks stay.

        Raise `ModelUnavailable` (`retry_after` says when to come again), `ModelNonsense` or `BudgetSpent`.
        """
        whose = _For(job, attempt, purpose, prompt)
        hide = partial(self._masked, masker or self.masker())
        terms = _each_text(schema(form), hide), float(temperature), max_tokens, sample
        tools = [Tool(tool.name, hide(tool.description), _each_text(tool.schema, hide)) for tool in tools]
        look = None if run is None else partial(_looked_up, run, hide)
        talk = Talk([_hidden(message, hide) for message in messages], tools, look, most_tool_calls, most_tokens_in)
        began = self._clock()
        wrong: ModelNonsense | None = None
        while True:
            if self._clock() - began > LOOKING_SECONDS:
                talk.end()
            request = Request(tuple(_hidden(message, hide) for message in talk.messages), *terms, talk.tools)
            try:
                reply, value = self._answered(whose, request, form)
                if value is None:
                    talk.look(reply)
                elif complaint := check(value) if check else "":
                    nonsense = ModelNonsense(f"the answer of {self.name}", complaint, "It is not used.")
                    raise _Unfit(reply.text, nonsense, has_form=True)
                else:
                    return value
            except _Unfit as unfit:
                if wrong or unfit.reply is None:
                    raise unfit.nonsense from None
                wrong = unfit.nonsense
                if not unfit.has_form:
                    talk.end()
                room = most_tokens_in - weight(talk.messages) - estimate(wrong.cause) - _KEPT
                talk.messages += _complaint(unfit.reply, wrong, room)
            except (ModelUnavailable, BudgetSpent):
                if wrong:
                    raise wrong from None
                raise

    def counts(self) -> Counts:
        """Return what went through until now."""
        with self._lock:
            return Counts(dict(self._calls), *self._tokens, self._dollars, self._breaker.state(self._clock()))

    def _answered(self, whose: _For, request: Request, form: type[Form]) -> tuple[Reply, Form | None]:
        """Return the reply to a request, of now or of before, and its value; no value when it wants to look
        something up."""
        if self._exchanges is None:
            return self._asked(whose, request, "", form)
        key = request.key(self.name)
        with self._turns.alone(key):
            return self._known(whose, request, key, form) or self._asked(whose, request, key, form)

    def _known(self, whose: _For, request: Request, key: str, form: type[Form]) -> tuple[Reply, Form | None] | None:
        """Return what was answered before, if it can be used."""
        assert self._exchanges is not None
        kept = self._exchanges.cached(key)
        if kept is None:
            return None
        try:
            reply = read(kept)
            value = _value(reply, request, form)
        except (ModelNonsense, ValueError):
            return None
        with self._lock:
            self._calls["cached"] += 1
        self._write(whose, request, key, reply, self._clock(), 0.0, "", "", cached=True)
        return reply, value

    def _asked(self, whose: _For, request: Request, key: str, form: type[Form]) -> tuple[Reply, Form | None]:
        """One call with all that belongs to it. `_Unfit` when the answer cannot be used."""
        sent = weight(request.messages, request.tools)
        cost = Cost(sent + request.max_tokens, self._budget.price(sent, request.max_tokens))
        trial = self._admit(whose.job, cost)
        reply, failure, cause, retry_after = Reply("", sent, 0), "unavailable", "", None
        at, began = self._clock(), time.perf_counter()
        try:
            reply = self._cleaned(self._ask(request))
            failure = "nonsense"
            value = _value(reply, request, form)
            failure = ""
            return reply, value
        except ModelUnavailable as error:
            cause, retry_after = error.cause, error.retry_after
            raise
        except ModelNonsense as error:
            said = reply.text if failure == "nonsense" else None
            failure, cause = "nonsense", error.cause
            raise _Unfit(said or None, error) from error
        finally:
            seconds = time.perf_counter() - began
            with self._lock:
                self._purse.give_back(whose.job, cost)
                self._breaker.end(self._clock(), trial, failure, retry_after)
                wait = self._breaker.wait(self._clock())
            self._tell_others(wait)
            self._enter(whose, reply, failure)
            self._write(whose, request, key, reply, at, seconds, failure, cause)

    def _tell_others(self, wait: float | None) -> None:
        """Tell other processes that the breaker is open, and when it is not any more."""
        is_open = self._breaker.failures >= OPENS_AFTER
        if self._pauses is not None and (is_open or self._has_told):
            self._has_told = is_open
            self._pauses.leave_alone(f"model:{self.name}", (wait or 0.0) if is_open else 0.0)

    def _ask(self, request: Request) -> Reply:
        asked: dict[str, Any] = {"tools": request.tools} if request.tools else {}
        return self._model.ask(
            request.messages,
            temperature=request.temperature,
            schema=request.schema,
            max_tokens=request.max_tokens,
            **asked,
        )

    def _admit(self, job: str, cost: Cost) -> bool:
        """Let a call begin, with its cost set aside; whether the call is the trial of a half-open breaker."""
        shared = self._pauses.left_alone(f"model:{self.name}") if self._pauses is not None else 0.0
        with self._lock:
            now = self._clock()
            if wait := self._breaker.wait(now) or shared:
                self._calls["waiting"] += 1
                failures = self._breaker.failures
                raise ModelUnavailable(
                    f"the model {self.name}",
                    f"failed {failures} times in a row" if failures else "asks to be left alone",
                    "It is asked again after a while.",
                    wait,
                )
            if spent := self._purse.overdrawn(job, cost, now):
                self._calls["budget"] += 1
                raise BudgetSpent(f"the budget of the model {self.name}", spent, "Wait, or raise the limit.")
            self._purse.set_aside(job, cost)
            return self._breaker.begin(now)

    def _enter(self, whose: _For, reply: Reply, failure: str) -> None:
        """Count a call. One that failed counts what was sent: the server may have read it."""
        tokens = reply.tokens_in, reply.tokens_out
        dollars = self._budget.price(*tokens)
        with self._lock:
            self._calls[failure or "answered"] += 1
            self._tokens = (self._tokens[0] + tokens[0], self._tokens[1] + tokens[1])
            self._dollars += dollars
        self._ledger.enter(whose.job, self.name, whose.purpose, *tokens, dollars, failure, self._clock())

    def _write(
        self,
        whose: _For,
        request: Request,
        key: str,
        reply: Reply,
        at: float,
        seconds: float,
        failure: str,
        cause: str,
        cached: bool = False,
    ) -> None:
        """Write down what was said."""
        if self._exchanges is None:
            return
        exchange = Exchange(
            at=at,
            job=whose.job,
            attempt=whose.attempt,
            purpose=whose.purpose,
            model=self.name,
            prompt=whose.prompt,
            key=key,
            request=request.terms(),
            sent=request.said(),
            got=reply.text,
            calls=written(reply.calls),
            tokens_in=reply.tokens_in,
            tokens_out=reply.tokens_out,
            dollars=self._budget.price(reply.tokens_in, reply.tokens_out),
            seconds=seconds,
            cached=cached,
            failure=failure,
            cause=cause,
        )
        self._exchanges.enter(exchange)

    def _masked(self, masker: Masker, text: str) -> str:
        """Return the text masked, and without the key of the server."""
        return masker.mask_rest(text.replace(self._key, SECRET) if self._key else text)

    def _cleaned(self, reply: Reply) -> Reply:
        """Return the reply without the key of the server, which may say it back."""
        if not self._key:
            return reply
        calls = tuple(call for call in reply.calls if self._key not in written((call,)))
        return reply._replace(text=reply.text.replace(self._key, SECRET), calls=calls)


def _hidden(message: Message, hide: Hide) -> Message:
    calls = tuple(ToolCall(call.id, call.name, _each_text(call.arguments, hide)) for call in message.calls)
    return message._replace(text=hide(message.text), calls=calls)


def _looked_up(run: Run, hide: Hide, call: ToolCall) -> str:
    """Return what a call gives, masked before it is cut to the room that there is."""
    try:
        return hide(run(call))
    except LogdoctorError as error:
        return f"That cannot be done: {hide(str(error))[:500]}"


def _each_text(value: Any, hide: Hide) -> Any:
    """Return the value with each text in it hidden."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {key: _each_text(one, hide) for key, one in value.items()}
    return [_each_text(one, hide) for one in value] if isinstance(value, list | tuple) else value


class _Unfit(Exception):
    """An answer that cannot be used, and what the model wrote, if anything; what it says is wrong where it has its
    form."""

    def __init__(self, reply: str | None, nonsense: ModelNonsense, has_form: bool = False) -> None:
        super().__init__()
        self.reply, self.nonsense, self.has_form = reply, nonsense, has_form


def _value(reply: Reply, request: Request, form: type[Form]) -> Form | None:
    """Return the value of a reply, None when it calls tools that are on offer. `ModelNonsense` when it has none."""
    return None if reply.calls and request.tools else parse(reply.text, form).value


def _complaint(reply: str, nonsense: ModelNonsense, room: int) -> tuple[Message, Message]:
    """Return the bad answer, which is left out when it has no room, and what is wrong with it."""
    said = reply.encode("ascii", "replace").decode()
    return (
        Message("assistant", said if estimate(said) <= room else "(an answer that is too long to be shown again)"),
        Message(
            "user",
            f"Your answer cannot be used: it {nonsense.cause}. Answer again. Write the JSON object only: no fence, "
            "no words around it, and each backslash of a pattern written twice.",
        ),
    )
