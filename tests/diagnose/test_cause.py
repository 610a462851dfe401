"""Which of many errors is the cause, whatever their order and however loud the others are."""

from itertools import permutations

import pytest

from logdoctor import taxonomy
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import (
    COMPLETED,
    CONTEXT,
    DIRECT,
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

HEAD = steps(0, 20)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("acme.io.ShardNotFoundError: shard 17 is not there", "File Not Found Error"),
        ("acme.BadConfigError: unknown field 'lr'", "Value Error"),
        ("kafka.errors.BrokerConnectError: no brokers", "Connection Error"),
        ("zarr.PermissionDeniedError: /data", "Permission Error"),
        ("acme.CheckpointMismatch: layer 3", "Model Loading Error"),
        ("acme.MissingKeyError: 'tokens'", "Key Error"),
        ("acme.FrobnicationFailure: boo", "Runtime Error"),
    ],
)
def test_an_exception_no_rule_knows_has_the_reason_of_its_family(diagnose: Diagnose, error: str, reason: str) -> None:
    verdict = diagnose(HEAD + traceback(error))
    assert (verdict.reason, verdict.outcome) == (reason, "failed")
    assert (verdict.decided_by.kind, verdict.decided_by.rule) == ("structure", error.split(":")[0])
    assert [(e.line, e.quote) for e in verdict.evidence] == [(26, error)]
    assert verdict.recovery == taxonomy.REASONS[reason].recovery


def test_an_exception_line_without_its_traceback_counts_but_less(diagnose: Diagnose) -> None:
    bare = diagnose(HEAD + "acme.ShardNotFoundError: shard 17 is not there\n")
    whole = diagnose(HEAD + traceback("acme.ShardNotFoundError: shard 17 is not there"))
    assert bare.reason == whole.reason == "File Not Found Error"
    assert bare.confidence < whole.confidence


@pytest.mark.parametrize(
    "said",
    [
        "step 20 is not saved: [Errno 28] No space left on device: '/ckpt/step-20.attempt-1/__0_0.distcp'",
        "mirror s3://ckpt/run-7 cannot be read (ConnectionError: [Errno 113] No route to host).",
    ],
)
def test_what_its_writer_dealt_with_is_no_cause(diagnose: Diagnose, said: str) -> None:
    """The checkpointer reports a save that failed and ends nothing; the same words of others are a cause."""
    end = traceback("KeyError: 'tokens'")
    handled = diagnose(f"{HEAD}2026-03-02 11:08:47,123 ERROR logdoctor.checkpoint: {said}\n{end}")
    assert handled.reason == "Key Error" and not handled.symptoms
    other = diagnose(
        f"{HEAD}2026-03-02 11:08:47,123 ERROR saver: step 20: {said.partition(' is ')[2] or said[7:]}\n{end}"
    )
    assert other.reason in ("OS Error", "Network Error")


def test_neither_the_proof_nor_another_error_of_cuda_stands_beside_a_cause_that_cuda_named(diagnose: Diagnose) -> None:
    errors = "[rank1] RuntimeError: CUDA error: unspecified launch failure\n" * 3
    named = "[rank0] Last error:\n[rank0] Cuda failure 'uncorrectable ECC error encountered'\n"
    kernel = "Mar 02 10:59:10 wn061 kernel: NVRM: Xid (PCI:0000:52:00): 48, An uncorrectable double bit error (DBE)\n"
    verdict = diagnose(HEAD + named + errors + kernel + f"[rank3] {ECC}")
    assert verdict.reason == "ECC Error"
    assert not verdict.alternatives and all(one.explained_by for one in verdict.symptoms)
    cited = {one.line for one in verdict.evidence}
    assert {22, 26} <= cited, "by two rules"
    assert {one.reason: (one.line in cited, one.count) for one in verdict.symptoms}["ECC Error"] == (False, 1)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_quiet_cause_beats_a_loud_cascade_in_any_order(diagnose: Diagnose, order: tuple[int, ...]) -> None:
    parts = ["[rank5]: " + ECC, nccl_timeout(range(60)), prefixed("[rank9]: ", traceback("RuntimeError: step failed"))]
    verdict = diagnose(HEAD + "".join(parts[place] for place in order))
    assert (verdict.reason, verdict.recovery) == ("ECC Error", "isolate_and_restart")
    assert verdict.first_rank == 5
    assert verdict.decided_by.kind == "rule"
    assert "uncorrectable ECC" in verdict.evidence[0].quote
    assert {s.reason: s.count for s in verdict.symptoms} == {"NCCL Timeout Error": 60, "Runtime Error": 1}
    assert all(s.explained_by == verdict.decided_by.rule for s in verdict.symptoms)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_error_of_the_program_beats_the_time_outs_of_those_who_wait(
    diagnose: Diagnose, order: tuple[int, ...]
) -> None:
    parts = [prefixed("[rank9]: ", traceback("KeyError: 'tokens'")), nccl_timeout(range(8))]
    verdict = diagnose(HEAD + "".join(parts[place] for place in order))
    assert (verdict.reason, verdict.first_rank) == ("Key Error", 9)


