"""Verdicts come when attempts end, fall silent or hang, and are replaced when more is known."""

import gc
import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.service.streams import LiveStream, StreamScan
from logdoctor.service.watch import Watch
from logdoctor.store.jobs.records import End, StoredVerdict
from logdoctor.store.names import Key
from logdoctor.types import Segment
from tests import waiting
from tests.diagnose.logs import ECC, OFF_THE_BUS, steps
from tests.service.services import DAY, HOUR, PATIENT, end, final, looked, passes, scanned, send, serving, silent

KEY = Key("job", 1, "rank 0")
OTHER = Key("job", 1, "rank 1")
MINUTE = 60.0
STEPS = steps(1, 30).encode()
FATAL = ECC.encode()
T = TypeVar("T")


def current(service: Service) -> StoredVerdict | None:
    return service.records.current("job", 1)


def outcome(service: Service) -> str | None:
    stored = current(service)
    return stored.verdict.outcome if stored else None


def soon(service: Service, look: Callable[[], T]) -> T:
    """What `look` gives once that is true, while the watch looks all the time."""
    return waiting.until(lambda: looked(service) and look())


def test_the_end_brings_the_verdict_at_once(service: Service) -> None:
    told: list[StoredVerdict] = []
    service.listeners.append(told.append)
    send(service, KEY, STEPS + FATAL)
    end(service, KEY, 1)
    stored = waiting.until(lambda: told)[0]
    assert (stored.final, stored.verdict.outcome, stored.verdict.reason) == (True, "failed", "ECC Error")
    assert stored.verdict.evidence[0].line == 30
    assert final(service, KEY) == stored and service.watch.verdicts == 1


def test_a_last_line_without_newline_is_judged_and_may_still_grow(service: Service) -> None:
    send(service, KEY, STEPS + FATAL[:20])
    end(service, KEY)
    assert final(service, KEY).verdict.reason != "ECC Error"
    send(service, KEY, FATAL[20:-1])
    after = soon(service, lambda: (s := final(service, KEY)).verdict.reason == "ECC Error" and s)
    assert after and after.verdict.evidence[0].quote == FATAL.decode().strip()
    assert after.verdict.compression.lines_in == 30


def test_the_same_end_again_changes_nothing(service: Service) -> None:
    send(service, KEY, STEPS + FATAL)
    end(service, KEY, 1)
    before = final(service, KEY)
    for _ in range(3):
        end(service, KEY, 1)
        assert final(service, KEY) == before
    scanned(service)
    assert final(service, KEY) == before
    assert len(service.records.history("job", 1)) == 1 == service.watch.verdicts


def test_bytes_after_the_end_replace_the_verdict(service: Service) -> None:
    send(service, KEY, STEPS)
    end(service, KEY, 1)
    first = final(service, KEY)
    send(service, KEY, FATAL)
    assert first.verdict.reason == "Unknown"
    second = soon(service, lambda: (s := final(service, KEY)).id != first.id and s)
    assert second and second.verdict.reason == "ECC Error" and second.final
    newest, oldest = service.records.history("job", 1)
    assert (newest.id, oldest.id, oldest.superseded_by) == (second.id, first.id, second.id)
    attempt = service.records.attempt("job", 1)
    assert attempt is not None and attempt.settled


def test_the_end_of_one_stream_of_several_is_provisional(service: Service) -> None:
    send(service, KEY, STEPS + FATAL)
    send(service, OTHER, STEPS)
    end(service, KEY, 1, whole=False)
    first = waiting.until(lambda: current(service))
    assert first and not first.final and first.verdict.reason == "ECC Error"
    scanned(service)
    assert current(service) == first
    end(service, OTHER, 1, whole=False)
    last = final(service, KEY)
    assert last.id == first.id and last.event > first.event and last.verdict.reason == "ECC Error"


def test_a_stream_that_ends_well_says_nothing_of_the_others(service: Service) -> None:
    send(service, KEY, STEPS)
    send(service, OTHER, STEPS)
    end(service, KEY, 0, whole=False)
    scanned(service)
    stored = current(service)
    assert stored is None or stored.verdict.outcome == "running"
    end(service, OTHER, 0, whole=False)
    assert final(service, KEY).verdict.outcome == "completed"


