"""Beyond the rules: past cases, the model, and what is learned from both, beside a service that goes on as ever."""

import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from logdoctor.errors import ConfirmationRefused, StoreError
from logdoctor.learning.diagnoses.teacher import DiagnosisLesson, Teacher
from logdoctor.rules.scanner import Scanner
from logdoctor.service import consulting, task_runner
from logdoctor.service.casework import Casework
from logdoctor.service.confirming import Ruling
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import JobFacts, StoredVerdict
from logdoctor.store.keeping.work import ASK, LOOK_UP, OPEN_FAILURES, SETTLED, TEACH
from logdoctor.store.learning.confirmed import AGREEMENT, Confirmation, NewConfirmation
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from logdoctor.store.names import Key
from logdoctor.taxonomy import REASONS
from logdoctor.types import Record, Verdict
from tests import waiting
from tests.diagnose.logs import ECC, TORN, nccl_timeout, steps
from tests.llm import server as ways
from tests.llm.server import ModelServer, model_server
from tests.service.services import end, final, killed, rungs, send, serving

pytestmark = pytest.mark.usefixtures("words")


def jam(number: int) -> bytes:
    """A failure that no rule knows: on another node, of another rank, at another address each time."""
    return (
        steps(1, 30)
        + f"[rank{number}]: RuntimeError: hardware error of loom: jammed shuttle at 0x7f{number:02x} on gpu-{number}\n"
        + nccl_timeout([number + 1, number + 2])
    ).encode()


def failed(service: Service, job: str, log: bytes) -> StoredVerdict:
    """The verdict by rules on an attempt that has died, which others may have replaced by now."""
    key = Key(job, 1, "main")
    send(service, key, log)
    end(service, key, 1)
    final(service, key)
    return service.records.history(job, 1)[-1]


def upgraded(service: Service, job: str) -> StoredVerdict:
    """The verdict that took the place of an Unknown one."""

    def look() -> StoredVerdict | None:
        stored = service.records.current(job, 1)
        return stored if stored is not None and stored.verdict.reason != "Unknown" else None

    found = waiting.until(look)
    assert found is not None
    return found


def is_same(one: StoredVerdict | None, other: StoredVerdict) -> bool:
    """Whether the very verdict stands that stood."""
    return one is not None and (one.id, one.verdict, one.final) == (other.id, other.verdict, other.final)


def counts(service: Service) -> dict[str, int]:
    assert service.consultant is not None
    return service.consultant.counts


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def saying_jam(
    reason: str = "CUDA Error",
    status: str = "established",
    words: str = "jammed shuttle",
    recovery: str = "isolate_and_restart",
    **changed: Any,
) -> ways.Behave:
    """A model that quotes the line of the jam, or with other words, as it was shown."""

    def say(body: dict[str, Any]) -> str:
        shown = body["messages"][0]["content"]
        line, text = re.findall(rf"^\[(\d+:\d+)\] (.*{words}.*)$", shown, re.M)[0]
        candidate = {"reason": reason, "fault": "infrastructure", "recovery": recovery, "status": status}
        candidate |= {"why": "The driver reports it.", "quotes": [{"line": line, "text": text}]}
        rejected = [{"reason": "NCCL Timeout Error", "why": "It follows from the jam."}]
        answer = {"candidates": [candidate], "rejected": rejected, "mitigation": "Look at the loom."}
        return json.dumps(answer | changed)

    return ways.saying(say)


def once(thinking: threading.Event, behave: ways.Behave) -> ways.Behave:
    """A model that behaves so when a test lets it."""

    def answer(handler: ways.Handler, body: dict[str, Any]) -> None:
        thinking.wait()
        behave(handler, body)

    return answer


def asking(scanner: Scanner, server: ModelServer, **changed: Any) -> Any:
    model = {"llm_base_url": server.url, "llm_model": "tiny", "llm_seconds": 3600.0}
    return rungs(scanner, **model | changed)


