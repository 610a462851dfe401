"""Restarts, outages and lag at the worst moment: no verdict is lost, none comes too early, and none is of less than was
said."""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from logdoctor.errors import StoreError
from logdoctor.learning.filters.kind import kind_of
from logdoctor.rules.scanner import Scanner
from logdoctor.service import watch
from logdoctor.service.holding import Holding
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import End, JobFacts, StoredVerdict
from logdoctor.store.learning.noticed import Noticed
from logdoctor.store.log import archive
from logdoctor.store.log.shards import shard_of
from logdoctor.store.log.table import NewBytes
from logdoctor.store.names import Key
from logdoctor.types import DecidedBy, Record, Verdict
from tests import waiting
from tests.diagnose.logs import ECC, steps
from tests.service.disks import Away
from tests.service.services import (
    DAY,
    PATIENT,
    end,
    final,
    killed,
    leaps,
    learning,
    looked,
    passes,
    pulled,
    scanned,
    send,
    serving,
    silent,
)

KEY, OTHER = Key("job", 1, "rank 0"), Key("job", 1, "rank 1")
STEPS, FATAL = steps(1, 30).encode(), ECC.encode()


def current(service: Service) -> StoredVerdict | None:
    return service.records.current("job", 1)


def failing_once(monkeypatch: pytest.MonkeyPatch, service: Service, name: str) -> list[bool]:
    """Let a call of the records fail once; the list is empty when it has."""
    real, failing = getattr(service.records, name), [True]

    def called(*given: Any) -> Any:
        if failing:
            failing.pop()
            raise StoreError("the database", "fails", "Wait.")
        return real(*given)

    monkeypatch.setattr(service.records, name, called)
    return failing


class Printing:
    """The other stream, which makes a step whenever it is called."""

    def __init__(self, service: Service) -> None:
        self._service, self._step = service, 30

    def __call__(self) -> None:
        self._service.intake.push(OTHER, steps(self._step, self._step + 1).encode(), "").result()
        self._step += 1


