"""Learned rules keep their place, their numbers and the story of every step, whoever writes beside them."""

import math
from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test
from hypothesis.stateful import rule as step

from logdoctor.errors import CursorError, InputError, NameRefused, RuleRefused, StoreError
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.learned import (
    _NEXT,
    ERROR_WORD,
    MAX_PATTERN,
    STATUSES,
    Learned,
    LearnedRules,
    NewRule,
    Source,
    StoredClaim,
)
from logdoctor.store.learning.noticed import MAX_NOTICED, Noticed
from logdoctor.store.learning.refusals import MAX_REFUSALS, Refused, Votes
from logdoctor.store.learning.rule_rows import DIAGNOSIS, MAX_KIND
from logdoctor.store.learning.shapes import MAX_PRINTED, MAX_SHAPES
from logdoctor.types import Compression, DecidedBy, Evidence, Progress, Verdict
from tests.at_once import at_once
from tests.databases import tries_of
from tests.store.conftest import on_both

KIND = "megatron/pretrain_gpt.py"
BASE = NewRule(
    kind=KIND,
    pattern="^iteration +[0-9]+/ *[0-9]+$",
    title="progress",
    examples=("iteration 1/ 10", "iteration\0 2/ 10"),
    metrics=("loss",),
    status="shadow",
    waits_for="",
    agent="miner",
    source=Source("run-1", 3, "megatron", "img:1", "python pretrain_gpt.py", "user-17", "run"),
    votes=Votes(5, (0, 1, 4), "agreed"),
    lines=40,
)
WAITS = f"{ERROR_WORD}: it takes lines that look like trouble"


def new(pattern: str = "^x$", **changes: Any) -> NewRule:
    return msgspec.structs.replace(BASE, pattern=pattern, **({"source": Source(), "lines": 0} | changes))


@pytest.fixture
def learned(records: Records) -> LearnedRules:
    return LearnedRules(records.database)


def entered(learned: LearnedRules, pattern: str = "^x$", **changes: Any) -> Learned:
    return learned.add([new(pattern, **changes)], "agent", 1.0)[0]


# entering


@on_both
def test_what_was_printed_is_kept_by_kind(learned: LearnedRules) -> None:
    assert learned.shapes.printed({1, 2}) == {}
    learned.shapes.add_printed(KIND, [3, 1, 3, -(2**63)])
    learned.shapes.add_printed("other", range(MAX_PRINTED + 2))
    assert learned.shapes.printed({1, 2, -(2**63), MAX_PRINTED}) == {KIND: 2, "other": 2}, "the first stay"
    assert learned.shapes.printed(()) == {KIND: 0, "other": 0} and learned.shapes.seen(KIND) == set()


@on_both
def test_what_was_entered_is_kept(learned: LearnedRules, url: str) -> None:
    (rule,) = learned.add([BASE], "agent", 7.0)
    for name in set(NewRule.__struct_fields__):
        assert getattr(rule, name) == getattr(BASE, name), name
    assert (rule.place, rule.jobs, rule.lines, rule.taken, rule.created, rule.changed) == (0, 1, 40, 0, 7.0, 7.0)
    assert rule.id.startswith("learned/megatron/pretrain-gpt-py/") and len(rule.id.rsplit("/")[-1]) == 8
    other = Records(url)
    assert LearnedRules(other.database).list() == [rule] == [learned.one(rule.id)]
    other.close()


def test_the_same_pattern_again_is_the_rule_that_is_there(learned: LearnedRules) -> None:
    first = entered(learned)
    learned.retire(first.id, "user-17", "no", 2.0)
    version = learned.version()
    again = learned.add([new(title="other", harmless=True), new("^y$"), new("^y$")], "agent", 3.0)
    assert again[0] == learned.one(first.id) and again[0].status == "retired" and again[0].title == "progress"
    assert again[1] == again[2] and again[1].place == 1
    assert learned.version() == version + 1
    elsewhere = entered(learned, kind="other")
    assert elsewhere.place == 0 and elsewhere.id.rsplit("/")[-1] != first.id.rsplit("/")[-1]


def test_places_follow_the_entry_and_are_never_given_twice(learned: LearnedRules) -> None:
    rules = [entered(learned, f"^{n}$", kind="ab"[n % 2]) for n in range(6)]
    assert [rule.place for rule in rules] == [0, 0, 1, 1, 2, 2]
    learned.retire(rules[4].id, "user-17", "no", 2.0)
    assert entered(learned, "^new$", kind="a").place == 3
    assert [rule.pattern for rule in learned.list("b")] == ["^1$", "^3$", "^5$"]


