"""Records keep what they were told, whoever writes beside them and whatever becomes of the process."""

import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from logdoctor.errors import InputError, LimitReached, NameRefused, StoreError
from logdoctor.store import schema
from logdoctor.store.fit import MAX_PAGE
from logdoctor.store.jobs.records import (
    Attempt,
    CursorError,
    End,
    JobFacts,
    Records,
    StoredVerdict,
    Unjudged,
    Wanted,
    searching,
)
from logdoctor.types import Compression, DecidedBy, Evidence, Progress, Suspect, Verdict
from tests.at_once import at_once
from tests.databases import walks_indexes
from tests.store.conftest import on_both
from tests.verdicts import ecc

BASE = ecc(
    suggestion="Cordon the node.",
    evidence=(Evidence("", "main", 7, "uncorrectable ECC error", "diagnosis/infrastructure/ecc"),),
    suspects=(Suspect("gpu-001", 3, None, "its kernel says so"),),
    first_rank=3,
    decided_by=DecidedBy("rule", "diagnosis/infrastructure/ecc", "abc"),
    fingerprint="f0",
    progress=Progress(step=120),
    compression=Compression(10, 1, 100, 10),
    seconds=0.25,
)


def begin(records: Records, job: str, *names: str) -> None:
    """Enter that bytes of some streams of the first attempt of a job have come."""
    nothing = {"shard": 0, "next": 1, "lines": 0, "archived": 0, "changed": 1.0, "scanned": 0, "kept": 0}
    with records.database.writing() as connection:
        for name in names:
            row = {"job": job, "attempt": 1, "stream": name, "state": "", "problem": "", **nothing}
            connection.execute(sa.insert(schema.streams).values(row))


def forget_log(records: Records, at: float) -> None:
    """Enter that the log of the attempt a/1 was deleted, as the archive does."""
    with records.database.writing() as connection:
        mine = (schema.attempts.c.job == "a", schema.attempts.c.number == 1)
        connection.execute(sa.update(schema.attempts).where(*mine).values(deleted=at))


def verdict(**changes: Any) -> Verdict:
    return msgspec.structs.replace(BASE, **changes)


def on(*nodes: str | None) -> tuple[Suspect, ...]:
    return tuple(Suspect(node, None, None, "why") for node in nodes)


def published(records: Records, job: str, number: int, what: Verdict, at: float, final: bool = True) -> StoredVerdict:
    stored = records.publish(job, number, what, final, at)
    assert stored is not None
    return stored


def walk(records: Records, wanted: Wanted, limit: int) -> list[StoredVerdict]:
    found, cursor = [], None
    while True:
        page = records.search(wanted, cursor, limit)
        assert len(page.items) <= limit
        found += page.items
        if (cursor := page.next) is None:
            return found


# jobs


def test_given_facts_replace_and_absent_ones_stay(records: Records) -> None:
    records.put_job("a", JobFacts(user="ann", nodes=4, labels={"team": "x"}), 1.0)
    job = records.put_job("a", JobFacts(user="bob", image="i"), 2.0)
    assert job.facts == JobFacts(user="bob", nodes=4, image="i", labels={"team": "x"})
    assert (job.created, job.updated) == (1.0, 2.0)
    assert records.job("a") == job
    assert records.job("b") is None


def test_given_labels_replace_all_labels(records: Records) -> None:
    records.put_job("a", JobFacts(labels={"team": "x", "model": "m"}), 1.0)
    assert records.put_job("a", JobFacts(labels={"team": "y"}), 2.0).facts.labels == {"team": "y"}


def test_a_zero_is_a_given_fact(records: Records) -> None:
    records.put_job("a", JobFacts(gpus=8, name="n"), 1.0)
    assert records.put_job("a", JobFacts(gpus=0, name=""), 2.0).facts == JobFacts(gpus=0, name="")


def test_a_claim_of_nodes_replaces_none_that_were_told_by_right(records: Records) -> None:
    assert not records.put_job("a", JobFacts(nodelist="gpu-9"), 1.0).facts.placed
    placed = JobFacts(nodelist="gpu-1", placed=True)
    assert records.put_job("a", placed, 2.0).facts == placed
    assert records.put_job("a", JobFacts(nodelist="gpu-[1-9]", user="eve"), 3.0).facts.nodelist == "gpu-1"
    kept = records.put_job("a", JobFacts(gpus=8), 4.0).facts
    assert (kept.nodelist, kept.placed, kept.user) == ("gpu-1", True, "eve")
    assert records.put_job("a", JobFacts(nodelist="gpu-2", placed=True), 5.0).facts.nodelist == "gpu-2"