def test_a_stream_that_failed_counts_among_those_that_did_not(service: Service) -> None:
    send(service, KEY, STEPS)
    send(service, OTHER, STEPS)
    end(service, KEY, 0, whole=False)
    end(service, OTHER, 137, whole=False)
    verdict = final(service, KEY).verdict
    assert (verdict.outcome, verdict.reason) == ("failed", "Unknown") and "137" in verdict.why


def test_an_end_without_a_log_is_judged(service: Service) -> None:
    end(service, KEY, 1)
    assert final(service, KEY).verdict.outcome == "failed"


def test_a_silent_attempt_with_an_error_gets_a_provisional_verdict(service: Service) -> None:
    send(service, KEY, STEPS + FATAL)
    passes(service, PATIENT.quiet - MINUTE)
    assert current(service) is None
    passes(service, MINUTE)
    stored = current(service)
    assert stored and not stored.final and stored.verdict.reason == "ECC Error"
    passes(service, PATIENT.quiet)
    assert current(service) == stored, "looked at once"
    send(service, KEY, OFF_THE_BUS.encode())
    passes(service, PATIENT.quiet)
    changed = current(service)
    assert changed and changed.id != stored.id and not changed.final
    assert len(service.records.unsettled()) == 1


def test_a_silent_healthy_attempt_gets_none(service: Service) -> None:
    send(service, KEY, STEPS)
    passes(service, PATIENT.quiet)
    assert current(service) is None


def test_a_hang_cites_the_last_step_and_new_steps_take_it_back(service: Service) -> None:
    send(service, KEY, STEPS)
    send(service, KEY, b"something that is no step\n")
    passes(service, PATIENT.hang)
    hang = current(service)
    assert hang and not hang.final
    assert (hang.verdict.outcome, hang.verdict.progress.line) == ("failed", 29)
    assert "hang" in f"{hang.verdict.reason} {hang.verdict.why}".lower()
    assert hang.verdict.evidence[0].line == 29
    send(service, KEY, steps(30, 60).encode())
    passes(service, PATIENT.quiet)
    running = current(service)
    assert running and not running.final
    assert (running.verdict.outcome, running.verdict.progress.line) == ("running", 60)


def test_a_job_that_goes_on_does_not_hang_though_it_is_never_silent(service: Service) -> None:
    send(service, KEY, STEPS)
    passes(service, PATIENT.hang)
    assert outcome(service) == "failed"
    for step in range(30, 35):
        send(service, KEY, steps(step, step + 1).encode())
        passes(service, PATIENT.quiet / 4)
    assert outcome(service) == "running"


def test_an_abandoned_attempt_settles_and_comes_back(service: Service) -> None:
    send(service, KEY, STEPS)
    passes(service, PATIENT.abandon)
    stored = final(service, KEY)
    attempt = service.records.attempt("job", 1)
    assert attempt is not None and attempt.ended is None and attempt.ends == ()
    send(service, KEY, FATAL)
    assert not service.holding.attempts["job", 1].over
    end(service, KEY, 1)
    assert final(service, KEY).verdict.reason == "ECC Error"
    assert stored.id != final(service, KEY).id


def test_the_end_of_a_part_of_an_abandoned_attempt_is_not_the_end_of_all(service: Service) -> None:
    send(service, KEY, STEPS + FATAL)
    send(service, OTHER, STEPS)
    passes(service, PATIENT.abandon)
    assert final(service, KEY).final
    end(service, KEY, 1, whole=False)
    soon(service, lambda: (s := current(service)) and not s.final)
    assert not service.holding.attempts["job", 1].over


@pytest.mark.parametrize("name", ["²", "a²b", "\u0661", "rank 10", "%2e", "\U0001f600"])
def test_any_stream_name_is_judged(service: Service, name: str) -> None:
    send(service, Key("job", 1, name), STEPS + FATAL)
    send(service, Key("job", 1, "1"), STEPS)
    end(service, KEY)
    verdict = final(service, KEY).verdict
    assert verdict.reason == "ECC Error" and verdict.evidence[0].stream == name