def test_a_full_kind_takes_no_more_and_leaves_nothing(records: Records) -> None:
    few = LearnedRules(records.database, most=2)
    first = few.add([new("^a$")], "agent", 1.0)[0]
    with pytest.raises(RuleRefused, match="the kind has 2 rules"):
        few.add([new("^b$"), new("^c$")], "agent", 1.0)
    assert few.list() == [first] and few.version() == 1 and len(few.events()) == 1
    few.retire(first.id, "user-17", "no", 2.0)
    few.add([new("^b$"), new("^a$"), new("^c$", kind="other")], "agent", 1.0)
    with pytest.raises(RuleRefused, match="the kind has 2 rules"):  # places of retired rules stay theirs
        few.add([new("^c$")], "agent", 1.0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pattern": ""}, "0 characters"),
        ({"pattern": "x" * (MAX_PATTERN + 1)}, "4001 characters"),
        ({"pattern": "^a\nb$"}, "line break"),
        ({"pattern": "^a\0$"}, "NUL"),
        ({"pattern": "^\ud800$"}, "UTF-8"),
        ({"examples": ("fine", "\ud800")}, "UTF-8"),
        ({"examples": ("x" * 20_000,)}, "too long"),
        ({"metrics": ("x",) * 51}, "too long"),
        ({"status": "active"}, "would start as 'active'"),
        ({"status": "\ud800"}, "would start as"),
        ({"waits_for": WAITS}, "needs approval"),
        ({"kind": ""}, "no kind"),
        ({"kind": " "}, "no kind"),
        ({"kind": "a\0"}, "no kind"),
        ({"kind": "\ud800"}, "no kind"),
        ({"kind": "x" * (MAX_KIND + 1)}, "301 characters"),
        ({"lines": -1}, "-1"),
        ({"lines": 2**70}, "Use 0 to"),
        ({"source": Source("a/b", 1), "lines": 1}, "job name"),
        ({"source": Source("a", 10**7), "lines": 1}, "out of range"),
        ({"source": Source("a", 2**80)}, "out of range"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_what_cannot_be_kept_is_refused_and_leaves_nothing(
    learned: LearnedRules, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises((RuleRefused, InputError, NameRefused), match=told):
        learned.add([new("^sound$"), new(**changes)], "agent", 1.0)
    assert learned.list() == [] and learned.version() == 0 and learned.events() == []


def test_what_only_describes_a_rule_is_cut(learned: LearnedRules) -> None:
    rule = entered(
        learned,
        title="t\ud800\0" * 1000,
        agent="a" * 1000,
        source=Source(job="\ud800" * 9000, command="\0" * 10_000),
        votes=Votes(5, tuple(range(1000)), "j" * 10_000),
    )
    assert len(rule.title) == 200 and "\ud800" not in rule.title and "\0" not in rule.title
    assert (len(rule.agent), len(rule.source.command or ""), len(rule.votes.judge)) == (200, 2000, 2000)
    assert len(rule.votes.agreed) == 50
    assert learned.one(rule.id) == rule


@given(st.text(min_size=1, max_size=MAX_KIND + 5))
def test_ids_are_fit_to_be_paths(learned: LearnedRules, kind: str) -> None:
    try:
        rule = entered(learned, kind=kind)
    except RuleRefused:
        assert not kind.strip() or len(kind) > MAX_KIND or not kind.isprintable()
        return
    parts = rule.id.split("/")
    assert parts[0] == "learned" and all(parts) and len(rule.id) <= 160
    assert set(rule.id) <= set("abcdefghijklmnopqrstuvwxyz0123456789-/")
    assert rule.kind == kind and learned.one(rule.id).kind == kind


@on_both
def test_rules_whose_digests_begin_alike_differ_in_their_ids(learned: LearnedRules, records: Records) -> None:
    first = entered(learned)
    with records.database.writing() as connection:  # as if a rule of another kind had had this id
        connection.exec_driver_sql("UPDATE learned_rules SET digest = 'x', kind = 'other'")
    second = entered(learned)
    assert second.id != first.id and second.id.startswith(first.id)
    assert {rule.id for rule in learned.list()} == {first.id, second.id}


# the life


def test_a_rule_is_watched_before_it_acts(learned: LearnedRules) -> None:
    rule = entered(learned, status="proposed")
    with pytest.raises(RuleRefused, match=r"is proposed\. From there it can become shadow, retired"):
        learned.move(rule.id, "active", "agent", "good", 2.0)
    assert learned.move(rule.id, "shadow", "agent", "good", 2.0, "promote").status == "shadow"
    assert learned.move(rule.id, "active", "agent", "2 jobs", 3.0, "promote").status == "active"
    assert learned.move(rule.id, "shadow", "agent", "took a line", 4.0, "demote").status == "shadow"
    assert learned.move(rule.id, "retired", "agent", "never seen", 5.0, "retire").changed == 5.0
    with pytest.raises(RuleRefused, match=r"is retired\. From there it can become shadow"):
        learned.move(rule.id, "active", "agent", "good", 6.0)
    events = learned.events(rule.id)
    assert [(e.step, e.from_status, e.to_status) for e in reversed(events)] == [
        ("added", "", "proposed"),
        ("promote", "proposed", "shadow"),
        ("promote", "shadow", "active"),
        ("demote", "active", "shadow"),
        ("retire", "shadow", "retired"),
    ]
    assert events[1].why == "took a line" and events[1].by == "agent" and events[1].at == 4.0
    assert learned.version() == 5


@pytest.mark.parametrize("status", ["", "Active", "gone", "\ud800", "\0"], ids=ascii)
def test_there_is_no_way_to_an_unknown_status(learned: LearnedRules, status: str) -> None:
    rule = entered(learned)
    with pytest.raises(RuleRefused, match="From there it can become"):
        learned.move(rule.id, status, "agent", "", 2.0)
    assert learned.list() == [rule]


def test_what_waits_for_a_human_is_not_moved_by_code(learned: LearnedRules) -> None:
    rule = entered(learned, status="proposed", waits_for=WAITS)
    with pytest.raises(RuleRefused, match="is waiting for approval"):
        learned.move(rule.id, "shadow", "agent", "good", 2.0)
    learned.move(rule.id, "retired", "agent", "old", 3.0)
    with pytest.raises(RuleRefused, match="is waiting for approval"):  # nor behind the back of who retired it
        learned.move(rule.id, "shadow", "agent", "good", 3.0)
    approved = learned.approve(rule.id, "user-17", "harmless", 4.0)
    assert (approved.status, approved.harmless) == ("shadow", True)
    assert learned.move(rule.id, "active", "agent", "2 jobs", 5.0).harmless


def test_approving_leads_on_step_by_step(learned: LearnedRules) -> None:
    rule = entered(learned, status="proposed", waits_for=f"it was imported: {WAITS}")
    assert [learned.approve(rule.id, "user-17", "", 2.0).status for _ in range(2)] == ["shadow", "active"]
    with pytest.raises(RuleRefused, match="is already active"):
        learned.approve(rule.id, "user-17", "", 3.0)
    assert not learned.one(rule.id).harmless  # it did not wait because of its lines
    learned.retire(rule.id, "user-17", "", 4.0)
    with pytest.raises(RuleRefused, match="is retired already"):
        learned.retire(rule.id, "user-17", "", 4.0)
    assert learned.approve(rule.id, "user-17", "", 5.0).status == "shadow"


@on_both
def test_only_the_step_that_was_seen_is_taken_back(learned: LearnedRules) -> None:
    rule = entered(learned)
    learned.approve(rule.id, "user-17", "", 2.0)
    seen = learned.events(rule.id)[0].id
    learned.retire(rule.id, "user-18", "", 3.0)
    with pytest.raises(RuleRefused, match="a newer step"):
        learned.undo(rule.id, "user-17", "", 4.0, expected=seen)
    assert learned.undo(rule.id, "user-18", "", 5.0, expected=learned.events(rule.id)[0].id).status == "active"
    assert learned.undo(rule.id, "user-17", "", 6.0, expected=seen).status == "shadow"


@on_both
def test_some_rules_by_their_ids(learned: LearnedRules) -> None:
    one, other = entered(learned), entered(learned, "^y$")
    assert learned.some([one.id, "learned/none", "\0"]) == {one.id: one}
    assert learned.some([]) == {} and set(learned.some([one.id, other.id])) == {one.id, other.id}


def test_a_rule_tells_when_it_last_hit(learned: LearnedRules) -> None:
    rule = entered(learned)
    assert rule.last_hit is None
    for at, number, hits in ((10.0, 1, {rule.id: (3, 0)}), (20.0, 2, {}), (30.0, 3, {rule.id: (1, 1)})):
        learned.hits.count(KIND, "run-1", number, hits, at)
    assert learned.one(rule.id).last_hit == 30.0
    learned.hits.count(KIND, "run-1", 1, {rule.id: (4, 0)}, 25.0)
    assert learned.one(rule.id).last_hit == 30.0
    (sourced,) = learned.add([BASE], "agent", 40.0)
    assert sourced.last_hit == 40.0


def test_undoing_takes_the_flag_back_too(learned: LearnedRules) -> None:
    first = entered(learned, status="proposed", waits_for=WAITS)
    learned.approve(first.id, "user-17", "", 2.0)
    learned.approve(first.id, "user-17", "", 3.0)
    assert (learned.undo(first.id, "bob", "a slip", 4.0).status, learned.one(first.id).harmless) == ("shadow", True)
    back = learned.undo(first.id, "bob", "no", 5.0)
    assert (back.status, back.harmless) == ("proposed", False)
    with pytest.raises(RuleRefused, match="no step that could be undone"):
        learned.undo(first.id, "bob", "", 6.0)
    undoing, other, second, approval, *_ = learned.events(first.id)
    assert (undoing.step, undoing.undoes, undoing.by, undoing.harmless) == ("undo", approval.id, "bob", False)
    assert other.undoes == second.id and approval.undoes is None


def test_a_step_that_expects_another_status_is_refused(learned: LearnedRules) -> None:
    rule = entered(learned)
    learned.approve(rule.id, "user-17", "", 2.0, expected="shadow")
    late: list[Callable[[], Learned]] = [
        lambda: learned.move(rule.id, "retired", "agent", "", 3.0, expected="shadow"),
        lambda: learned.approve(rule.id, "bob", "", 3.0, expected="shadow"),
        lambda: learned.retire(rule.id, "bob", "", 3.0, expected="\ud800"),
    ]
    for take in late:
        with pytest.raises(RuleRefused, match=r"is active, not .* any more"):
            take()
    assert len(learned.events(rule.id)) == 2


@pytest.mark.parametrize("id", ["", "learned/x", "\0", "\ud800", "x" * 10**6, "'; --"], ids=lambda id: ascii(id)[:12])
def test_an_unknown_rule_takes_no_step(learned: LearnedRules, id: str) -> None:
    for call in (
        lambda: learned.one(id),
        lambda: learned.approve(id, "user-17", "", 1.0),
        lambda: learned.undo(id, "user-17", "", 1.0),
        lambda: learned.move(id, "active", "user-17", "", 1.0),
        lambda: learned.events(id),
    ):
        with pytest.raises(RuleRefused, match="does not exist") as caught:
            call()
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("by", ["", " \n"])
def test_nobody_takes_no_step(learned: LearnedRules, by: str) -> None:
    rule = entered(learned)
    for call in (
        lambda: learned.add([new("^y$")], by, 1.0),
        lambda: learned.approve(rule.id, by, "", 1.0),
        lambda: learned.undo(rule.id, by, "", 1.0),
    ):
        with pytest.raises(RuleRefused, match="names nobody"):
            call()
    assert learned.list() == [rule]


@on_both
def test_hostile_words_of_a_step_are_cut_and_mended(learned: LearnedRules) -> None:
    rule = entered(learned)
    learned.move(rule.id, "active", "\ud800\0" + "b" * 10**6, "w\0" * 10**6, 2.0, "s" * 10**6)
    event = learned.events()[0]
    assert (len(event.by), len(event.why), len(event.step)) == (200, 2000, 200)
    assert event.by.startswith("?\ufffdb") and "\0" not in event.why


def test_a_time_that_is_none_changes_nothing(learned: LearnedRules) -> None:
    rule = entered(learned)
    with pytest.raises(StoreError):
        learned.approve(rule.id, "user-17", "", math.nan)
    assert learned.one(rule.id) == rule and learned.version() == 1


class Life(RuleBasedStateMachine):
    """A rule's life beside a list of the states it was in."""

    numbers = count()

    def __init__(self, learned: LearnedRules) -> None:
        super().__init__()
        self.learned = learned
        self.rule = entered(learned, f"^life {next(self.numbers)}$", status="proposed", waits_for=WAITS)
        self.past = [("proposed", False)]
        self.steps = 1
        self.version = learned.version()

    def took(self, after: Learned) -> None:
        self.past.append((after.status, after.harmless))
        self.steps += 1
        self.version += 1

    @step()
    def approve(self) -> None:
        status = self.past[-1][0]
        if status == "active":
            with pytest.raises(RuleRefused):
                self.learned.approve(self.rule.id, "user-17", "", 1.0)
            return
        self.took(self.learned.approve(self.rule.id, "user-17", "", 1.0))
        assert self.past[-1] == ("active" if status == "shadow" else "shadow", True)

    @step(status=st.sampled_from(STATUSES), expected=st.none() | st.sampled_from(STATUSES))
    def move(self, status: str, expected: str | None) -> None:
        before, harmless = self.past[-1]
        fits = status in _NEXT[before] and expected in (None, before)
        if not fits or (before in ("proposed", "retired") and status == "shadow"):
            with pytest.raises(RuleRefused):
                self.learned.move(self.rule.id, status, "agent", "", 1.0, expected=expected)
            return
        self.took(self.learned.move(self.rule.id, status, "agent", "", 1.0, expected=expected))
        assert self.past[-1] == (status, harmless)

    @step()
    def undo(self) -> None:
        if len(self.past) == 1:
            with pytest.raises(RuleRefused):
                self.learned.undo(self.rule.id, "user-17", "", 1.0)
            return
        self.learned.undo(self.rule.id, "user-17", "", 1.0)
        self.past.pop()
        self.steps += 1
        self.version += 1

    @invariant()
    def it_is_what_was_done(self) -> None:
        stored = self.learned.one(self.rule.id)
        assert (stored.status, stored.harmless) == self.past[-1]
        events = self.learned.events(self.rule.id, limit=500)
        assert len(events) == self.steps and events[0].to_status == stored.status
        for later, earlier in pairwise(events):
            assert later.from_status == earlier.to_status
        assert self.learned.version() == self.version

    def teardown(self) -> None:
        while len(self.past) > 1:
            self.undo()
        assert msgspec.structs.replace(self.learned.one(self.rule.id), changed=1.0) == self.rule


@on_both
def test_a_life_can_be_taken_back_to_its_beginning(learned: LearnedRules) -> None:
    class HereOnly(Life):
        def __init__(self) -> None:
            super().__init__(learned)

    wanted = settings(max_examples=tries_of(learned._database, 20), stateful_step_count=15, deadline=None)
    run_state_machine_as_test(HereOnly, settings=wanted)


# lists


@on_both
def test_lists_and_pages_hold_what_is_asked_for(learned: LearnedRules) -> None:
    for n in range(11):
        entered(learned, f"^{n}$", kind="ab"[n % 2], agent="xyz"[n % 3])
    learned.retire(learned.list("a")[1].id, "user-17", "", 2.0)
    everything = learned.list()
    assert [(rule.kind, rule.place) for rule in everything] == sorted((rule.kind, rule.place) for rule in everything)
    for kind in (None, "a", "none", "\ud800", "\0"):
        for status in (None, "shadow", "retired"):
            for agent in (None, "x"):
                wanted = [
                    rule
                    for rule in everything
                    if kind in (None, rule.kind) and status in (None, rule.status) and agent in (None, rule.agent)
                ]
                assert learned.list(kind, status, agent) == wanted
                found, cursor = [], None
                while True:
                    page = learned.page(kind, status, agent, cursor, 2)
                    found += page.items
                    if (cursor := page.next) is None:
                        break
                assert sorted(found, key=lambda rule: rule.id) == sorted(wanted, key=lambda rule: rule.id)
                assert [int(rule.pattern[1:-1]) for rule in found] == sorted(
                    (int(rule.pattern[1:-1]) for rule in found), reverse=True
                )
    assert len(learned.list(limit=3)) == 3
    assert learned.kinds() == {"a": {"retired": 1, "shadow": 5}, "b": {"shadow": 5}}


@pytest.mark.parametrize(
    "cursor", ["", "x", "-1", "1.0", "٣", "9" * 19, "9" * 10**5, "\0", "\ud800"], ids=lambda c: ascii(c)[:9]
)
def test_a_cursor_that_is_none_is_refused(learned: LearnedRules, cursor: str) -> None:
    with pytest.raises(CursorError):
        learned.page(cursor=cursor)


@on_both
def test_events_come_newest_first_in_pages(learned: LearnedRules) -> None:
    rules = [entered(learned, f"^{n}$") for n in range(3)]
    for rule in rules:
        learned.approve(rule.id, "user-17", "", 2.0)
    seen, before = [], None
    while found := learned.events(limit=2, before=before):
        seen += found
        before = found[-1].id
    assert [event.id for event in seen] == sorted((event.id for event in seen), reverse=True)
    assert [event.rule for event in seen] == [rule.id for rule in [*rules[::-1], *rules[::-1]]]
    assert learned.events(before=-(2**70)) == [] and len(learned.events(before=2**70)) == 6


# counting


def test_an_attempt_that_is_counted_again_counts_once(learned: LearnedRules) -> None:
    a, b = entered(learned, "^a$"), entered(learned, "^b$")
    learned.hits.count(KIND, "j", 1, {a.id: (10, 0), b.id: (3, 3)}, 2.0)
    for _ in range(2):
        learned.hits.count(KIND, "j", 1, {a.id: (12, 5)}, 3.0)
    learned.hits.count(KIND, "j", 2, {a.id: (1, 1), b.id: (0, 0)}, 4.0)
    a, b = learned.list(KIND)
    assert [(rule.jobs, rule.lines, rule.taken) for rule in (a, b)] == [(2, 13, 6), (0, 0, 0)]
    assert learned.version() == 2  # numbers change nothing that is matched


def test_the_source_attempt_counts_once_and_not_less_than_was_seen(learned: LearnedRules) -> None:
    rule = learned.add([BASE], "agent", 1.0)[0]
    for lines, wanted in ((3, 40), (0, 40), (70, 70), (5, 40)):
        learned.hits.count(KIND, "run-1", 3, {rule.id: (lines, 2)} if lines else {}, 2.0)
        now = learned.one(rule.id)
        assert (now.jobs, now.lines, now.taken) == (1, wanted, 2 if lines else 0)
    learned.hits.count(KIND, "run-1", 4, {rule.id: (1, 0)}, 3.0)
    assert (learned.one(rule.id).jobs, learned.one(rule.id).lines) == (2, 41)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 2),
            st.dictionaries(st.integers(0, 2), st.tuples(st.integers(0, 5), st.integers(0, 5))),
        ),
        max_size=12,
    )
)
def test_totals_are_the_sums_of_the_last_counts(
    learned: LearnedRules, told: list[tuple[str, int, dict[int, tuple[int, int]]]]
) -> None:
    kind = f"kind {next(Life.numbers)}"
    rules = learned.add([new(f"^{n}$", kind=kind) for n in range(3)], "agent", 1.0)
    last: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    for job, attempt, hits in told:
        learned.hits.count(kind, kind + job, attempt, {rules[n].id: hit for n, hit in hits.items()}, 2.0)
        last[job, attempt] = hits
    for n, stored in enumerate(learned.list(kind)):
        mine = [hits[n] for hits in last.values() if any(hits.get(n, ()))]
        assert stored.jobs == len(mine)
        assert (stored.lines, stored.taken) == (sum(hit[0] for hit in mine), sum(hit[1] for hit in mine))
    assert all(0 <= idle <= len(last) for idle in learned.hits.idle(kind).values())