@on_both
def test_jobs_come_newest_first_in_pages(records: Records) -> None:
    for number in range(7):
        records.put_job(f"j{number}", JobFacts(), 100.0 + number // 2)
    seen, cursor = [], None
    while True:
        page = records.jobs(cursor, 3)
        seen += [job.job for job in page.items]
        if (cursor := page.next) is None:
            break
    assert seen == ["j6", "j5", "j4", "j3", "j2", "j1", "j0"]


@on_both
def test_jobs_of_prefixes(records: Records) -> None:
    for name in ("team-a/x", "team-b", "Team-a", "team-a"):
        records.put_job(name.replace("/", "."), JobFacts(), 1.0)
    assert {job.job for job in records.jobs(prefixes=("team-a",)).items} == {"team-a.x", "team-a"}


# attempts


def test_the_same_key_is_the_same_attempt(records: Records) -> None:
    assert [records.allot_attempt("a", key, 1.0) for key in ("k1", "k1", "k2", "k1", "k3")] == [1, 1, 2, 1, 3]
    assert records.allot_attempt("b", "k3", 1.0) == 1
    assert records.job("a") is not None


def test_an_attempt_opened_by_number_is_not_allotted_again(records: Records) -> None:
    records.open_attempt("a", 4, 1.0)
    assert records.allot_attempt("a", "k", 2.0) == 5


def test_opening_again_changes_nothing(records: Records) -> None:
    first = records.open_attempt("a", 0, 1.0)
    assert first == Attempt("a", 0, 1.0, None, False, ())
    assert records.open_attempt("a", 0, 9.0) == first == records.attempt("a", 0)
    assert records.job("a") is not None
    assert records.attempt("a", 1) is None


@pytest.mark.parametrize("number", [-1, 1_000_000, 10**30])
def test_an_attempt_out_of_range_is_refused_and_leaves_nothing(records: Records, number: int) -> None:
    with pytest.raises((NameRefused, InputError, StoreError)):
        records.open_attempt("a", number, 1.0)
    assert records.job("a") is None


def test_there_is_no_attempt_after_the_last_number(records: Records) -> None:
    records.open_attempt("a", 999_999, 1.0)
    with pytest.raises(LimitReached, match="job a has an attempt"):
        records.allot_attempt("a", "k", 2.0)


def test_a_later_end_of_a_stream_replaces_the_former(records: Records) -> None:
    records.end("a", 1, End("n2", 1, None, "FAILED", 1.0))
    records.end("a", 1, End("n1", None, 9, None, 2.0))
    attempt = records.end("a", 1, End("n2", 0, None, None, 3.0))
    assert attempt.ends == (End("n1", None, 9, None, 2.0), End("n2", 0, None, None, 3.0))
    assert attempt.ended is None
    assert records.attempt("a", 1) == attempt


def test_the_end_of_the_attempt_keeps_its_first_time(records: Records) -> None:
    assert records.end("a", 1, End("", 1, None, None, 5.0)).ended == 5.0
    attempt = records.end("a", 1, End("", 0, None, "COMPLETED", 8.0))
    assert (attempt.ended, attempt.ends) == (5.0, (End("", 0, None, "COMPLETED", 8.0),))


@on_both
def test_an_attempt_whose_streams_all_ended_has_ended_once_it_is_judged(records: Records) -> None:
    def ended() -> float | None:
        attempt = records.attempt("a", 1)
        assert attempt is not None
        return attempt.ended

    begin(records, "b", "n1", "n2")
    records.end("a", 1, End("n1", 1, None, None, 5.0))
    records.end("a", 1, End("n2", 1, None, None, 8.0))
    records.publish("a", 1, BASE, False, 9.0)
    assert ended() is None
    records.publish("a", 1, BASE, True, 10.0)
    assert ended() == 8.0
    records.reopen("a", 1)
    assert ended() is None, "another of its processes came"
    assert records.end("a", 1, End("", 1, None, None, 20.0)).ended == 20.0
    records.publish("a", 1, BASE, True, 21.0)
    records.reopen("a", 1)
    assert ended() == 20.0, "somebody said that all of it had ended"
    records.end("b", 1, End("n1", 0, None, None, 30.0))
    records.publish("b", 1, BASE, True, 40.0)
    silent = records.attempt("b", 1)
    assert silent is not None and silent.settled and silent.ended is None, "nobody knows when n2 ended"


def test_attempts_of_a_job_in_order(records: Records) -> None:
    for number in (10, 2, 0):
        records.end("a", number, End("s", number, None, None, 1.0))
    records.open_attempt("b", 1, 1.0)
    assert [(a.number, a.ends[0].exit_code) for a in records.attempts("a")] == [(0, 0), (2, 2), (10, 10)]


def test_unsettled_are_those_without_a_final_verdict(records: Records) -> None:
    records.end("a", 1, End("s", 1, None, None, 1.0))
    records.open_attempt("a", 2, 1.0)
    records.publish("b", 1, BASE, False, 1.0)
    records.publish("b", 2, BASE, True, 1.0)
    assert [(a.job, a.number, len(a.ends)) for a in records.unsettled()] == [("a", 1, 1), ("a", 2, 0), ("b", 1, 0)]
    records.settle("a", 2)
    records.reopen("b", 2)
    records.settle("unknown", 1)
    assert [(a.job, a.number) for a in records.unsettled()] == [("a", 1), ("b", 1), ("b", 2)]


# attempts without a verdict


def begun(records: Records, wanted: Wanted, limit: int = 50) -> tuple[list[tuple[str, int]], int]:
    """The attempts that have no verdict yet, and how many there are."""
    found = records.unjudged(wanted, limit)
    return [(one.job, one.attempt) for one in found.items], found.total


def test_what_has_begun_is_listed_until_it_has_a_verdict(records: Records) -> None:
    records.put_job("b", JobFacts(user="ann"), 1.0)
    for job, number, at in (("a", 1, 1.0), ("b", 1, 3.0), ("b", 2, 2.0), ("c", 1, 4.0), ("d", 1, 5.0)):
        records.open_attempt(job, number, at)
    records.publish("c", 1, BASE, False, 5.0)
    records.publish("d", 1, BASE, True, 5.0)
    records.end("b", 2, End("", 1, None, None, 6.0))
    assert begun(records, Wanted()) == ([("b", 1), ("b", 2), ("a", 1)], 3)
    assert records.unjudged(Wanted()).items[1] == Unjudged("b", 2, 2.0, 6.0, "ann")
    forget_log(records, 7.0)
    assert begun(records, Wanted()) == ([("b", 1), ("b", 2)], 2)
    records.reopen("d", 1)
    assert begun(records, Wanted(job="d")) == ([], 0), "its verdict stands, though it is judged again"


UNJUDGED = [
    (Wanted(job="ab"), ["ab"]),
    (Wanted(job="AB"), []),
    (Wanted(user="ann"), ["c", "a"]),
    (Wanted(user="Ann"), []),
    (Wanted(user="x\0y"), ["d"]),
    (Wanted(user="ann", prefixes=("a",)), ["a"]),
    (Wanted(prefixes=("a",)), ["ab", "a"]),
    (Wanted(prefixes=("a%", "_", "A")), []),
    (Wanted(since=2.0, until=4.0), ["c", "ab"]),
    (Wanted(outcomes=("running", "failed")), ["d", "c", "ab", "a"]),
    (Wanted(outcomes=("failed",)), []),
    (Wanted(reason="ECC Error"), []),
    (Wanted(category="Script"), []),
    (Wanted(node="gpu-1"), []),
    (Wanted(recovery="restart"), []),
    (Wanted(fingerprint="f0"), []),
]


@on_both
def test_filters_hold_for_what_has_no_verdict(records: Records) -> None:
    for at, (job, user) in enumerate((("a", "ann"), ("ab", "bob"), ("c", "ann"), ("d", "x\0y")), 1):
        records.put_job(job, JobFacts(user=user, labels={"user": "Ann"}), float(at))
        records.open_attempt(job, 1, float(at))
    for wanted, jobs in UNJUDGED:
        assert begun(records, wanted) == ([(job, 1) for job in jobs], len(jobs)), wanted
        assert begun(records, wanted, 1) == ([(job, 1) for job in jobs[:1]], len(jobs)), wanted


@on_both
def test_attempts_without_a_verdict_are_found_by_indexes(records: Records) -> None:
    seen: list[str] = []
    engine = records.database._engine
    sa.event.listen(engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    records.open_attempt("a", 1, 1.0)
    seen.clear()
    records.unjudged(Wanted())
    asked = [text for text in seen if text.startswith("SELECT")]
    assert len(asked) == 2
    with records.database.reading() as connection:
        for text in asked:
            if connection.dialect.name == "postgresql":
                assert walks_indexes(connection, re.sub(r"%\(\w+\)s", "50", text), sorts=True)
                continue
            filled = text.replace("?", "50")
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {filled}")]
            assert plan[0] == "SEARCH attempts USING INDEX ix_attempts_settled (settled=?)", plan
            assert not any(step.startswith("SCAN") for step in plan), plan


# verdicts


def test_a_published_verdict_comes_back_as_it_was(records: Records) -> None:
    records.put_job("a", JobFacts(user="ann"), 1.0)
    stored = published(records, "a", 1, BASE, 2.0)
    assert stored == StoredVerdict(1, 1, "a", 1, 2.0, True, True, None, "ann", BASE)
    assert stored == records.verdict(1) == records.current("a", 1)
    assert records.history("a", 1) == [stored] == records.search(Wanted()).items
    assert records.verdict(2) is None and records.current("a", 2) is None


def test_another_verdict_supersedes(records: Records) -> None:
    first = published(records, "a", 1, BASE, 1.0, final=False)
    second = published(records, "a", 1, verdict(reason="CUDA Error"), 2.0)
    old = records.verdict(first.id)
    assert old == msgspec.structs.replace(first, current=False, superseded_by=second.id)
    assert records.current("a", 1) == second
    assert records.history("a", 1) == [second, old]
    assert records.search(Wanted()).items == [second]
    assert records.search(Wanted(reason="ECC Error")).items == records.search(Wanted(fingerprint="f1")).items == []


def test_the_same_verdict_is_not_published_twice(records: Records) -> None:
    assert records.publish("a", 1, BASE, False, 1.0)
    assert records.publish("a", 1, verdict(seconds=9.0), False, 2.0) is None
    assert records.last_event() == 1 and len(records.history("a", 1)) == 1


def test_a_loss_that_is_no_number_does_not_make_a_verdict_differ(records: Records) -> None:
    strange = verdict(progress=Progress(step=1, loss=float("nan")))
    assert published(records, "a", 1, strange, 1.0).verdict.progress.loss is None
    assert records.publish("a", 1, strange, True, 2.0) is None


def test_only_final_changes_in_place(records: Records) -> None:
    first = published(records, "a", 1, BASE, 1.0, final=False)
    same = published(records, "a", 1, verdict(seconds=3.0), 2.0, final=True)
    assert same == msgspec.structs.replace(first, final=True, event=2)
    assert records.current("a", 1) == same
    back = published(records, "a", 1, BASE, 3.0, final=False)
    assert (back.id, back.final, back.event) == (first.id, False, 3)
    assert [a.settled for a in records.attempts("a")] == [False]


def test_a_final_verdict_settles_even_when_it_says_the_same(records: Records) -> None:
    first = records.publish("a", 1, BASE, True, 1.0)
    withdrawn = records.reopen("a", 1)
    assert first is not None and withdrawn is not None
    assert (withdrawn.id, withdrawn.final) == (first.id, False) and withdrawn.event > first.event
    assert records.reopen("a", 1) is None
    assert records.current("a", 1) == withdrawn and len(records.unsettled()) == 1
    again = records.publish("a", 1, BASE, True, 2.0)
    assert again is not None and (again.id, again.final) == (first.id, True)
    assert records.publish("a", 1, BASE, True, 3.0) is None
    assert records.unsettled() == []


@on_both
def test_an_attempt_whose_log_was_deleted_is_not_judged_again(records: Records) -> None:
    records.publish("a", 1, BASE, True, 1.0)
    forget_log(records, 5.0)
    records.reopen("a", 1)
    kept = records.attempt("a", 1)
    assert kept is not None and kept.deleted == 5.0 and kept.settled
    assert records.unsettled() == []


@on_both
def test_a_verdict_that_could_not_be_read_again_is_refused(records: Records) -> None:
    with pytest.raises(StoreError, match="cannot be stored"):
        records.publish("a", 1, verdict(confidence=float("nan")), True, 1.0)
    assert records.attempts("a") == []


@pytest.mark.parametrize("id", [0, -1, 2**63, 10**40])
def test_an_id_that_no_verdict_can_have(records: Records, id: int) -> None:
    assert records.verdict(id) is None


def test_the_user_is_the_one_known_now(records: Records) -> None:
    records.publish("a", 1, BASE, True, 1.0)
    records.put_job("a", JobFacts(user="ann"), 2.0)
    records.put_job("a", JobFacts(user="bob"), 3.0)
    assert records.search(Wanted(user="ann")).items == []
    assert [stored.user for stored in records.search(Wanted(user="bob")).items] == ["bob"]


@on_both
def test_older_and_newer_bodies_are_read(records: Records) -> None:
    stored = published(records, "a", 1, verdict(why="because", problems=("p",)), 1.0)
    body = msgspec.json.decode(msgspec.json.encode(stored.verdict))
    for field in ("why", "problems", "file", "seconds"):
        del body[field]
    body["evidence"][0].pop("before")
    body["invented_later"] = {"x": 1}
    with records.database.writing() as connection:
        connection.execute(sa.update(schema.bodies).values(body=msgspec.json.encode(body).decode()))
    read = records.verdict(stored.id)
    assert read is not None and read.verdict == verdict(seconds=0.0)


# changes


def test_newer_gives_each_change_once_and_in_order(records: Records) -> None:
    a = published(records, "a", 1, BASE, 1.0, final=False)
    b = published(records, "b", 1, BASE, 2.0)
    final = published(records, "a", 1, BASE, 3.0)
    c = published(records, "b", 1, verdict(reason="Unknown"), 4.0)
    assert [(s.event, s.id) for s in records.newer(0)] == [(b.event, b.id), (final.event, a.id), (c.event, c.id)]
    assert [s.current for s in records.newer(0)] == [False, True, True]
    assert [s.id for s in records.newer(a.event, 2)] == [b.id, a.id]
    assert [s.id for s in records.newer(final.event)] == [c.id]
    assert records.newer(records.last_event()) == [] == records.newer(2**63) == records.newer(10**30)
    assert records.last_event() >= c.event, "changes of incidents are numbered, too"


# lists

FILTERS = {
    "none": Wanted(),
    "reason": Wanted(reason="ECC Error"),
    "category": Wanted(category="Infrastructure"),
    "node": Wanted(node="gpu-001"),
    "user": Wanted(user="ann"),
    "job": Wanted(job="a"),
    "outcomes": Wanted(outcomes=("failed",)),
    "recovery": Wanted(recovery="restart"),
    "fingerprint": Wanted(fingerprint="f0"),
    "since": Wanted(since=5.0),
    "until": Wanted(until=5.0),
    "prefixes": Wanted(prefixes=("a",)),
}


def test_every_filter_is_tried() -> None:
    assert set(FILTERS) - {"none"} == set(Wanted.__struct_fields__)


@on_both
def test_no_list_scans_or_sorts(records: Records) -> None:
    for number in range(2):
        records.publish("a", number, BASE, True, float(number))
    deep = records.search(Wanted(), None, 1).next
    assert deep
    with records.database.reading() as connection:
        for name, cursor in product(FILTERS, (None, deep)):
            query = searching(FILTERS[name], cursor).limit(50)
            text = str(query.compile(connection.engine, compile_kwargs={"literal_binds": True}))
            if connection.dialect.name == "postgresql":
                assert walks_indexes(connection, text), name
                continue
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")]
            assert any("verdict" in step for step in plan), name
            for step in plan:
                assert step.startswith(("SEARCH", "SCAN verdicts USING INDEX ix_verdicts_newest")), plan
                # without a filter, the newest are the end of the index: a walk along it that the limit ends
                assert step.startswith("SEARCH") or name in ("none", "prefixes"), plan


NAMES = st.sampled_from(["a", "A", "ab", "b%", "b_", "bx", "%", "_", "'", '"', "\\", "\U0001f600", "", "\0", "x\0y"])
SOME = st.builds(
    verdict,
    reason=st.sampled_from(["Unknown", "ECC Error", "100%", "100_", "ecc error"]),
    category=st.sampled_from(["Infrastructure", "Script"]),
    outcome=st.sampled_from(["failed", "running"]),
    recovery=st.sampled_from(["restart", "none"]),
    fingerprint=NAMES,
    suspects=st.lists(st.none() | NAMES, max_size=3).map(lambda nodes: on(*nodes)),
)
JOBS = st.sampled_from(["a", "ab", "A", "a%", "a_", "_b", "\U0001f600"])
PUBLISHED = st.tuples(JOBS, st.integers(0, 2), SOME, st.integers(0, 6).map(float), st.booleans())
MAYBE: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("node", "user", "fingerprint"), st.none() | NAMES),
    "reason": st.sampled_from([None, "ECC Error", "100%"]),
    "job": st.none() | JOBS,
    "category": st.sampled_from([None, None, "Script"]),
    "outcomes": st.sampled_from([(), (), ("running",), ("failed",), ("failed", "cancelled"), ("none such",)]),
    "recovery": st.sampled_from([None, None, "none"]),
    "since": st.none() | st.integers(0, 6).map(float),
    "until": st.none() | st.integers(0, 6).map(float),
    "prefixes": st.sampled_from([(), (), ("a",), ("a%", "_"), ("",)]),
}


