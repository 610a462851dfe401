"""What became of the attempt, who is suspect, and what stands in the verdict about it."""

import itertools
import math

import pytest

from logdoctor import taxonomy
from logdoctor.diagnose.ending import FAILED
from logdoctor.types import Verdict
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import (
    COMPLETED,
    ECC,
    OFF_THE_BUS,
    TORCHRUN,
    interleaved,
    nccl_timeout,
    prefixed,
    restarted,
    steps,
    traceback,
)

HEAD = steps(0, 40)
KEY = traceback("KeyError: 'tokens'")
CANCELLED = "slurmstepd: error: *** JOB 880421 ON lux-031 CANCELLED AT 2024-03-02T11:01:30 ***\n"
TIME_LIMIT = "slurmstepd: error: *** JOB 880421 ON lux-031 CANCELLED AT 2024-03-02T11:01:30 DUE TO TIME LIMIT ***\n"
PLACED = (
    "2024-03-02 10:59:{rank:02d},088\tINFO parallel_context.py:555 in set_device -- "
    "process rank {rank} is bound to host:{node} device: 0\n"
)
ASSIGNED = "2024-03-02T10:50:06.043831Z [pod/{pod}] Successfully assigned ml/{pod} to {node}\n"

FAILURES = {
    "rule": HEAD + ECC,
    "structure": HEAD + KEY,
    "cascade only": HEAD + nccl_timeout([1]),
    "kernel": HEAD + OFF_THE_BUS,
    "teardown only": HEAD + TORCHRUN,
    "spike": steps(0, 60) + steps(60, 90, lambda step: 9.0),
    "NaN": steps(0, 60) + steps(60, 90, lambda step: math.nan),
    "hang": HEAD + "[2024-03-02 12:31:20] heartbeat: alive\n",
    "repeated": HEAD
    + "".join(nccl_timeout([3]) + restarted(left) + steps(10, 20) for left in (3, 2))
    + nccl_timeout([3]),
    "empty": "",
    "garbage": "\x00\x01\x02\xff\n" * 50,
    "prose": "lorem ipsum dolor sit amet\n" * 50,
}


def nodes(verdict: Verdict) -> list[str | None]:
    return [suspect.node for suspect in verdict.suspects]


# ---- outcomes


@pytest.mark.parametrize(
    "end",
    [
        COMPLETED,
        "[after training is done] datetime: 2024-03-02 11:01:30 \n",
        "srun: step 0 of job 3120448 completed\n",
        "PyTorchJob sft-32b is successfully completed.\n",
    ],
)
def test_completed(diagnose: Diagnose, end: str) -> None:
    verdict = diagnose(HEAD + end)
    assert (verdict.outcome, verdict.reason, verdict.recovery) == ("completed", "None", "none")
    assert (verdict.category, verdict.fault) == ("None", "nobody")
    assert [e.line for e in verdict.evidence] == [41]


def test_completed_because_the_last_step_was_made(diagnose: Diagnose) -> None:
    assert diagnose(steps(499_990, 500_001)).outcome == "completed"
    assert diagnose(steps(499_990, 500_000)).outcome == "running"


@pytest.mark.parametrize(
    "noise", ["BrokenPipeError: [Errno 32] Broken pipe", "ConnectionResetError: [Errno 104] Connection reset by peer"]
)
def test_completed_in_spite_of_noise_at_the_end(diagnose: Diagnose, noise: str) -> None:
    assert diagnose(HEAD + COMPLETED + traceback(noise)).outcome == "completed"


def test_an_error_after_the_end_of_training_is_a_failure(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + COMPLETED + KEY + TORCHRUN)
    assert (verdict.outcome, verdict.reason) == ("failed", "Key Error")


def test_an_error_after_the_end_is_one_whatever_came_before_it(diagnose: Diagnose) -> None:
    early = "requests.exceptions.ConnectionError: cannot reach the hub of models\n"
    assert diagnose(early + HEAD + COMPLETED).outcome == "completed"
    assert diagnose(early + HEAD + COMPLETED + KEY).reason == "Key Error"