def test_bad_counts_are_refused_and_leave_nothing(learned: LearnedRules) -> None:
    rule, other = entered(learned), entered(learned, kind="other")
    learned.hits.count(KIND, "j", 1, {rule.id: (1, 1)}, 1.0)
    for hits in ({other.id: (1, 1)}, {"\ud800": (1, 1)}, {rule.id: (-1, 0)}, {rule.id: (0, 2**60)}):
        with pytest.raises((RuleRefused, InputError)):
            learned.hits.count(KIND, "j", 1, {rule.id: (5, 5)} | hits, 2.0)
    for kind, job, attempt in (
        ("", "j", 1),
        (KIND, "a/b", 1),
        (KIND, "\ud800", 1),
        (KIND, "j", -1),
        (KIND, "j", 2**70),
    ):
        with pytest.raises((RuleRefused, NameRefused)):
            learned.hits.count(kind, job, attempt, {rule.id: (5, 5)}, 2.0)
    assert (learned.one(rule.id).jobs, learned.one(rule.id).lines) == (1, 1)


def test_an_attempt_whose_kind_changes_is_taken_from_the_old_kind(learned: LearnedRules) -> None:
    rule, other = entered(learned), entered(learned, kind="other")
    learned.hits.count(KIND, "j", 1, {rule.id: (4, 0)}, 1.0)
    learned.hits.count("other", "j", 1, {other.id: (6, 0)}, 2.0)
    assert (learned.one(rule.id).jobs, learned.one(rule.id).lines) == (0, 0)
    assert (learned.one(other.id).jobs, learned.one(other.id).lines) == (1, 6)