def empty(records: Records) -> None:
    """Takes everything out of the database: opening one for each example takes long."""
    with records.database.writing() as connection:
        grouped = ("incident_events", "incident_attempts", "incidents")
        for name in (*grouped, "verdict_nodes", "verdict_bodies", "verdicts", "ends", "attempts", "jobs"):
            connection.exec_driver_sql(f"DELETE FROM {name}")


def fits(stored: StoredVerdict, wanted: Wanted) -> bool:
    """What `Wanted` means, without a database."""
    return (
        all(
            getattr(wanted, name) in (None, getattr(stored.verdict, name))
            for name in ("reason", "category", "recovery", "fingerprint")
        )
        and (not wanted.outcomes or stored.verdict.outcome in wanted.outcomes)
        and (wanted.node is None or any(wanted.node == suspect.node for suspect in stored.verdict.suspects))
        and wanted.user in (None, stored.user)
        and wanted.job in (None, stored.job)
        and (wanted.since is None or stored.at >= wanted.since)
        and (wanted.until is None or stored.at < wanted.until)
        and (not wanted.prefixes or stored.job.startswith(wanted.prefixes))
    )


@on_both
@settings(max_examples=settings.default.max_examples // 3)
@given(
    st.lists(PUBLISHED, max_size=12),
    st.dictionaries(JOBS, NAMES.filter(lambda name: "\0" not in name)),
    st.lists(st.fixed_dictionaries({}, optional=MAYBE), min_size=1, max_size=6),
    st.integers(1, 4),
)
def test_a_list_holds_what_is_wanted_newest_first(
    records: Records,
    told: list[tuple[str, int, Verdict, float, bool]],
    users: dict[str, str],
    filters: list[dict[str, Any]],
    limit: int,
) -> None:
    empty(records)
    now: dict[tuple[str, int], StoredVerdict] = {}
    for job, number, what, at, final in told:
        if stored := records.publish(job, number, what, final, at):
            now[job, number] = stored
    for job, user in users.items():
        records.put_job(job, JobFacts(user=user), 1.0)
    known = [msgspec.structs.replace(stored, user=users.get(stored.job)) for stored in now.values()]
    for wanted in [Wanted(), *(Wanted(**chosen) for chosen in filters)]:
        model = sorted((s for s in known if fits(s, wanted)), key=lambda s: (s.at, s.id), reverse=True)
        found = walk(records, wanted, limit)
        assert [stored.id for stored in found] == [stored.id for stored in model]
        assert [stored.verdict for stored in found] == [stored.verdict for stored in model]
        assert records.counts(wanted) == {
            name: dict(Counter(getattr(stored.verdict, name) for stored in model))
            for name in ("reason", "category", "outcome")
        }


@pytest.mark.parametrize("limit", [-5, 0, 1])
def test_a_page_has_one_item_at_least(records: Records, limit: int) -> None:
    for number in range(3):
        records.publish("a", number, BASE, True, 1.0)
    page = records.search(Wanted(), None, limit)
    assert len(page.items) == 1 and page.next


def test_a_page_has_a_bound(records: Records) -> None:
    with records.database.writing() as connection:
        connection.execute(
            sa.insert(schema.jobs),
            [{"job": f"{n}", "facts": "{}", "created": n, "updated": n} for n in range(MAX_PAGE + 5)],
        )
    page = records.jobs(limit=10**9)
    assert len(page.items) == MAX_PAGE and page.next


BAD_CURSORS = [
    "",
    "x",
    "!!!!",
    "W10=",
    "é",
    "\0",
    "A" * 100_000,
    "bnVsbA==",
    "WzEsMl0",
    "WzEuMCwxZTk5XQ==",
    "WzEsdHJ1ZV0=",
]


@pytest.mark.parametrize("cursor", BAD_CURSORS, ids=lambda cursor: ascii(cursor)[:20])
def test_a_bad_cursor_is_a_clear_error(records: Records, cursor: str) -> None:
    for ask in (lambda: records.search(Wanted(), cursor), lambda: records.jobs(cursor)):
        with pytest.raises(CursorError, match="Start again without a cursor"):
            ask()


def test_a_cursor_belongs_to_its_list(records: Records) -> None:
    for number in range(2):
        records.publish(f"j{number}", 1, BASE, True, 1.0)
    with pytest.raises(CursorError):
        records.search(Wanted(), records.jobs(limit=1).next)
    with pytest.raises(CursorError):
        records.jobs(records.search(Wanted(), None, 1).next)


@given(st.text(max_size=60))
def test_no_text_as_a_cursor_does_harm(cursor: str) -> None:
    with pytest.raises(CursorError):
        searching(Wanted(), cursor)


# hostile text

HOSTILE = ["a'; DROP TABLE verdicts; --", 'a"b', "100%", "a_b", "\U0001f600\u202e", "line\nbreak", "\t", "x" * 5000]


@on_both
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:20])
def test_any_text_is_kept_and_found_exactly(records: Records, text: str) -> None:
    records.put_job(text, JobFacts(user=text, command=text, labels={text: text}), 1.0)
    records.publish("other", 1, verdict(reason="axb", suspects=on("1000", "axb")), True, 1.0)
    records.end(text, 1, End(text, 1, None, text, 1.0))
    assert records.allot_attempt(text, text, 1.0) == records.allot_attempt(text, text, 1.0) == 2
    stored = published(records, text, 1, verdict(reason=text, fingerprint=text, suspects=on(text)), 2.0)
    for name in ("reason", "fingerprint", "node", "user", "job"):
        assert records.search(msgspec.convert({name: text}, Wanted)).items == [stored]
    assert records.search(Wanted(prefixes=(text,))).items == [stored]
    attempt = records.attempt(text, 1)
    assert attempt and attempt.ends[0] == End(text, 1, None, text, 1.0)


