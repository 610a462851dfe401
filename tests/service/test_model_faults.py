"""Whatever a model does, bytes are acknowledged and verdicts given without waiting for it; calls stay few."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logdoctor.rules.scanner import Scanner
from logdoctor.service import learning as learning_service
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.store.learning.model_calls import ModelCalls
from logdoctor.store.names import Key
from tests import waiting
from tests.databases import url_in
from tests.diagnose.logs import ECC, steps
from tests.llm import server as ways
from tests.llm.server import Behave, Handler, ModelServer, model_server
from tests.service.services import Learning, end, final, learning, send, serving

FATAL = ECC.encode()
HOUR = 3600.0
"""How long a call may take, unless it is to be broken off."""


def woven(first: int, last: int, what: str = "zorb") -> bytes:
    """Lines that no rule explains, enough of them for a lesson."""
    return "".join(
        f"{what} shard {i} woven into lattice {i * 7 % 91}\nquill {i % 8} drained {i * 3} pails of {what}\n"
        for i in range(first, last)
    ).encode()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def asking(scanner: Scanner, url: str, **changed: Any) -> Learning:
    model = {"learn": "model", "llm_base_url": url, "llm_model": "tiny", "llm_seconds": HOUR}
    return learning(scanner, **model | changed)


def lines(service: Service, job: str, data: bytes) -> None:
    send(service, Key(job, 1, "main"), data)


def goes_on(service: Service, name: str) -> None:
    """Parts are acknowledged and verdicts given, of attempts that want lessons, too."""
    for number in range(3):
        key = Key(f"{name}-{number}", 1, "main")
        send(service, key, woven(0, 600, name))
        send(service, key, FATAL)
        end(service, key, 1)
        verdict = final(service, key).verdict
        assert verdict.reason == "ECC Error" and verdict.compression.lines_in == 1201


def threads() -> list[str]:
    ours = ("learner", "rule-counter", "rechecker", "rule-reader", "watch", "archivist")
    return [one.name for one in threading.enumerate() if one.name in ours]


def late(handler: Handler, body: dict[str, Any]) -> None:
    """A byte now and then, of a body that is announced."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5000\r\n\r\n")
    while not handler.server.over.wait(0.2):
        handler.wfile.write(b" ")
        handler.wfile.flush()
    handler.close_connection = True


UNAVAILABLE: dict[str, Behave] = {
    "no answer": ways.hanging,
    "429": ways.status(429, "slow down", retry_after="1000"),
    "half a JSON": ways.half,
}
NONSENSE: dict[str, Behave] = {"another schema": ways.saying('{"pattern": "^.*$"}'), "a refusal": ways.refusal}
"""Of all faults one of each kind; tests/llm has the rest."""


@pytest.mark.parametrize("behave", [ways.hanging, late], ids=["no answer", "a byte now and then"])
def test_nothing_waits_for_a_model(folder: Path, scanner: Scanner, server: ModelServer, behave: Behave) -> None:
    """Neither bytes, nor verdicts, nor the end of the service: all is done while the first call is not answered."""
    server.behave(behave)
    with serving(folder, scanner, log_agent=asking(scanner, server.url)) as service:
        lines(service, "first", woven(0, 300))
        waiting.until(lambda: server.got)
        goes_on(service, "meanwhile")
        assert len(server.got) == 1 and not model(service).counts().calls
    assert len(server.got) == 1 and not server.over.is_set()
    server.over.set()
    waiting.until(lambda: not threads())