def test_a_confirmed_failure_is_known_when_it_comes_again(folder: Path, scanner: Scanner) -> None:
    """By its case at once, and once its rule has been watched, by that."""
    with serving(folder, scanner, ladder=rungs(scanner)) as service:
        first = failed(service, "a", jam(3))
        assert (first.verdict.reason, first.verdict.decided_by.kind) == ("Unknown", "nobody")
        waiting.until(lambda: counts(service)["unknown"] == 1)
        ruling = Ruling(
            "Dataloader Killed", fix="drained the loom", evidence=(("main", 30),), detail="its reed is bent"
        )
        entered = service.casework.confirm(first.id, "op", ruling)
        assert entered.corrects and entered.evidence[0].quote.startswith("[rank3]: RuntimeError: hardware error")
        waiting.until(lambda: service.rules.list(DIAGNOSIS))
        mended = upgraded(service, "a").verdict
        assert (mended.reason, mended.decided_by.rule) == ("Dataloader Killed", f"case/{entered.id}")
        assert mended.progress == first.verdict.progress and mended.compression == first.verdict.compression
        assert mended.evidence[0].line == 30 and "loom" not in mended.suggestion and "op corrected" in mended.why
        assert mended.detail == "its reed is bent"
        failed(service, "b", jam(5))
        second = upgraded(service, "b").verdict
        assert "reed" not in second.detail, "that is said of one failure"
        assert (second.reason, second.decided_by.kind) == ("Dataloader Killed", "case")
        assert second.decided_by.rule == f"case/{entered.id}" and second.evidence[0].line == 30
        assert counts(service)["case"] == 1
        waiting.until(lambda: service.rules.list(DIAGNOSIS, "active"))
        waiting.until(lambda: any(rule.status == "active" for rule in service.watch.taught.rules))
        third = failed(service, "c", jam(9)).verdict
        assert (third.reason, third.decided_by.kind, third.first_rank) == ("Dataloader Killed", "rule", 9)
        assert third.decided_by.rule.startswith("learned/")
        assert third.decided_by.rulebook != first.verdict.decided_by.rulebook, "law 8"


def test_words_about_a_job_reach_verdicts_of_those_who_may_read_of_it_only(folder: Path, scanner: Scanner) -> None:
    """By case and by rule alike: what helped beta is for beta, that it failed of this is for all."""
    with serving(folder, scanner, ladder=rungs(scanner)) as service:
        service.tokens.create("alpha", ["read"], ["alpha-"])
        service.tokens.create("beta", ["read"], ["beta-"])
        service.tokens.create("beta's nodes", ["ingest"], ["beta-2"])
        ruling = Ruling("Dataloader Killed", fix="rotate the key of loom-7", evidence=(("main", 30),))
        service.casework.confirm(failed(service, "beta-1", jam(3)).id, "op", ruling)
        waiting.until(lambda: service.rules.list(DIAGNOSIS))

        def told(job: str, number: int, by: str) -> str:
            failed(service, job, jam(number))
            verdict = upgraded(service, job).verdict
            assert (verdict.reason, verdict.decided_by.rule.partition("/")[0]) == ("Dataloader Killed", by)
            return verdict.suggestion

        assert "loom-7" not in told("alpha-1", 4, "case")
        waiting.until(lambda: any(rule.status == "active" for rule in service.watch.taught.rules))
        assert told("alpha-2", 5, "learned") == REASONS["Dataloader Killed"].next_step
        assert told("beta-2", 6, "learned") == "rotate the key of loom-7"
        service.tokens.revoke("alpha")
        assert told("alpha-3", 7, "learned") == "rotate the key of loom-7", "who reads of alpha reads of beta"


@pytest.mark.parametrize("apart", [True, False])
def test_a_model_sees_no_words_about_jobs_that_readers_of_this_one_may_not_see(
    folder: Path, scanner: Scanner, server: ModelServer, apart: bool
) -> None:
    server.behave(saying_jam(words="torn warp"))
    torn = jam(5).replace(b"jammed shuttle", b"torn warp near shuttle")
    with serving(folder, scanner, ladder=rungs(scanner)) as service:
        if apart:
            service.tokens.create("alpha", ["read"], ["alpha-"])
        ruling = Ruling("Dataloader Killed", fix="rotate the key of loom-7", evidence=(("main", 30),))
        service.casework.confirm(failed(service, "beta-1", jam(3)).id, "op", ruling)
        waiting.until(lambda: service.rules.list(DIAGNOSIS))
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        failed(service, "alpha-1", torn)
        upgraded(service, "alpha-1")
    (case,) = re.findall(r"likeness .*", server.bodies[-1]["messages"][0]["content"])
    assert "Dataloader Killed" in case
    assert ("loom-7" in case, "jammed" in case) == (not apart, not apart)