@pytest.mark.parametrize("hours", ["9" * 400, "99999999999"])
def test_a_bar_with_a_clock_of_any_length_ends_no_diagnosis(diagnose: Diagnose, hours: str) -> None:
    bar = "".join(f"Jan 01 00:00:{step:02} step {step}/100 loss: 2.1 [{hours}:00<\n" for step in range(1, 9))
    assert diagnose(bar + KEY).reason == "Key Error"


def test_running(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD)
    assert (verdict.outcome, verdict.reason, verdict.recovery) == ("running", "None", "none")
    assert verdict.confidence < diagnose(HEAD + COMPLETED).confidence
    assert (verdict.progress.step, verdict.progress.total, verdict.progress.loss) == (39, 500_000, 2.0)
    assert verdict.progress.line == 40


@pytest.mark.parametrize("end", [CANCELLED, TIME_LIMIT, "^C" + traceback("KeyboardInterrupt")])
def test_cancelled(diagnose: Diagnose, end: str) -> None:
    verdict = diagnose(HEAD + end)
    assert (verdict.outcome, verdict.reason, verdict.recovery) == ("cancelled", "None", "none")
    assert verdict.evidence[0].line == 41


def test_what_a_cancelled_job_prints_while_it_dies_is_no_failure(diagnose: Diagnose) -> None:
    dying = prefixed("[rank3]: ", traceback("ConnectionResetError: [Errno 104] reset")) + nccl_timeout([4]) + TORCHRUN
    assert diagnose(HEAD + CANCELLED + dying).outcome == "cancelled"


def test_a_fault_of_the_hardware_counts_even_when_the_job_is_cancelled(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + CANCELLED + ECC).reason == "ECC Error"
    assert diagnose(HEAD + ECC + CANCELLED).reason == "ECC Error"


def test_a_job_that_failed_before_it_was_cancelled_failed(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + KEY + CANCELLED).reason == "Key Error"


@pytest.mark.parametrize("end", ["", COMPLETED])
def test_recovered_by_itself(diagnose: Diagnose, end: str) -> None:
    verdict = diagnose(HEAD + ECC + restarted(3) + steps(30, 60) + end)
    assert (verdict.outcome, verdict.reason, verdict.recovery) == ("recovered", "ECC Error", "none")
    assert verdict.evidence[0].line == 41


def test_a_restart_that_failed_is_a_failure(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + ECC + restarted(3) + steps(30, 60) + KEY).outcome == "failed"


def test_hang(diagnose: Diagnose) -> None:
    verdict = diagnose(FAILURES["hang"])
    assert (verdict.outcome, verdict.reason, verdict.category) == ("failed", "Hang", "Anomaly")
    assert [e.line for e in verdict.evidence] == [40, 41]


def test_a_pause_of_a_few_steps_is_no_hang(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + "[2024-03-02 11:05:00] saving checkpoint\n").outcome == "running"


def test_the_turn_of_a_year_between_stamps_without_one_is_no_hang(diagnose: Diagnose) -> None:
    old = "".join(f"INFO 12-31 23:{minute}:00 step {minute} loss 2.0\n" for minute in range(30, 60))
    new = "".join(f"INFO 01-01 00:{minute}:00 step {minute + 50} loss 2.0\n" for minute in range(10, 30))
    assert diagnose(old + new).reason == "None"


@pytest.mark.parametrize(("end", "reason"), [("11:03", "None"), ("11:53", "Hang")])
def test_a_stamp_without_a_year_near_the_last_step_is_of_the_year_of_the_log(
    diagnose: Diagnose, end: str, reason: str
) -> None:
    warning = "W0302 11:02:20.426415 4000 loader.py:41] slow batch\n"
    bare = "".join(line.split("] ", 1)[1] for line in steps(40, 60).splitlines(keepends=True))
    log = HEAD + warning * 40 + bare + f"[2024-03-02 {end}:00] saving checkpoint\n"
    assert diagnose(log).reason == reason


def test_a_stream_that_lags_behind_is_no_hang_while_another_moves(diagnose: Diagnose) -> None:
    assert diagnose({"rank_0": steps(0, 600), "rank_1": steps(0, 40)}).outcome == "running"