def test_idle_is_how_many_attempts_went_by(learned: LearnedRules) -> None:
    a, b = entered(learned, "^a$"), entered(learned, "^b$")
    assert learned.hits.idle(KIND) == {} or set(learned.hits.idle(KIND).values()) == {0}
    for attempt in range(5):
        learned.hits.count(KIND, "j", attempt, {a.id: (1, 0)} if attempt < 2 else {}, 1.0)
    late = entered(learned, "^late$")
    learned.hits.count(KIND, "j", 5, {}, 1.0)
    learned.hits.count(KIND, "j", 5, {}, 1.0)
    learned.hits.count("other", "k", 1, {}, 1.0)
    assert learned.hits.idle(KIND) == {a.id: 4, b.id: 6, late.id: 1}
    learned.retire(b.id, "agent", "never seen", 2.0)
    assert b.id not in learned.hits.idle(KIND)
    learned.approve(b.id, "user-17", "watch it again", 3.0)
    assert learned.hits.idle(KIND)[b.id] == 0
    assert learned.hits.idle("none") == learned.hits.idle("\ud800") == {}


# refusals, shapes, notices


@on_both
def test_refusals_are_kept_and_counted(learned: LearnedRules) -> None:
    votes = Votes(5, (1, 2), "no")
    learned.refusals.add(
        KIND, "j", 1, "miner", [Refused(".*", "literal", "matches all"), Refused("x", "vote", "2", votes)], 3.0
    )
    learned.refusals.add("other", "j", 2, "model", [Refused("y", "vote", "1 of 5")], 4.0)
    learned.refusals.add("other", "j", 2, "model", [], 4.0)
    newest, second, first = learned.refusals.list()
    assert (newest.kind, newest.job, newest.attempt, newest.agent, newest.at) == ("other", "j", 2, "model", 4.0)
    assert (second.votes, first.votes, first.pattern, first.guard, first.cause) == (
        votes,
        None,
        ".*",
        "literal",
        "matches all",
    )
    assert learned.refusals.list(KIND, "vote") == [second] and learned.refusals.list(guard="vote") == [newest, second]
    assert learned.refusals.list(limit=1) == [newest] and learned.refusals.list(before=newest.id) == [second, first]
    assert learned.refusals.list("\ud800") == []
    assert learned.refusals.counts() == {"literal": 1, "vote": 2}


