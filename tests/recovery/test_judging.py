"""How long the verdict of a service is waited for: one that does not answer is not waited for long."""

from types import SimpleNamespace
from typing import Any

import pytest

from logdoctor.errors import NotTaken
from logdoctor.job.recovery import judging
from logdoctor.job.recovery.judging import LocalJudge, ServiceJudge
from logdoctor.job.send.client import ServiceAnswer
from logdoctor.job.send.environment import read_environment
from logdoctor.job.send.shipper import CommandEnd, Shipper
from logdoctor.job.send.spool import new_spool
from logdoctor.job.send.target import make_target
from tests.recovery.test_parts import PLAIN


class Service:
    """A service, and a clock that moves while it is waited for."""

    def __init__(self, answers_at: float = float("inf"), verdict_at: float = float("inf"), status: int = 200) -> None:
        self.now, self._answers_at, self._verdict_at, self._status = 1000.0, answers_at, verdict_at, status
        self.deadline: float | None = None

    def __call__(self, target: object) -> "Service":
        return self

    def pause(self, seconds: float) -> bool:
        self.now += seconds
        return False

    def _answer(self, body: dict[str, Any]) -> ServiceAnswer:
        if self.now - 1000.0 < self._answers_at:
            raise NotTaken("the service cannot be reached")
        return ServiceAnswer(self._status, body, None, False, "http://x")

    def number_attempt(self, key: str) -> ServiceAnswer:
        return self._answer({"attempt": 1})

    def end(self, number: int, facts: dict[str, Any]) -> ServiceAnswer:
        return self._answer({})

    def verdict(self, number: int) -> ServiceAnswer:
        return self._answer({"final": self.now - 1000.0 >= self._verdict_at, "verdict": PLAIN})

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("service", "away", "waited", "is_judged"),
    [
        (Service(), 10.0, 10.0, False),
        (Service(), -5.0, 2.0, False),  # the drain has waited for it already
        (Service(), 1e9, 120.0, False),
        (Service(answers_at=6.0, verdict_at=80.0), 10.0, 80.0, True),
        (Service(answers_at=0.0), 10.0, 120.0, False),
        (Service(answers_at=0.0, status=503), 10.0, 10.0, False),
        (Service(answers_at=0.0, status=403), 10.0, 120.0, False),
    ],
)
def test_a_service_that_does_not_answer_is_waited_for_until_it_counts_as_away(
    monkeypatch: pytest.MonkeyPatch, service: Service, away: float, waited: float, is_judged: bool
) -> None:
    monkeypatch.setattr(judging, "Client", service)
    monkeypatch.setattr(judging, "time", SimpleNamespace(monotonic=lambda: service.now))
    target = make_target(read_environment({}), job="job")
    service.now = 1000.0
    found = ServiceJudge(target, 120.0, service.pause, True, lambda key: 1000.0 + away)("k", 1)
    assert (found is not None) == is_judged and service.now - 1000.0 == pytest.approx(waited, abs=1.0)


def test_what_a_service_that_is_away_does_not_take_is_left_soon(tmp_path: Any) -> None:
    """Else the test would take ten minutes."""
    spool = new_spool((str(tmp_path),), 1 << 20)
    spool.append(b"a line\n")
    spool.finish()
    notices = SimpleNamespace(away=lambda *_: None, back=lambda: None, say=lambda *_: None)
    shipper = Shipper(make_target(read_environment({}), job="job", url="http://127.0.0.1:9"), spool, notices)  # type: ignore[arg-type]
    shipper.start()
    assert not shipper.finish(CommandEnd(1, None), 600.0, 0.2)


_ECHO = f"import json, sys; print(json.dumps({PLAIN!r} | {{'suggestion': ' '.join(sys.argv[1:])}}))"


@pytest.mark.parametrize("code", [1, 137])
def test_a_diagnosis_here_is_told_how_the_command_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, code: int
) -> None:
    """Of a command that was killed and whose output tells nothing, the signal is all that is known."""
    monkeypatch.setattr(judging, "_DIAGNOSE", ("-c", _ECHO))
    found = LocalJudge(str(tmp_path))("k", code)
    assert found is not None and found.suggestion == f"--exit-code {code} --beside {tmp_path} -"