def test_a_silence_is_seen_in_any_stream(diagnose: Diagnose) -> None:
    alive = "[2024-03-02 12:31:20] heartbeat: alive\n"
    assert diagnose({"rank_0": HEAD, "rank_1": HEAD + alive}).reason == "Hang"


# ---- loss


def test_a_loss_that_jumps_for_good_is_a_spike(diagnose: Diagnose) -> None:
    verdict = diagnose(FAILURES["spike"])
    assert (verdict.outcome, verdict.reason, verdict.recovery) == ("failed", "Loss Spike", "rollback_and_skip")
    assert verdict.evidence[0].line == 61
    assert "9.0" in verdict.evidence[0].quote


def test_a_loss_that_turns_nan_is_a_spike_cited_where_it_turned(diagnose: Diagnose) -> None:
    verdict = diagnose(FAILURES["NaN"])
    assert (verdict.outcome, verdict.reason, verdict.recovery) == ("failed", "Loss Spike", "rollback_and_skip")
    assert 61 in [e.line for e in verdict.evidence]


@pytest.mark.parametrize("peak", [9.0, math.nan])
def test_a_loss_that_comes_back_is_no_spike(diagnose: Diagnose, peak: float) -> None:
    assert diagnose(steps(0, 60) + steps(60, 64, lambda step: peak) + steps(64, 150)).outcome == "running"


def test_a_noisy_or_falling_loss_is_no_spike(diagnose: Diagnose) -> None:
    assert diagnose(steps(0, 200, lambda step: 2.0 + 0.3 * math.sin(step * 12.9898) ** 3)).outcome == "running"
    assert diagnose(steps(0, 200, lambda step: 10.0 / (1 + step / 10))).outcome == "running"


def test_one_outlier_at_the_end_is_no_spike(diagnose: Diagnose) -> None:
    assert diagnose(steps(0, 60) + steps(60, 61, lambda step: 9.0)).outcome == "running"


def test_a_spike_that_a_guard_stopped_is_still_the_spike(diagnose: Diagnose) -> None:
    guard = traceback("RuntimeError: found NaN in local grad norm, stopping")
    verdict = diagnose(FAILURES["spike"] + prefixed("[rank2]: ", guard))
    assert verdict.reason == "Loss Spike"


# ---- unknown


@pytest.mark.parametrize("name", ["teardown only", "empty", "garbage", "prose"])
def test_unknown_is_an_answer_and_asks_a_person(diagnose: Diagnose, name: str) -> None:
    verdict = diagnose(FAILURES[name], reported=FAILED)
    assert (verdict.outcome, verdict.reason, verdict.recovery) == ("failed", "Unknown", "ask_human")
    assert (verdict.category, verdict.fault, verdict.confidence) == ("None", "unknown", 0.0)
    assert verdict.decided_by.kind == "nobody"
    assert verdict.suspects == ()
    assert verdict.why


def test_unknown_after_a_teardown_cites_it(diagnose: Diagnose) -> None:
    assert [e.line for e in diagnose(FAILURES["teardown only"]).evidence] == [51]


def test_all_bytes_there_are_are_unknown(diagnose: Diagnose) -> None:
    assert diagnose(bytes(range(256)) * 1000, reported=FAILED).reason == "Unknown"


def test_a_log_that_ends_inside_a_traceback_did_fail(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + "".join(KEY.splitlines(keepends=True)[:4]))
    assert verdict.outcome == "failed"
    assert 41 in [e.line for e in verdict.evidence]


# ---- who


def test_a_node_is_named_when_the_rank_was_placed_on_it(diagnose: Diagnose) -> None:
    places = "".join(PLACED.format(rank=rank, node=f"gpu-{rank // 4}") for rank in range(16))
    verdict = diagnose(places + HEAD + "[rank9]: " + ECC)
    assert nodes(verdict) == ["gpu-2"]
    assert verdict.suspects[0].rank == 9


def test_a_rank_without_a_known_place_is_named_alone(diagnose: Diagnose) -> None:
    verdict = diagnose(PLACED.format(rank=1, node="gpu-0") + HEAD + "[rank9]: " + ECC)
    assert [(s.node, s.rank) for s in verdict.suspects] == [(None, 9)]


