"""Rules are learned while jobs run, reach streams that run, and hurt nothing: no count, no verdict, no service."""

import gc
import itertools
import sqlite3
import string
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from random import Random

import msgspec
import pytest
import sqlalchemy as sa

from logdoctor.errors import RuleRefused
from logdoctor.learning.filters.kind import kind_of
from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.store.database import Database
from logdoctor.store.jobs.records import JobFacts, Records
from logdoctor.store.learning.learned import ERROR_WORD, Learned, LearnedRules
from logdoctor.store.names import Key
from logdoctor.store.schema import counted_attempts
from logdoctor.types import Compression, Verdict
from tests import waiting
from tests.databases import url_in
from tests.diagnose.logs import ECC, steps
from tests.llm import server as ways
from tests.llm.server import ModelServer, model_server
from tests.service.services import (
    CORPUS,
    Learning,
    activated,
    conserves,
    end,
    final,
    kept_lines,
    killed,
    learning,
    plain,
    rule,
    send,
    serving,
)
from tests.soak import SOAKING

KIND = "name/weave"
FATAL = ECC.encode()
STEPS = steps(1, 30).encode()
ZORB = r"^zorb +shard +\d+ +woven +into +lattice +\d+$"


def woven(first: int, last: int) -> bytes:
    """Three lines for each number that no rule explains."""
    return "".join(
        f"zorb shard {i} woven into lattice {i * 7 % 91}\n"
        f"quill {i % 8} drained {i * 3} pails of ink\n"
        f"moss on gate {i % 5} grew to {i}.5 spans\n"
        for i in range(first, last)
    ).encode()


def knit(first: int, last: int) -> bytes:
    """What jobs of another kind print."""
    return "".join(f"loop {i} purled across needle {i % 9}\n" for i in range(first, last)).encode()


@pytest.fixture
def learns(scanner: Scanner) -> Learning:
    """The miner; a rule is active after two attempts."""
    return learning(scanner)


@pytest.fixture
def service(folder: Path, scanner: Scanner, learns: Learning) -> Iterator[Service]:
    """A service that learns."""
    with serving(folder, scanner, log_agent=learns) as service:
        yield service


@pytest.fixture
def beside(folder: Path, service: Service) -> Iterator[LearnedRules]:
    """The learned rules as another process opens them."""
    with opened_beside(folder) as rules:
        yield rules


@contextmanager
def opened_beside(folder: Path) -> Iterator[LearnedRules]:
    records = Records(url_in(folder / "logdoctor.db"))
    yield LearnedRules(records.database)
    records.close()


def lessons(service: Service) -> int:
    assert service.learner is not None
    return service.learner.agent.lessons


def by_status(service: Service, status: str, kind: str = KIND) -> list[Learned]:
    return service.rules.list(kind, status)


def run(
    service: Service, job: str, log: bytes, attempt: int = 1, exit_code: int | None = 0, stream: str = "main"
) -> Verdict:
    """The verdict on an attempt that sends a log and ends; what it tells of rules has been counted then."""
    key = Key(job, attempt, stream)
    send(service, key, log)
    end(service, key, exit_code)
    verdict = final(service, key).verdict
    rested(service, job, attempt)
    assert conserves(verdict) and verdict.compression.lines_in == log.count(b"\n")
    return verdict


def rested(service: Service, job: str, attempt: int = 1) -> None:
    """Wait until an attempt that is settled was counted, and its last lesson is over."""
    counted = sa.select(counted_attempts).where(counted_attempts.c.job == job, counted_attempts.c.attempt == attempt)

    def look() -> bool:
        with service.records.database.reading() as connection:
            return connection.execute(counted).first() is not None

    waiting.until(look)
    waiting.until(lambda: not service.holding.attempts[job, attempt].in_lesson)


def loaded(service: Service, *kinds: str) -> None:
    """Wait until the rules of kinds are in force as they are stored."""
    learner = service.learner
    assert learner is not None

    def look() -> bool:
        for kind in kinds:
            stored = [(one.id, one.status) for one in service.rules.list(kind)]
            if stored != [(one.id, one.status) for one in learner.agent.books.scanner(kind).book.learned]:
                return False
        return True

    waiting.until(look)


def threads() -> list[str]:
    """The threads of services that run."""
    ours = ("learner", "rule-counter", "rechecker", "rule-reader", "watch", "archivist")
    return [one.name for one in threading.enumerate() if one.name in ours]