@on_both
def test_counts_outlive_the_refusals(learned: LearnedRules, records: Records) -> None:
    learned.refusals.add("other", "j", 1, "miner", [Refused("z", "a", "c")], 1.0)
    learned.refusals.add(KIND, "j", 1, "miner", [Refused(str(n), "a", "c") for n in range(MAX_REFUSALS + 50)], 1.0)
    learned.refusals.add(KIND, "j", 1, "miner", [Refused("last", "b", "c")] * 10, 1.0)
    with records.database.reading() as connection:
        kept = connection.exec_driver_sql("SELECT kind, count(*) FROM rule_refusals GROUP BY kind").all()
    assert dict(map(tuple, kept)) == {KIND: MAX_REFUSALS, "other": 1}
    assert learned.refusals.counts() == {"a": MAX_REFUSALS + 51, "b": 10}
    assert learned.refusals.list(KIND)[0].pattern == "last"


@on_both
def test_hostile_refusals_are_cut_and_mended(learned: LearnedRules) -> None:
    learned.refusals.add(KIND, "j", 1, "\ud800", [Refused("\ud800\0" + "x" * 10**6, "\0" * 999, "y" * 10**6)], 1.0)
    (kept,) = learned.refusals.list()
    assert (len(kept.pattern), len(kept.guard), len(kept.cause)) == (2000, 200, 2000)
    for kind, job in (("", "j"), ("\ud800", "j"), (KIND, ""), (KIND, "a\0")):
        with pytest.raises((RuleRefused, NameRefused)):
            learned.refusals.add(kind, job, 1, "miner", [Refused("x", "y", "z")], 1.0)
    assert len(learned.refusals.list()) == 1