def test_what_was_learned_is_there_after_a_restart(folder: Path, scanner: Scanner) -> None:
    with serving(folder, scanner, ladder=rungs(scanner)) as service:
        stored = failed(service, "a", jam(3))
        service.casework.confirm(stored.id, "op", Ruling("Type Error", evidence=(("main", 30),)))
    with serving(folder, scanner, ladder=rungs(scanner)) as service:
        waiting.until(lambda: service.rules.list(DIAGNOSIS))
        failed(service, "b", jam(4))
        assert upgraded(service, "b").verdict.reason == "Type Error"
        kept = service.casework.confirmed.cases()[0]
        assert upgraded(service, "a").verdict.decided_by.rule == f"case/{kept.id}"
        service.casework.withdraw(kept.id, "op", "it was the loom of another")
        waiting.until(lambda: all(rule.status == "retired" for rule in service.rules.list(DIAGNOSIS)))
        for job in ("a", "b"):
            waiting.until(lambda job=job: service.records.current(job, 1).verdict.reason == "Unknown")  # type: ignore[misc]
        failed(service, "c", jam(6))
        waiting.until(lambda: counts(service)["unknown"] >= 1)
        current = service.records.current("c", 1)
        assert current is not None and current.verdict.reason == "Unknown"


class Lessons:
    """What services teach, by job; the first so many times teaching fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int = 0) -> None:
        self.taught: list[str] = []
        self._failures, self._teach = failures, Teacher.teach
        monkeypatch.setattr(Teacher, "teach", lambda *args: self._taught(*args))

    def _taught(self, teacher: Teacher, confirmation: Confirmation, records: Sequence[Record]) -> DiagnosisLesson:
        if self._failures:
            self._failures -= 1
            raise StoreError("the disk", "is full", "Wait.")
        self.taught.append(confirmation.job)
        return self._teach(teacher, confirmation, records)


def test_of_many_confirmations_at_once_each_is_taught_once(
    folder: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [f"j{number}" for number in range(120)]
    with serving(folder, scanner) as service:  # it only keeps what people say
        for job in jobs:
            service.casework.confirmed.add(NewConfirmation(job, 1, "op", "Type Error"), time.time())
    lessons = Lessons(monkeypatch)
    monkeypatch.setattr(Casework, "known", lambda self, job, number: [Record("main", "a log")])
    for _ in range(2):
        with serving(folder, scanner, ladder=rungs(scanner)) as service:
            waiting.until(lambda: not service.work.keys((TEACH,)))
        assert lessons.taught == jobs


@pytest.mark.parametrize("restarts", [False, True])
def test_a_lesson_that_failed_is_taught_again(
    folder: Path, scanner: Scanner, restarts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "_FIRST_PAUSE", 3600.0 if restarts else 0.01)
    with serving(folder, scanner, ladder=rungs(scanner)) as service:
        stored = failed(service, "a", jam(3))
        lessons = Lessons(monkeypatch, failures=100 if restarts else 2)
        service.casework.confirm(stored.id, "op", Ruling("Type Error", evidence=(("main", 30),)))
        assert upgraded(service, "a").verdict.reason == "Type Error", "it is corrected all the same"
        if not restarts:
            waiting.until(lambda: service.rules.list(DIAGNOSIS))
            waiting.until(lambda: not service.work.keys((TEACH,)))
            assert lessons.taught == ["a"]
            return
        assert not service.rules.list(DIAGNOSIS) and service.work.keys((TEACH,))
        copy = killed(folder, folder.parent / "copy")
    monkeypatch.undo()
    with serving(copy, scanner, ladder=rungs(scanner)) as service:
        waiting.until(lambda: service.rules.list(DIAGNOSIS))


def test_a_kill_loses_no_look_up(folder: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more attempts than are at hand, and none is kept for lessons before the kill."""
    monkeypatch.setattr(consulting, "_AT_HAND", 2)
    with serving(folder, scanner, ladder=rungs(scanner)) as service:
        consultant = service.consultant
        assert consultant is not None
        held, go_on = threading.Event(), threading.Event()

        def hold(*_: object) -> None:
            held.set()
            go_on.wait()
            raise StoreError("the disk", "is full", "Wait.")

        monkeypatch.setattr(consultant._teacher, "settled", hold)
        for number in range(3, 9):
            failed(service, f"j{number}", jam(number))
        held.wait()
        assert len(service.work.keys((SETTLED,))) == 6
        copy = killed(folder, folder.parent / "copy")
        go_on.set()
    monkeypatch.undo()
    with serving(copy, scanner, ladder=rungs(scanner)) as service:
        confirmed = service.casework.confirmed
        waiting.until(lambda: all(confirmed.kept(f"j{number}", 1) for number in range(3, 9)))
        waiting.until(lambda: not service.work.keys((SETTLED,)))
        assert counts(service)["unknown"] >= 6