def test_a_node_is_named_by_the_prefix_of_the_line(diagnose: Diagnose) -> None:
    assert nodes(diagnose(HEAD + "gpu-17: " + ECC)) == ["gpu-17"]


def test_a_node_is_named_by_the_kernel_of_its_syslog(diagnose: Diagnose) -> None:
    assert nodes(diagnose(HEAD + OFF_THE_BUS)) == ["wn061"]


@pytest.mark.parametrize("between", ["", HEAD])
def test_a_pod_stands_for_the_node_it_was_assigned_to(diagnose: Diagnose, between: str) -> None:
    places = "".join(ASSIGNED.format(pod=f"sft-worker-{n}", node=f"gpu-cn-072{n}") for n in range(4))
    assert nodes(diagnose(places + between + "[pod/sft-worker-3/pytorch] " + ECC)) == ["gpu-cn-0723"]


def test_a_pod_that_was_assigned_nowhere_is_no_node(diagnose: Diagnose) -> None:
    assert nodes(diagnose(HEAD + "[pod/sft-worker-3/pytorch] " + ECC)) == []


def test_every_node_with_a_broken_part_is_named_once(diagnose: Diagnose) -> None:
    log = HEAD + OFF_THE_BUS + OFF_THE_BUS.replace("wn061", "wn099") + OFF_THE_BUS
    assert nodes(diagnose(log)) == ["wn061", "wn099"]


@pytest.mark.parametrize(
    "log", [KEY, prefixed("gpu-17: ", KEY), nccl_timeout([1, 2]), prefixed("gpu-17: ", nccl_timeout([1])), TORCHRUN]
)
def test_no_node_is_named_where_none_is_proven_to_be_at_fault(diagnose: Diagnose, log: str) -> None:
    assert nodes(diagnose(PLACED.format(rank=1, node="gpu-0") + HEAD + log)) == []


@pytest.mark.parametrize(
    "line",
    [
        "[rank5]: " + ECC,
        "[1,5]<stderr>:" + ECC,
        "[rank5]:[E302 11:27:21.4 x.cpp:6] [Rank 5] Watchdog: CUDA error: uncorrectable ECC error encountered\n",
        "5: " + ECC,
    ],
)
def test_the_first_rank_is_the_one_that_printed_the_cause(diagnose: Diagnose, line: str) -> None:
    assert diagnose(HEAD + line + nccl_timeout([0, 1])).first_rank == 5


def test_the_first_rank_of_a_fault_of_the_hardware_is_the_earliest(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + "[rank7]: " + ECC + "[rank2]: " + ECC).first_rank == 7


def test_the_first_rank_comes_from_torchrun_when_it_knows_one_failed_rank(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + KEY + TORCHRUN).first_rank == 11


def test_no_first_rank_without_a_name(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + KEY).first_rank is None


# ---- several streams


def clocked(clock: str, text: str) -> str:
    return prefixed(f"2024-03-02 {clock},000 ERROR ", text)


def test_the_stream_whose_error_came_first_has_the_cause(diagnose: Diagnose) -> None:
    late = clocked("11:05:00", traceback("ValueError: no batch came"))
    early = clocked("11:01:00", traceback("ZeroDivisionError: division by zero"))
    verdict = diagnose({"rank_0": late, "rank_1": early})
    assert verdict.reason == "Zero Division Error"
    assert (verdict.evidence[0].stream, verdict.evidence[0].line) == ("rank_1", 6)
    assert [(s.reason, s.stream) for s in verdict.symptoms] == [("Value Error", "rank_0")]


def test_fractions_of_a_second_compare_no_clocks(diagnose: Diagnose) -> None:
    late = prefixed("2024-03-02 11:05:00,900 ", traceback("ValueError: no batch came"))
    early = prefixed("2024-03-02 11:05:00,100 ", traceback("ZeroDivisionError: division by zero"))
    assert diagnose({"rank_0": late, "rank_1": early}).reason == "Value Error"
    assert diagnose({"rank_0": early, "rank_1": late}).reason == "Zero Division Error"