@on_both
def test_shapes_are_remembered_for_their_kind(learned: LearnedRules) -> None:
    extremes = {-(2**63), 2**63 - 1, 0, -1}
    assert learned.shapes.seen(KIND) == set()
    learned.shapes.add_seen(KIND, extremes)
    learned.shapes.add_seen(KIND, iter([5, 5, 0]))
    learned.shapes.add_seen("other", [])
    assert learned.shapes.seen(KIND) == extremes | {5}
    assert learned.shapes.seen("other") == learned.shapes.seen("\ud800") == set()
    for bad in (2**63, -(2**63) - 1):
        with pytest.raises(InputError):
            learned.shapes.add_seen(KIND, [7, bad])
    assert learned.shapes.seen(KIND) == extremes | {5}


def test_the_oldest_shapes_go(learned: LearnedRules) -> None:
    learned.shapes.add_seen(KIND, range(MAX_SHAPES))
    learned.shapes.add_seen(KIND, [MAX_SHAPES - 1, -1, -2])
    assert learned.shapes.seen(KIND) == {*range(2, MAX_SHAPES), -1, -2}
    learned.shapes.add_seen(KIND, range(10**6, 10**6 + MAX_SHAPES + 9))
    assert learned.shapes.seen(KIND) == set(range(10**6 + 9, 10**6 + MAX_SHAPES + 9))


