"""What comes of a sample: rules with their proof, and for all else the guard that refused it."""

from collections.abc import Sequence

import pytest

from logdoctor.errors import ModelError, ModelUnavailable
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.learning.filters.lesson import FilterLesson, lesson
from logdoctor.learning.filters.matching import taken
from logdoctor.learning.filters.miner import Miner
from logdoctor.learning.filters.proposal import Answer, FilterCandidate, Judgement, Sample
from logdoctor.store.learning.learned import ERROR_WORD
from tests.log_agent.samples import KIND, SOURCE, Told, said, sample

STEPS = [f"[rank3]: gizmo step {n} took {n}.5 s" for n in range(12)]
SAVES = [f"saving the gizmo to /ckpt/{n}" for n in range(12)]
STEP, SAVE = r"^gizmo step \d+ took \d+\.5 s$", r"^saving the gizmo to /ckpt/\d+$"
NO = ModelUnavailable("the model", "does not answer", "Wait.")


def learned(
    held: Sample, guards: FilterGuards, *answers: Answer | Exception, live: tuple[str, ...] = (), **more: object
) -> FilterLesson:
    agent = Told(*answers, **more)  # type: ignore[arg-type]
    return lesson(held, agent, len(answers), guards, live, SOURCE)


def refusals(found: FilterLesson) -> dict[str, str]:
    return {refusal.pattern: refusal.guard for refusal, _ in found.refused}


def test_a_rule_comes_with_its_proof(guards: FilterGuards) -> None:
    found = learned(sample(STEPS, SAVES, counts=(700, 30)), guards, *[said(STEP, SAVE)] * 4, NO)
    step, save = found.rules
    assert (step.pattern, step.kind, step.title) == (STEP, KIND, f"lines of {STEP}")
    assert (step.status, step.waits_for, step.harmless, step.agent) == ("shadow", "", False, "told")
    assert (step.lines, save.lines) == (700, 30) and step.source == SOURCE
    assert (step.votes.runs, step.votes.agreed, step.votes.judge) == (4, (0, 1, 2, 3), "told so")
    assert step.examples and set(step.examples) <= set(STEPS) and set(save.examples) <= set(SAVES)
    assert len(taken([STEP], step.examples)[0]) == len(step.examples)
    assert found.refused == [] and found.noticed == [] and len(found.failures) == 1


def test_metrics_are_read_from_all_lines_that_it_takes(guards: FilterGuards) -> None:
    lines = [f"gizmo step {n}/99 loss: {9 / (n + 1):.3f}" for n in range(12)]
    (rule,) = learned(sample(lines), guards, *[said(r"^gizmo step \d+/99 loss: [0-9.]+$")] * 3).rules
    assert len(rule.metrics) == 2 and "(?P<total>" in rule.metrics[0] and "(?P<loss>" in rule.metrics[1]


def test_each_guard_says_why(guards: FilterGuards, cause_lines: tuple[str, ...]) -> None:
    held = sample(STEPS, SAVES)
    bad = {"^.*$": "literal", r"gizmo step \d+": "anchor", r"^(?:gizmo.*)+$": "grammar", "": "form", SAVE: "duplicate"}
    for pattern, guard in bad.items():
        found = learned(held, guards, *[said(pattern)] * 3, live=(SAVE,))
        assert found.rules == []
        ((refusal, votes),) = found.refused
        assert refusal.pattern == pattern and refusal.cause
        assert refusal.guard == guard or pattern == "^.*$", (pattern, refusal)
        assert votes is None or votes.agreed == (0, 1, 2)


def test_all_that_is_refused_is_told(guards: FilterGuards) -> None:
    bad = ["^.*$", r"gizmo step \d+", "", "^(?=a)$", "^nothing is like it$", "(((", r"^(a+)+$"]
    found = learned(sample(STEPS, SAVES), guards, *[said(*bad, STEP)] * 3)
    assert [rule.pattern for rule in found.rules] == [STEP]
    assert set(refusals(found)) == set(bad)


def test_what_too_few_agree_on_is_refused_by_the_vote(guards: FilterGuards) -> None:
    found = learned(sample(STEPS, SAVES), guards, said(STEP), said(STEP, SAVE), said(STEP))
    assert [rule.pattern for rule in found.rules] == [STEP] and refusals(found) == {SAVE: "vote"}


def test_a_judge_may_drop_what_guards_let_pass(guards: FilterGuards) -> None:
    found = learned(sample(STEPS, SAVES), guards, *[said(STEP, SAVE)] * 3, drop=[SAVE])
    assert [rule.pattern for rule in found.rules] == [STEP]
    ((refusal, votes),) = found.refused
    assert (refusal.pattern, refusal.guard, refusal.cause) == (SAVE, "judge", "told so")
    assert votes is not None and votes.agreed == (0, 1, 2)


def test_the_judge_is_asked_only_for_what_passed(guards: FilterGuards) -> None:
    agent = Told(*[said(STEP, "^.*$")] * 3)
    lesson(sample(STEPS, SAVES), agent, 3, guards, (), SOURCE)
    assert agent.judged == [[STEP]]
    silent = Told(*[said("^.*$")] * 3)
    lesson(sample(STEPS), silent, 3, guards, (), SOURCE)
    assert silent.judged == []