@pytest.mark.parametrize("clock", ["11:04:58", "10:00:00"])
def test_in_one_of_several_streams_the_line_says_what_came_first(diagnose: Diagnose, clock: str) -> None:
    first = clocked("11:05:00", traceback("ZeroDivisionError: division by zero"))
    back = clocked(clock, traceback("ValueError: no batch came"))
    other = clocked("11:05:30", "leaving\n")
    verdict = diagnose({"rank_0": clocked("11:05:00", "batch 3\n") + first + back, "rank_1": other})
    assert (verdict.reason, verdict.evidence[0].line) == ("Zero Division Error", 7)


def test_stamps_without_a_year_are_ordered_with_those_that_give_one(diagnose: Diagnose) -> None:
    late = prefixed("E0302 11:05:00.000100 4000 train.py:7] ", traceback("ValueError: no batch came"))
    early = clocked("11:01:00", traceback("ZeroDivisionError: division by zero"))
    verdict = diagnose({"rank_0": clocked("10:59:00", "ready\n") + late, "rank_1": early})
    assert verdict.reason == "Zero Division Error"


def test_without_times_the_first_stream_speaks_first(diagnose: Diagnose) -> None:
    verdict = diagnose({"rank_0": traceback("ValueError: a"), "rank_1": traceback("ZeroDivisionError: b")})
    assert (verdict.reason, verdict.evidence[0].stream) == ("Value Error", "rank_0")


def test_a_quiet_cause_is_found_in_any_stream(diagnose: Diagnose) -> None:
    for faulty in range(4):
        logs = {f"rank_{rank}": HEAD + nccl_timeout([rank]) + (ECC if rank == faulty else "") for rank in range(4)}
        verdict = diagnose(logs)
        assert (verdict.reason, verdict.evidence[0].stream) == ("ECC Error", f"rank_{faulty}")
        assert verdict.evidence[0].line == 42


def test_streams_and_one_mixed_file_agree(diagnose: Diagnose) -> None:
    ranks = {f"rank_{rank}": prefixed(f"[rank{rank}]: ", KEY if rank == 2 else nccl_timeout([9])) for rank in range(4)}
    apart, mixed = diagnose(ranks), diagnose(interleaved(*ranks.values()))
    assert (apart.reason, apart.first_rank, apart.fingerprint) == (mixed.reason, mixed.first_rank, mixed.fingerprint)


def test_the_account_of_all_streams_adds_up(diagnose: Diagnose) -> None:
    account = diagnose({"rank_0": HEAD, "rank_1": HEAD + KEY}).compression
    assert account.lines_in == 86
    assert account.bytes_in == 2 * len(HEAD) + len(KEY)


# ---- what a verdict says


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_has_a_next_step_and_known_words(diagnose: Diagnose, name: str) -> None:
    verdict = diagnose(FAILURES[name], reported=FAILED)
    assert verdict.outcome == "failed"
    assert verdict.suggestion.strip()
    assert verdict.reason in taxonomy.REASONS
    assert verdict.category == taxonomy.REASONS[verdict.reason].category
    assert verdict.fault in taxonomy.FAULTS
    assert verdict.recovery in taxonomy.RECOVERIES and verdict.recovery != "none"
    assert 0 <= verdict.confidence <= 1
    assert len(verdict.fingerprint) == 16 and len(verdict.decided_by.rulebook) == 16


@pytest.mark.parametrize("name", [name for name in FAILURES if name not in ("empty", "garbage", "prose")])
def test_evidence_is_quoted_with_its_neighbours(diagnose: Diagnose, name: str) -> None:
    rows = FAILURES[name].splitlines()
    evidence = diagnose(FAILURES[name]).evidence
    assert evidence
    for item in evidence:
        assert item.quote == rows[item.line - 1]
        assert item.rule
        before, after = rows[max(item.line - 3, 0) : item.line - 1], rows[item.line : item.line + 2]
        if not item.rule.startswith("progress/"):
            assert list(item.before) == before[len(before) - len(item.before) :]
            assert list(item.after) == after[: len(item.after)]


