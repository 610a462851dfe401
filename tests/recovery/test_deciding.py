"""What follows after an attempt: a table of cases, each a story of attempts and the decision after the last."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logdoctor.job.recovery.contract import ASK, DONE, FIX_FIRST, RESTART, RESTART_ELSEWHERE, exit_code
from logdoctor.job.recovery.deciding import (
    _TABLE,
    Attempt,
    Decision,
    Limits,
    NodesSaid,
    Place,
    _Case,
    decide,
    explained,
    without_progress,
)
from logdoctor.job.recovery.judged import Judged
from logdoctor.job.recovery.supervisor import hangs_in_a_row

PASSES = Judged("failed", "S3 Storage Error", "restart", 0.9, "s3")
OTHER = Judged("failed", "Connection Error", "restart", 0.9, "net")
NODE = Judged("failed", "ECC Error", "isolate_and_restart", 0.9, "ecc", nodes=("n1",))
NODES = Judged("failed", "NCCL Timeout Error", "isolate_and_restart", 0.9, "nccl")
SPIKE = Judged("failed", "Loss Spike", "rollback_and_skip", 0.9, "spike", onset=90)
UNKNOWN = Judged("failed", "Unknown", "ask_human", 0.0, "u")
KILLED = Judged("failed", "Unknown", "restart", 0.0, "k", detail="rank 1 killed by SIGKILL, no witness")
CRASHED = Judged("failed", "Unknown", "ask_human", 0.0, "c", detail="segmentation fault in rank 0", has_crashed=True)
BROKEN = Judged("failed", "Name Error", "fix_first", 0.9, "name", "Define it.")

HERE = Place()
SLURM = Place(True, ("n1", "n2", "n3"))


def story(*told: tuple[Any, ...]) -> list[Attempt]:
    """Attempts from (verdict, last step, seconds, further facts); each lasts 100 s unless it says."""
    made = []
    for number, (verdict, step, *rest) in enumerate(told, 1):
        facts = {"seconds": 100.0, "status": 1, **(rest[0] if rest else {})}
        made.append(Attempt(number, judged=verdict._replace(step=step) if verdict else None, **facts))
    return made


Story = list[Attempt]


@pytest.mark.parametrize(
    ("attempts", "kind", "code", "word"),
    [
        # how it ended
        (story((None, None, {"status": 0})), "stop", DONE, "exit code 0"),
        (story((UNKNOWN, 5, {"status": 0})), "ask", ASK, ""),  # it was stopped for this verdict, and ended well then
        (story((PASSES, 5, {"status": 0})), "restart", RESTART, "passes"),
        (story((None, None, {"status": 143, "interrupted": True})), "stop", 143, "Somebody ended"),
        (story((PASSES, 5, {"interrupted": True})), "stop", 1, "Somebody ended"),
        (story((None, None)), "ask", ASK, "no verdict"),
        (story((PASSES._replace(outcome="completed", reason="None", recovery="none"), 5)), "stop", 1, "completed"),
        (story((PASSES._replace(outcome="recovered"), 5)), "stop", 1, "completed"),
        (story((PASSES._replace(outcome="cancelled"), 5)), "stop", 1, "cancelled"),
        # what the verdict says
        (story((PASSES, 5)), "restart", RESTART, "passes"),
        (story((SPIKE, 99)), "restart", RESTART, "goes back"),
        (story((BROKEN, 5)), "stop", FIX_FIRST, "Define it."),
        (story((UNKNOWN, 5)), "ask", ASK, "unknown"),
        (story((PASSES._replace(recovery="ask_human"), 5)), "ask", ASK, "unknown"),
        (story((KILLED, 5)), "restart", RESTART, "killed by SIGKILL"),
        (story((CRASHED, None)), "ask", ASK, "unknown"),
        (story((CRASHED, None, {"saved": 10})), "restart", RESTART, "may get past it"),
        (story((CRASHED, None, {"saved": 10}), (CRASHED, None, {"saved": 10})), "ask", ASK, "unknown"),
        (story((KILLED, 5), (KILLED, 5), (KILLED, 5), (KILLED, 5)), "ask", ASK, "3 attempts"),
        (story((PASSES._replace(outcome="unknown"), 5)), "ask", ASK, "unknown"),
        (story((PASSES._replace(outcome="running"), 5)), "ask", ASK, "unknown"),
        (story((PASSES._replace(recovery="none"), 5)), "ask", ASK, "advises nothing"),
        (story((PASSES._replace(confidence=0.69), 5)), "ask", ASK, "69% sure"),
        (story((PASSES._replace(confidence=0.7), 5)), "restart", RESTART, "passes"),
        (story((BROKEN._replace(confidence=0.7), 5)), "stop", FIX_FIRST, "restart fails again"),
        (story((BROKEN._replace(confidence=0.69), 5)), "ask", ASK, "69% sure"),
        (story((NODE, 5)), "wait", RESTART_ELSEWHERE, "test its nodes"),
        # budget: never while it gets further
        (story(*((PASSES, step, {"seconds": 900.0}) for step in range(10, 400, 10))), "restart", RESTART, "passes"),
        (story((PASSES, 10), (PASSES, 10), (PASSES, 10)), "restart", RESTART, "passes"),
        (story((PASSES, 10), (PASSES, 10), (PASSES, 10), (PASSES, 9)), "ask", ASK, "3 attempts in a row"),
        (story((PASSES, 10), (PASSES, 9), (PASSES, 9), (PASSES, 11)), "restart", RESTART, "passes"),
        (story((PASSES, 10), (PASSES, 9), (OTHER, 9), (PASSES, 9)), "restart", RESTART, "passes"),
        (story((PASSES, 10), *([(PASSES, 9), (OTHER, 9)] * 4)), "restart", RESTART, "passes"),
        (story((PASSES, 10), *([(PASSES, 9), (OTHER, 9)] * 4), (PASSES, 9)), "ask", ASK, "8 times without progress"),
        # checkpoints count before steps, once there are any
        (story(*((PASSES, 50, {"saved": 10 * n}) for n in range(1, 9))), "restart", RESTART, "passes"),
        (
            story((PASSES, 50, {"saved": 40}), (PASSES, 51), (PASSES, 52), (PASSES, 53)),
            "ask",
            ASK,
            "none of which brought the job further",
        ),
        (
            story((PASSES, 50, {"saved": 40}), (PASSES, 51, {"saved": 40}), (PASSES, 52, {"saved": 39}), (PASSES, 53)),
            "ask",
            ASK,
            "3 attempts in a row",
        ),
        # going back moves the line from which on progress counts
        (
            story((PASSES, 50, {"saved": 40}), (SPIKE, 50, {"saved": 50}), (PASSES, 45, {"saved": 30, "back_to": 20})),
            "restart",
            RESTART,
            "passes",
        ),
        # death before the first step
        (story((PASSES, None)), "restart", RESTART, "passes"),
        (story((PASSES, None), (OTHER, None)), "ask", ASK, "No step was seen in the last 2 attempts"),
        (story((PASSES, 10), (PASSES, None)), "restart", RESTART, "passes"),
        (story((PASSES, 10), (PASSES, None), (PASSES, None)), "ask", ASK, "No step was seen"),
        (story((PASSES, None, {"saved": 5}), (PASSES, None, {"saved": 9})), "restart", RESTART, "passes"),
        # faster each time
        (
            story(
                (PASSES, 10, {"seconds": 500.0}),
                (OTHER, 9, {"seconds": 100.0}),
                (PASSES, 9, {"seconds": 50.0}),
                (OTHER, 9, {"seconds": 20.0}),
            ),
            "ask",
            ASK,
            "faster each time, without progress: after 100 s, 50 s, 20 s",
        ),
        (
            story(
                (PASSES, 9), (OTHER, 9, {"seconds": 0.9}), (PASSES, 9, {"seconds": 0.5}), (OTHER, 9, {"seconds": 0.1})
            ),
            "restart",
            RESTART,
            "passes",
        ),
        (
            story(
                (PASSES, 10),
                (OTHER, 9, {"seconds": 100.0}),
                (PASSES, 9, {"seconds": 99.0}),
                (OTHER, 9, {"seconds": 98.0}),
            ),
            "restart",
            RESTART,
            "passes",
        ),
    ],
)
def test_what_follows(attempts: Story, kind: str, code: int, word: str) -> None:
    decision = decide(attempts, Limits())
    assert (decision.kind, decision.code) == (kind, code), decision
    assert word in decision.why and decision.why[0].isupper()


@pytest.mark.parametrize(
    "limits", [Limits(), Limits(doubt=0.5, no_progress=7, max_restarts=99, before_first_step=4, restart_unknown=True)]
)
def test_the_table_of_decisions_is_printed_with_its_limits(limits: Limits) -> None:
    rows = [row for row in explained(limits).splitlines() if "->" not in row]
    assert len(rows) == len(_TABLE) and rows[0].startswith(" 1  ")
    for row, words in ((8, f"{limits.doubt:.0%} sure"), (11, f"{limits.before_first_step} attempts")):
        assert words in rows[row - 1]
    for row, words in ((12, f"{limits.no_progress} attempts"), (15, f"{limits.max_restarts} restarts")):
        assert words in rows[row - 1]
    assert ("--restart-unknown" in explained(limits)) == limits.restart_unknown


ROWS: list[tuple[Story, dict[str, Any]]] = [
    (story((None, None, {"status": 0})), {}),
    (story((PASSES, 5, {"interrupted": True})), {}),
    (story((BROKEN, 5, {"launcher_gone": True})), {}),
    (story((None, 5)), {}),
    (story((PASSES._replace(outcome="cancelled"), 5)), {}),
    (story((BROKEN, None)), {"damaged": "step-30 is damaged"}),
    (story((UNKNOWN, 5)), {}),
    (story((BROKEN._replace(confidence=0.6), 5)), {}),
    (story((BROKEN, 5)), {}),
    (story((PASSES._replace(recovery="none"), 5)), {}),
    (story((PASSES, None), (PASSES, None)), {}),
    (story((PASSES, 9), (PASSES, 9), (PASSES, 9), (PASSES, 9)), {}),
    (story(*((PASSES if step % 2 else OTHER, step) for step in range(12))), {}),
    (
        story(
            (PASSES, 9),
            (OTHER, 9, {"seconds": 90.0}),
            (PASSES, 9, {"seconds": 50.0}),
            (OTHER, 9, {"seconds": 9.0}),
        ),
        {},
    ),
    (story((PASSES, 9), *([(PASSES, 9), (OTHER, 9)] * 5)), {}),
    (story((NODE, 5)), {}),
    (story((KILLED, 5)), {}),
]
"""Of each row of the table attempts that it decides, and no row before it."""


@pytest.mark.parametrize("number", range(len(_TABLE)))
def test_each_row_decides_about_what_it_is_for(number: int) -> None:
    attempts, given = ROWS[number]
    decision = decide(attempts, Limits(), **given)
    assert decision == decided_by(number, attempts, given)
    assert [row for row in range(number) if decided_by(row, attempts, given)] == []


def decided_by(row: int, attempts: Story, given: dict[str, Any]) -> Decision | None:
    """What a row of the table says of attempts."""
    return _TABLE[row].rule(_Case(attempts, Limits(), None, Place(), False, given.get("damaged", "")))


def test_a_damaged_checkpoint_is_no_reason_to_give_up() -> None:
    loading = BROKEN._replace(reason="Model Loading Error")
    for attempts in (story((loading, None)), story((loading, None), (loading, None), (loading, None))):
        assert decide(attempts, Limits()).code == FIX_FIRST
        decision = decide(attempts, Limits(), damaged="step-30 is damaged (w has another checksum)")
        assert decision.kind == "restart" and "step-30 is damaged" in decision.why
    assert decide(story((loading, None, {"interrupted": True})), Limits(), damaged="step-30").kind == "stop"


@pytest.mark.parametrize(
    ("verdict", "said", "place", "kind", "nodes"),
    [
        (NODE, None, HERE, "wait", ()),
        (NODES, None, HERE, "wait", ()),
        (NODE, NodesSaid("pending", "P."), HERE, "wait", ()),
        (NODE, NodesSaid("person", "P."), HERE, "ask", ()),
        (NODE, NodesSaid("healthy", "H."), HERE, "restart", ()),
        (NODE, NodesSaid("out", "O.", ("n2",)), HERE, "move", ("n2",)),
        # a scheduler leaves nodes out: those of the job alone, and few
        (NODE, None, SLURM, "move", ("n1",)),
        (NODES, None, SLURM, "wait", ()),
        (NODE._replace(nodes=("n9",)), None, SLURM, "wait", ()),
        (NODE._replace(nodes=("n9", "n3")), None, SLURM, "move", ("n3",)),
        (NODE._replace(nodes=("n1", "n2", "n3")), None, SLURM, "wait", ()),
        (NODE._replace(nodes=tuple("abcde")), None, Place(True, tuple("abcdefgh")), "wait", ()),
        (NODE, None, Place(True, ("n1",)), "move", ("n1",)),
        (NODE, None, Place(True, ()), "wait", ()),
        # a verdict that asks for no node takes none out
        (PASSES._replace(nodes=("n1",)), None, SLURM, "restart", ()),
        (NODE._replace(confidence=0.5), None, SLURM, "ask", ()),
        (BROKEN._replace(nodes=("n1",)), None, SLURM, "stop", ()),
    ],
)
def test_nodes_come_first(verdict: Judged, said: NodesSaid | None, place: Place, kind: str, nodes: tuple[str]) -> None:
    decision = decide(story((verdict, 10)), Limits(), said, place)
    assert (decision.kind, decision.nodes) == (kind, nodes)
    if said:
        assert decision.why == said.why


def test_tests_of_nodes_do_not_give_a_crash_loop_more_restarts() -> None:
    attempts = story((NODE, 10), (NODE, 10), (NODE, 10), (NODE, 10))
    assert decide(attempts, Limits(), NodesSaid("healthy", "H.")).kind == "ask"
    assert decide(attempts, Limits(), None, SLURM).kind == "ask"


def test_an_unknown_is_started_again_only_when_told() -> None:
    told = Limits(restart_unknown=True)
    assert decide(story((UNKNOWN, 5)), told).kind == "restart"
    assert decide(story((UNKNOWN, 5), (UNKNOWN, 5), (UNKNOWN, 5), (UNKNOWN, 5)), told).kind == "ask"
    assert decide(story((BROKEN, 5)), told).kind == "stop"


def test_another_checkpoint_is_tried_before_it_is_given_up() -> None:
    attempts = story((PASSES, 10), (PASSES, None), (PASSES, None))
    assert decide(attempts, Limits()).kind == "ask"
    assert decide(attempts, Limits(), other_start=True).kind == "restart"
    assert decide([*attempts, attempts[-1]], Limits(), other_start=True).kind == "ask"


def test_the_wait_doubles_without_progress_and_is_bounded() -> None:
    limits = Limits(max_restarts=40, no_progress=40, delay=10)
    delays = [decide(story((PASSES, 9), *[(PASSES, 9)] * n), limits).delay for n in range(9)]
    assert delays == [0, 10, 20, 40, 80, 160, 320, 600, 600]
    assert decide(story((PASSES, 9), *[(PASSES, 9)] * 30, (PASSES, 10)), limits).delay == 0


def test_a_job_that_went_back_stands_where_it_went() -> None:
    went = story((SPIKE, 50, {"saved": 50}), (PASSES, 45, {"saved": 30, "back_to": 20}), (PASSES, 45, {"saved": 30}))
    assert without_progress(went[:2]) == [] and without_progress(went) == went[2:]


def test_a_spike_asks_to_go_back() -> None:
    assert decide(story((SPIKE, 99)), Limits()).back
    assert not decide(story((PASSES, 99)), Limits()).back


VERDICTS = st.builds(
    Judged,
    st.sampled_from(["failed", "completed", "running", "cancelled", "recovered", "unknown"]),
    st.sampled_from(["S3 Storage Error", "Unknown", "Hang"]),
    st.sampled_from(["restart", "isolate_and_restart", "rollback_and_skip", "fix_first", "ask_human", "none"]),
    st.floats(0, 1),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["", "Mend it."]),
    step=st.none() | st.integers(0, 50),
    has_crashed=st.booleans(),
)
ATTEMPTS = st.lists(
    st.builds(
        Attempt,
        st.integers(1, 99),
        st.sampled_from([0, 1, 137]),
        st.floats(0, 1e6),
        st.none() | VERDICTS,
        st.booleans(),
        st.none() | st.integers(0, 50),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60)
@given(ATTEMPTS, st.sampled_from([HERE, SLURM]))
def test_nothing_is_started_again_that_may_not_be(attempts: Story, place: Place) -> None:
    decision = decide(attempts, Limits(), None, place)
    last = attempts[-1]
    assert decision.why.endswith((".", "?"))
    if decision.kind in ("restart", "move", "wait"):
        assert not last.interrupted and len(without_progress(attempts)) <= Limits().max_restarts
        if last.launcher_gone:
            return
        assert last.judged is not None  # what is stopped for a verdict may end with 0
        assert last.judged.outcome == "failed"
        if last.judged.has_crashed and last.judged.is_unknown:
            assert last.saved is not None and not without_progress(attempts)  # it broke at work
            return
        assert not last.judged.is_unknown
        assert last.judged.confidence >= 0.7 or last.judged.reason == "Unknown"  # which names no cause
        assert last.judged.recovery in ("restart", "isolate_and_restart", "rollback_and_skip")


@settings(max_examples=30)
@given(ATTEMPTS)
def test_a_crash_loop_ends(attempts: Story) -> None:
    same = attempts[-1]._replace(saved=None, judged=PASSES, interrupted=False, status=1)
    assert decide([*attempts, same, same, same], Limits()).kind == "ask"


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (PASSES, RESTART),
        (SPIKE, RESTART),
        (NODE, RESTART_ELSEWHERE),
        (BROKEN, FIX_FIRST),
        (UNKNOWN, ASK),
        (PASSES._replace(outcome="completed"), DONE),
        (PASSES._replace(outcome="cancelled"), ASK),
        (PASSES._replace(recovery="none"), ASK),
        (PASSES._replace(confidence=0.1), ASK),
    ],
)
def test_exit_codes_of_verdicts(verdict: Judged, code: int) -> None:
    assert exit_code(verdict, 0.7) == code


def test_a_decision_is_a_sentence_and_a_code() -> None:
    assert decide(story((PASSES, 5)), Limits()) == Decision(
        "restart", "The verdict is S3 Storage Error, which passes.", RESTART
    )


HUNG = Judged("failed", "Hang", "restart", 0.7, "hang")


def test_a_launcher_that_is_killed_alone_is_started_again_whatever_its_ranks_say() -> None:
    gone = {"status": 137, "launcher_gone": True}
    for said in (UNKNOWN, BROKEN, None):
        found = decide(story((said, 5, gone)), Limits())
        assert (found.kind, found.code) == ("restart", RESTART) and "launcher was killed" in found.why
    stuck = decide(story((UNKNOWN, None, gone), (UNKNOWN, None, gone)), Limits())
    assert (stuck.kind, stuck.code) == ("ask", ASK)
    often = decide(story(*[(UNKNOWN, 5, gone)] * 4), Limits())
    assert often.kind == "ask" and "brought the job no further" in often.why


def test_who_is_in_doubt_says_which_option_would_not_be() -> None:
    for confidence, option in ((0.66, "--doubt 0.66"), (0.699, "--doubt 0.69"), (0.5, "--doubt 0.5")):
        attempts = story((PASSES._replace(confidence=confidence), 5))
        assert f"With {option} it would have been acted upon: restart." in decide(attempts, Limits()).why
        assert decide(attempts, Limits(doubt=float(option.split()[1]))).kind == "restart"


def test_hangs_after_the_same_step_are_counted_from_the_last_one() -> None:
    assert hangs_in_a_row([]) == 0
    assert hangs_in_a_row(story((HUNG, 90))) == 1
    assert hangs_in_a_row(story((HUNG, 90), (HUNG, 90), (HUNG, 90, {"saved": 95}))) == 3
    assert hangs_in_a_row(story((HUNG, 90), (HUNG, 80), (HUNG, 90))) == 1
    assert hangs_in_a_row(story((HUNG, 90), (PASSES, 90))) == 0
    assert hangs_in_a_row(story((HUNG, 90), (PASSES, 90), (HUNG, 90))) == 1
    assert hangs_in_a_row(story((HUNG, None), (HUNG, None))) == 0
    assert hangs_in_a_row(story((None, None))) == 0