def test_lines_that_most_runs_call_errors_are_noticed_and_block(guards: FilterGuards) -> None:
    door = [f"the door of vault {n} stands open, token=abcd1234efgh5678" for n in range(3)]
    pattern = r"^the door of vault \d+ stands open, token=[a-z0-9]+$"
    held = sample(STEPS, door)
    place = len(STEPS) + 1
    agree = said(STEP, pattern, errors=[place])
    found = learned(held, guards, agree, agree, said(STEP, pattern), agree, said(STEP, pattern))
    assert [rule.pattern for rule in found.rules] == [STEP] and refusals(found)[pattern] == "noticed"
    (noticed,) = found.noticed
    assert (noticed.stream, noticed.line, noticed.runs) == ("main", place + 1, 3)
    assert "abcd1234" not in noticed.text and noticed.text.startswith("the door of vault 1 stands open")
    few = learned(held, guards, agree, agree, *[said(STEP)] * 3)
    assert few.noticed == [] and "noticed" not in refusals(few).values()


@pytest.mark.parametrize(
    ("lines", "pattern"),
    [
        (
            [f"Exception raised from checkGizmo at ../csrc/Gizmo.cpp:{n} (most recent call first):" for n in range(9)],
            r"^Exception raised from checkGizmo at \.\./csrc/Gizmo\.cpp:\d+ \(most recent call first\):$",
        ),
        (
            [f"[PG {n} Rank 3] Timeout at NCCL work: {n}, last gizmo work: {n}." for n in range(9)],
            r"^\[PG \d+ Rank 3\] Timeout at NCCL work: \d+, last gizmo work: \d+\.$",
        ),
    ],
)
def test_nobody_is_asked_whether_the_report_of_a_crash_is_harmless(
    guards: FilterGuards, lines: list[str], pattern: str
) -> None:
    found = learned(sample(lines), guards, *[said(pattern)] * 3)
    assert found.rules == [] and refusals(found) == {pattern: "evidence"}


def test_trouble_waits_for_a_human(guards: FilterGuards) -> None:
    lines = [f"prefetch {n} failed, trying again" for n in range(9)]
    (rule,) = learned(sample(lines), guards, *[said(r"^prefetch \d+ failed, trying again$")] * 3).rules
    assert (rule.status, rule.harmless) == ("proposed", False) and rule.waits_for.startswith(f"{ERROR_WORD}: ")


@pytest.mark.parametrize(
    "secret", ["--token=ab{0}cd1234efgh5678", "hf_abcdefghijklmnopqrst{0}x", "https://ann:hunter{0}xyz@a.b/c"]
)
def test_secrets_are_in_no_example(guards: FilterGuards, secret: str) -> None:
    lines = [f"logged in to hub with {secret.format(n)} on try {n}" for n in range(9)]
    wide = r"^logged in to hub with \S+ on try \d+$"
    found = learned(sample(lines), guards, *[said(wide)] * 3)
    (rule,) = found.rules
    shown = " ".join(rule.examples)
    assert rule.examples and not [n for n in range(9) if secret.format(n) in shown or f"hunter{n}xyz" in shown]
    assert len(taken([wide], rule.examples)[0]) == len(rule.examples), "masked and still matching"
    narrow = r"^logged in to hub with [A-Za-z0-9_=:/@.-]+ on try \d+$"
    found = learned(sample(lines), guards, *[said(narrow)] * 3)
    assert found.rules == [] and refusals(found) == {narrow: "secret"}


def test_the_miner_writes_no_secret_into_a_pattern(guards: FilterGuards) -> None:
    lines = [f"logged in with password=hunter2xyz on try {n}" for n in range(9)]
    found = lesson(sample(lines), Miner(), 5, guards, (), SOURCE)
    assert found.rules == [] and "secret" in refusals(found).values()


def test_a_sample_of_causes_teaches_nothing(guards: FilterGuards, cause_lines: tuple[str, ...]) -> None:
    """A sample should hold none, but if it does the guards stand."""
    found = lesson(sample(*[[line] * 3 for line in cause_lines[::240]]), Miner(), 3, guards, (), SOURCE)
    assert found.rules == [] and "evidence" in refusals(found).values()


def test_without_an_answer_nothing_is_learned(guards: FilterGuards) -> None:
    with pytest.raises(ModelError):
        learned(sample(STEPS), guards, said(STEP), NO, NO)

    class Judgeless(Told):
        def judge(self, sample: Sample, candidates: Sequence[FilterCandidate], runs: int) -> list[Judgement]:
            raise NO

    with pytest.raises(ModelUnavailable):
        lesson(sample(STEPS), Judgeless(*[said(STEP)] * 3), 3, guards, (), SOURCE)


def test_a_lesson_can_be_stopped(guards: FilterGuards) -> None:
    agent = Told(*[said(STEP)] * 5)
    with pytest.raises(ModelError):
        lesson(sample(STEPS), agent, 5, guards, (), SOURCE, stopped=lambda: len(agent.asked) == 2)
    assert agent.asked == [0, 1]


def test_the_same_sample_teaches_the_same(guards: FilterGuards) -> None:
    held = sample(STEPS, SAVES)
    assert lesson(held, Miner(), 5, guards, (), SOURCE) == lesson(held, Miner(), 5, guards, (), SOURCE)
    assert len(lesson(held, Miner(), 5, guards, (), SOURCE).rules) == 2