def test_the_first_of_two_unrelated_errors_is_the_cause_and_the_other_stays_visible(diagnose: Diagnose) -> None:
    alone = diagnose(HEAD + traceback("ZeroDivisionError: division by zero"))
    both = diagnose(HEAD + traceback("ZeroDivisionError: division by zero") + "\n" + traceback("KeyError: 'a'"))
    assert both.reason == "Zero Division Error"
    assert [(s.reason, s.explained_by) for s in both.symptoms] == [("Key Error", "")]
    assert both.confidence < alone.confidence


def test_errors_that_the_cause_explains_cost_no_confidence(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + ECC + nccl_timeout(range(9))).confidence == diagnose(HEAD + ECC).confidence


def test_the_same_error_of_many_ranks_is_one_event(diagnose: Diagnose) -> None:
    ranks = [prefixed(f"[rank{rank}]: ", traceback("KeyError: 'tokens'")) for rank in range(40)]
    verdict = diagnose(HEAD + interleaved(*ranks))
    assert verdict.reason == "Key Error"
    assert [(s.reason, s.count, s.explained_by) for s in verdict.symptoms] == [("Key Error", 39, "KeyError")]
    assert verdict.first_rank is None  # a mistake they all make has no first rank worth the name


@pytest.mark.parametrize("error", ["KeyError: 'tokens'", ECC.strip(), "acme.ShardNotFoundError: shard 17"])
def test_what_torchrun_calls_the_root_cause_is_never_the_cause(diagnose: Diagnose, error: str) -> None:
    verdict = diagnose(HEAD + prefixed("[rank3]: ", traceback(error)) + TORCHRUN)
    assert verdict.first_rank == 3
    assert [e.line for e in verdict.evidence] == [26]


def test_a_report_of_torchrun_alone_leaves_the_cause_unknown(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + TORCHRUN)
    assert (verdict.outcome, verdict.reason, verdict.recovery) == ("failed", "Unknown", "ask_human")
    assert verdict.decided_by.kind == "nobody"
    assert verdict.suspects == ()


def test_a_kernel_line_gathered_at_the_end_wins(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + nccl_timeout(range(8)) + TORCHRUN + OFF_THE_BUS)
    assert (verdict.reason, verdict.recovery) == ("CUDA Error", "isolate_and_restart")
    assert verdict.evidence[0].quote == OFF_THE_BUS.strip()
    assert [s.node for s in verdict.suspects] == ["wn061"]


def test_a_kernel_line_in_a_stream_of_its_own_wins(diagnose: Diagnose) -> None:
    verdict = diagnose({"rank_0": HEAD + nccl_timeout([0]), "dmesg": OFF_THE_BUS})
    assert (verdict.reason, verdict.evidence[0].stream) == ("CUDA Error", "dmesg")


@pytest.mark.parametrize("fault", [ECC, traceback("KeyError: 'tokens'"), nccl_timeout([3]), OFF_THE_BUS])
def test_a_fault_followed_by_progress_is_survived(diagnose: Diagnose, fault: str) -> None:
    verdict = diagnose(HEAD + fault + steps(20, 60))
    assert (verdict.outcome, verdict.recovery) == ("running", "none")
    assert [s.reason for s in verdict.symptoms] == [diagnose(HEAD + fault).reason]


def test_a_survived_fault_does_not_hide_the_one_that_follows(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + ECC + steps(20, 60) + traceback("KeyError: 'tokens'"))
    assert (verdict.outcome, verdict.reason) == ("failed", "Key Error")


def test_a_last_gasp_of_progress_does_not_make_a_fault_survived(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + traceback("KeyError: 'tokens'") + steps(20, 22)).outcome == "failed"


def test_steps_made_again_after_a_restart_are_progress(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + ECC + restarted(3) + steps(10, 30) + COMPLETED)
    assert (verdict.outcome, verdict.reason, verdict.recovery) == ("recovered", "ECC Error", "none")


def test_the_same_failure_after_two_restarts_needs_a_fix(diagnose: Diagnose) -> None:
    fails = nccl_timeout([3])
    once = diagnose(HEAD + fails + restarted(3) + steps(10, 20) + fails)
    twice = diagnose(HEAD + fails + restarted(3) + steps(10, 20) + fails + restarted(2) + steps(10, 20) + fails)
    assert (once.recovery, once.fault) == ("isolate_and_restart", "infrastructure")
    assert (twice.recovery, twice.fault) == ("fix_first", "user")
    assert "restart" in twice.why
    assert twice.suggestion != once.suggestion


