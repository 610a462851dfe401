"""The first error of each rank: who failed, of what, when, and which part it had."""

import random
from collections.abc import Mapping

import pytest

from logdoctor.types import RankError, Verdict
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import (
    COMPLETED,
    ECC,
    OFF_THE_BUS,
    interleaved,
    nccl_timeout,
    prefixed,
    restarted,
    steps,
    traceback,
)

HEAD = steps(0, 40)
OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
PLACED = "2024-03-02 10:59:00,088\tINFO parallel_context.py:555 in set_device -- process rank {} is bound to host:{} device: 0\n"  # noqa: E501
MARCH_2 = 1_709_337_600.0  # 2024-03-02 00:00:00 UTC


def stamped(clock: str, text: str) -> str:
    return prefixed(f"2024-03-02 {clock},000 ", text)


def said(verdict: Verdict) -> set[tuple[object, ...]]:
    """What is told of ranks, wherever the lines stand."""
    return {(error.rank, error.node, error.reason, error.role) for error in verdict.ranks}


def ranks(verdict: Verdict) -> list[int | None]:
    return [error.rank for error in verdict.ranks]


def test_each_rank_has_its_first_error_in_the_order_in_which_they_came(diagnose: Diagnose) -> None:
    log = HEAD + prefixed("[rank3]: ", traceback(OOM.strip())) + nccl_timeout([1, 0]) + nccl_timeout([3])
    verdict = diagnose(log)
    assert [(error.rank, error.reason) for error in verdict.ranks] == [
        (3, "Out of Memory Error"),
        (1, "NCCL Timeout Error"),
        (0, "NCCL Timeout Error"),
    ]
    assert all(error.stream == "main" and error.count == 1 for error in verdict.ranks)
    assert [error.line for error in verdict.ranks] == [46, 47, 48]
    assert (verdict.ranks[0].stream, verdict.ranks[0].line) == ("main", verdict.evidence[0].line)


def test_a_stamp_tells_the_time_and_orders_streams(diagnose: Diagnose) -> None:
    late, early = stamped("11:05:00", ECC), stamped("11:04:00", OOM)
    verdict = diagnose({"rank_0": HEAD + late, "rank_1": HEAD + early})
    assert [(error.rank, error.time) for error in verdict.ranks] == [
        (1, MARCH_2 + 11 * 3600 + 240),
        (0, MARCH_2 + 11 * 3600 + 300),
    ]


def test_fractions_of_a_second_order_streams(diagnose: Diagnose) -> None:
    late = prefixed("2024-03-02 11:05:00,700 ", "KeyError: 'a'")
    early = prefixed("2024-03-02 11:05:00,200 ", "ValueError: b")
    verdict = diagnose({"rank_0": HEAD + late, "rank_1": HEAD + early})
    assert [(error.rank, error.time) for error in verdict.ranks] == [
        (1, MARCH_2 + 11 * 3600 + 300 + 0.2),
        (0, MARCH_2 + 11 * 3600 + 300 + 0.7),
    ]


def test_in_one_stream_lines_say_the_order_whatever_stamps_say(diagnose: Diagnose) -> None:
    clocks = ("11:05:00,700", "11:05:00,699", "11:05:03,100", "11:04:59,900")
    log = "".join(prefixed(f"2024-03-02 {clock} [rank{n}]: ", OOM) for n, clock in enumerate(clocks))
    other = prefixed("2024-03-02 11:05:01,000 ", OOM)
    assert ranks(diagnose(HEAD + log)) == [0, 1, 2, 3]
    assert ranks(diagnose({"node_a": HEAD + log, "rank_9": HEAD + other})) == [0, 1, 9, 2, 3]


def test_a_stamp_without_a_year_is_of_the_year_of_the_log(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + stamped("11:02:00", "starting\n") + OFF_THE_BUS)
    assert verdict.ranks == (
        RankError(None, "wn061", "main", 42, MARCH_2 + 10 * 3600 + 59 * 60 + 10, "CUDA Error", "cause"),
    )


def test_without_any_year_it_is_2000(diagnose: Diagnose) -> None:
    (error,) = diagnose(OFF_THE_BUS).ranks
    assert error.time == 951_994_750.0  # 2000-03-02 10:59:10 UTC