@pytest.mark.parametrize("fault", [*UNAVAILABLE, *NONSENSE])
def test_all_goes_on_as_without_a_model(
    folder: Path, scanner: Scanner, server: ModelServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(learning_service, "_REST", HOUR)
    server.behave((UNAVAILABLE | NONSENSE)[fault])
    patience = HOUR if fault in NONSENSE else 1.0
    with serving(folder, scanner, log_agent=asking(scanner, server.url, llm_seconds=patience)) as service:
        lines(service, "first", woven(0, 300))
        waiting.until(lambda: server.got)
        goes_on(service, "while it suffers")
        if fault in NONSENSE:
            least = 3 if fault == "a refusal" else 5  # a refusal is not sent back: there is nothing to complain of
            waiting.until(lambda: model(service).counts().calls.get("nonsense", 0) >= least)
            assert least <= len(server.got) <= 5
            assert least == 3 or model(service).counts().breaker == "open"
        else:
            waiting.until(lambda: model(service).counts().calls.get("unavailable") == 1)
            assert len(server.got) == 1, "it was left alone"
        ledger = ModelCalls(service.records.database)
        waiting.until(lambda: sum(total.calls for total in ledger.totals()) == len(server.got))
        assert not service.rules.list() and not service.rules.shapes.seen("name/first")
    waiting.until(lambda: not threads())


def model(service: Service) -> Any:
    """The model behind its budget and breaker."""
    assert service.learner is not None
    return service.learner.model


def test_a_connection_that_is_refused(folder: Path, scanner: Scanner) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        with serving(folder, scanner, log_agent=asking(scanner, url)) as service:
            lines(service, "first", woven(0, 300))
            waiting.until(lambda: model(service).counts().calls.get("unavailable") == 1)
            goes_on(service, "refused")
            waiting.until(lambda: sum(total.calls for total in ModelCalls(service.records.database).totals()) == 1)
    waiting.until(lambda: not threads())


def test_what_was_not_learned_is_learned_when_the_model_is_back(
    folder: Path, scanner: Scanner, server: ModelServer
) -> None:
    """Also of the attempt whose lessons failed, however many they were."""
    server.behave(ways.status(500), ways.status(503), ways.writing())
    with serving(folder, scanner, log_agent=asking(scanner, server.url, learn_runs=1)) as service:
        learner = service.learner
        assert learner is not None
        sent = 0

        def look() -> bool:
            nonlocal sent
            learner._resting_until = 0.0  # it would rest for a minute
            lines(service, "weave", woven(sent, sent + 300))
            sent += 300
            return bool(service.rules.list("name/weave"))  # whether it is in shadow still or takes lines already

        waiting.until(look)
        counts = model(service).counts()  # lines that came before the rules were in force may bring another lesson
        assert counts.calls["unavailable"] == 2 and counts.breaker == "closed"


@pytest.mark.parametrize(
    ("limit", "most"),
    [({"llm_calls_per_job": 3}, 3), ({"llm_calls_per_hour": 4}, 4), ({"llm_tokens_per_hour": 10}, 0)],
)
def test_budgets_hold(folder: Path, scanner: Scanner, server: ModelServer, limit: dict[str, int], most: int) -> None:
    server.behave(ways.writing())
    with serving(folder, scanner, log_agent=asking(scanner, server.url, **limit)) as service:
        learner = service.learner
        assert learner is not None
        for number in range(3):
            learner._resting_until = 0.0
            job = "weave" if "llm_calls_per_job" in limit else "weave"[: number + 1]
            key = Key(job, number + 1, "main")
            send(service, key, woven(0, 300, f"sort{'abc'[number]}"))
            end(service, key, 0)
            final(service, key)
            waiting.until(lambda key=key: not service.holding.attempts[key.job, key.attempt].in_lesson)  # type: ignore[misc]
        assert len(server.got) == most
        if "llm_calls_per_job" in limit:  # which is no matter of others
            lines(service, "knit", woven(0, 300, "others"))
            waiting.until(lambda: len(server.got) > most)
            waiting.until(lambda: sum(job.startswith("knit") for job in jobs(server)) <= most)


def jobs(server: ModelServer) -> list[str]:
    """What the calls were about, by a word of their lines."""
    return ["knit" if "others" in str(body) else "weave" for body in server.bodies]


def test_nothing_is_entered_after_a_stop(folder: Path, scanner: Scanner, server: ModelServer) -> None:
    """An answer that comes too late finds the folder in other hands."""
    answering = threading.Event()

    def slow(handler: Handler, body: dict[str, Any]) -> None:
        answering.wait()
        ways.writing()(handler, body)

    server.behave(slow)
    with serving(folder, scanner, log_agent=asking(scanner, server.url)) as service:
        lines(service, "weave", woven(0, 300))
        waiting.until(lambda: server.got)
    with serving(folder, scanner, log_agent=learning(scanner, learn="miner")):
        answering.set()
        waiting.until(lambda: threads().count("learner") == 1)
    assert len(server.got) == 1, "the next run is not begun"
    records = Records(url_in(folder / "logdoctor.db"))
    rules = LearnedRules(records.database)
    assert not rules.list() and not rules.refusals.list() and not rules.shapes.seen("name/weave")
    records.close()


def test_error_lines_that_a_model_notices_are_cited_as_they_stand(
    folder: Path, scanner: Scanner, server: ModelServer
) -> None:
    """What the model saw was masked and without colours; a verdict quotes the log."""

    def say(body: dict[str, Any]) -> str:
        shown = body["messages"][0]["content"].rsplit("```", 2)[-2]
        found = [int(n) for n in re.findall(r"^\[(\d+)\] .*lies still", shown, re.M)]
        return json.dumps({"patterns": [], "errors": found, "votes": []})

    odd = b"\x1b[33mthe loom lies still, password=hunter2hunter2\x1b[0m\n"
    server.behave(ways.saying(say))
    with serving(folder, scanner, log_agent=asking(scanner, server.url)) as service:
        key = Key("weave", 1, "main")
        log = steps(1, 30).encode() + woven(0, 300) + odd * 40
        send(service, key, log)
        attempt = waiting.until(lambda: service.holding.attempts.get(("weave", 1)))
        waiting.until(lambda: attempt.noticed)
        log += b"[ERROR] the shuttle is stuck\n" + odd
        send(service, key, b"[ERROR] the shuttle is stuck\n" + odd)
        end(service, key, 1)
        verdict = final(service, key).verdict
        assert service.rules.noticed.of("weave", 1)[0].text.count("hunter2") == 0
        rows = log.decode().split("\n")
        assert verdict.evidence
        for one in verdict.evidence:
            assert one.quote == rows[one.line - 1]
            around = rows[one.line - 1 - len(one.before) : one.line + len(one.after)]
            assert [*one.before, one.quote, *one.after] == around