def test_a_rule_that_takes_out_nodes_waits_for_a_person(folder: Path, scanner: Scanner) -> None:
    with serving(folder, scanner, ladder=rungs(scanner, learn_jobs=1)) as service:
        stored = failed(service, "a", jam(3))
        service.casework.confirm(stored.id, "op", Ruling("CUDA Error", evidence=(("main", 30),)))
        (rule,) = waiting.until(lambda: service.rules.list(DIAGNOSIS))
        for number in range(4, 7):
            failed(service, f"j{number}", jam(number))
            assert upgraded(service, f"j{number}").verdict.decided_by.kind == "case"
        assert service.rules.one(rule.id).status == "shadow"
        service.rules.approve(rule.id, "op", "it is right", time.time())
        waiting.until(lambda: any(rule.status == "active" for rule in service.watch.taught.rules))
        verdict = failed(service, "z", jam(8)).verdict
        assert (verdict.decided_by.rule, verdict.recovery) == (rule.id, "isolate_and_restart")
        assert [suspect.node for suspect in verdict.suspects] == [None] and verdict.suspects[0].rank == 8


def test_what_cannot_be_confirmed(folder: Path, scanner: Scanner) -> None:
    refused = [
        (Ruling(), "is not a reason"),
        (Ruling("Jam"), "is not a reason"),
        (Ruling("Type Error", evidence=(("main", 10_000),)), "is not in a/1"),
        (Ruling("Type Error", evidence=(("other", 1),)), "is not in a/1"),
        (Ruling("Type Error", evidence=(("main", -1),)), "is not in a/1"),
        (Ruling("Type Error", recovery="cordon everything"), "recovery"),
        (Ruling("Type Error", fault="them"), "fault"),
    ]
    with serving(folder, scanner, ladder=rungs(scanner)) as service:
        stored = failed(service, "a", jam(3))
        for ruling, complaint in refused:
            with pytest.raises(ConfirmationRefused, match=complaint):
                service.casework.confirm(stored.id, "op", ruling)
        assert not service.casework.confirmed.cases()


def test_nobody_poses_as_the_agreement_of_attempts(folder: Path, scanner: Scanner) -> None:
    with serving(folder, scanner, ladder=rungs(scanner)) as service:
        stored = failed(service, "a", jam(3))
        for by in (AGREEMENT, f" {AGREEMENT} ", ""):
            with pytest.raises(ConfirmationRefused):
                service.casework.confirm(stored.id, by, Ruling("Type Error"))
        with pytest.raises(ConfirmationRefused, match="does not exist"):
            service.casework.confirm(10_000, "op", Ruling("Type Error"))


def test_the_model_is_asked_last_and_upgrades_the_verdict(folder: Path, scanner: Scanner, server: ModelServer) -> None:
    server.behave(saying_jam())
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        first = failed(service, "a", jam(3))
        assert first.verdict.reason == "Unknown", "the verdict by rules is out first"
        stored = upgraded(service, "a")
        verdict = stored.verdict
        assert (verdict.reason, verdict.recovery, verdict.decided_by.kind) == (
            *("CUDA Error", "isolate_and_restart"),
            "agent",
        )
        assert verdict.decided_by.model == "tiny" and len(verdict.decided_by.prompt) == 64
        assert verdict.evidence[0].line == 30 and [one.reason for one in verdict.alternatives] == ["NCCL Timeout Error"]
        assert len(server.got) == 1, "one call in the usual case"
        (call,) = service.casework.exchanges.of("a", 1)
        assert "jammed shuttle" in str(call) and stored.id != first.id
        known = failed(service, "b", ECC.encode()).verdict
        assert known.reason == "ECC Error" and len(server.got) == 1, "what rules know costs nothing"


