"""When a past case is sure enough: seldom, and never where it may be another failure."""

from typing import Any

import pytest

from logdoctor.diagnose.conclude import RootCause
from logdoctor.diagnose.episodes import Episode, digest_of
from logdoctor.diagnose.fingerprint import normalised
from logdoctor.failure_agent.by_case import by_case
from logdoctor.failure_agent.cases.cases import Case, Neighbour

QUOTA = "OSError: [Errno 122] Disk quota exceeded: '/scratch/u7/ckpt'"
LINK = "fabricd: link training of port 12 gave up after 5 attempts"


def episode(line: int, text: str, **other: Any) -> Episode:
    lasting = {"role": "strong", "survived": False, "stream": 0, "time": None, "texts": (text,)} | other
    return Episode(
        lasting["stream"], line, (line,), lasting["texts"], text, normalised(text), digest_of(text),
        (3,), 1, lasting["survived"], lasting["time"], "", lasting["role"],
    )  # fmt: skip


def case(
    number: int, *texts: str, reason: str = "OS Error", recovery: str = "", quote: str = "q", **other: Any
) -> Case:
    digests = tuple(digest_of(text) for text in texts)
    summary = "\n".join(texts)
    known = Case(
        number,
        reason,
        "",
        recovery,
        "",
        "",
        texts[0] if texts else "",
        digests,
        summary,
        f"job{number}",
        1,
        number,
        quote,
    )
    return known._replace(**other)


def same(*cases: Case) -> list[Neighbour]:
    return [Neighbour(one, 0.0, True) for one in cases]


def near(*pairs: tuple[Case, float]) -> list[Neighbour]:
    return [Neighbour(one, similarity, False) for one, similarity in pairs]


def said(found: list[Episode], neighbours: list[Neighbour], similarity: float = 0.8) -> RootCause | None:
    return by_case(found, neighbours, similarity, 2, ["main", "kernel"])


# --- by the line that named a past failure


def test_the_line_that_named_a_past_failure_names_this_one() -> None:
    old, new = case(1, QUOTA), case(2, QUOTA, fix="asked for quota", suggestion="Free space.", fault="user")
    found = said([episode(7, QUOTA.replace("u7", "u9"))], same(old, new))
    assert found is not None
    assert (found.reason, found.recovery, found.fault, found.kind) == ("OS Error", "fix_first", "user", "case")
    assert (found.decided, found.places) == ("case/2", (("main", 7),))
    assert found.suggestion == "Free space. What helped: asked for quota"
    assert found.confidence > 0.9 and "case 2" in found.why and "job" not in found.why


def test_one_case_is_enough_and_its_recovery_counts() -> None:
    found = said([episode(7, QUOTA)], same(case(1, QUOTA, recovery="restart")))
    assert found is not None and found.recovery == "restart"
    assert 0.6 <= found.confidence <= 0.9


def test_a_node_may_be_taken_out_on_the_same_line() -> None:
    found = said([episode(7, LINK)], same(case(1, LINK, reason="NVLink Error")))
    assert found is not None and found.recovery == "isolate_and_restart"


@pytest.mark.parametrize(
    "other", [{"reason": "Connection Error"}, {"recovery": "restart"}], ids=["another reason", "another recovery"]
)
def test_cases_that_disagree_say_nothing(other: dict[str, str]) -> None:
    assert said([episode(7, QUOTA)], same(case(1, QUOTA), case(2, QUOTA), case(3, QUOTA, **other))) is None


def test_a_recovery_that_is_the_default_agrees_with_it() -> None:
    assert said([episode(7, QUOTA)], same(case(1, QUOTA), case(2, QUOTA, recovery="fix_first"))) is not None


def test_a_line_that_came_along_with_another_failure_says_nothing() -> None:
    assert said([episode(7, QUOTA)], same(case(1, QUOTA), case(2, LINK, QUOTA, reason="NVLink Error"))) is None


def test_a_line_that_only_came_along_is_no_proof() -> None:
    assert said([episode(7, QUOTA)], same(case(1, LINK, QUOTA, reason="NVLink Error"))) is None


def test_lines_of_two_failures_say_nothing() -> None:
    found = [episode(7, QUOTA), episode(9, LINK)]
    assert said(found, same(case(1, QUOTA), case(2, LINK, reason="NVLink Error"))) is None


@pytest.mark.parametrize(
    "other", [{"survived": True}, {"role": "cascade"}, {"role": "teardown"}, {"role": "note"}], ids=str
)
def test_what_was_survived_or_follows_is_no_proof(other: dict[str, Any]) -> None:
    assert said([episode(7, QUOTA, **other)], same(case(1, QUOTA))) is None


