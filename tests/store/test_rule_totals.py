"""How often shipped rules take part: always what a count over all current verdicts would say."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.rule_totals import RuleTotals, Total
from logdoctor.store.schema import rule_totals
from logdoctor.types import Compression, DecidedBy, Evidence, RuleCount, Symptom, Verdict
from tests.store.conftest import on_both
from tests.web.test_pages import FAULT

A, B, FILTER = "diagnosis/infrastructure/ecc", "diagnosis/script/key-error", "filter/megatron/iteration"


def verdict(
    decided: str = A,
    cited: tuple[str, ...] = (A,),
    explains: tuple[str, ...] = (),
    taken: Mapping[str, int] = MappingProxyType({}),
) -> Verdict:
    """A verdict that names these rules."""
    return msgspec.structs.replace(
        FAULT,
        decided_by=DecidedBy("rule", decided, "0123456789abcdef"),
        evidence=tuple(Evidence("j/1/main", "main", n, "x", rule) for n, rule in enumerate(cited, 1)),
        symptoms=tuple(Symptom("CUDA Error", 7, "main", 8, rule) for rule in explains),
        compression=Compression(200, 50, 6000, 1000, {rule: RuleCount(n, 1, 9) for rule, n in taken.items()}),
    )


def totals(records: Records) -> dict[str, tuple[int, int]]:
    """Attempts and lines of each rule."""
    return {rule: (one.attempts, one.lines) for rule, one in RuleTotals(records.database).all().items()}


def test_rules_that_take_part_are_counted_once_an_attempt(records: Records) -> None:
    records.publish("j", 1, verdict(cited=(A, A, B), explains=(A, ""), taken={FILTER: 150}), True, 10.0)
    records.publish("j", 2, verdict(taken={FILTER: 50}), True, 20.0)
    assert RuleTotals(records.database).all() == {
        A: Total(2, 3, 20.0),
        B: Total(1, 1, 10.0),
        FILTER: Total(2, 200, 20.0),
    }


@on_both
def test_a_verdict_that_is_superseded_counts_no_more(records: Records) -> None:
    records.publish("j", 1, verdict(taken={FILTER: 150}), False, 10.0)
    records.publish("j", 1, verdict(B, (B,), taken={FILTER: 160}), False, 30.0)
    assert totals(records) == {B: (1, 1), FILTER: (1, 160)}
    assert RuleTotals(records.database).all()[FILTER].last == 30.0
    records.publish("j", 1, verdict(B, (B,), taken={FILTER: 160}), True, 40.0)
    assert totals(records) == {B: (1, 1), FILTER: (1, 160)}, "nothing but its finality changed"


def test_what_is_no_shipped_rule_is_not_counted(records: Records) -> None:
    names = ("", "case/7", "progress/step", "agent/line", "learned/diagnosis/0123abcd", "structure")
    for number, name in enumerate(names, 1):
        records.publish("j", number, verdict(name, (name,), taken={"learned/k/0123abcd": 3}), True, 10.0)
    assert totals(records) == {}


@on_both
def test_an_older_database_is_counted_once(records: Records) -> None:
    for number in (1, 2):
        records.publish("j", number, verdict(explains=(B,), taken={FILTER: 5}), True, float(number))
    counted = RuleTotals(records.database).all()
    with records.database.writing() as connection:
        connection.execute(sa.delete(rule_totals))
    assert RuleTotals(records.database).catch_up() == 2
    assert RuleTotals(records.database).all() == counted
    assert RuleTotals(records.database).catch_up() == 0


def test_verdicts_without_totals_take_nothing_below_zero(records: Records) -> None:
    records.publish("j", 1, verdict(taken={FILTER: 5}), True, 1.0)
    with records.database.writing() as connection:
        connection.execute(sa.delete(rule_totals))
    records.publish("j", 1, verdict(B, (B,)), True, 2.0)
    assert totals(records) == {B: (1, 1)}


_RULES = st.sampled_from((A, B, "", "case/1"))
_VERDICTS = st.builds(
    verdict,
    _RULES,
    st.lists(_RULES, max_size=3).map(tuple),
    st.lists(_RULES, max_size=2).map(tuple),
    st.dictionaries(st.sampled_from((FILTER, "filter/nccl/info")), st.integers(1, 9)),
)


@on_both
@settings(max_examples=settings.default.max_examples // 5)
@given(steps=st.lists(st.tuples(st.integers(1, 3), _VERDICTS), max_size=12))
def test_the_totals_are_what_a_count_would_say(records: Records, steps: list[tuple[int, Any]]) -> None:
    for at, (number, made) in enumerate(steps):
        records.publish("j", number, made, True, 100.0 + at)
    kept = totals(records)
    with records.database.writing() as connection:
        connection.execute(sa.delete(rule_totals))
    RuleTotals(records.database).catch_up()
    assert totals(records) == kept
