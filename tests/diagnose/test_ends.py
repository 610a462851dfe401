"""Which process of a job ended first, and how, where the others only say that a peer was gone."""

import signal

import pytest

from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.types import Verdict
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import interleaved, nccl_timeout, prefixed, steps, traceback

HEAD = steps(0, 40)
GONE = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:48330:"
    " Connection reset by peer. This is typically caused by a remote worker hanging or crashing."
)
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
FATAL = """\
Fatal Python error: Segmentation fault

Current thread 0x00007fcb08bf7740 (most recent call first):
  File "/opt/app/shards.py", line 17 in read
  File "/opt/app/train.py", line 90 in main
"""


def complaints(*ranks: int, error: str = GONE) -> str:
    """The tracebacks of ranks whose peer is gone."""
    return "".join(prefixed(f"[rank{rank}]: ", traceback(error)) for rank in ranks)


def torchrun(rank: int, code: int, others: tuple[int, ...] = (), time: str = "11:02:31", first: int = 0) -> str:
    """torchrun's report of one node: the rank that failed first and its exit code, and others that it then ended."""
    number = f"  ({signal.Signals(-code).name})" if code < 0 else " "
    blocks = "".join(
        f"[{place}]:\n  time      : 2024-03-02_11:02:32\n  host      : vm\n"
        f"  rank      : {other} (local_rank: {other - first})\n"
        f"  exitcode  : -15 (pid: {5000 + other})  (SIGTERM)\n  error_file: <N/A>\n"
        f"  traceback : Signal 15 (SIGTERM) received by PID {5000 + other}\n"
        for place, other in enumerate(others, 1)
    )
    head = f"Failures:\n{blocks}" if blocks else ""
    return (
        "E0302 11:02:32.012 4000 torch/distributed/elastic/multiprocessing/api.py:1002] failed"
        f" (exitcode: {code}) local_rank: {rank - first} (pid: {5000 + rank}) of binary: /usr/bin/python3\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        f"train.py FAILED\n{head}Root Cause (first observed failure):\n"
        f"[0]:\n  time      : 2024-03-02_{time}\n  host      : vm\n  rank      : {rank} (local_rank: {rank - first})\n"
        f"  exitcode  : {code} (pid: {5000 + rank}){number}\n  error_file: <N/A>\n"
    )


def told(verdict: Verdict) -> tuple[str, int | None, str, str]:
    """The reason, the first rank, what to do, and the detail."""
    return verdict.reason, verdict.first_rank, verdict.recovery, verdict.detail


@pytest.mark.parametrize(
    ("code", "recovery", "detail"),
    [
        (-9, "restart", "rank 1 killed by SIGKILL, no witness"),
        (-15, "restart", "rank 1 killed by SIGTERM, no witness"),
        (-11, "restart", "segmentation fault in rank 1"),
        (-6, "restart", "aborted in rank 1"),
        (-8, "restart", "floating point exception in rank 1"),
        (3, "ask_human", "rank 1: exit code 3 without a word"),
    ],
)
def test_a_rank_that_ended_first_without_a_word_is_named_and_not_those_that_missed_it(
    diagnose: Diagnose, code: int, recovery: str, detail: str
) -> None:
    verdict = diagnose(HEAD + complaints(2, 0) + torchrun(1, code, (0, 2)))
    assert told(verdict) == ("Unknown", 1, recovery, detail)
    assert f"{code} (pid" in verdict.evidence[0].quote
    assert verdict.suspects == () and verdict.symptoms[0].reason == "NCCL Remote Error"


def test_a_crash_is_quoted_with_the_frame_in_which_it_was(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + FATAL + complaints(0) + torchrun(1, -11))
    assert verdict.detail == "segmentation fault in rank 1 (shards.py:17 in read)"
    assert verdict.evidence[0].quote == "Fatal Python error: Segmentation fault"


def test_a_crash_before_the_first_step_is_for_a_person(diagnose: Diagnose) -> None:
    assert told(diagnose(complaints(0) + torchrun(1, -11))) == (
        "Unknown",
        1,
        "ask_human",
        "segmentation fault in rank 1",
    )