def judged(verdict: Verdict) -> bytes:
    """A verdict without what tells which rules took how much."""
    return plain(msgspec.structs.replace(verdict, compression=Compression(0, 0, 0, 0, {}), decided_by=None))  # type: ignore[arg-type]


# what learning is for


def test_rules_are_watched_then_take_lines_and_a_third_job_is_short(service: Service) -> None:
    early, other = Key("weave-9", 1, "main"), Key("knit-1", 1, "main")
    send(service, early, b"a line before anything was learned\n")
    send(service, other, knit(0, 10))
    waiting.until(lambda: kept_lines(service, early)[0] == 1)

    first = Key("weave-1", 1, "main")
    send(service, first, woven(0, 200))
    rules = waiting.until(lambda: by_status(service, "shadow"))
    assert service.records.current("weave-1", 1) is None, "it runs"
    assert len(rules) == 3 and all(one.agent == "miner" and one.source.job == "weave-1" for one in rules)
    end(service, first, 0)
    assert final(service, first).verdict.compression.lines_kept == 600

    loaded(service, KIND)
    second = run(service, "weave-2", woven(0, 200))  # by then the rules may be active: the first job ended well
    assert waiting.until(lambda: len(by_status(service, "active")) == 3)
    loaded(service, KIND)
    third = run(service, "weave-3", woven(200, 400) + b"the only line of its form\n")
    assert third.compression.lines_kept == 1, "one-off lines stay"
    taken = waiting.until(lambda: {one.id: one.taken for one in by_status(service, "active") if one.taken})
    both = (second.compression.rules, third.compression.rules)
    assert taken == {id: sum(rules[id].lines for rules in both if id in rules) for id in third.compression.rules}

    send(service, early, woven(0, 100))
    waiting.until(lambda: kept_lines(service, early) == (301, 1))
    send(service, other, woven(0, 10))
    waiting.until(lambda: kept_lines(service, other) == (40, 40))
    end(service, early, 0)
    assert conserves(final(service, early).verdict)


def test_a_job_that_comes_again_is_no_lesson(service: Service) -> None:
    for number in range(1, 5):
        run(service, "weave", woven(0, 300), number)
    assert lessons(service) == 1
    run(service, "weave-0412", woven(500, 900))
    assert lessons(service) == 1


def test_a_job_that_comes_again_costs_no_call(folder: Path, scanner: Scanner) -> None:
    with model_server() as server, serving(folder, scanner, log_agent=asking(scanner, server)) as service:
        server.behave(ways.writing())
        run(service, "weave-1", woven(0, 300))
        calls = waiting.until(lambda: len(server.got) if by_status(service, "active") else 0)
        assert calls == 6, "five runs and a judge"
        for number in range(2, 5):
            run(service, f"weave-{number}", woven(0, 300))
        assert len(server.got) == calls
        assert run(service, "weave-7", woven(0, 300)).compression.lines_kept == 0


def asking(scanner: Scanner, server: ModelServer, **changed: object) -> Learning:
    return learning(scanner, **{"learn": "model", "llm_base_url": server.url, "llm_model": "tiny"} | changed)


@pytest.mark.parametrize("name", ["Größe 漢字 \u202e", "..", "a" * 200])
def test_any_name_has_a_kind(service: Service, name: str) -> None:
    service.records.put_job("odd", JobFacts(name=name, command="'\"", user=name, image="@:/"), time.time())
    number = itertools.count(1)
    waiting.until(lambda: run(service, "odd", woven(0, 200), next(number)).compression.lines_kept == 0)


def test_facts_that_change_while_a_job_runs(folder: Path, scanner: Scanner, learns: Learning) -> None:
    """The attempt goes on with the rules it has; after a restart it is of its new kind, and its counts are right."""
    key = Key("weave-1", 1, "main")
    with serving(folder, scanner, log_agent=learns) as service:
        activated(service.rules, rule(KIND, ZORB))
        loaded(service, KIND)
        send(service, key, woven(0, 100))
        waiting.until(lambda: kept_lines(service, key) == (300, 200))
        service.records.put_job("weave-1", JobFacts(framework="loom", command="python weave.py"), time.time())
        send(service, key, woven(100, 200))
        waiting.until(lambda: kept_lines(service, key)[0] == 600)
    with serving(folder, scanner, log_agent=learns) as service:
        send(service, key, woven(200, 300) + FATAL)
        end(service, key, 1)
        verdict = final(service, key).verdict
        assert conserves(verdict) and verdict.compression.lines_in == 901 and verdict.reason == "ECC Error"
        assert not verdict.compression.rules, "no rule of the former kind"
        rested(service, "weave-1")
        assert service.rules.kinds().get("loom/weave.py")


