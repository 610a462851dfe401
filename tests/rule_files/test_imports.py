"""What comes in passes the guards, begins to be watched or waits, and is entered by whole files only."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from logdoctor.errors import RuleRefused
from logdoctor.learning.diagnoses.guards import DiagnosisGuards
from logdoctor.learning.files.files import export, file_rule, text_of
from logdoctor.learning.files.imports import AGENT, File, Imported, import_files
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.learning.filters.metrics import STEP
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.safe import plain_yaml
from logdoctor.settings import Settings
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.wiring import learning
from tests.rule_files.learned import HEARTBEAT, KIND, SHARD, active, opened

README = Path(__file__).parents[2] / "rules" / "README.md"
PAST = "the frobnicator 17 stopped"
"""A line that a verdict cited."""
RULE: dict[str, Any] = {
    "id": "filter/x/shard",
    "kind": "filter",
    "status": "active",
    "title": "shards",
    "patterns": ["^loaded shard [0-9]+ of [0-9]+$"],
    "must_match": ["loaded shard 3 of 9"],
    "scope": {"kind": KIND},
    "origin": {"by": "user-17", "at": "2026-01-01", "source": "her job"},
}


@pytest.fixture(scope="module")
def guards(tmp_path_factory: pytest.TempPathFactory, book: RuleBook) -> FilterGuards:
    records = Records(f"sqlite:///{tmp_path_factory.mktemp('guards') / 'x.db'}")
    guards = learning.guards(Settings(), book, records)
    guards.remember([PAST])
    records.close()
    return guards


@pytest.fixture
def rules(tmp_path: Path) -> LearnedRules:
    return opened(tmp_path / "data")


def brought(
    rules: LearnedRules, guards: FilterGuards, *files: list[dict[str, Any]], kind: str | None = None, most: int = 100
) -> list[Imported]:
    """What became of files of rules."""
    contents = [yaml.safe_dump_all(file).encode() for file in files]
    sent = [File(f"{number}.yaml", lambda content=content: content) for number, content in enumerate(contents)]  # type: ignore[misc]
    return import_files(sent, kind, guards, rules, "user-18", 5.0, most)


def changed(**changes: Any) -> dict[str, Any]:
    return RULE | changes


def test_a_good_rule_begins_in_shadow_whatever_its_file_says(rules: LearnedRules, guards: FilterGuards) -> None:
    (told,) = brought(rules, guards, [RULE])
    rule = rules.one(told.id)
    assert (told.outcome, told.status, rule.status, rule.kind, rule.agent) == (
        "entered",
        "shadow",
        "shadow",
        KIND,
        AGENT,
    )
    assert (rule.pattern, rule.examples, rule.jobs, rule.taken) == (RULE["patterns"][0], ("loaded shard 3 of 9",), 0, 0)
    (event,) = rules.events(rule.id)
    assert (event.step, event.by, event.why) == ("import", "user-18", "from 0.yaml: by user-17, 2026-01-01, her job")


def test_again_it_is_known(rules: LearnedRules, guards: FilterGuards) -> None:
    (first,) = brought(rules, guards, [RULE])
    rules.retire(first.id, "user-17", "no", 6.0)
    version = rules.version()
    (told,) = brought(rules, guards, [RULE])
    assert (told.outcome, told.id, told.status) == ("known", first.id, "retired")
    assert rules.version() == version


def test_what_looks_like_trouble_waits_for_a_human(rules: LearnedRules, guards: FilterGuards) -> None:
    heart = changed(patterns=[HEARTBEAT.pattern], must_match=list(HEARTBEAT.examples))
    claimed = changed(harmless=True)
    (by_word,), (by_claim,) = brought(rules, guards, [heart]), brought(rules, guards, [claimed])
    for told in (by_word, by_claim):
        rule = rules.one(told.id)
        assert (told.status, rule.status, rule.harmless) == ("proposed", "proposed", False)
        assert told.waits_for.startswith("error-word")
    assert rules.approve(by_claim.id, "user-17", "", 6.0).harmless


def test_an_export_comes_back_as_the_same_rules(rules: LearnedRules, guards: FilterGuards, tmp_path: Path) -> None:
    learned = [active(rules), active(rules, HEARTBEAT)]
    written = export(learned, rules, tmp_path / "out").written
    other = opened(tmp_path / "other")
    told = import_files([File(str(p), p.read_bytes) for p in written], None, guards, other, "user-18", 5.0, 9)
    assert sorted(one.id for one in told) == sorted(rule.id for rule in learned)
    assert {one.status for one in told} == {"shadow", "proposed"}


@pytest.mark.parametrize(
    ("changes", "guard", "cause"),
    [
        ({"patterns": ["^.*$"]}, "grammar", "wildcard"),
        ({"patterns": ["loaded shard [0-9]+ of [0-9]+"]}, "anchor", "\\^"),
        ({"patterns": ["^loaded shard [0-9 a-z]+$"]}, "field", ""),
        ({"patterns": ["^(a+)+$"]}, "grammar", ""),
        ({"patterns": ["^" + "x" * 10_000 + "$"]}, "form", "10002 characters"),
        ({"patterns": ["^loaded\x1b shard$"]}, "form", "U\\+001B"),
        ({"patterns": ["^the frobnicator [0-9]+ stopped$"], "must_match": [PAST]}, "evidence", "frobnicator"),
        ({"must_match": ["something else"]}, "claims", "does not match"),
        ({"must_match": []}, "claims", ""),
        ({"must_not_match": ["loaded shard 7 of 8"]}, "claims", "must_not_match"),
        ({"patterns": ["^a$", "^b$"]}, "form", "2 patterns"),
        ({"patterns": []}, "form", "0 patterns"),
        ({"scope": {"framework": "x"}}, "form", "no kind"),
        ({"scope": {"kind": " "}}, "store", "no kind"),
        ({"scope": {"kind": "x" * 400}}, "store", "no kind"),
        ({"scope": {"kind": "a\x1bb"}}, "store", "no kind"),
        ({"fallback": True}, "form", "fallback"),
        ({"metrics": ["(?P<step>(a+)+)$"]}, "form", "metrics"),
        ({"must_match": ["loaded shard 3 of 9\nx"]}, "form", "line break"),
        (
            {"status": "retired", "retired": {"at": "2026-01-01", "by": "me", "why": "x"}},
            "form",
            "retired",
        ),
        ({"title": [7]}, "file", "is not a rule"),
        ({"unknown": 7}, "file", "unknown"),
    ],
)
def test_a_bad_rule_is_refused_with_its_guard(
    rules: LearnedRules, guards: FilterGuards, changes: dict[str, Any], guard: str, cause: str
) -> None:
    import re

    (told,) = brought(rules, guards, [changed(**changes)])
    assert (told.outcome, told.guard) == ("refused", guard)
    assert re.search(cause, told.cause)
    assert rules.list() == [] and rules.events() == []


def test_of_a_file_with_a_bad_rule_nothing_is_entered(rules: LearnedRules, guards: FilterGuards) -> None:
    bad = changed(patterns=["^.*$"])
    other = changed(patterns=["^read shard [0-9]+ of [0-9]+$"], must_match=["read shard 1 of 2"])
    told = brought(rules, guards, [RULE, bad], [other])
    assert [one.outcome for one in told] == ["held", "refused", "entered"]
    assert [rule.pattern for rule in rules.list()] == other["patterns"]


def test_a_kind_is_given_to_those_that_name_none(rules: LearnedRules, guards: FilterGuards) -> None:
    bare = {name: value for name, value in RULE.items() if name != "scope"}
    other = changed(patterns=["^read shard [0-9]+ of [0-9]+$"], must_match=["read shard 1 of 2"])
    brought(rules, guards, [bare, other], kind="nemo/train.py")
    assert {rule.pattern: rule.kind for rule in rules.list()} == {
        RULE["patterns"][0]: "nemo/train.py",
        other["patterns"][0]: KIND,
    }


def test_secrets_of_examples_are_masked(rules: LearnedRules, guards: FilterGuards) -> None:
    secret = "hf_" + "a1B2" * 8
    rule = changed(patterns=["^using hub key [0-9A-Za-z_<>]+$"], must_match=[f"using hub key {secret}"])
    (told,) = brought(rules, guards, [rule])
    assert secret not in str(told)
    assert all(secret not in text for kept in rules.list() for text in kept.examples)


def test_no_more_than_so_many_at_once(rules: LearnedRules, guards: FilterGuards) -> None:
    told = brought(rules, guards, [RULE], [RULE, RULE], most=2)
    assert [(one.outcome, one.guard) for one in told] == [("entered", ""), ("refused", "file")]


def test_metrics_that_learned_rules_read_come_with_it(rules: LearnedRules, guards: FilterGuards) -> None:
    rule = changed(
        patterns=["^done with step [0-9]+ of epoch [0-9]+$"], must_match=["done with step 3 of epoch 1"], metrics=[STEP]
    )
    (told,) = brought(rules, guards, [rule])
    assert rules.one(told.id).metrics == (STEP,)
    assert STEP in text_of_learned(rules, told.id)


def text_of_learned(rules: LearnedRules, rule_id: str) -> str:
    from logdoctor.learning.files.files import file_rule

    return yaml.safe_load(text_of(file_rule(rules.one(rule_id), rules)))["metrics"][0]  # type: ignore[no-any-return]


def test_a_pattern_that_the_kind_has_is_known_even_from_another_agent(
    rules: LearnedRules, guards: FilterGuards
) -> None:
    known = active(rules)
    (told,) = brought(rules, guards, [changed(patterns=[SHARD.pattern], must_match=list(SHARD.examples))])
    assert (told.outcome, told.id, told.status) == ("known", known.id, "active")


DIAGNOSIS_RULE: dict[str, Any] = {
    "id": "diagnosis/x/quota",
    "kind": "diagnosis",
    "status": "active",
    "title": "no quota",
    "when": {"any": [r"^quota\s+service\s+refused\s+the\s+lease"]},
    "verdict": {"reason": "OS Error", "role": "cause", "recovery": "fix_first"},
    "must_match": [{"text": "quota service refused the lease of team 'a'"}],
    "origin": {"by": "user-17", "at": "2026-01-01", "source": "her job"},
}


def brought_diagnosis(
    rules: LearnedRules, guards: FilterGuards, scanner: Scanner, guarded: bool = True, **changes: Any
) -> Imported:
    content = yaml.safe_dump(DIAGNOSIS_RULE | changes).encode()
    diagnosis = DiagnosisGuards(scanner.book, scanner, lambda without: iter(())) if guarded else None
    files = [File("x.yaml", lambda: content)]
    (told,) = import_files(files, None, guards, rules, "user-18", 5.0, 9, diagnosis)
    return told


def test_a_diagnosis_rule_begins_in_shadow(rules: LearnedRules, guards: FilterGuards, scanner: Scanner) -> None:
    told = brought_diagnosis(rules, guards, scanner)
    rule = rules.one(told.id)
    assert (told.outcome, rule.status, rule.kind) == ("entered", "shadow", "diagnosis")
    assert rule.claim and (rule.claim.reason, rule.claim.recovery, rule.claim.fault) == (
        "OS Error",
        "fix_first",
        "user",
    )
    assert brought_diagnosis(rules, guards, scanner).outcome == "known"
    assert text_of(file_rule(rule, rules)).startswith("id: diagnosis/learned/diagnosis/")


def test_the_example_of_the_readme_is_taken_and_one_of_another_form_is_told_where_that_works(
    rules: LearnedRules, guards: FilterGuards, scanner: Scanner
) -> None:
    shipped, own, _ = re.findall(r"```yaml\n(.+?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert brought_diagnosis(rules, guards, scanner, **plain_yaml.document(own)).outcome == "entered"
    told = brought_diagnosis(rules, guards, scanner, **plain_yaml.document(shipped))
    assert told.outcome == "refused" and "LOGDOCTOR_MORE_RULES" in told.cause


def test_an_exported_diagnosis_rule_comes_back(
    rules: LearnedRules, guards: FilterGuards, scanner: Scanner, tmp_path: Path
) -> None:
    rule = rules.one(brought_diagnosis(rules, guards, scanner).id)
    (path,) = export([rule], rules, tmp_path / "out").written
    other = opened(tmp_path / "other")
    diagnosis = DiagnosisGuards(scanner.book, scanner, lambda without: iter(()))
    (told,) = import_files([File("x", path.read_bytes)], None, guards, other, "user-18", 5.0, 9, diagnosis)
    back = other.one(told.id)
    assert (back.id, back.pattern, back.claim, back.examples) == (rule.id, rule.pattern, rule.claim, rule.examples)


def test_one_that_may_take_nodes_out_waits(rules: LearnedRules, guards: FilterGuards, scanner: Scanner) -> None:
    told = brought_diagnosis(rules, guards, scanner, verdict={"reason": "Node Failure", "role": "cause"})
    assert (told.status, told.waits_for.split(":")[0]) == ("shadow", "cordon")
    with pytest.raises(RuleRefused, match="a person must approve it"):
        rules.move(told.id, "active", "code", "", 6.0)
    assert rules.approve(told.id, "user-17", "", 7.0).status == "active"


@pytest.mark.parametrize(
    ("changes", "guard"),
    [
        ({"when": {"any": ["^a b c", "^d"]}}, "form"),
        ({"when": {"any": [".*"]}}, "form"),
        ({"when": {"any": ["^quota"], "unless": ["x"]}}, "form"),
        ({"verdict": {"reason": "Gremlins", "role": "cause"}}, "form"),
        ({"verdict": {"reason": "OS Error", "role": "proximate"}}, "form"),
        ({"verdict": {"lookup": "xid"}}, "form"),
        ({"must_match": []}, "evidence"),
        ({"must_match": [{"text": "something else"}]}, "evidence"),
        ({"must_not_match": [{"text": "quota service refused the lease again"}]}, "evidence"),
        ({"when": {"any": ["^lost quota"]}, "must_match": [{"text": "lost quota"}]}, "literal"),
    ],
)
def test_diagnosis_rules_are_guarded(
    rules: LearnedRules, guards: FilterGuards, scanner: Scanner, changes: dict[str, Any], guard: str
) -> None:
    told = brought_diagnosis(rules, guards, scanner, **changes)
    assert (told.outcome, told.guard) == ("refused", guard) and rules.list() == []


def test_without_their_guards_they_are_not_taken(rules: LearnedRules, guards: FilterGuards, scanner: Scanner) -> None:
    assert brought_diagnosis(rules, guards, scanner, guarded=False).guard == "form"