@on_both
@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "x\udfff"], ids=ascii)
def test_names_that_not_every_database_can_hold_are_refused(records: Records, text: str) -> None:
    for put in (
        lambda: records.put_job(text, JobFacts(), 1.0),
        lambda: records.open_attempt(text, 1, 1.0),
        lambda: records.allot_attempt("a", text, 1.0),
        lambda: records.end("a", 1, End(text, 1, None, None, 1.0)),
        lambda: records.publish(text, 1, BASE, True, 1.0),
    ):
        with pytest.raises((NameRefused, InputError, StoreError)):
            put()
    assert records.jobs().items == [] and records.unsettled() == []


@on_both
def test_a_zero_byte_in_a_verdict_is_kept_and_found(records: Records) -> None:
    odd = verdict(reason="a\0b", fingerprint="\0", suspects=on("n\0"))
    stored = published(records, "a", 1, odd, 1.0)
    assert stored.verdict == odd
    for wanted in (Wanted(reason="a\0b"), Wanted(fingerprint="\0"), Wanted(node="n\0")):
        assert records.search(wanted).items == [stored]
    assert records.search(Wanted(node="n")).items == []


@on_both
def test_numbers_that_are_too_large_are_refused(records: Records) -> None:
    for put in (
        lambda: records.end("a", 1, End("s", 2**70, None, None, 1.0)),
        lambda: records.settle("a", 2**70),
    ):
        with pytest.raises((NameRefused, InputError, StoreError)):
            put()
    assert records.job("a") is None