WORDS = "quartz onyx jasper agate beryl topaz garnet opal jade flint slate chalk marl gneiss schist basalt".split()


MORE_WORDS = [f"{word}{end}" for word in WORDS for end in ("ite", "oid", "ine")]


def rocks(first: int, last: int, words: Sequence[str] = WORDS) -> bytes:
    """A log of many forms, each of which comes again."""
    return b"".join(f"{word} of seam {i} weighs {i * 7} stone\n".encode() for i in range(first, last) for word in words)


def recognised(service: Service, key: Key, kind: str) -> None:
    """Wait until a job is known to be of a kind, and its attempt goes on as one."""
    waiting.until(lambda: (job := service.records.job(key.job)) is not None and job.facts.like == kind)
    attempt = service.holding.attempts[key.job, key.attempt]
    waiting.until(lambda: attempt.is_redescribed or attempt.kind == kind)


def test_jobs_of_which_nothing_is_told_are_recognised(folder: Path, scanner: Scanner, learns: Learning) -> None:
    with serving(folder, scanner, log_agent=learns) as service:
        first = Key("8412", 1, "main")
        send(service, first, rocks(0, 40))
        end(service, first, 0)
        final(service, first)
        waiting.until(lambda: len(by_status(service, "active", "like/8412")) == len(WORDS))
        loaded(service, "like/8412")
        key = Key("8413", 1, "main")
        send(service, key, rocks(50, 52))
        recognised(service, key, "like/8412")
        send(service, key, rocks(52, 60))
        waiting.until(lambda: kept_lines(service, key) == (160, 32))
    with serving(folder, scanner, log_agent=learns) as service:
        send(service, key, rocks(60, 70))
        end(service, key, 0)
        verdict = final(service, key).verdict
        assert conserves(verdict) and verdict.compression.lines_in == 320
        assert verdict.compression.lines_kept == 32, "all that came behind the first look was known"
        assert service.rules.kinds().keys() == {"like/8412"}


def test_a_command_that_nobody_knows_does_not_hide_what_a_job_prints(service: Service) -> None:
    service.tell("job-1", JobFacts(command="python copy_a.py"), time.time())
    run(service, "job-1", rocks(0, 40, MORE_WORDS))
    loaded(service, "copy_a.py")
    service.tell("job-2", JobFacts(command="python copy_b.py"), time.time())
    send(service, Key("job-2", 1, "main"), rocks(0, 2, MORE_WORDS))
    recognised(service, Key("job-2", 1, "main"), "copy_a.py")
    send(service, Key("job-2", 1, "main"), rocks(2, 40, MORE_WORDS))
    end(service, Key("job-2", 1, "main"), 0)
    learned = len(by_status(service, "active", "copy_a.py"))  # not all 48: a form that few samples of a log show waits
    assert final(service, Key("job-2", 1, "main")).verdict.compression.lines_kept == 1920 - 38 * learned
    assert learned > 40
    assert service.rules.kinds().keys() == {"copy_a.py"}


def test_what_is_told_later_says_more_than_what_a_log_looks_like(service: Service) -> None:
    send(service, Key("8412", 1, "main"), rocks(0, 40))
    recognised(service, Key("8412", 1, "main"), "like/8412")
    service.tell("8412", JobFacts(nodes=4), time.time())
    told = service.tell("8412", JobFacts(framework="quarry"), time.time())
    assert told.facts.like is None and kind_of("8412", told.facts) == "quarry"
    send(service, Key("9", 1, "main"), b"a line\n")
    end(service, Key("9", 1, "main"), 0)
    final(service, Key("9", 1, "main"))
    known = service.records.job("9")
    assert known is not None and known.facts.like is None, "a line is no kind"


# conservation and verdicts