def test_a_loss_shows_that_the_job_was_training(diagnose: Diagnose) -> None:
    said = "{'loss': '%d.5', 'grad_norm': '2.1', 'learning_rate': '0.01', 'epoch': '0.%d'}\n"
    bar = "\r %d%%|#  | %d/60 [00:00<00:03, 15.0it/s]\r   \r"
    log = "".join(bar % (at, at) + said % (9 - at // 9, at) for at in range(10, 40))
    assert diagnose(log + complaints(0) + torchrun(1, -11)).recovery == "restart"


def test_a_rank_that_complains_itself_did_not_end_without_a_word(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + complaints(1, 0) + torchrun(1, -6)).reason == "NCCL Remote Error"


def test_complaints_that_name_no_rank_may_be_of_the_one_that_ended_first(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + traceback(GONE) + torchrun(1, -6)).reason == "NCCL Remote Error"


def test_one_that_broke_in_native_code_printed_no_complaint_of_a_peer(diagnose: Diagnose) -> None:
    spawned = traceback("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV")
    assert told(diagnose(HEAD + traceback(GONE) + spawned)) == ("Unknown", 1, "restart", "segmentation fault in rank 1")
    shell = "train.sh: line 3: 4711 Segmentation fault      (core dumped) python train.py\n"
    assert diagnose(HEAD + traceback(GONE) + shell).reason == "NCCL Remote Error", "it may have broken on its way out"


def test_the_rank_of_a_spawned_process_is_named(diagnose: Diagnose) -> None:
    head = "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\n"
    verdict = diagnose(HEAD + traceback(head + traceback("ValueError: bad")))
    assert (verdict.reason, verdict.first_rank) == ("Value Error", 1)


def test_ranks_that_abort_because_their_time_was_over_explain_nothing(diagnose: Diagnose) -> None:
    assert diagnose(HEAD + nccl_timeout([2, 3]) + torchrun(0, -6)).reason == "NCCL Timeout Error"
    assert diagnose(HEAD + nccl_timeout([2, 3]) + torchrun(0, -11)).detail == "segmentation fault in rank 0"


def test_a_cause_that_a_line_names_stands(diagnose: Diagnose) -> None:
    killed = "Memory cgroup out of memory: Killed process 5001 (python) total-vm:90178320kB, anon-rss:83123456kB\n"
    verdict = diagnose(HEAD + complaints(0) + killed + torchrun(1, -9))
    assert (verdict.reason, verdict.recovery) == ("Out of Memory Error", "fix_first")


def test_the_kernel_is_the_witness_of_a_kill_of_the_process_that_it_names(diagnose: Diagnose) -> None:
    kernel = "[logdoctor] kernel: process {} was killed for memory\n"
    verdict = diagnose(HEAD + complaints(0) + torchrun(1, -9) + kernel.format(4999) + kernel.format(5001))
    assert (verdict.reason, verdict.recovery, verdict.first_rank) == ("Out of Memory Error", "fix_first", 1)
    assert verdict.evidence[0].quote == kernel.format(5001).rstrip() and verdict.confidence > 0.9
    assert diagnose(HEAD + complaints(0) + torchrun(1, -9) + kernel.format(4999)).recovery == "restart", "another one"
    assert diagnose(HEAD + traceback("KeyError: 'tokens'") + kernel.format(5001)).reason == "Key Error"


@pytest.mark.parametrize(
    ("state", "outcome", "reason", "recovery"),
    [
        ("OUT_OF_MEMORY", "failed", "Out of Memory Error", "fix_first"),
        ("NODE_FAIL", "failed", "Node Failure", "isolate_and_restart"),
        ("TIMEOUT", "cancelled", "None", "none"),
        ("PREEMPTED", "cancelled", "None", "none"),
        ("FAILED", "failed", "Unknown", "restart"),
    ],
)
def test_the_scheduler_is_a_witness_of_a_kill(
    diagnose: Diagnose, state: str, outcome: str, reason: str, recovery: str
) -> None:
    verdict = diagnose(HEAD + torchrun(1, -9), reported=ReportedEnd(1, None, state))
    assert (verdict.outcome, verdict.reason, verdict.recovery) == (outcome, reason, recovery)


def test_a_kill_that_the_cgroup_counts_is_for_memory(diagnose: Diagnose) -> None:
    counted = "[logdoctor] memory.events: the kernel killed a process of this job for memory\n"
    assert diagnose(HEAD + counted, reported=ReportedEnd(None, 9)).reason == "Out of Memory Error"
    assert diagnose(HEAD + complaints(0) + torchrun(1, -9) + counted).reason == "Out of Memory Error"
    other = HEAD + prefixed("[rank0]: ", traceback("ValueError: lattice 7 is bent")) + torchrun(0, 1) + counted
    assert diagnose(other).reason == "Value Error", "a data worker was killed, perhaps days ago"


def test_ranks_of_nodes_are_not_ranks_of_the_job(diagnose: Diagnose) -> None:
    line = "[launch.py:325:sigkill_handler] ['python3', 'train.py', '--local_rank=1'] exits with return code = -9\n"
    assert diagnose({"gpu-01": HEAD, "gpu-02": HEAD + line}).first_rank is None
    assert diagnose(HEAD + prefixed("gpu-02: ", line)).first_rank is None
    assert diagnose(HEAD + line).first_rank == 1


def test_a_crash_comes_before_the_rank_that_only_complains(diagnose: Diagnose) -> None:
    early = torchrun(0, 1, time="11:02:30") + torchrun(9, -11, time="11:02:31", first=8)
    assert diagnose(HEAD + complaints(0) + early).detail == "segmentation fault in rank 9"


def test_data_workers_that_end_are_no_ranks(diagnose: Diagnose) -> None:
    tool = "worker 2 exited with code 1\nretrying shard 7\n" + "".join(f"shard {n} done\n" for n in range(300))
    assert diagnose(tool + "Done.\n").outcome != "failed"


def test_of_errors_that_only_follow_the_one_of_the_rank_that_ended_first_counts(diagnose: Diagnose) -> None:
    verdict = diagnose(HEAD + complaints(1, error=RESET) + complaints(0, 2) + torchrun(1, 1))
    assert told(verdict) == ("Connection Error", 1, "restart", RESET)
    assert verdict.confidence == 0.75
    assert diagnose(HEAD + complaints(1, error=RESET) + complaints(0, 2) + torchrun(0, 1)).reason == "NCCL Remote Error"


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        ("Killed", "killed by SIGKILL, no witness"),
        ("train.sh: line 31: 41233 Segmentation fault      (core dumped) python train.py", "segmentation fault"),
        ("srun: error: gpu-17: task 3: Segmentation fault (core dumped)", "segmentation fault in rank 3"),
        ("srun: error: gpu-17: task 3: Exited with exit code 137", "rank 3 killed by SIGKILL, no witness"),
        (
            "mpirun noticed that process rank 3 with PID 0 on node gpu-01 exited on signal 11 (Segmentation fault).",
            "segmentation fault in rank 3",
        ),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGSEGV",
            "segmentation fault in rank 2",
        ),
        ("launcher: rank 2 ended with code 7", "rank 2: exit code 7 without a word"),
        (
            "[2025-01-22 01:43:57,112] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py',"
            " '--local_rank=5'] exits with return code = -9",
            "rank 5 killed by SIGKILL, no witness",
        ),
    ],
)
def test_what_launchers_and_shells_say_of_an_end_is_read(diagnose: Diagnose, line: str, detail: str) -> None:
    verdict = diagnose(HEAD + line + "\n")
    assert (verdict.outcome, verdict.reason, verdict.detail) == ("failed", "Unknown", detail)