@pytest.mark.parametrize(
    "text",
    [
        "Root Cause (first observed failure):",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "Sending process 31337 closing signal SIGTERM",
        "failed (exitcode: -6) local_rank: 3 (pid: 4711) of binary: /usr/bin/python3",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "srun: error: node12: task 3: Exited with exit code 1",
        "train.py FAILED",
        "RuntimeError: DataLoader worker (pid 17) is killed by signal: Killed.",
        "Traceback (most recent call last):",
        "The above exception was the direct cause of the following exception:",
        '  File "/opt/train.py", line 3, in main',
        "RuntimeError: 17",
        "KeyError: 3",
        "failure",
        "",
    ],
)
def test_what_any_failure_prints_is_no_proof(text: str) -> None:
    assert said([episode(7, text)], same(case(1, text), case(2, text), case(3, text))) is None


def test_a_bare_exception_counts_with_its_traceback() -> None:
    frames = [f'  File "/opt/model/layer{number}.py", line {number}, in forward' for number in range(3)]
    known = same(case(1, "AssertionError", reason="Assertion Error"))
    assert said([episode(7, "AssertionError", texts=(*frames, "AssertionError"))], known) is not None
    assert said([episode(7, "AssertionError", texts=(*frames[:1], "AssertionError"))], known) is None


def test_something_unknown_before_it_may_be_the_cause() -> None:
    unknown = episode(3, "xpud: voltage regulator of board left its range")
    assert said([unknown, episode(7, QUOTA)], same(case(1, QUOTA))) is None
    assert said([unknown._replace(line=9), episode(7, QUOTA)], same(case(1, QUOTA))) is not None
    assert said([unknown._replace(role="", survived=True), episode(7, QUOTA)], same(case(1, QUOTA))) is not None


def test_in_another_stream_the_time_says_what_came_before() -> None:
    proof = episode(7, QUOTA, time=100.5)
    unknown = episode(3, "xpud: voltage regulator of board left its range", stream=1)
    for time, sure in ((99.0, False), (99.999, False), (100.4, True), (101.0, True), (None, False)):
        assert (said([unknown._replace(time=time), proof], same(case(1, QUOTA))) is not None) is sure


def test_what_came_along_before_is_not_unknown() -> None:
    noise = "uploader: checkpoint upload attempt 3 timed out"
    along = same(case(1, QUOTA), case(2, LINK, noise, reason="NVLink Error"))
    assert said([episode(3, noise), episode(7, QUOTA)], along) is not None


def test_a_case_whose_line_nobody_pointed_at_needs_a_second_one() -> None:
    assert said([episode(7, QUOTA)], same(case(1, QUOTA, quote=""))) is None
    assert said([episode(7, QUOTA)], same(case(1, QUOTA, quote=""), case(2, QUOTA, quote=""))) is not None
    assert said([episode(7, QUOTA)], same(case(1, QUOTA, quote=""), case(2, QUOTA))) is not None


# --- by likeness


FULL = "OSError: could not write checkpoint, disk quota exceeded on volume"


def test_near_cases_that_agree_decide() -> None:
    found = said([episode(7, FULL)], near((case(1, QUOTA), 0.9), (case(2, QUOTA), 0.85), (case(3, LINK), 0.2)))
    assert found is not None and (found.reason, found.recovery) == ("OS Error", "fix_first")
    assert 0.6 < found.confidence < 0.8 and found.places == (("main", 7),)


@pytest.mark.parametrize(
    ("second", "third"),
    [(0.79, 0.1), (0.85, 0.8), (0.95, 0.86)],
    ids=["too far", "another is close", "another is nearly as close"],
)
def test_near_cases_that_are_few_or_contradicted_do_not(second: float, third: float) -> None:
    other = case(3, LINK, reason="NVLink Error")
    assert said([episode(7, FULL)], near((case(1, QUOTA), 0.95), (case(2, QUOTA), second), (other, third))) is None


def test_one_attempt_is_one_vote() -> None:
    twice = near((case(1, QUOTA), 0.95), (case(2, QUOTA, job="job1"), 0.95))
    assert said([episode(7, FULL)], twice) is None


def test_likeness_never_takes_a_node_out() -> None:
    alike = near((case(1, LINK, reason="NVLink Error"), 1.0), (case(2, LINK, reason="NVLink Error"), 1.0))
    assert said([episode(7, LINK)], alike) is None


def test_a_line_must_speak_of_it() -> None:
    alike = near((case(1, QUOTA), 0.95), (case(2, QUOTA), 0.95))
    assert said([episode(7, "xpud: voltage regulator of board left its range")], alike) is None
    assert said([], alike) is None


def test_the_similarity_is_as_set() -> None:
    alike = near((case(1, QUOTA), 0.7), (case(2, QUOTA), 0.7))
    assert said([episode(7, FULL)], alike) is None
    assert said([episode(7, FULL)], alike, similarity=0.6) is not None


# --- both


def test_nothing_known_says_nothing() -> None:
    assert said([episode(7, QUOTA)], []) is None
    assert said([episode(7, QUOTA)], same(case(1))) is None


def test_a_reason_that_is_no_longer_known_does_no_harm() -> None:
    assert said([episode(7, QUOTA)], same(case(1, QUOTA, reason="Gremlins"))) is None
    assert said([episode(7, QUOTA)], same(case(1, QUOTA, reason="Unknown"))) is None
