"""The query of a list of incidents: what it finds, what it refuses, and that it cannot hurt."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import InputError
from logdoctor.store.incidents.query import FIELDS, MAX_QUERY, parse, written
from logdoctor.store.incidents.table import Incidents, WantedIncidents
from logdoctor.store.jobs.records import JobFacts, Records
from tests.store.conftest import on_both
from tests.store.test_incidents import UNKNOWN, USER_CODE, found, publish, quoted, verdict
from tests.store.test_records import on

NOW = 10_000.0


@pytest.fixture
def incidents(records: Records) -> Incidents:
    return Incidents(records.database)


@pytest.fixture
def filled(records: Records, incidents: Incidents) -> Incidents:
    """1: gpu-1 of a-1 and b-1, acknowledged; 2: Key Error of b-1; 3: Unknown of c-1, resolved; 4: gpu_2 of a-1."""
    for job, user, gpus in (("a-1", "Zoe", 512), ("b-1", "ann", None), ("c-1", None, 8)):
        records.put_job(job, JobFacts(user=user, gpus=gpus), 1.0)
    publish(records, "a-1", 1, quoted("Uncorrectable ECC 100%", suspects=on("gpu-1")), 1000.0)
    publish(records, "b-1", 1, quoted("uncorrectable", suspects=on("gpu-1", "gpu-7"), recovery="restart"), 2000.0)
    publish(records, "b-1", 2, verdict(USER_CODE, suspects=on("gpu-7")), 3000.0)
    publish(records, "c-1", 1, UNKNOWN, 4000.0)
    publish(records, "a-1", 2, quoted("row_remap: two words", suspects=on("gpu_2")), 9000.0)
    incidents.step(1, "acknowledge", "ops", "", 9001.0, None)
    incidents.assign(1, "Ops", "ops", "", 9001.0)
    incidents.step(3, "resolve", "ops", "", 9002.0, None)
    incidents.snooze(2, NOW + 60, None, "ops", "", 9003.0)
    return incidents


QUERIES: list[tuple[str, list[int]]] = [
    ("", [4, 2, 1]),
    ("is:new", [4, 2]),
    ("IS:New is:resolved", [4, 3, 2]),
    ("is:all", [4, 3, 2, 1]),
    ("is:all -is:resolved", [4, 2, 1]),
    ("-is:new", [1]),
    ("is:snoozed", [2]),
    ("is:quiet is:acknowledged", []),
    ("-is:quiet", [4, 1]),
    ("is:muted", []),
    ('reason:"ecc error"', [4, 1]),
    ("reason:ecc*", [4, 1]),
    ('reason:ecc* reason:"Key Error"', [4, 2, 1]),
    ("-reason:ecc*", [2]),
    ("category:script", [2]),
    ("recovery:restart fault:infrastructure", [1]),
    ("node:gpu-1", [1]),
    ("node:gpu-?", [2, 1]),
    ("node:GPU-*", [2, 1]),
    ("node:gpu_2", [4]),
    ("node:gpu_*", [4]),
    ('node:"gpu-*"', []),
    ("-node:gpu-7", [4]),
    ("job:b-* user:ann", [2, 1]),
    ("job:b-1 user:Zoe", []),
    ("node:gpu-7 user:Zoe", []),
    ("assignee:Ops", [1]),
    ("-assignee:o*", [4, 2]),
    ("fingerprint:f0", [4, 1]),
    ("uncorrectable", [2, 1]),
    ("uncorrectable 100%", [1]),
    ('"two words"', [4]),
    ('"words two"', []),
    ("-uncorrectable", [4]),
    ("100%", [1]),
    ("row%", []),
    ("gpus:>256", [4, 1]),
    ("gpus:512", [4, 1]),
    ("gpus:<=512 gpus:>8", [4, 1]),
    ("gpus:0..8 is:all", [3]),
    ("-gpus:>256", [2]),
    ("attempts:>1", [1]),
    ("severity:critical", []),
    ("severity:moderate", []),
    ("severity:>0", [4, 2, 1]),
    ("hours:>=0", [4, 2, 1]),
    ("age:<1h", [4]),
    ("age:1h..2h", [2]),
    ("age:>=2h", [1]),
    ("#3 is:all", [3]),
    ("id:3", []),
    ("#2 #4", [4, 2]),
    ("severity:low severity:critical", [2]),
    ("severity:high", [4, 1]),
    ("node:a\0b", []),
    ("'; DROP TABLE incidents; --", []),
    ("  ", [4, 2, 1]),
]
"""What is asked, and what is listed then."""


@on_both
def test_a_query_finds_what_it_says(filled: Incidents) -> None:
    for query, ids in QUERIES:
        wanted = WantedIncidents(q=query, now=NOW)
        assert found(filled, wanted) == ids, query
        counts = filled.counts(wanted)
        assert sum(counts["reason"].values()) == len(ids), query
        for order in ("severity", "gpus"):
            assert sorted(found(filled, WantedIncidents(q=query, now=NOW, order=order))) == sorted(ids), query


@on_both
def test_a_bound_token_finds_nothing_of_other_jobs(filled: Incidents) -> None:
    for query, ids in (
        ("is:all", [4, 1]),
        ("node:gpu-7", []),
        ("-node:gpu-7", [4, 1]),
        ("user:ann", []),
        ("attempts:>1", []),
        ("assignee:O*", []),
        ("-assignee:O*", [4, 1]),
        ("age:<2h", [4]),
        ("recovery:restart", []),
    ):
        assert found(filled, WantedIncidents(q=query, now=NOW, prefixes=("a-",))) == ids, query
    assert found(filled, WantedIncidents(assignee="Ops", prefixes=("a-",))) == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("nod:x", "Did you mean node:?"),
        ("http://x/y", "to search for the text, put it in quotes"),
        ('reason:"ECC Eror"', 'Did you mean reason:"ECC Error"'),
        ("is:nwe", "Did you mean is:new?"),
        ("category:zzz", "category: takes Infrastructure, Framework"),
        ("gpus:many", "gpus:256, >256, <=256 or 8..64"),
        ("gpus:>..3", "gpus takes a number"),
        ("gpus:2h", "gpus takes a number"),
        ("age:5", "age:2h, <2h or 1d..7d"),
        ("#1 id:x", "id takes a number"),
        ('"abc', "a quote has no end"),
        ('node:"a"b', "a quote has no end, or text after it"),
        ("node:*a*a*a*a*a*", "more than 5 wildcards"),
        ("a " * 21, "has 21 terms"),
        ("a" * (MAX_QUERY + 1), "has 501 characters"),
    ],
)
def test_a_query_without_a_meaning_is_refused_by_the_term(query: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse(query)
    assert said in str(refused.value)
    if len(query) < 40:
        assert query.split()[-1].partition("b")[0].strip('"') in str(refused.value)


@given(st.sampled_from([name for name in FIELDS if name in ("node", "job", "user", "assignee")]), st.text(max_size=60))
def test_a_written_term_is_read_as_what_it_was(field: str, value: str) -> None:
    (term,) = parse(written(field, value))
    assert (term.field, term.wild, term.value.encode("utf-8", "replace")) == (
        field,
        False,
        value.replace("\0", "\ufffd").encode("utf-8", "replace"),
    )


@given(st.text(max_size=200))
def test_a_word_is_never_read_as_a_field(text: str) -> None:
    for word in text.split():
        assert [(one.field, one.excludes) for one in parse(written("", word))] == [("", False)]


@given(st.text(alphabet='abgpu:-"\\*?<>=. 0123456789hd#', max_size=60))
def test_any_query_is_answered_or_refused(query: str) -> None:
    try:
        terms = parse(query)
    except InputError:
        return
    assert " ".join(one.text for one in terms).split() == query.split()


@on_both
def test_times_are_of_what_is_wanted_and_visible(filled: Incidents) -> None:
    assert filled.times(WantedIncidents(q="is:all", now=NOW)) == [9000.0, 4000.0, 3000.0, 2000.0]
    assert filled.times(WantedIncidents(q="node:gpu-7", now=NOW)) == [3000.0, 2000.0]
    assert filled.times(WantedIncidents(q="is:all", now=NOW, prefixes=("a-",))) == [9000.0, 1000.0]
    assert filled.failures([1, 2], ()) == {1: [2000.0, 1000.0], 2: [3000.0]}
    assert filled.failures([1, 2], ("a-",)) == {1: [1000.0], 2: []}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("node:a OR node:b", "word of other query languages"),
        ("not node:a", "word of other query languages"),
        ("node: a", "has no value"),
        ("gpus:5..1", "Write it as gpus:1..5"),
        ("severity:hgih", "Levels are"),
        ("reason:ECC", 'Did you mean reason:"ECC Error"'),
        ("reason:nccl", "NCCL Timeout Error"),
    ],
)
def test_what_would_silently_mean_something_else_is_refused(query: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        parse(query)


def test_a_bare_age_is_the_greatest_and_quotes_of_phones_are_quotes() -> None:
    assert parse("age:2h")[0].bounds == parse("age:<2h")[0].bounds
    assert parse("hours:8")[0].bounds == ((">=", 8.0), ("<", 9.0))
    assert parse("\u201cECC Error\u201d")[0].value == "ECC Error"