def test_a_rank_of_a_node_is_no_rank_of_the_job_where_there_are_several_nodes(diagnose: Diagnose) -> None:
    report = "".join(torchrun(1, -9).splitlines(keepends=True)[:1])
    assert diagnose(HEAD + report).detail == "rank 1 killed by SIGKILL, no witness"
    nodes = prefixed("gpu-01: ", "NCCL version 2.21.5") + prefixed("gpu-02: ", "NCCL version 2.21.5" + "\n" + report)
    assert "rank" not in diagnose(HEAD + nodes + prefixed("gpu-01: ", report)).detail


def test_the_earliest_of_several_launchers_tells_who_was_first(diagnose: Diagnose) -> None:
    late, early = torchrun(8, 1, time="11:12:40", first=8), torchrun(3, -11, time="11:02:31")
    verdict = diagnose(HEAD + complaints(8) + prefixed("1: ", late) + prefixed("0: ", early))
    assert (verdict.first_rank, verdict.detail) == (3, "segmentation fault in rank 3")


def test_steps_that_other_ranks_flush_after_an_error_do_not_make_it_past(diagnose: Diagnose) -> None:
    """Three ranks write each step; two of them held theirs back when the first one died."""
    ranks = [prefixed(f"[default{rank}]:", steps(0, 37)) for rank in range(3)]
    shared = interleaved(*("".join(rank.splitlines(keepends=True)[:33]) for rank in ranks))
    held = ["".join(rank.splitlines(keepends=True)[33:]) for rank in ranks]
    error = prefixed("[default1]:[rank1]: ", traceback("KeyError: 'tokens'"))
    verdict = diagnose(shared + held[1] + error + held[0] + held[2] + complaints(0, 2) + torchrun(1, 1))
    assert (verdict.reason, verdict.first_rank) == ("Key Error", 1)


def test_a_rank_is_that_of_the_errors_that_the_cause_explains(diagnose: Diagnose) -> None:
    xid = "kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=4182, name=python, GPU has fallen off the bus.\n"
    error = "RuntimeError: CUDA error: unspecified launch failure"
    assert diagnose(HEAD + complaints(5, error=error) + xid + torchrun(0, -6)).first_rank == 5


def test_an_error_that_one_rank_prints_for_another_is_that_of_the_other(diagnose: Diagnose) -> None:
    head, *rest = traceback("OSError: [Errno 116] Stale file handle").splitlines()
    inner = "\n".join([f"{head} (RANK 11)", *rest])
    verdict = diagnose(HEAD + prefixed("[rank8]: ", inner))
    assert (verdict.reason, verdict.first_rank) == ("OS Error", 11)


