"""Did learned rules take what a verdict needed? Then the verdict is issued again, and the rule takes no more."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

from logdoctor.diagnose.ending import FAILED
from logdoctor.errors import LogdoctorError
from logdoctor.rules.scanner import Scanner
from logdoctor.service import recheck
from logdoctor.service.learning import SettledAttempt
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.store.keeping.work import COUNT, RECHECK
from logdoctor.store.learning.learned import ERROR_WORD, NewRule, Source, StoredClaim
from logdoctor.store.learning.refusals import Votes
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from logdoctor.store.names import Key
from logdoctor.store.schema import counted_attempts
from tests import waiting
from tests.diagnose.logs import ECC, steps
from tests.service.services import (
    activated,
    conserves,
    end,
    final,
    learning,
    rule,
    rungs,
    send,
    serving,
)

KIND = "name/weave"
KEY = Key("weave-1", 1, "main")
STEPS = steps(1, 30).encode()
SNAP = b"[ERROR] the warp thread 17 has snapped\n"
SNAPS = r"^the warp thread \d+ has snapped$"
OTHERS = r"^zorb shard \d+$"


@pytest.fixture
def service(folder: Path, scanner: Scanner) -> Iterator[Service]:
    """A service that rechecks every failure."""
    with serving(folder, scanner, log_agent=learning(scanner), recheck=1) as service:
        yield service


def harmless(service: Service, pattern: str) -> str:
    """A rule that a human has called harmless, in force."""
    waits = f"{ERROR_WORD}: it looks like trouble"
    (id,) = activated(service.rules, rule(KIND, pattern, "proposed", waits_for=waits))
    assert service.learner is not None
    books = service.learner.agent.books
    waiting.until(lambda: [one.status for one in books.scanner(KIND).book.learned if one.id == id] == ["active"])
    return id


def was_counted(service: Service) -> bool:
    """Whether the attempt was looked at for learned rules, whatever it shows of them."""
    with service.records.database.reading() as connection:
        return (
            connection.execute(sa.select(counted_attempts).where(counted_attempts.c.job == KEY.job)).first() is not None
        )


def counted(service: Service, id: str, jobs: int) -> None:
    """Wait until the rule was counted in so many attempts, and these were rechecked."""
    waiting.until(lambda: service.rules.one(id).jobs >= jobs)
    waiting.until(lambda: not service.work.keys((COUNT, RECHECK)))


def test_a_verdict_that_lacks_a_taken_line_is_issued_again(service: Service) -> None:
    reported: list[StoredVerdict] = []
    service.listeners.append(reported.append)
    id = harmless(service, SNAPS)
    send(service, KEY, STEPS + SNAP)
    end(service, KEY, 1)
    first = waiting.until(lambda: reported)[0]
    assert not first.verdict.evidence and first.verdict.compression.rules[id].lines == 1

    second = waiting.until(lambda: reported[1:])[0]
    assert second.verdict.evidence[0].quote == SNAP.decode().rstrip() and second.verdict.evidence[0].line == 30
    assert conserves(second.verdict) and second.verdict.compression.lines_in == 30
    assert second.final and second.id != first.id
    newest, oldest = service.records.history("weave-1", 1)
    assert (newest.id, oldest.id, oldest.superseded_by) == (second.id, first.id, second.id)

    assert service.rules.one(id).status in ("shadow", "retired")
    event = service.rules.events(id)[0]
    assert event.by == "logdoctor" and "weave-1/1" in event.why
    for number in (2, 3, 4):  # it does not come back by itself
        key = KEY._replace(attempt=number)
        waiting.until(lambda: service.learner and SNAPS not in service.learner.agent.books.scanner(KIND).book.learned)
        send(service, key, STEPS + SNAP)
        end(service, key, 1)
        again = final(service, key)
        assert again.verdict.evidence and not again.verdict.compression.rules.get(id)
    assert service.rules.one(id).status in ("shadow", "retired")
    assert len(service.records.history("weave-1", 1)) == 2


def test_only_the_culprit_is_put_back(service: Service) -> None:
    (other,) = activated(service.rules, rule(KIND, OTHERS))
    id = harmless(service, SNAPS)
    send(service, KEY, STEPS + b"zorb shard 1\n" * 50 + SNAP)
    end(service, KEY, 1)
    waiting.until(lambda: service.rules.one(id).status != "active")
    assert service.rules.one(other).status == "active"


def test_nothing_happens_when_nothing_differs(service: Service) -> None:
    id = harmless(service, OTHERS)
    for number, (log, code) in enumerate(((STEPS + ECC.encode(), 1), (STEPS, 0), (SNAP + STEPS + ECC.encode(), 1)), 1):
        key = KEY._replace(attempt=number)
        send(service, key, b"zorb shard 1\n" * 20 + log)
        send(service, key._replace(stream="rank 1"), b"zorb shard 7\n" * 20 + STEPS)
        end(service, key, code)
        final(service, key)
        counted(service, id, number)
        assert len(service.records.history("weave-1", number)) == 1
    assert service.rules.one(id).status == "active"
    assert service.watch.verdicts == 3


@pytest.mark.parametrize("size", [100, 3_000_000])
def test_what_is_not_archived_yet_is_rechecked_too(service: Service, size: int) -> None:
    """The end of a log is not archived when its verdict is made."""
    id = harmless(service, OTHERS)
    log = b"zorb shard 1\n" * (size // 13) + STEPS + ECC.encode()
    for at in range(0, len(log), 700_000):
        send(service, KEY, log[at : at + 700_000])
    end(service, KEY, 1)
    assert final(service, KEY).verdict.reason == "ECC Error"
    counted(service, id, 1)
    assert len(service.records.history("weave-1", 1)) == 1 and service.rules.one(id).status == "active"


def settled(service: Service, id: str) -> SettledAttempt:
    """What the watch tells of an attempt, to be told again."""
    stored = service.records.current("weave-1", 1)
    assert stored is not None
    attempt = service.holding.attempts.get(("weave-1", 1))
    return SettledAttempt(KIND, "weave-1", 1, {id: (1, 1)}, stored.verdict, attempt.reported if attempt else FAILED, ())


def test_a_deleted_log_is_left_alone(service: Service) -> None:
    id = harmless(service, OTHERS)
    send(service, KEY, b"zorb shard 1\n" * 20 + STEPS + ECC.encode())
    end(service, KEY, 1)
    first = final(service, KEY)
    counted(service, id, 1)
    reported = settled(service, id)
    attempt = service.holding.attempts["weave-1", 1]
    assert service.holding.forget(attempt)
    assert service.retention._delete("weave-1", 1, 1.0)
    service._recheck(reported)
    assert service.records.history("weave-1", 1) == [first] and service.rules.one(id).status == "active"


def test_a_log_with_late_lines_is_left_alone(service: Service) -> None:
    """The verdict that was made before them is withdrawn; a recheck of it must not come back as final."""
    id = harmless(service, OTHERS)
    send(service, KEY, b"zorb shard 1\n" * 20 + STEPS)
    end(service, KEY, 1)
    first = final(service, KEY)
    waiting.until(lambda: was_counted(service))
    reported = settled(service, id)
    send(service, KEY, ECC.encode())
    service._recheck(reported)
    last = waiting.until(lambda: (one := final(service, KEY)).verdict.reason == "ECC Error" and one)
    assert last and [one.id for one in service.records.history("weave-1", 1)] == [last.id, first.id]
    assert service.rules.one(id).status == "active"


def test_an_attempt_that_was_reopened_is_not_reissued(service: Service) -> None:
    send(service, KEY, STEPS)
    end(service, KEY, 1)
    first = final(service, KEY)
    service.records.reopen("weave-1", 1)
    service.watch.reissue("weave-1", 1, first.verdict)
    stored = service.records.current("weave-1", 1)
    assert stored is not None and not stored.final
    service.watch.reissue("nobody", 7, first.verdict)


def test_a_damaged_log_is_left_alone(service: Service, folder: Path) -> None:
    id = harmless(service, OTHERS)
    send(service, KEY, b"zorb shard 1\n" * 20 + STEPS + ECC.encode())
    end(service, KEY, 1)
    first = final(service, KEY)
    counted(service, id, 1)
    reported = settled(service, id)
    assert service.holding.forget(service.holding.attempts["weave-1", 1])
    (path,) = (folder / "archive").rglob("*.zst")
    path.write_bytes(path.read_bytes()[:40])
    with suppress(LogdoctorError):
        service._recheck(reported)
    assert service.records.history("weave-1", 1) == [first] and service.rules.one(id).status == "active"


def test_what_a_human_retired_meanwhile_stays_retired(service: Service) -> None:
    """A recheck may take minutes, and find a culprit that is gone."""
    id = harmless(service, OTHERS)
    service.rules.retire(id, "user-17", "no good", time.time())
    assert service.learner is not None
    service.learner.agent.demote([id], "it took a line", time.time())
    assert service.rules.one(id).status == "retired"


def test_one_in_so_many_is_chosen_and_always_the_same() -> None:
    chosen = [(job, n) for job in ("a", "b", "c") for n in range(1000) if recheck.is_chosen(job, n, 10)]
    assert 200 < len(chosen) < 400
    assert all(recheck.is_chosen(job, n, 10) for job, n in chosen)
    assert recheck.is_chosen("x", 1, 1) and not recheck.is_chosen("x", 1, 0)


def test_learned_diagnosis_rules_are_heard_in_a_recheck(folder: Path, scanner: Scanner) -> None:
    """The verdict of one is not taken back because lines were filtered beside it."""
    line = "RuntimeError: driver of the loom reports a jammed shuttle at 0x7f"
    with serving(folder, scanner, log_agent=learning(scanner), recheck=1, ladder=rungs(scanner)) as service:
        claim = StoredClaim("Value Error", "user", "fix_first")
        pattern = r"^RuntimeError: driver of the loom reports a jammed shuttle at 0x[0-9a-f]+"
        votes, source = Votes(1, (0,), "told"), Source()
        new = NewRule(DIAGNOSIS, pattern, "jam", (line,), (), "shadow", "", "tests", source, votes, 1, claim=claim)
        activated(service.rules, new)
        (taker,) = activated(service.rules, rule(KIND, OTHERS))
        waiting.until(lambda: any(one.status == "active" for one in service.watch.taught.rules))
        assert service.learner is not None
        books = service.learner.agent.books
        waiting.until(lambda: [one.status for one in books.scanner(KIND).book.learned] == ["active"])
        send(service, KEY, STEPS + b"".join(b"zorb shard %d\n" % n for n in range(200)) + line.encode() + b"\n")
        end(service, KEY, 1)
        stored = final(service, KEY)
        assert (stored.verdict.reason, stored.verdict.compression.rules[taker].lines) == ("Value Error", 200)
        counted(service, taker, 1)
        assert service.records.current(KEY.job, 1) == stored


def test_what_a_new_rule_thinned_is_always_looked_at_again(folder: Path, scanner: Scanner) -> None:
    """However few are chosen: the rule has proved itself in no attempt yet."""
    with serving(folder, scanner, log_agent=learning(scanner), recheck=10**9) as service:
        reported: list[StoredVerdict] = []
        service.listeners.append(reported.append)
        id = harmless(service, SNAPS)
        send(service, KEY, STEPS + SNAP)
        end(service, KEY, 1)
        again = waiting.until(lambda: reported[1:])[0]
        assert again.verdict.evidence[0].quote == SNAP.decode().rstrip()
        assert service.rules.one(id).status in ("shadow", "retired")
