"""Who has thousands of jobs keeps nobody else's waiting, and nothing keeps the service from stopping."""

from collections.abc import Callable
from pathlib import Path

import pytest

from logdoctor.rules.scanner import Scanner
from logdoctor.service import holding, watch
from logdoctor.service.rounds import Rounds
from logdoctor.service.service import Service
from logdoctor.service.streams import NOBODY, LiveAttempt
from logdoctor.store.names import Key
from tests import waiting
from tests.diagnose.logs import ECC
from tests.service.services import HOUR, Clock, end, final, looked, passes, scanned, send, serving

FLOOD = [f"alpha-{number}" for number in range(20)]


def jobs_in(rounds: Rounds, *jobs: str) -> list[str]:
    return [attempt.job for attempt in rounds.of([LiveAttempt(job, 1, NOBODY) for job in jobs])]


def test_teams_have_their_turns_one_after_the_other() -> None:
    rounds = Rounds()
    assert jobs_in(rounds, "a-1", "a-2", "b-1") == ["a-1", "a-2", "b-1"], "without prefixes all are one team"
    rounds.know(("a-", "a-x-", "b-"))
    assert jobs_in(rounds, "a-1", "a-2", "a-x-1", "b-1", "a-3") == ["a-1", "a-x-1", "b-1", "a-2", "a-3"]
    assert jobs_in(rounds, "a-4", "b-2", "b-3") == ["b-2", "a-4", "b-3"], "b had its last turn longest ago"


def flooded(service: Service, *more: str) -> None:
    """Attempts of alpha, and others behind them."""
    service.tokens.create("alpha", ["ingest"], ["alpha-"])
    for job in (*FLOOD, *more):
        send(service, Key(job, 1, "main"), ECC.encode())
    waiting.until(lambda: scanned(service))
    looked(service)


def judging(service: Service, monkeypatch: pytest.MonkeyPatch, then: Callable[[int], None]) -> list[str]:
    """The jobs that are judged from now on, one in each turn of the watch; `then` is told how many were."""
    judged: list[str] = []
    real = service.watch._judge_safely

    def judge(attempt: LiveAttempt, idle: float | None) -> bool:
        judged.append(attempt.job)
        then(len(judged))
        return real(attempt, idle)

    monkeypatch.setattr(watch, "_SLICE", 0.0)
    monkeypatch.setattr(service.watch, "_judge_safely", judge)
    return judged


def test_quiet_checks_of_one_team_keep_no_other_waiting(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    flooded(service, "beta-1")
    judged = judging(service, monkeypatch, lambda _: None)
    passes(service, 1.5 * HOUR)
    waiting.until(lambda: looked(service) and len(judged) >= len(FLOOD) + 1)
    assert judged.index("beta-1") <= 1


def test_an_end_is_judged_before_the_quiet_checks_of_others(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    flooded(service)
    send(service, Key("alpha-ended", 1, "main"), ECC.encode())
    attempt = service.holding.live("alpha-ended", 1)
    assert attempt is not None

    def ends(count: int) -> None:
        if count == 2:
            service.watch.ask(attempt)

    judged = judging(service, monkeypatch, ends)
    passes(service, 1.5 * HOUR)
    waiting.until(lambda: looked(service) and len(judged) >= len(FLOOD))
    assert judged.index("alpha-ended") == 2


def test_ends_of_one_team_keep_no_other_waiting(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    flooded(service, "beta-1")
    attempts = [service.holding.live(job, 1) for job in (*FLOOD, "beta-1")]
    judged = judging(service, monkeypatch, lambda _: None)
    with service.holding.lock:  # all at once
        service.watch._asked |= {attempt: None for attempt in attempts if attempt is not None}
        service.holding.fresh.notify_all()
    waiting.until(lambda: len(judged) == len(attempts))
    assert judged.index("beta-1") <= 1


@pytest.mark.parametrize("silent", [True, False])
def test_a_stop_waits_for_one_verdict_however_many_are_due(
    service: Service, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    flooded(service)

    def stop(count: int) -> None:
        if count == 3:
            service.watch._stopping = True

    judged = judging(service, monkeypatch, stop)
    if silent:
        clock = service.holding.clock
        assert isinstance(clock, Clock)
        clock.leap(1.5 * HOUR)
    else:
        for job in FLOOD:
            service.watch.ask(service.holding.attempts[job, 1])
    waiting.until(lambda: len(judged) >= 3)
    service.watch.stop()
    assert len(judged) == 3


def test_what_a_stop_has_no_time_for_is_in_the_log(
    folder: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_PARTING", -1.0)
    monkeypatch.setattr(holding, "_PARTING", -1.0)
    with serving(folder, scanner) as service:
        flooded(service)
    with serving(folder, scanner) as service:
        for job in FLOOD:
            (stream,) = service.logs.streams(job, 1).values()
            assert (stream.next, stream.archived) == (len(ECC), 0)
        end(service, Key("alpha-1", 1, "main"), 1)
        assert final(service, Key("alpha-1", 1, "main")).verdict.reason == "ECC Error"