def test_around_an_error_both_neighbours_are_shown(diagnose: Diagnose) -> None:
    (item,) = diagnose("a\nb\nc\n" + ECC + "d\ne\nf\n").evidence
    assert (item.before, item.after) == (("b", "c"), ("d", "e"))


def test_a_long_line_is_quoted_in_part_and_in_place(diagnose: Diagnose) -> None:
    line = "x" * 5000 + " " + ECC
    (item,) = diagnose(HEAD + line).evidence
    assert item.line == 41
    assert 0 < len(item.quote) <= 1000 and item.quote in line


@pytest.mark.parametrize("name", FAILURES)
def test_one_log_has_one_verdict(diagnose: Diagnose, name: str) -> None:
    one, other = (diagnose(FAILURES[name]) for _ in range(2))
    assert one.fingerprint == other.fingerprint
    assert (one.evidence, one.symptoms, one.suspects) == (other.evidence, other.symptoms, other.suspects)


def test_failures_differ_in_their_fingerprints(diagnose: Diagnose) -> None:
    prints = {
        name: diagnose(FAILURES[name]).fingerprint
        for name in ("rule", "structure", "cascade only", "kernel", "spike", "hang", "empty")
    }
    assert all(prints[one] != prints[other] for one, other in itertools.combinations(prints, 2))


def test_zones_count_where_all_streams_tell_them(diagnose: Diagnose) -> None:
    east = "2024-03-02T20:00:05+09:00 step 1 loss 2\n2024-03-02T20:00:20+09:00 KeyError: 'east'\n"
    west = "2024-03-02T12:00:05+01:00 step 1 loss 2\n2024-03-02T12:00:10+01:00 ValueError: west\n"
    assert diagnose({"a": east, "b": west}).reason == "Value Error", (
        "12:00:10 in the west is before 20:00:20 in the east"
    )
    assert diagnose({"a": east.replace("+09:00", ""), "b": west}).reason == "Value Error"


def test_a_launcher_that_was_told_to_stop_was_stopped(diagnose: Diagnose) -> None:
    killing = "[2024-03-02 11:01:36,472] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 18138\n" * 2
    reported = (
        "[2024-03-02 11:01:36,551] [INFO] [launch.py:324:sigkill_handler] Main process received SIGTERM, exiting\n"
    )
    assert diagnose(HEAD + killing + reported).outcome == "cancelled"
    assert diagnose(HEAD + killing).outcome == "failed"
    assert diagnose(HEAD + KEY + killing + reported).reason == "Key Error"


def test_a_job_whose_last_step_was_made_does_not_hang(diagnose: Diagnose) -> None:
    last = HEAD.replace("500000", "40")
    evaluated = "[2024-03-02 12:31:20] evaluation done\n"
    assert diagnose(last + evaluated).outcome != "failed"
    assert diagnose(HEAD + evaluated).reason == "Hang"


@pytest.mark.parametrize(
    "death",
    [
        "srun: error: gpu-07: task 1: Exited with exit code 1\n",
        "Fatal Python error: Segmentation fault\n",
        "gpu-01: [2024-03-02 11:01:40,000] [ERROR] [launch.py:325:sigkill_handler] exits with return code = -9\n",
    ],
)
def test_a_launcher_that_was_told_to_stop_beside_a_death_was_not(diagnose: Diagnose, death: str) -> None:
    """Another launcher, or the scheduler, stops the rest."""
    reported = (
        "[2024-03-02 11:01:36,551] [INFO] [launch.py:324:sigkill_handler] Main process received SIGTERM, exiting\n"
    )
    assert diagnose(HEAD + death + reported).outcome == "failed"
    assert diagnose(HEAD + reported + death).outcome == "failed"


@pytest.mark.parametrize("end", [CANCELLED, TIME_LIMIT])
def test_a_silence_behind_the_last_step_is_a_hang_when_the_job_was_stopped(diagnose: Diagnose, end: str) -> None:
    silent = "[2024-03-02 12:31:20] saving checkpoint\n"
    assert diagnose(HEAD.replace("500000", "40") + silent + end.replace("11:01:30", "12:31:30")).reason == "Hang"