def test_another_failure_after_each_restart_is_no_repetition(diagnose: Diagnose) -> None:
    verdict = diagnose(
        HEAD
        + traceback("KeyError: 'a'")
        + restarted(3)
        + steps(10, 20)
        + traceback("ConnectionRefusedError: [Errno 111] Connection refused")
        + restarted(2)
        + steps(10, 20)
        + nccl_timeout([3])
    )
    assert (verdict.reason, verdict.recovery) == ("NCCL Timeout Error", "isolate_and_restart")


def test_broken_hardware_stays_broken_hardware_however_often_it_fails(diagnose: Diagnose) -> None:
    again = "".join(ECC + restarted(left) + steps(10, 20) for left in (3, 2, 1))
    assert diagnose(HEAD + again + ECC).recovery == "isolate_and_restart"


def test_ranks_that_wait_in_different_calls_need_a_fix(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + nccl_timeout([0, 1, 2]) + nccl_timeout([3], "BROADCAST"))
    assert (verdict.reason, verdict.recovery, verdict.fault) == ("NCCL Timeout Error", "fix_first", "user")
    assert "Rank 3" in verdict.why and "BROADCAST" in verdict.why
    assert verdict.suspects == ()


def test_the_rank_that_took_another_path_is_the_first(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + nccl_timeout([0, 1, 2]) + nccl_timeout([3], "BROADCAST")).first_rank == 3


def test_ranks_that_wait_in_the_same_call_have_no_fault_in_the_program(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + nccl_timeout(range(4)))
    assert (verdict.recovery, verdict.fault, verdict.why) == ("isolate_and_restart", "infrastructure", "")


@pytest.mark.parametrize("words", [DIRECT, CONTEXT])
def test_a_chain_is_one_claim_and_both_ends_are_cited(diagnose: Diagnose, words: str) -> None:
    verdict = diagnose(HEAD + traceback("OSError: [Errno 5] odd") + words + traceback("RuntimeError: stopped"))
    assert verdict.reason == "OS Error"
    assert [e.quote for e in verdict.evidence] == ["OSError: [Errno 5] odd", "RuntimeError: stopped"]
    assert verdict.symptoms == ()


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit: 0", "GeneratorExit"])
def test_ways_to_end_are_no_errors(diagnose: Diagnose, error: str) -> None:
    assert diagnose(HEAD + traceback(error)).outcome != "failed"


@pytest.mark.parametrize("error", ["ConnectionResetError: [Errno 104] reset", "BrokenPipeError: [Errno 32] pipe"])
def test_a_lost_peer_is_a_consequence_when_there_is_a_cause(diagnose: Diagnose, error: str) -> None:
    lost = prefixed("[rank1]: ", traceback(error))
    verdict = diagnose(HEAD + lost + prefixed("[rank4]: ", traceback("ValueError: 7 columns")))
    assert (verdict.reason, verdict.first_rank) == ("Value Error", 4)
    assert [s.explained_by for s in verdict.symptoms] == [verdict.decided_by.rule]


def test_advice_is_never_the_cause(diagnose: Diagnose) -> None:
    advice = "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable it.\n"
    assert diagnose(HEAD + advice).outcome == "running"


def test_what_rarely_ends_a_job_yields_to_what_it_does_not_explain(diagnose: Diagnose) -> None:
    nan = "epoch 37 loss: nan lr: 1e-4\n"
    dead = traceback("RuntimeError: CUDA error: device-side assert triggered")
    blown = traceback("AssertionError: NaN in gradients of layer 3")
    assert diagnose(HEAD + nan * 3 + dead).reason == "CUDA Error"
    assert diagnose(HEAD + nan * 3 + blown).reason == "Loss Spike"


def test_a_message_that_goes_on_is_what_its_next_lines_say(diagnose: Diagnose) -> None:
    head = "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n"
    told = "EJ0001: 2026-03-02-11:57:54.167.645 Failed to initialize the HCCP process.\n"
    assert diagnose(HEAD + head + told).reason == "CUDA Error"
    assert diagnose(HEAD + head + "a line\n" * 9 + told).reason == "Unknown"


def test_the_exception_that_a_chain_began_with_is_cited_too(diagnose: Diagnose) -> None:
    root = "ImportError: libfast.so: undefined symbol: _ZN2at4copyE"
    wrapper = (
        "RuntimeError: Failed to import model.mistral because of the following error (look up to see its traceback):"
    )
    verdict = diagnose(HEAD + traceback(root) + DIRECT + traceback(wrapper))
    assert verdict.reason == "Import Error"
    assert root in [evidence.quote for evidence in verdict.evidence]


def test_what_another_program_says_does_not_go_on_with_a_message(diagnose: Diagnose) -> None:
    after = "rm: cannot remove '/scratch/x': Permission denied\n"
    lost = traceback("OSError: s3://bucket/x could not be read")
    assert diagnose(HEAD + lost + after).reason == "S3 Storage Error"
    assert diagnose(HEAD + traceback("RuntimeError: my own failure in layer 3") + after).reason == "Runtime Error"


def test_a_class_that_another_one_is_told_by_counts(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + traceback("RemoteFailed(ValueError): bad")).reason == "Value Error"