@on_both
def test_lists_are_in_the_order_of_code_points(records: Records) -> None:
    names = ["a b", "B", "a", "_", "\u00e4", "A", "a-b", "\U0001f600", "\uffee", "ab"]
    for name in names:
        records.publish(name, 1, BASE, False, 1.0)
    assert [job.job for job in records.jobs().items] == sorted(names, reverse=True)
    assert [attempt.job for attempt in records.unsettled()] == sorted(names)
    found, cursor = [], None
    while True:
        page = records.jobs(cursor, 3)
        found += [job.job for job in page.items]
        if (cursor := page.next) is None:
            break
    assert found == sorted(names, reverse=True)


# many at once


@on_both
def test_nothing_is_lost_when_many_write(records: Records) -> None:
    threads, rounds, shared = 8, 12, 3

    def work(me: int) -> None:
        for turn in range(rounds):
            what = verdict(fingerprint=f"{me}.{turn}", suspects=on(f"n{me}"))
            assert records.publish("j", turn % shared, what, turn % 2 == 0, float(turn))
            records.end("j", turn % shared, End(f"s{me}", turn, None, None, float(turn)))
            assert records.search(Wanted(job="j")).items

    at_once(work, range(threads))
    stored = records.newer(0, MAX_PAGE)
    assert {s.verdict.fingerprint for s in stored} == {
        f"{me}.{turn}" for me in range(threads) for turn in range(rounds)
    }
    assert [s.event for s in stored] == list(range(1, threads * rounds + 1))
    for number in range(shared):
        history = records.history("j", number)
        assert [s.current for s in history] == [True] + [False] * (len(history) - 1)
        assert [old.superseded_by for old in history[1:]] == [new.id for new in history[:-1]]
        attempt = records.attempt("j", number)
        assert attempt and attempt.settled == history[0].final
        last = max(turn for turn in range(rounds) if turn % shared == number)
        assert {end.stream: end.exit_code for end in attempt.ends} == {f"s{me}": last for me in range(threads)}
        nodes = {s.node for s in history[0].verdict.suspects}
        assert all(
            (history[0] in records.search(Wanted(node=f"n{me}")).items) == (f"n{me}" in nodes) for me in range(threads)
        )


