"""Who did not take part in what timed out, and what was still being done."""

import pytest

from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import steps

HEAD = steps(1, 5)
WAITED = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600227 milliseconds"
    " before timing out.\n"
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error"
    " or timeout) detected by watchdog at work: 41, last enqueued NCCL work: {enqueued}, last completed NCCL work: 40\n"
)


def reports(ranks: range | list[int], enqueued: int = 41) -> str:
    return "".join(WAITED.format(rank=rank, enqueued=enqueued) for rank in ranks)


def test_a_rank_whose_last_call_lies_before_the_others_is_missing(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + reports([0, 1, 3]) + reports([2], enqueued=40))
    assert (verdict.reason, verdict.first_rank) == ("NCCL Timeout Error", 2)
    assert "Rank 2 never called collective #41" in verdict.why


def test_the_one_that_reports_nothing_is_missing(diagnose: Diagnose) -> None:
    placed = "".join(f"[rank{rank}]: ready\n[rank{rank}]: WARNING careful: cannot pin\n" for rank in range(8))
    verdict = diagnose(HEAD + placed + reports([0, 1, 2, 4, 5, 6, 7]))
    assert "except rank 3" in verdict.why


def test_where_all_report_nobody_is_missing(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + reports(range(4))).why == ""


def test_words_that_name_the_missing_are_believed(diagnose: Diagnose) -> None:
    log = HEAD + "RuntimeError: [Rank 0]: Ranks 3, 5 failed to pass monitoredBarrier in 1800000 ms\n"
    assert "Ranks 3, 5 did not take part" in diagnose(log).why


@pytest.mark.parametrize(
    ("last", "recovery"),
    [
        (
            "Tokenizing train dataset (num_proc=1):  58%|#####     | 1291500/2210432 [31:31<22:26, 682.44/s]",
            "fix_first",
        ),
        ("Downloading shards:  12%|#   | 3/25 [20:00<2:00:00, 400s/it]", "fix_first"),
        ("64: rank 64: writing shard __64_0.distcp, 704/11264 MiB, 1.21 MiB/s", "restart"),
        ("step 41 begins", "isolate_and_restart"),
    ],
)
def test_what_was_done_last_decides_what_helps(diagnose: Diagnose, last: str, recovery: str) -> None:
    verdict = diagnose(f"{HEAD}{last}\n{reports(range(4))}")
    assert (verdict.reason, verdict.recovery) == ("NCCL Timeout Error", recovery)
    assert (recovery == "isolate_and_restart") or verdict.evidence[1].line == 5