def test_in_a_mixed_stream_the_stamp_of_another_rank_is_not_taken(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + prefixed("[rank1]: ", traceback("KeyError: 'tokens'")))
    assert [error.time for error in verdict.ranks] == [None]


def test_a_rank_is_named_with_its_node(diagnose: Diagnose) -> None:
    verdict = diagnose(PLACED.format(3, "gpu-07") + HEAD + prefixed("[rank3]: ", ECC) + prefixed("gpu-09: ", OOM))
    assert [(error.rank, error.node) for error in verdict.ranks] == [(3, "gpu-07"), (None, "gpu-09")]


def test_a_cause_that_came_behind_another_error_of_its_rank_is_told_too(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + nccl_timeout([3]) + prefixed("[rank3]: ", ECC))
    assert verdict.reason == "ECC Error"
    assert [(error.rank, error.reason) for error in verdict.ranks] == [(3, "NCCL Timeout Error"), (3, "ECC Error")]


def test_what_was_survived_is_not_told(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + nccl_timeout([3]) + restarted(2) + steps(40, 60) + prefixed("[rank1]: ", ECC))
    assert ranks(verdict) == [1]


@pytest.mark.parametrize(
    "end", [COMPLETED, "", "slurmstepd: error: *** JOB 88 ON lux-031 CANCELLED AT 2024-03-02 ***\n"]
)
def test_a_job_that_did_not_fail_has_none(diagnose: Diagnose, end: str) -> None:
    verdict = diagnose(HEAD + prefixed("[rank1]: ", ECC) + steps(40, 80) + end)
    assert verdict.outcome != "failed" and verdict.ranks == ()


def test_many_ranks_alike_are_folded(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + prefixed("[rank500]: ", ECC) + nccl_timeout(range(500)))
    assert len(verdict.ranks) == 10
    assert verdict.ranks[0].reason == "ECC Error"
    assert ranks(verdict) == [500, *range(9)]
    assert sum(error.count for error in verdict.ranks) == 501
    assert verdict.ranks[-1].count == 492


def test_the_cause_is_never_folded(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + nccl_timeout(range(1, 300)) + prefixed("[rank0]: ", ECC))
    assert (verdict.ranks[-1].rank, verdict.ranks[-1].reason, verdict.ranks[-1].count) == (0, "ECC Error", 1)


def test_there_are_64_at_most_however_many_reasons_there_are(diagnose: Diagnose) -> None:
    errors = (
        "KeyError: 'a'",
        "ValueError: b",
        "TypeError: c",
        "ImportError: d",
        "FileNotFoundError: e",
        "AssertionError: f",
        "AttributeError: g",
        "OSError: h",
        "IndexError: i",
        "NameError: j",
    )
    log = "".join(prefixed(f"[rank{n}]: ", traceback(errors[n % len(errors)])) for n in range(200))
    verdict = diagnose(HEAD + log)
    assert len({error.reason for error in verdict.ranks}) > 4
    assert len(verdict.ranks) <= 64 and sum(error.count for error in verdict.ranks) == 200


@pytest.mark.parametrize("seed", range(6))
def test_interleaving_changes_nothing_that_is_said_of_a_rank(diagnose: Diagnose, seed: int) -> None:
    writers: Mapping[int, str] = {
        0: nccl_timeout([0]),
        1: traceback("KeyError: 'tokens'"),
        2: nccl_timeout([2]) + ECC,
        3: traceback("ValueError: bad"),
        4: "starting\nready\n" + traceback("ConnectionResetError: [Errno 104] reset by peer"),
    }
    parts = [stamped("11:03:00", prefixed(f"[rank{rank}]: ", text)) for rank, text in writers.items()]
    want = said(diagnose(HEAD + "".join(parts)))
    assert {rank for rank, *_ in want} == set(writers)
    rows = [part.splitlines(keepends=True) for part in parts]
    chooser, mixed = random.Random(seed), ""
    while left := [row for row in rows if row]:
        mixed += chooser.choice(left).pop(0)
    assert said(diagnose(HEAD + mixed)) == want
    assert said(diagnose(HEAD + interleaved(*parts))) == want