def test_scheduler_and_signal_are_taken_into_account(service: Service) -> None:
    for number, told in enumerate(
        [End("", None, 9, None, 1.0), End("", None, None, "CANCELLED by 1", 1.0), End("", 0, None, "COMPLETED", 1.0)]
    ):
        send(service, Key("job", number, "s"), STEPS)
        service.end("job", number, told)
    outcomes = [final(service, Key("job", n, "s")).verdict.outcome for n in range(3)]
    assert outcomes == ["failed", "cancelled", "completed"]


def test_a_late_line_is_judged_with_all_streams_of_its_attempt(service: Service) -> None:
    """The attempt has left memory: what comes for one stream must not be taken for the whole."""
    send(service, KEY, ECC.encode())
    send(service, OTHER, b"step 1 loss 2.0\n")
    end(service, KEY)
    first = final(service, KEY)
    passes(service, PATIENT.linger)
    soon(service, lambda: not service.holding.attempts)
    send(service, OTHER, b"a late line\n")
    again = waiting.until(lambda: (one := current(service)) and one.id != first.id and one.final and one)
    assert again.verdict.reason == first.verdict.reason == "ECC Error"
    assert again.verdict.compression.lines_in == first.verdict.compression.lines_in + 1


def test_a_verdict_is_not_final_while_others_go_on(service: Service) -> None:
    send(service, Key("job", 1, "a"), ECC.encode())
    end(service, Key("job", 1, "a"), whole=False)
    first = final(service, Key("job", 1, "a"))
    send(service, Key("job", 1, "b"), b"step 1 loss 2.0\n")
    looked(service)
    waiting.until(lambda: (one := service.records.current("job", 1)) is not None and not one.final)
    now = service.records.current("job", 1)
    assert now is not None and now.event > first.event


def test_a_job_hangs_although_it_is_never_silent(folder: Path, scanner: Scanner) -> None:
    with serving(folder, scanner, PATIENT._replace(quiet=PATIENT.hang)) as service:
        send(service, KEY, STEPS)
        for part in range(1, 6):
            send(service, KEY, b"heartbeat\n")
            passes(service, PATIENT.hang / 5)
            stored = current(service)
            assert (stored is None) == (part < 5)
        assert stored is not None and stored.verdict.reason == "Hang" and not stored.final


def test_a_job_that_has_shown_its_pace_hangs_long_before_another(folder: Path, scanner: Scanner) -> None:
    with serving(folder, scanner, PATIENT._replace(least=HOUR)) as service:
        for step in range(24):
            send(service, KEY, steps(step, step + 1).encode())
            passes(service, HOUR / 2 if step in (18, 20) else MINUTE)
        send(service, OTHER, b"step 1 loss 2.0\n")
        passes(service, 3 * HOUR)
        stored = current(service)
        assert stored and stored.verdict.reason == "Hang" and not stored.final


def test_a_bar_that_is_redrawn_on_one_line_is_progress(service: Service) -> None:
    send(service, KEY, STEPS)
    for step in range(1, 9):
        passes(service, PATIENT.hang / 4)
        send(service, KEY, b"\r 41%%|####      | %d/1875 [2:36:20<3:44:50, 12.20s/it]" % step)
        scanned(service)
        assert outcome(service) != "failed"
    passes(service, 2 * PATIENT.hang)
    stored = current(service)
    assert stored and stored.verdict.reason == "Hang"


def test_a_loss_that_does_not_come_back_is_told_while_the_job_runs(service: Service) -> None:
    """And taken back when it does come back after all; nobody waits for silence."""
    send(service, KEY, steps(0, 100).encode())
    assert scanned(service) and current(service) is None
    send(service, KEY, steps(100, 111, lambda step: 40.0).encode())
    told = soon(service, lambda: current(service))
    assert told is not None and not told.final
    verdict = told.verdict
    assert (verdict.reason, verdict.recovery, verdict.onset_step) == ("Loss Spike", "rollback_and_skip", 100)
    send(service, KEY, steps(111, 180).encode())
    soon(service, lambda: outcome(service) == "running")