def is_told(service: Service) -> None:
    """Wait for a verdict while the other stream goes on."""
    prints = Printing(service)

    def look() -> object:
        prints()
        leaps(service, 1.0)  # what failed is tried again
        return current(service)

    waiting.until(look)


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether workers have so much to compress that they read no more."""
    told, real = [False], Holding.is_behind.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Holding, "is_behind", property(lambda holding: told[0] or real(holding)))
    return told


# What never came


def test_a_silent_job_hangs_though_the_service_was_restarted_meanwhile(folder: Path, scanner: Scanner) -> None:
    with serving(folder, scanner) as service:
        send(service, KEY, STEPS)
    silent(folder, 0.6 * PATIENT.hang)  # an attempt that is unloaded after a hang would be so before it is one
    with serving(folder, scanner) as service:
        passes(service, 0.3 * PATIENT.hang)
        assert (stored := current(service)) is None or stored.verdict.outcome == "running"
        passes(service, 0.1 * PATIENT.hang)
        assert waiting.until(lambda: looked(service) and current(service)).verdict.reason == "Hang"


def test_what_fell_silent_before_a_long_outage_is_looked_at(
    folder: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(folder, scanner) as service:
        send(service, KEY, STEPS + FATAL)
    silent(folder, 2 * PATIENT.hang)  # longer than it takes to be unloaded
    monkeypatch.setattr("logdoctor.store.log.archive.Archive.state", lambda *_: None)  # its rules have changed
    with serving(folder, scanner) as service:
        assert waiting.until(lambda: looked(service) and current(service)).verdict.reason == "ECC Error"


def test_a_failed_part_is_told_while_others_print_with_every_turn(folder: Path, scanner: Scanner) -> None:
    with serving(folder, scanner) as service:
        send(service, KEY, STEPS + FATAL)
        send(service, OTHER, STEPS)
        pull, number = service.holding.pull, 0

        def pulled_with_more() -> bool:
            nonlocal number
            if current(service) is None:
                number += 1
                service.log.append([NewBytes(OTHER, None, b"a line %d\n" % number)], time.time())
            return pull()

        service.holding.pull = pulled_with_more  # type: ignore[method-assign]
        service.end("job", 1, End(KEY.stream, 1, None, None, time.time()))
        assert waiting.until(lambda: current(service))


def test_a_failed_part_is_told_though_the_database_failed_once(
    folder: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(folder, scanner) as service:
        send(service, KEY, STEPS + FATAL)
        send(service, OTHER, STEPS)
        failing = failing_once(monkeypatch, service, "publish")
        end(service, KEY, 1, whole=False)
        waiting.until(lambda: not failing)
        is_told(service)


def test_a_failed_part_is_told_though_the_worker_dies(tmp_path: Path, scanner: Scanner) -> None:
    with serving(tmp_path / "data", scanner) as service:
        send(service, KEY, STEPS + FATAL)
        send(service, OTHER, STEPS)
        service.watch._judge_safely = lambda *_: True  # type: ignore[method-assign]
        end(service, KEY, 1, whole=False)
        service.holding.archive_all()
        waiting.until(lambda: service.log.heads()[shard_of("job", 1)].bytes == 0)  # nobody would be asked again
        copy = killed(tmp_path / "data", tmp_path / "copy")
    with serving(copy, scanner) as service:
        is_told(service)


def test_late_bytes_do_not_wait_for_a_store_that_hangs(
    tmp_path: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Away(tmp_path / "data" / "archive")
    away.fails = True
    keys = [Key("job", number, "main") for number in range(15)]
    monkeypatch.setattr(archive, "_REST", DAY)  # it is left alone until the test is over
    with serving(tmp_path / "data", scanner) as service:
        service.archive.objects = away
        for key in keys:
            send(service, key, FATAL)
            end(service, key)
        for key in keys:
            final(service, key)
        calls = away.calls
        for key in keys:
            service.intake.push(key, b"a late line\n", "").result()
        for key in keys:
            waiting.until(lambda key=key: final(service, key).verdict.compression.lines_in == 2)  # type: ignore[misc]
        assert away.calls - calls < len(keys)


# What came too early


def test_a_part_that_is_not_read_is_not_silent(service: Service, behind: list[bool]) -> None:
    told: list[StoredVerdict] = []
    service.listeners.append(told.append)
    send(service, KEY, STEPS + b"something odd\n")
    send(service, OTHER, STEPS)
    end(service, KEY, 1, whole=False)
    waiting.until(lambda: current(service))
    hours_pass_behind(service, behind, 2 * 5 * PATIENT.quiet)
    assert not [one.verdict.problems for one in told if one.final]


def test_steps_that_wait_in_the_log_are_no_hang(service: Service, behind: list[bool]) -> None:
    told: list[StoredVerdict] = []
    service.listeners.append(told.append)
    send(service, OTHER, STEPS)
    hours_pass_behind(service, behind, 2 * PATIENT.hang)
    assert not [one.verdict.reason for one in told if one.verdict.outcome == "failed"]


def hours_pass_behind(service: Service, behind: list[bool], seconds: float) -> None:
    """Let the other stream print for so many seconds; the service reads none of it any more."""
    scanned(service)
    behind[0] = True
    prints = Printing(service)
    for _ in range(8):
        prints()
        waiting.until(lambda: service.holding._shards[shard_of("job", 1)].is_behind)
        leaps(service, seconds / 8)


def test_the_rest_is_waited_for_when_a_part_fails_after_a_silence(service: Service) -> None:
    told: list[StoredVerdict] = []
    service.listeners.append(told.append)
    send(service, KEY, STEPS)
    send(service, OTHER, STEPS)
    passes(service, 5.5 * PATIENT.quiet)  # silent, as when all wait for one; the rest has five times as long
    service.end("job", 1, End(KEY.stream, None, 9, None, time.time()))
    waiting.until(lambda: pulled(service))
    passes(service, 2 * PATIENT.quiet)
    assert not [one.verdict.problems for one in told if one.final]
    passes(service, 3 * PATIENT.quiet)
    assert final(service, KEY).verdict.problems


# What was of less than was said


def test_an_end_that_was_entered_halfway_is_entered_when_told_again(
    folder: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(folder, scanner) as service:
        send(service, KEY, STEPS)
        passes(service, PATIENT.abandon)
        assert final(service, KEY).verdict.outcome != "failed"  # given up
        failing_once(monkeypatch, service, "reopen")
        told = End("", 1, None, None, time.time())
        with pytest.raises(StoreError):
            service.end("job", 1, told)  # the sender is told to come again
        service.end("job", 1, told)
        assert waiting.until(lambda: (one := final(service, KEY)).verdict.outcome == "failed" and one)


def by_a_case(service: Service) -> None:
    """An attempt that a past case has explained."""
    send(service, KEY, STEPS + b"something odd\n")
    end(service, KEY, 1)
    stored = final(service, KEY)
    said = msgspec.structs.replace(stored.verdict, reason="ECC Error", decided_by=DecidedBy("case", "case/1"))
    service.watch.reissue("job", 1, said)
    assert current(service).verdict.decided_by.rule == "case/1"  # type: ignore[union-attr]


def test_a_verdict_of_a_case_is_withdrawn_though_the_database_fails_once(
    folder: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(folder, scanner) as service:
        by_a_case(service)
        failing = failing_once(monkeypatch, service, "publish")
        service.casework._judge_anew("job", 1)
        waiting.until(lambda: pulled(service) and not failing)
        assert final(service, KEY).verdict.decided_by.rule != "case/1"


def test_a_verdict_of_a_case_is_withdrawn_though_the_worker_dies(tmp_path: Path, scanner: Scanner) -> None:
    with serving(tmp_path / "data", scanner) as service:
        by_a_case(service)
        service.holding.archive_all()
        service.watch._judge_safely = lambda *_: True  # type: ignore[method-assign]
        service.casework._judge_anew("job", 1)
        waiting.until(lambda: pulled(service))
        service.holding.archive_all()  # as is done each second
        copy = killed(tmp_path / "data", tmp_path / "copy")
    with serving(copy, scanner) as service:
        assert final(service, KEY).verdict.decided_by.rule != "case/1"


def test_a_stream_that_ended_in_the_middle_of_a_line_and_rested(folder: Path, scanner: Scanner) -> None:
    with serving(folder, scanner) as service:
        send(service, KEY, STEPS + FATAL[:20])
        send(service, OTHER, STEPS)
        end(service, KEY, 0, whole=False)
        for _ in range(2):
            passes(service, PATIENT.hang + 2 * PATIENT.quiet)
        waiting.until(lambda: not service.holding.attempts)
        send(service, KEY, FATAL[20:])
        end(service, KEY, 1)
        verdict = final(service, KEY).verdict
        assert verdict.reason == "ECC Error"
        assert verdict.compression.lines_in == (2 * STEPS + FATAL).count(b"\n")


def test_noticed_lines_are_known_of_an_attempt_that_left_memory(folder: Path, scanner: Scanner) -> None:
    with serving(folder, scanner, log_agent=learning(scanner)) as service:
        send(service, KEY, b"weaving\n" * 29 + b"the loom lies still\n")
        noticed = [Noticed("rank 0", 30, "the loom lies still", 3)]
        service.rules.noticed.add("job", 1, kind_of("job", JobFacts()), noticed)
        assert service.learner
        service.learner.enroll(service.holding.attempts["job", 1])
        end(service, KEY, 1)
        assert [one.line for one in final(service, KEY).verdict.evidence] == [30]
        waiting.until(lambda: service.holding.forget(service.holding.attempts["job", 1]))
        send(service, KEY, b"a late line\n")
        again = waiting.until(lambda: (one := final(service, KEY)).verdict.compression.lines_in == 31 and one)
        assert [one.line for one in again.verdict.evidence] == [30]


def test_an_attempt_that_cannot_be_diagnosed_is_told_by_its_end(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = watch.judge

    def judge(records: list[Record], *given: Any, **named: Any) -> Verdict:
        if any(record.lines for record in records):
            raise OverflowError("int too large to convert to float")
        return real(records, *given, **named)

    monkeypatch.setattr(watch, "judge", judge)
    send(service, KEY, STEPS + FATAL)
    end(service, KEY, exit_code=1)
    verdict = final(service, KEY).verdict
    assert (verdict.outcome, verdict.reason, verdict.recovery) == ("failed", "Unknown", "ask_human")
    assert any("OverflowError: int too large" in problem for problem in verdict.problems)