@on_both
def test_noticed_lines_are_kept_once(learned: LearnedRules) -> None:
    learned.noticed.add("j", 1, KIND, [Noticed("b", 7, "boom", 2), Noticed("a", 9, "bang", 1)])
    learned.noticed.add("j", 1, KIND, [Noticed("b", 7, "boom", 4), Noticed("b", 8, "\ud800\0" + "x" * 9000, 1)])
    learned.noticed.add("j", 1, KIND, [Noticed("b", 7, "boom", 3)])
    learned.noticed.add("j", 2, KIND, [])
    found = learned.noticed.of("j", 1)
    assert [(line.stream, line.line, line.runs) for line in found] == [("a", 9, 1), ("b", 7, 4), ("b", 8, 1)]
    assert len(found[2].text) == 2000
    assert learned.noticed.of("j", 2) == learned.noticed.of("\ud800", 1) == []
    with pytest.raises((NameRefused, InputError)):
        learned.noticed.add("j", 1, KIND, [Noticed("b", -1, "x", 1)])
    with pytest.raises(NameRefused):
        learned.noticed.add("j", 1, KIND, [Noticed("a/b", 1, "x", 1)])
    assert learned.noticed.of("j", 1) == found


def test_of_many_noticed_lines_those_of_most_runs_stay(learned: LearnedRules) -> None:
    learned.noticed.add("j", 1, KIND, [Noticed("s", n, "x", 1) for n in range(MAX_NOTICED + 100)])
    learned.noticed.add("j", 1, KIND, [Noticed("s", 10_000 + n, "x", 5) for n in range(50)])
    found = learned.noticed.of("j", 1)
    assert len(found) == MAX_NOTICED and [line.runs for line in found].count(5) == 50


# many at once


@on_both
def test_threads_enter_the_same_rules_once(learned: LearnedRules) -> None:
    def enter(worker: int) -> list[str]:
        rules = [entered(learned, f"^{n}$") for n in range(10)]
        learned.hits.count(KIND, f"job-{worker}", 1, {rule.id: (1, 0) for rule in rules}, 1.0)
        return [rule.id for rule in rules]

    ids = at_once(enter, range(6))
    rules = learned.list(KIND)
    assert all(set(one) == {rule.id for rule in rules} for one in ids)
    assert [rule.place for rule in rules] == list(range(10)) and learned.version() == 10
    assert {(rule.jobs, rule.lines) for rule in rules} == {(6, 6)}


@on_both
def test_of_many_who_promote_one_does(learned: LearnedRules) -> None:
    rule = entered(learned)

    def promote(worker: int) -> bool:
        try:
            learned.move(rule.id, "active", f"w{worker}", "", 2.0, "promote", expected="shadow")
        except RuleRefused:
            return False
        return True

    assert sum(at_once(promote, range(8))) == 1
    assert len(learned.events(rule.id)) == 2