def test_a_node_that_is_lost_does_not_keep_the_verdict_back(service: Service) -> None:
    """One node says that it failed, of unknown cause; another says nothing any more."""
    send(service, KEY, STEPS + b"something odd\n")
    send(service, OTHER, STEPS)
    end(service, KEY, 1, whole=False)
    first = waiting.until(lambda: current(service))
    assert first is not None
    assert (first.verdict.reason, first.verdict.outcome, first.final) == ("Unknown", "failed", False)
    assert "exit code 1" in first.verdict.why
    passes(service, 5 * PATIENT.quiet)
    stored = waiting.until(lambda: (one := current(service)) and one.final and one)
    assert stored.verdict.problems == ("rank 1: fell silent without an end",)


def test_idle_attempts_leave_memory_and_come_back(service: Service) -> None:
    send(service, KEY, STEPS)
    (held,) = service.holding.attempts.values()
    stream = weakref.ref(held.streams["rank 0"])
    del held
    gc.disable()
    try:
        for _ in range(2):  # it is looked at as it hangs, and then let go
            passes(service, PATIENT.hang + 2 * PATIENT.quiet)
        waiting.until(lambda: not service.holding.attempts)
        waiting.until(lambda: stream() is None)  # at once, not with the next great collection
    finally:
        gc.enable()
    assert not service.records.attempts("job")[0].settled
    send(service, KEY, steps(30, 40).encode())
    passes(service, PATIENT.quiet)
    stored = soon(service, lambda: (one := current(service)) and one.verdict.progress.step == 39 and one)
    assert stored and stored.verdict.compression.lines_in == 39


def test_attempts_that_rest_are_given_up_in_the_end(service: Service, folder: Path) -> None:
    send(service, KEY, STEPS + FATAL)
    for _ in range(2):
        passes(service, PATIENT.hang + 2 * PATIENT.quiet)
    waiting.until(lambda: not service.holding.attempts)
    silent(folder, PATIENT.abandon)
    passes(service, HOUR)
    stored = final(service, KEY)
    assert stored.verdict.reason == "ECC Error"


def test_bytes_that_cannot_be_compressed_stop_no_other_job(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, what was left of them counted for ever as bytes to be compressed, of which there may be so many."""
    bad, real = Key("bad", 1, "main"), Watch._push

    def push(watch: Watch, stream: LiveStream, scan: StreamScan, data: bytes) -> None:
        if stream.key == bad:
            raise ZeroDivisionError("a bug")
        real(watch, stream, scan, data)

    monkeypatch.setattr(Watch, "_push", push)
    monkeypatch.setattr("logdoctor.service.watch._SEGMENT", 1000)
    monkeypatch.setattr(service.holding, "_bounds", service.holding._bounds._replace(unscanned=2000))
    for _ in range(12):
        send(service, bad, b"a line that nobody can read\n" * 100)
    send(service, KEY, STEPS + FATAL)
    end(service, KEY)
    assert final(service, KEY).verdict.reason == "ECC Error"
    end(service, bad)
    assert "could not be compressed (ZeroDivisionError)" in " ".join(final(service, bad).verdict.problems)
    assert service.holding.figures().unscanned == 0


def test_bytes_whose_compression_failed_for_a_moment_are_not_left_out(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, those that had been taken for it were gone."""
    real, failures = Watch._add, itertools.count()

    def add(watch: Watch, stream: LiveStream, scan: StreamScan, segment: Segment) -> None:
        if stream.attempt.ends and next(failures) == 0:
            raise OSError(24, "Too many open files")
        real(watch, stream, scan, segment)

    monkeypatch.setattr(Watch, "_add", add)
    send(service, KEY, STEPS)
    scanned(service)
    service.watch._timing = service.watch._timing._replace(scan=DAY)  # few bytes wait until the end wants them
    send(service, KEY, FATAL)
    end(service, KEY)
    verdict = final(service, KEY).verdict
    assert next(failures) > 1 and verdict.reason == "ECC Error" and not verdict.problems
    assert (verdict.compression.bytes_in, verdict.progress.step) == (len(STEPS + FATAL), 29)