def in_doubt(service: Service, job: str, made: int = 29) -> StoredVerdict:
    """The verdict by a rule that is not sure of the cause it names."""
    stored = failed(service, job, (steps(1, made + 1) + TORN).encode())
    verdict = stored.verdict
    assert (verdict.reason, verdict.decided_by.kind) == ("CUDA Error", "rule") and 0.5 < verdict.confidence < 0.7
    return stored


def weighed(service: Service, before: StoredVerdict) -> Verdict:
    """The verdict that took the place of one in doubt."""
    found = waiting.until(lambda: (one := service.records.current(before.job, 1)) and one.id != before.id and one)
    assert isinstance(found, StoredVerdict)
    return found.verdict


def test_a_verdict_in_doubt_is_out_first_and_weighed_then(folder: Path, scanner: Scanner, server: ModelServer) -> None:
    server.behave(saying_jam(words="illegal memory"), ways.saying('{"candidates": []}'))
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        agreed = weighed(service, in_doubt(service, "a"))
        assert (agreed.reason, agreed.confidence, agreed.decided_by.kind) == ("CUDA Error", 0.95, "rule")
        stored = in_doubt(service, "b", 40)
        unsure, before = weighed(service, stored), stored.verdict
        assert (unsure.reason, unsure.recovery) == (before.reason, before.recovery)
        assert unsure.confidence < before.confidence and len(server.got) == 2
    with serving(folder / "off", scanner, ladder=asking(scanner, server, agent_below=0.5)) as service:
        in_doubt(service, "c")
        failed(service, "d", jam(3))
        waiting.until(lambda: counts(service)["unknown"] == 1)
        assert len(server.got) == 3, "nothing was asked about c"


@pytest.mark.in_sqlite
def test_what_a_model_said_of_a_doubt_stands_after_a_kill(folder: Path, scanner: Scanner, server: ModelServer) -> None:
    server.behave(saying_jam("Value Error", words="lattice 7 is bent", recovery="fix_first"))
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        in_doubt(service, "a")
        said = waiting.until(lambda: (one := service.records.current("a", 1)) and one.verdict.decided_by.model and one)
        assert (said.verdict.reason, said.verdict.recovery) == ("Value Error", "ask_human")
        assert said.verdict.alternatives[0].reason == "CUDA Error"
        copy = killed(folder, folder.parent / "copy")
    with serving(copy, scanner, ladder=asking(scanner, server)) as service:
        attempt = service.holding.load("a", 1)
        service.holding.unsettle(attempt)
        service.watch.ask(attempt)
        waiting.until(lambda: attempt.settled)
        assert is_same(service.records.current("a", 1), said) and len(server.got) == 1


def test_a_model_suspects_no_node_outside_of_the_job(folder: Path, scanner: Scanner, server: ModelServer) -> None:
    server.behave(saying_jam())
    log = steps(1, 30) + "gpu-9: RuntimeError: hardware error of loom: jammed shuttle\n" + nccl_timeout([1, 2])
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        service.records.put_job("a", JobFacts(nodelist="gpu-[1-2]"), time.time())
        for job, suspects in (("a", []), ("b", ["gpu-9"])):
            failed(service, job, log.encode())
            verdict = upgraded(service, job).verdict
            assert (verdict.reason, verdict.decided_by.kind) == ("CUDA Error", "agent")
            assert [one.node for one in verdict.suspects] == suspects
            assert ("not part of this job: gpu-9" in verdict.why) == (not suspects)


def test_attempts_that_agree_confirm_each_other(folder: Path, scanner: Scanner, server: ModelServer) -> None:
    server.behave(saying_jam())
    with serving(folder, scanner, ladder=asking(scanner, server, confirm_attempts=2)) as service:
        for number in (3, 4):
            failed(service, f"j{number}", jam(number))
            assert upgraded(service, f"j{number}").verdict.decided_by.kind == "agent"
        (case,) = waiting.until(lambda: service.casework.confirmed.cases())
        assert (case.by, case.reason) == (AGREEMENT, "CUDA Error")
        waiting.until(lambda: service.rules.list(DIAGNOSIS))
        asked = len([one for one in server.got if "jammed" in str(one[1])])
        failed(service, "j5", jam(5))
        last = upgraded(service, "j5").verdict
        assert (last.reason, last.decided_by.kind) == ("CUDA Error", "case")
        assert (last.recovery, last.suspects) == ("ask_human", ()), "no person has said so yet"
        assert len([one for one in server.got if "jammed" in str(one[1])]) == asked, (
            "the same failure costs nothing now"
        )