@pytest.mark.parametrize(
    ("log", "detail"),
    [
        (traceback("KeyError: 'tokens'"), "KeyError: 'tokens'"),
        (
            "Mar 02 10:59:10 wn061 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=4182, GPU has fallen off the bus.\n",
            "The driver can no longer reach the GPU over PCIe (bus drop)",
        ),
        (traceback("KeyError: '" + "word " * 60 + "'"), "KeyError: '" + "word " * 17 + "..."),
    ],
)
def test_the_detail_says_more_than_the_reason(diagnose: Diagnose, log: str, detail: str) -> None:
    assert diagnose(HEAD + log).detail == detail


def test_an_error_that_was_caught_does_not_explain_a_crash(diagnose: Diagnose) -> None:
    answered = "".join(f"prompt {number} answered, {100 + number} tokens\n" for number in range(60))
    lines = answered.splitlines(keepends=True)
    log = "".join(
        [*lines[:20], traceback("ValueError: lattice 7 is bent"), *lines[20:], "Segmentation fault (core dumped)\n"]
    )
    assert told(diagnose(log)) == ("Unknown", None, "ask_human", "segmentation fault")


def test_the_words_of_an_abort_are_no_cause_of_it(diagnose: Diagnose) -> None:
    said = "terminate called without an active exception\n"
    assert told(diagnose(HEAD + said + torchrun(0, -6, (1,)))) == ("Unknown", 0, "restart", "aborted in rank 0")
    thrown = "terminate called after throwing an instance of 'c10::Error'\n  what():  the index is out of bounds\n"
    assert diagnose(HEAD + thrown + said + torchrun(0, -6, (1,))).reason != "Unknown"


def test_a_job_that_did_not_fail_has_no_detail(diagnose: Diagnose) -> None:
    assert diagnose(HEAD).detail == ""


@pytest.mark.parametrize(("tasks", "rank"), [("task 3", 3), ("tasks 0-3", None), ("tasks 0,2", None)])
def test_several_tasks_that_ended_alike_name_no_rank(diagnose: Diagnose, tasks: str, rank: int | None) -> None:
    assert diagnose(f"{HEAD}srun: error: gpu-01: {tasks}: Killed\n").first_rank == rank


RECEIVED = traceback("EOFError", "_recv", "/lib/multiprocessing/connection.py")


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        ("rank 2 exited with 3", "rank 2: exit code 3 without a word"),
        ("rank 2 exited with 139", "segmentation fault in rank 2"),
        ("ERROR: engine process 23871 died, exit code -11", "segmentation fault"),
        (
            "run.sh: line 7: 28458 Segmentation fault      RANK=$rank python a.py\nrank 1 exited with 139",
            "segmentation fault in rank 1",
        ),
    ],
)
def test_a_process_that_others_only_miss_is_the_cause(diagnose: Diagnose, said: str, detail: str) -> None:
    verdict = diagnose(steps(0, 20) + f"{said}\n" + RECEIVED)
    assert (verdict.reason, verdict.detail) == ("Unknown", detail)


def test_one_that_raised_is_not_silent(diagnose: Diagnose) -> None:
    """Python ends with code 1 after an exception, whose report may be the one that is there."""
    assert diagnose(steps(0, 20) + "rank 2 exited with 1\n" + RECEIVED).reason != "Unknown"


@pytest.mark.parametrize(
    ("error", "frame", "reason", "recovery"),
    [
        ("EOFError", "serialization.py", "Model Loading Error", "fix_first"),
        ("EOFError: No data left in file", "_npyio_impl.py", "Model Loading Error", "fix_first"),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "client.py", "Connection Error", "restart"),
        (
            "json.decoder.JSONDecodeError: Expecting value: line 1 column 1",
            "dataset.py",
            "Dataset Loading Error",
            "fix_first",
        ),
        ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1", "settings.py", "Value Error", "fix_first"),
    ],
)
def test_frames_tell_what_an_exception_is_of(
    diagnose: Diagnose, error: str, frame: str, reason: str, recovery: str
) -> None:
    peers = nccl_timeout([1, 2])
    verdict = diagnose(steps(0, 20) + traceback(error, "load", f"/lib/{frame}") + peers)
    assert (verdict.reason, verdict.recovery) == (reason, recovery)


def test_a_program_of_the_job_that_fails_is_told_from_a_launcher_s_report(diagnose: Diagnose) -> None:
    error = "subprocess.CalledProcessError: Command '['/usr/bin/python', 'decode.py']' returned non-zero exit status 3."
    by_job = traceback(error, "decode", "/opt/app/data.py")
    by_launcher = traceback(error, "main", "/lib/launch.py")
    assert diagnose(steps(0, 20) + by_job).reason == "Called Process Error"
    assert diagnose(steps(0, 20) + by_launcher).reason == "Unknown"