def test_all_that_is_acknowledged_is_archived_and_counted_while_rules_come_and_go(
    folder: Path, scanner: Scanner, learns: Learning
) -> None:
    logs = {Key(f"weave-{n}", 1, s): woven(n, n + 300) + knit(0, n) for n in range(6) for s in ("rank 0", "rank 1")}

    def sends(key: Key) -> None:
        chance, log, at = Random(str(key)), logs[key], 0
        while at < len(log):
            size = chance.randrange(1, 4000)
            send(service, key, log[at : at + size])
            at += size

    with serving(folder, scanner, log_agent=learns) as service, ThreadPoolExecutor(4) as pool:
        service.rules.add([rule(KIND, r"^loop +\d+ +purled +across +needle +\d+$")], "tests", 1.0)
        sending = [pool.submit(sends, key) for key in logs]
        while not all(one.done() for one in sending):
            for one in service.rules.list(KIND):
                step = service.rules.approve if one.status in ("shadow", "retired") else service.rules.retire
                with suppress(RuleRefused):  # the agent was quicker
                    step(one.id, "tests", "try", time.time(), one.status)
            wait(sending, 0.02)
        for one in sending:
            one.result()
        for n in range(6):
            key = Key(f"weave-{n}", 1, "rank 0")
            end(service, key, 0)
            verdict = final(service, key).verdict
            assert conserves(verdict) and verdict.compression.lines_in == 2 * logs[key].count(b"\n")
        for key, log in logs.items():
            assert b"".join(service.logs.view(key).chunks()) == log


BY_SIZE = sorted((CORPUS / "failures").glob("*.log"), key=lambda path: path.stat().st_size)
CHOSEN = BY_SIZE[4 : 70 : 6 if SOAKING else 17]


@pytest.mark.more_in_soak
def test_verdicts_are_the_same_as_without_learning(tmp_path: Path, scanner: Scanner) -> None:
    """Also when rules take most lines before and behind the failure."""
    chance = Random(4)
    made: dict[str, bytes] = {}

    def judge(service: Service, path: Path, attempt: int) -> None:
        key = Key(f"weave-{path.stem}", attempt, "main")
        log = woven(0, 180) + path.read_bytes()
        log += (b"" if log.endswith(b"\n") else b"\n") + woven(0, 2)
        while log:
            size = chance.randrange(1, 20_000)
            send(service, key, log[:size])
            log = log[size:]
        end(service, key, 1)
        verdict = final(service, key).verdict
        assert conserves(verdict)
        what = judged(verdict).replace(f"weave-{path.stem}/{attempt}".encode(), b"")
        assert made.setdefault(path.stem, what) == what, path.stem

    with serving(tmp_path / "off", scanner) as service:
        for path in CHOSEN:
            judge(service, path, 1)
    with serving(tmp_path / "on", scanner, log_agent=learning(scanner, learn_jobs=1)) as service:
        for attempt in (1, 2):
            for path in CHOSEN:
                judge(service, path, attempt)
            rested(service, f"weave-{CHOSEN[-1].stem}", attempt)
        assert len([one for one in service.rules.list() if one.taken]) >= 3


# restarts


def test_a_restart_goes_on_with_rules_and_counts(folder: Path, scanner: Scanner) -> None:
    """What the miner learns of these lines stays in shadow, whenever it comes: only people make rules active."""
    learns = learning(scanner, learn_jobs=0)
    key, other = Key("weave-1", 1, "main"), Key("knit-1", 1, "main")
    with serving(folder, scanner, log_agent=learns) as service:
        ids = activated(service.rules, rule(KIND, ZORB))
        loaded(service, KIND)
        send(service, key, woven(0, 100) + b"half a li")
        send(service, other, knit(0, 50))
        waiting.until(lambda: kept_lines(service, key)[0] == 300 and kept_lines(service, other)[0] == 50)
        waiting.until(lambda: len(by_status(service, "shadow")) == 2)
        loaded(service, KIND)
    assert list((folder / "archive").rglob("*.state")), "it was kept where the stream stood"
    for number in (1, 2):
        with serving(folder, scanner, log_agent=learns) as service:
            send(service, key, b"ne\n" + woven(100 * number, 100 * number + 100) + b"half a li")
            lines = 300 + 301 * number
            waiting.until(lambda lines=lines: kept_lines(service, key)[0] == lines)  # type: ignore[misc]
            assert kept_lines(service, key)[1] == 200 + 201 * number, "what was taken before is still known"
            activated(service.rules, rule(KIND, rf"^unheard +of +{number} \d+$"))  # the next start knows more
    with serving(folder, scanner, log_agent=learns) as service:
        end(service, key, 0)
        verdict = final(service, key).verdict
        assert conserves(verdict) and verdict.compression.rules[ids[0]].lines == 300
        assert verdict.compression.lines_in == 900 + 2 + 1
        end(service, other, 0)
        assert final(service, other).verdict.compression.lines_kept == 50