def test_a_model_does_not_acquit_a_job_that_ended_as_failed(
    folder: Path, scanner: Scanner, server: ModelServer
) -> None:
    server.behave(saying_jam("None", words="iteration", recovery="ask_human"))
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        first = failed(service, "a", jam(3))
        waiting.until(lambda: counts(service)["unknown"] == 1)
        assert is_same(service.records.current("a", 1), first) and server.got


def test_a_second_reader_reads_what_is_new_once_and_confirms_it(
    folder: Path, scanner: Scanner, server: ModelServer
) -> None:
    server.behave(saying_jam("ECC Error", words="uncorrectable ECC"))
    log = (steps(1, 30) + ECC).encode()
    with serving(folder, scanner, ladder=asking(scanner, server, agent_new="on")) as service:
        first = failed(service, "a", log)
        assert first.verdict.decided_by.kind == "rule" and not first.verdict.decided_by.model
        waiting.until(lambda: service.casework.confirmed.cases())
        read = service.records.current("a", 1)
        assert read is not None and read.verdict.decided_by.model == "tiny" and "A model agrees" in read.verdict.why
        assert (read.verdict.reason, read.verdict.recovery) == (first.verdict.reason, first.verdict.recovery)
        (case,) = service.casework.confirmed.cases()
        assert (case.by, case.reason) == (AGREEMENT, "ECC Error")
        asked = len(server.got)
        second = failed(service, "b", log)
        waiting.until(lambda: service.casework.confirmed.kept("b", 1))
        waiting.until(lambda: not service.work.keys({SETTLED, "ask"}))
        assert is_same(service.records.current("b", 1), second) and len(server.got) == asked


@pytest.mark.parametrize(
    "behave",
    [
        ways.status(500),
        ways.status(429, "slow down", retry_after="1000"),
        ways.half,
        ways.refusal,
        ways.saying("{}"),
        ways.saying(json.dumps({"candidates": [{"reason": "Sabotage"}]})),
        saying_jam("Sabotage"),
        saying_jam("CUDA Error", "hypothesis"),
    ],
)
def test_a_model_that_fails_changes_nothing(
    folder: Path, scanner: Scanner, server: ModelServer, behave: ways.Behave
) -> None:
    server.behave(behave)
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        first = failed(service, "a", jam(3))
        waiting.until(lambda: counts(service)["unknown"] + counts(service)["unavailable"])
        current = service.records.current("a", 1)
        assert current == first and current.verdict.recovery == "ask_human"
        assert not service.rules.list(DIAGNOSIS) and not service.casework.confirmed.cases()
        known = failed(service, "b", ECC.encode()).verdict
        assert known.reason == "ECC Error"


def test_a_late_answer_does_not_undo_what_a_person_or_a_restart_did(
    folder: Path, scanner: Scanner, server: ModelServer
) -> None:
    """The attempt goes on while the model thinks: its answer was about another log."""
    thinking = threading.Event()
    server.behave(once(thinking, saying_jam()))
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        key = Key("a", 1, "main")
        failed(service, "a", jam(3))
        waiting.until(lambda: server.got)
        send(service, key, ECC.encode())
        end(service, key, 1)
        later = waiting.until(lambda: (one := final(service, key)).verdict.reason == "ECC Error" and one)
        thinking.set()
        waiting.until(lambda: counts(service)["agent"] == 1 and not service.work.keys((ASK,)))
        assert service.records.current("a", 1) == later


def test_a_stop_does_not_wait_for_the_model(folder: Path, scanner: Scanner, server: ModelServer) -> None:
    server.behave(ways.hanging)
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        failed(service, "a", jam(3))
        waiting.until(lambda: server.got)
    assert not server.over.is_set(), "the answer is still to come"
    server.behave(saying_jam())
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        assert upgraded(service, "a").verdict.reason == "CUDA Error", "it is asked anew after a start"