# what no rule may take


def verdict(*quotes: str) -> Verdict:
    evidence = tuple(Evidence("", "main", n + 1, quote, "diagnosis/x") for n, quote in enumerate(quotes))
    return Verdict(
        "Unknown", "Script", "user", "none", "failed", 0.5, "", evidence, (), None, (), DecidedBy("nobody"), "f",
        Progress(), Compression(),
    )  # fmt: skip


@on_both
def test_the_evidence_of_all_verdicts_is_found(records: Records) -> None:
    told = [("a", ["x", "\N{GRINNING FACE}"]), ("a", ["y"]), ("b", []), ("c", ["z"])]
    for job, quotes in told:
        assert records.publish(job, 1, verdict(*quotes), True, 1.0)
    found = records.evidence_after(0, 100)
    assert [[one.quote for one in evidence] for _, evidence in found] == [quotes for _, quotes in told]
    assert [id for id, _ in found] == sorted(id for id, _ in found)
    assert records.evidence_after(-1, 2) == found[:2] and records.evidence_after(found[1][0], 2) == found[2:]
    assert records.evidence_after(found[-1][0], 2) == records.evidence_after(2**80, 2) == []
    assert len(records.evidence_after(0, -1)) == 1 and len(records.evidence_after(0, 2**80)) == 4
    assert records.publish("a", 1, verdict("new"), True, 2.0)
    ((_, (evidence,)),) = records.evidence_after(found[-1][0], 10)
    assert evidence == Evidence("", "main", 1, "new", "diagnosis/x")


# diagnosis rules

CLAIM = StoredClaim("OS Error", "user", "fix_first", "ask for quota")


def diagnosis(pattern: str = "^quota service refused", claim: StoredClaim = CLAIM, **changes: Any) -> NewRule:
    return new(pattern, kind=DIAGNOSIS, claim=claim, **changes)


def test_a_claim_comes_back_and_tells_rules_apart(learned: LearnedRules) -> None:
    first, other, same = learned.add(
        [
            diagnosis(),
            diagnosis(claim=StoredClaim("Key Error")),
            diagnosis(claim=StoredClaim("OS Error", "nobody", "fix_first")),
        ],
        "a",
        1.0,
    )
    assert first.claim == CLAIM and learned.one(first.id).claim == CLAIM and first.id.startswith("learned/diagnosis/")
    assert other.id != first.id and same == first


@pytest.mark.parametrize(
    "rule",
    [
        new("^x", claim=CLAIM),
        new("^x", kind=DIAGNOSIS),
        diagnosis(claim=StoredClaim("Gremlins")),
        diagnosis(claim=StoredClaim("Unknown")),
        diagnosis(claim=StoredClaim("OS Error", recovery="pray")),
        diagnosis(claim=StoredClaim("OS Error", fault="moon")),
        diagnosis(waits_for="a reason", status="shadow"),
    ],
)
def test_claims_that_make_no_sense_are_refused(learned: LearnedRules, rule: NewRule) -> None:
    with pytest.raises(RuleRefused):
        learned.add([rule], "a", 1.0)
    assert learned.list() == []


@pytest.mark.parametrize("claim", [StoredClaim("ECC Error"), StoredClaim("OS Error", "user", "isolate_and_restart")])
def test_what_may_take_nodes_out_becomes_active_by_a_human_alone(learned: LearnedRules, claim: StoredClaim) -> None:
    (rule,) = learned.add([diagnosis(claim=claim, waits_for="cordon: it may")], "a", 1.0)
    with pytest.raises(RuleRefused, match="a person must approve it"):
        learned.move(rule.id, "active", "code", "", 2.0, "promote")
    assert learned.approve(rule.id, "user-17", "", 3.0).status == "active"
    assert learned.move(rule.id, "shadow", "code", "", 4.0, "demote").status == "shadow"
    with pytest.raises(RuleRefused, match="a person must approve it"):
        learned.move(rule.id, "active", "code", "", 5.0, "promote")


@on_both
def test_hits_of_both_sorts_are_counted_apart(learned: LearnedRules) -> None:
    taking, telling = learned.add([new("^f$"), diagnosis()], "a", 1.0)
    learned.hits.count(KIND, "j", 1, {taking.id: (5, 2)}, 1.0)
    learned.hits.count(DIAGNOSIS, "j", 1, {telling.id: (3, 0)}, 2.0)
    learned.hits.count(KIND, "j", 1, {taking.id: (6, 2)}, 3.0)
    assert [(learned.one(rule.id).jobs, learned.one(rule.id).lines) for rule in (taking, telling)] == [(1, 6), (1, 3)]
    learned.hits.count(DIAGNOSIS, "j", 1, {}, 4.0)
    assert [(learned.one(rule.id).jobs, learned.one(rule.id).lines) for rule in (taking, telling)] == [(1, 6), (0, 0)]
    assert learned.hits.idle(KIND) == {taking.id: 0}