def test_a_kill_goes_on_with_rules_and_counts(tmp_path: Path, folder: Path, scanner: Scanner, learns: Learning) -> None:
    """With snapshots that were taken before, with and after learned rules."""
    key = Key("weave-1", 1, "main")
    log = woven(0, 50_000)
    with serving(folder, scanner, log_agent=learns) as service:
        third = log.index(b"\n", len(log) // 3) + 1
        send(service, key, log[:third])
        waiting.until(lambda: by_status(service, "shadow"))
        for one in by_status(service, "shadow"):
            service.rules.approve(one.id, "tests", "good", time.time())
        waiting.until(lambda: len(service.rules.list(KIND, "active")) >= 3)
        waiting.until(lambda: kept_lines(service, key)[0] == log[:third].count(b"\n"))
        for at in range(third, len(log), 1 << 20):
            send(service, key, log[at : at + (1 << 20)])
        waiting.until(lambda: service.logs.standing(key).state)
        left = killed(folder, tmp_path / "killed")
    with serving(left, scanner, log_agent=learns) as service:
        assert len(by_status(service, "active")) >= 3
        send(service, key, woven(0, 10) + FATAL)
        end(service, key, 1)
        verdict = final(service, key).verdict
        assert conserves(verdict) and verdict.compression.lines_in == 150_000 + 31
        assert verdict.reason == "ECC Error" and verdict.evidence[0].line == 150_031
        again = run(service, "weave-2", woven(0, 200))
        assert again.compression.lines_kept == 0


# what is done beside the service


def test_steps_that_are_taken_beside_the_service_reach_streams_that_run(service: Service, beside: LearnedRules) -> None:
    key = Key("weave-1", 1, "main")
    sent = left = 0

    def sees(taken: int) -> None:
        """From some line on the rule takes, or no longer takes, its lines."""
        nonlocal sent, left

        def look() -> bool:
            nonlocal sent, left
            send(service, key, b"zorb shard 1 woven into lattice 2\n" * 4)
            sent += 4
            waiting.until(lambda: kept_lines(service, key)[0] == sent)
            before, left = left, kept_lines(service, key)[1]
            return left - before == 4 - taken

        waiting.until(look)

    sees(0)
    (one,) = beside.add([rule(KIND, ZORB)], "user-17", time.time())
    beside.approve(one.id, "user-17", "fine", time.time())
    sees(4)
    beside.retire(one.id, "user-17", "not fine", time.time())
    sees(0)
    beside.undo(one.id, "user-17", "fine after all", time.time())
    sees(4)
    end(service, key, 0)
    verdict = final(service, key).verdict
    assert conserves(verdict) and verdict.compression.lines_in == sent
    rested(service, "weave-1")
    counted = beside.one(one.id)
    assert (counted.jobs, counted.taken) == (1, verdict.compression.rules[one.id].lines)


# evidence


@pytest.mark.parametrize("colour", ["", "\x1b[31m"])
def test_a_rule_that_matches_what_a_verdict_cites_is_retired(service: Service, colour: str) -> None:
    """Of whatever kind it is; nobody else need have shown that it did harm."""
    line = "[ERROR] the warp thread 17 has snapped"
    pattern = r"^the warp thread \d+ has snapped$"
    waits = f"{ERROR_WORD}: it looks like trouble"
    watched = service.rules.add([rule("name/elsewhere", pattern), rule("name/knit", pattern)], "tests", 1.0)
    proposed = service.rules.add([rule(KIND, pattern, "proposed", waits_for=waits)], "tests", 1.0)
    apart = activated(service.rules, rule("name/elsewhere", ZORB))
    (active,) = activated(service.rules, rule("name/active", pattern))
    loaded(service, "name/elsewhere", "name/knit", "name/active")
    paint = f"{colour}{line}\x1b[0m" if colour else line
    verdict = run(service, "other-1", STEPS + f"{paint}\n".encode(), exit_code=1)
    assert [one.quote for one in verdict.evidence] == [paint]
    for id in (watched[0].id, watched[1].id, active):
        waiting.until(lambda id=id: service.rules.one(id).status == "retired")  # type: ignore[misc]
        event = service.rules.events(id)[0]
        assert (event.by, event.to_status) == ("logdoctor", "retired")
        assert "other-1/1" in event.why and "warp thread 17" in event.why
    assert service.rules.one(proposed[0].id).status == "proposed"
    assert service.rules.one(apart[0]).status == "active"


def test_what_was_cited_is_never_learned(service: Service) -> None:
    """A later job prints the line a thousand times, without its level."""
    run(service, "weave-1", STEPS + b"[ERROR] the warp thread 17 has snapped\n", exit_code=1)
    log = "".join(f"the warp thread {i} has snapped\n" for i in range(600)).encode()
    number = itertools.count(2)
    waiting.until(lambda: run(service, f"weave-{next(number)}", woven(0, 300) + log).compression.lines_kept == 600)
    assert not [one for one in service.rules.list() if "warp" in one.pattern]


# hostile


@pytest.mark.more_in_soak
def test_many_kinds_at_once(folder: Path, scanner: Scanner, learns: Learning) -> None:
    pairs = itertools.product(string.ascii_lowercase, repeat=2)
    names = ["".join(letters) for letters in pairs][: 300 if SOAKING else 12]
    with serving(folder, scanner, log_agent=learns) as service:

        def sends(name: str) -> None:
            key = Key(f"of{name}", 1, "main")
            send(service, key, woven(0, 40) + FATAL)
            end(service, key, 1)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(sends, names))
        for name in names:
            verdict = final(service, Key(f"of{name}", 1, "main")).verdict
            assert verdict.reason == "ECC Error" and conserves(verdict) and verdict.compression.lines_in == 121
        waiting.until(lambda: service.rules.kinds())
        assert {"learner", "rule-counter", "watch"} <= set(threads())
    waiting.until(lambda: not threads())