@on_both
def test_one_key_is_one_attempt_whoever_asks(records: Records) -> None:
    def numbers(_: int) -> list[int]:
        return [records.allot_attempt("j", f"k{turn}", 1.0) for turn in range(6)]

    (given,) = {tuple(one) for one in at_once(numbers, range(8))}
    assert sorted(given) == [1, 2, 3, 4, 5, 6]


@on_both
def test_pages_hold_while_others_publish(records: Records) -> None:
    for number in range(60):
        records.publish("old", number, BASE, True, float(number % 7))
    stop = threading.Event()

    def publish() -> None:
        turn = 0
        while not stop.is_set() and turn < 400:
            records.publish("new", turn, BASE, True, 100.0 + turn)
            records.publish("old", turn % 5, verdict(fingerprint=f"t{turn}"), True, 100.0 + turn)
            turn += 1

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(publish)
        try:
            for _ in range(5):
                found = [(s.at, s.id) for s in walk(records, Wanted(), 7)]
                assert all(before > after for before, after in pairwise(found))
                assert {id for _, id in found} >= set(range(6, 61))  # those that nobody touched
        finally:
            stop.set()
        done.result()


# what cannot be opened


@pytest.mark.parametrize(
    "url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "nodb://x/y", "oracle://u:secret@h/d"]
)
def test_a_bad_url_is_a_clear_error(url: str) -> None:
    with pytest.raises(StoreError, match="the database URL") as caught:
        Records(url)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_a_clear_error_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="not a database"):
        Records(f"sqlite:///{path}")
    assert path.read_bytes() == b"no database at all" * 100


def test_a_folder_that_is_missing_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="unable to open"):
        Records(f"sqlite:///{tmp_path}/missing/x.sqlite")