def test_an_open_failure_can_be_asked_about_again(folder: Path, scanner: Scanner, server: ModelServer) -> None:
    server.behave(ways.saying("{}"), ways.saying("{}"), saying_jam())
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        stored = failed(service, "a", jam(3))
        waiting.until(lambda: counts(service)["unavailable"] == 1)
        service.casework.ask(stored.id)
        assert upgraded(service, "a").verdict.reason == "CUDA Error"
        with pytest.raises(ConfirmationRefused, match="already decided"):
            service.casework.ask(stored.id)


def test_vectors_that_fail_cost_likeness_and_nothing_else(folder: Path, scanner: Scanner, tmp_path: Path) -> None:
    """Cases of the same line, rules, and what people change are there all the same."""
    with serving(folder, scanner, ladder=rungs(scanner, embedding_model=str(tmp_path / "none"))) as service:
        stored = failed(service, "a", jam(3))
        service.casework.confirm(stored.id, "op", Ruling("Type Error", evidence=(("main", 30),)))
        for number in (4, 5):
            failed(service, f"j{number}", jam(number))
            assert upgraded(service, f"j{number}").verdict.reason == "Type Error"
        (rule,) = waiting.until(lambda: service.rules.list(DIAGNOSIS, "active"))
        waiting.until(lambda: any(one.status == "active" for one in service.watch.taught.rules))
        service.rules.retire(rule.id, "op", "it is wrong", time.time())
        waiting.until(lambda: not service.watch.taught.rules)


def test_what_others_said_stands_after_a_kill(folder: Path, scanner: Scanner, server: ModelServer) -> None:
    """The log is read again, and the rules are asked again: they know as little as before."""
    server.behave(saying_jam(), ways.status(500))
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        failed(service, "a", jam(3))
        failed(service, "b", jam(4) + b"another line")
        said = upgraded(service, "a")
        stored = service.records.current("b", 1)
        assert stored is not None
        service.casework.confirm(stored.id, "op", Ruling("Type Error", evidence=(("main", 30),)))
        mended = upgraded(service, "b")
        copy = killed(folder, folder.parent / "copy")
    with serving(copy, scanner, ladder=asking(scanner, server)) as service:
        for before, job in ((said, "a"), (mended, "b")):
            assert is_same(final(service, Key(job, 1, "main")), before)
        waiting.until(lambda: not service.work.keys((SETTLED, LOOK_UP, OPEN_FAILURES, TEACH)))
        for before, job in ((said, "a"), (mended, "b")):
            assert is_same(service.records.current(job, 1), before)


def test_a_person_who_was_quicker_than_the_model_is_right(folder: Path, scanner: Scanner, server: ModelServer) -> None:
    """Also one who names no line: the error that looks worst is cited."""
    thinking = threading.Event()
    server.behave(once(thinking, saying_jam()))
    with serving(folder, scanner, ladder=asking(scanner, server)) as service:
        stored = failed(service, "a", jam(3))
        waiting.until(lambda: server.got)
        service.casework.confirm(stored.id, "op", Ruling("Value Error"))
        thinking.set()
        mended = upgraded(service, "a")
        assert (mended.verdict.reason, mended.verdict.evidence[0].line) == ("Value Error", 30)
        waiting.until(lambda: counts(service)["agent"] == 1 and not service.work.keys((ASK,)))
        assert service.records.current("a", 1) == mended


def test_a_case_is_of_the_line_that_was_named(folder: Path, scanner: Scanner) -> None:
    """Not of what stood beside it, which may come with anything."""
    giving_up = "FATAL: worker group is giving up on this step\n"
    first = giving_up + "error detail: licence server says that no seats are left\n"
    other = giving_up + "error detail: the manifest of shards speaks of another tokenizer\n"
    with serving(folder, scanner, ladder=rungs(scanner)) as service:
        stored = failed(service, "a", (steps(1, 30) + first).encode())
        service.casework.confirm(stored.id, "op", Ruling("Connection Error", evidence=(("main", 31),)))
        assert upgraded(service, "a").verdict.evidence[0].line == 31
        failed(service, "b", (steps(1, 30) + other).encode())
        waiting.until(lambda: counts(service)["unknown"] >= 2)
        current = service.records.current("b", 1)
        assert current is not None and current.verdict.reason == "Unknown"
        failed(service, "c", (steps(1, 40) + first).encode())
        assert upgraded(service, "c").verdict.reason == "Connection Error"