def test_huge_and_strange_lines(service: Service) -> None:
    huge = b"zorb " * 400_000
    odd = b"\xff\xfe\x00 odd 1\n" * 300 + b"\r\r\r\n" * 300 + "\u2028 \U0001f600 7\n".encode() * 300
    for number in (1, 2, 3):
        log = huge + b"\n" + woven(0, 200) + odd + b"\x1b[31m" + huge + b"\x1b[0m\n" + FATAL
        verdict = run(service, "weave", log, number, 1)
        assert verdict.reason == "ECC Error"
    assert verdict.compression.lines_kept < 1000


@pytest.mark.in_sqlite
def test_a_locked_database_only_costs_time(service: Service, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        run(service, f"weave-{number}", woven(0, 200))
    waiting.until(lambda: by_status(service, "active") and not by_status(service, "shadow"))
    tried, writing = threading.Semaphore(0), Database.writing

    def begins(database: Database) -> AbstractContextManager[sa.Connection]:
        tried.release()
        return writing(database)

    monkeypatch.setattr(Database, "writing", begins)
    with (
        ThreadPoolExecutor(1) as pool,
        closing(sqlite3.connect(folder / "logdoctor.db", isolation_level=None)) as writer,
    ):
        writer.execute("BEGIN IMMEDIATE")
        late = service.intake.take(Key("weave-1", 1, "late"), 0, woven(0, 10))
        tried.acquire()
        assert not late.done()
        writer.execute("ROLLBACK")
        assert late.result().next == len(woven(0, 10))
        writer.execute("BEGIN IMMEDIATE")
        while tried.acquire(blocking=False):
            pass
        sending = pool.submit(run, service, "weave-3", woven(0, 200))
        tried.acquire()
        assert not sending.done()
        writer.execute("ROLLBACK")
        verdict = sending.result()
    assert verdict.compression.lines_kept == 0
    assert waiting.until(lambda: all(one.jobs == 3 for one in by_status(service, "active")))
    assert service.records.attempt("weave-3", 1)


BREAKS: dict[str, dict[str, str]] = {
    "patterns and statuses": {
        "hyperscan refuses it": "pattern = '^(?<=x)y$'",
        "it is none": "pattern = '^(y$'",
        "it is too large": "pattern = '^(?:(?:(?:a{1,900}){1,900}){1,900})$'",
        "it is empty": "pattern = ''",
        "the status is unknown": "status = 'bogus'",
    },
    "the rest": {
        "the time is none": "created = 1e300, changed = -1e300",
        "it is no JSON": "origin = '{'",
        "it is of another form": "origin = '{\"title\": 7}'",
        "no job": "origin = replace(origin, 'source', 'sauce')",
        "the metric is none": "origin = replace(origin, 'metrics\":[', 'metrics\":[\"(?P<\"')",
    },
}
"""What somebody may have written into rows by hand who thought he knew better."""


@pytest.mark.in_sqlite
@pytest.mark.parametrize("faults", BREAKS)
def test_one_bad_row_takes_no_other_rule_with_it(folder: Path, scanner: Scanner, learns: Learning, faults: str) -> None:
    """Each of a kind of its own, active and in shadow; a job of each kind runs all the time."""
    jobs = {f"a{'bcdef'[number]}": change for number, change in enumerate(BREAKS[faults].values())}
    running = [Key(f"{name}-1", 1, "main") for name in jobs]
    with serving(folder, scanner, log_agent=learns) as service:
        activated(service.rules, rule("name/knit", r"^loop \d+ purled across needle \d+$"))
        for name in jobs:
            activated(service.rules, rule(f"name/{name}", ZORB))
            service.rules.add([rule(f"name/{name}x", ZORB)], "tests", 1.0)
        for key in running:
            send(service, key, woven(0, 10))
        with sqlite3.connect(folder / "logdoctor.db") as connection:
            for name, change in jobs.items():
                bad = connection.execute(f"UPDATE learned_rules SET {change} WHERE kind LIKE ?", (f"name/{name}%",))
                assert bad.rowcount == 2
            connection.execute("UPDATE counters SET value = value + 1 WHERE name = 'learned'")
        connection.close()
        work_all_the_same(service, running, "knit-1")
        activated(service.rules, rule("name/zzz", ZORB))
        waiting.until(lambda: "name/zzz" in books(service))
    with serving(folder, scanner, log_agent=learns) as service:
        work_all_the_same(service, running, "knit-2")
        for key in running:
            end(service, key, 1)
            verdict = final(service, key).verdict
            assert conserves(verdict) and verdict.reason == "ECC Error" and not verdict.problems


def books(service: Service) -> list[str]:
    """The kinds whose rules are in force."""
    assert service.learner is not None
    return service.learner.agent.books.kinds


def takes_lines(service: Service, kind: str) -> bool:
    """Whether a rule of a kind is in force that takes lines; a moment before, it was loaded in shadow."""
    assert service.learner is not None
    return any(rule.status == "active" for rule in service.learner.agent.books.scanner(kind).book.learned)


def work_all_the_same(service: Service, running: list[Key], job: str) -> None:
    """Jobs of the kinds with bad rows are read, and rules of other kinds take their lines."""
    before = [kept_lines(service, key)[0] for key in running]
    for key, lines in zip(running, before, strict=True):
        send(service, key, FATAL + woven(0, 10))
        waiting.until(lambda key=key, lines=lines: kept_lines(service, key)[0] >= lines + 31)  # type: ignore[misc]
    waiting.until(lambda: takes_lines(service, "name/knit"))
    assert run(service, job, knit(0, 30)).compression.lines_kept == 0


@pytest.mark.in_sqlite
def test_shapes_that_cannot_be_read_stop_no_stream(folder: Path, scanner: Scanner, learns: Learning) -> None:
    key = Key("weave-2", 1, "main")
    with serving(folder, scanner, log_agent=learns) as service:
        run(service, "weave-1", woven(0, 200))
        waiting.until(lambda: by_status(service, "active"))
    with sqlite3.connect(folder / "logdoctor.db") as connection:
        connection.execute("UPDATE seen_shapes SET shapes = x'616263'")
    connection.close()
    with serving(folder, scanner, log_agent=learns) as service:
        send(service, key, woven(0, 200) + FATAL)
        end(service, key, 1)
        verdict = final(service, key).verdict
        assert (verdict.reason, verdict.problems) == ("ECC Error", ())
        assert conserves(verdict) and verdict.compression.lines_in == 601


@pytest.mark.in_sqlite
def test_a_table_that_is_gone_stops_no_stream(folder: Path, scanner: Scanner, learns: Learning) -> None:
    """Whatever the Log Agent meets, jobs are read and judged."""
    with serving(folder, scanner, log_agent=learns) as service:
        run(service, "weave-1", woven(0, 200))
        with sqlite3.connect(folder / "logdoctor.db") as connection:
            for table in ("seen_shapes", "rule_hits", "counted_attempts", "rule_kinds", "rule_refusals"):
                connection.execute(f"DROP TABLE {table}")
        connection.close()
        for job in ("weave-2", "knit-1"):
            key = Key(job, 1, "main")
            send(service, key, woven(0, 200) + FATAL)
            end(service, key, 1)
            verdict = final(service, key).verdict
            assert (verdict.reason, verdict.problems, verdict.compression.lines_in) == ("ECC Error", (), 601)
        assert {"learner", "rule-counter"} <= set(threads())


def test_many_attempts_that_end_during_a_long_lesson_are_all_counted(folder: Path, scanner: Scanner) -> None:
    """What a verdict tells of rules must not be lost because a model thinks."""
    with model_server() as server:
        server.behave(ways.hanging)
        agent = asking(scanner, server, llm_seconds=3600.0, learn_jobs=10_000)
        with serving(folder, scanner, log_agent=agent) as service:
            (one,) = service.rules.add([rule("name/knit", r"^loop \d+ purled across needle \d+$")], "tests", 1.0)
            send(service, Key("weave-1", 1, "main"), woven(0, 300))
            waiting.until(lambda: server.got)
            loaded(service, "name/knit")
            keys = [Key(f"knit-{n}", 1, "main") for n in range(40)]
            for key in keys:
                send(service, key, knit(0, 1))
                end(service, key, 0)
            for key in keys:
                final(service, key)
            server.over.set()
            waiting.until(lambda: service.rules.one(one.id).jobs == 40)


def test_an_attempt_leaves_memory_while_its_lesson_waits(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many attempts that end at once only the names wait; their lines are read again from the archive."""
    assert service.learner is not None
    agent, go = service.learner.agent, threading.Event()
    learn = agent.learn
    monkeypatch.setattr("logdoctor.service.learning._WITH_LINES", 0)
    monkeypatch.setattr(agent, "learn", lambda *lesson: go.wait() and learn(*lesson))
    send(service, Key("weave-1", 1, "main"), woven(0, 300))
    waiting.until(lambda: service.holding.attempts["weave-1", 1].in_lesson)
    key = Key("knit-1", 1, "main")
    send(service, key, knit(0, 30))
    end(service, key, 0)
    final(service, key)
    left = weakref.ref(service.holding.attempts["knit-1", 1])
    waiting.until(lambda: service.learner and len(service.learner._lessons) == 1)
    waiting.until(lambda: service.holding.forget(service.holding.attempts["knit-1", 1]))
    waiting.until(lambda: gc.collect() >= 0 and left() is None)
    go.set()
    waiting.until(lambda: by_status(service, "active", "name/knit"))


def test_steps_of_a_job_are_read_as_before(service: Service) -> None:
    """Rules that were learned beside known lines leave progress alone."""
    number = itertools.count(1)

    def look() -> bool:
        verdict = run(service, "weave", woven(0, 200) + steps(1, 40).encode() + woven(0, 20), next(number), 0)
        assert verdict.progress.step == 39
        return verdict.compression.lines_kept == 0

    waiting.until(look)


@pytest.mark.parametrize("exit_code", [1, None])
def test_an_attempt_that_left_memory_is_not_judged_by_what_is_left_of_it(
    service: Service, exit_code: int | None
) -> None:
    """A slow model notices something when the attempt is gone, or is back as another object with more lines."""
    verdict = run(service, "weave-1", woven(0, 10), exit_code=exit_code)
    assert (verdict.outcome, verdict.reason) == (("failed", "Unknown") if exit_code else ("unknown", "None"))
    attempt = service.holding.attempts["weave-1", 1]
    assert waiting.until(lambda: service.holding.forget(attempt))
    service._reconsider(attempt)
    assert attempt.settled and not attempt.asked
    back = service.holding.load("weave-1", 1)
    service._reconsider(attempt)
    assert back.settled and not back.asked and not attempt.asked
    service._reconsider(back)
    assert not back.settled
