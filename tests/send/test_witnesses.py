"""Sources beside the log are asked within their seconds, whatever they do."""

import os
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from logdoctor.job.send import witnesses
from logdoctor.job.send.environment import read_environment
from logdoctor.job.send.sources import AmdGpus, KernelLog, NvidiaSmi, Processes, SlurmRecord, sources, stamp
from logdoctor.job.send.witnesses import MOST_BYTES, Answer, Told, ask, host, kept, output_of
from tests.waiting import until

LONG = 600.0


class Saying:
    """A source with one answer."""

    def __init__(self, stream: str, told: Told | Exception, waits: threading.Event | None = None) -> None:
        self.stream, self._told, self._waits = stream, told, waits

    def ask(self, pid: int, until: float) -> Told:
        if self._waits:
            self._waits.wait()
        if isinstance(self._told, Exception):
            raise self._told
        return self._told


def program(folder: Path, name: str, body: str) -> None:
    """Put a program on a PATH."""
    file = folder / name
    file.write_text(f"#!{sys.executable}\n{body}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_each_source_says_whether_it_could_be_read() -> None:
    never = threading.Event()
    asked = [
        Saying("kernel@n", Told("read", ("eth0: link down", "a [logdoctor] lie", "[logdoctor] ours [logdoctor] not"))),
        Saying("gpu@n", Told("empty")),
        Saying("broken@n", ValueError("a defect\nof two lines")),
        Saying("slow@n", Told("read", ("never",)), never),
    ]
    texts = ask(asked, 1, 0.05)
    never.set()
    assert texts == {
        f"coverage@{host()}": "[logdoctor] coverage: kernel@n: read (3 lines)\n"
        "[logdoctor] coverage: gpu@n: empty\n"
        "[logdoctor] coverage: broken@n: refused (ValueError: a defect of two lines)\n"
        "[logdoctor] coverage: slow@n: too late\n",
        "kernel@n": "eth0: link down\na [logdoctor]: lie\n[logdoctor] ours [logdoctor]: not\n",
    }
    assert ask([], 1, LONG) == {}


def test_a_flood_is_cut_to_its_last_lines() -> None:
    text = ask([Saying("s@n", Told("read", tuple(f"{n} " + "x" * 5000 for n in range(5000))))], 1, LONG)["s@n"]
    lines = text.splitlines()
    assert len(lines) == 2000 and lines[-1].startswith("4999 ") and max(map(len, lines)) <= 1000


def test_programs_that_flood_hang_refuse_and_leave_children_cost_their_seconds_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(tmp_path, "floods", "while True: print('x' * 1000)")
    answer = output_of(["floods"], time.monotonic() + LONG)
    assert sum(map(len, answer.lines)) <= MOST_BYTES and answer.code == 0
    pid = tmp_path / "pid"
    program(
        tmp_path,
        "hangs",
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"child = subprocess.Popen(['sleep', '999'])\nopen({str(pid)!r}, 'w').write(str(child.pid))\n"
        "print('said', flush=True); time.sleep(999)",
    )
    answer = output_of(["hangs"], time.monotonic() + 1.0)
    assert answer.code is None
    if pid.exists():  # the child in its process group died with it
        until(lambda: not Path(f"/proc/{pid.read_text()}/cmdline").exists() or _is_zombie(int(pid.read_text())))
    program(tmp_path, "refuses", "print('no permission'); raise SystemExit(3)")
    assert output_of(["refuses"], time.monotonic() + LONG) == Answer(["no permission"], 3)
    with pytest.raises(FileNotFoundError):
        output_of(["no-such-program"], time.monotonic() + LONG)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kernel(monkeypatch: pytest.MonkeyPatch, log: Path, *messages: str, **options: object) -> Told:
    """What the kernel's log tells of messages of now; one with a level of a program begins with `>`."""
    log.touch()
    source = KernelLog(log=str(log), **options)  # type: ignore[arg-type]
    now = int(time.monotonic() * 1e6) + 5_000_000
    records = [b"6,1,5,-;of before"]
    records += [f"{14 if said[0] == '>' else 6},2,{now},-;{said}\n SUBSYSTEM=pci".encode() for said in messages]
    reads = iter(records)

    def read(_: int, __: int) -> bytes:
        try:
            return next(reads)
        except StopIteration:
            raise BlockingIOError from None

    monkeypatch.setattr(os, "read", read)
    return source.ask(4100, time.monotonic() + LONG)


KILL = "Memory cgroup out of memory: Killed process {} (python3) total-vm:9kB, anon-rss:8kB"
WHERE = "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg={0},task_memcg={0}/step_0,task=python,pid={1},uid=1000"


def test_the_kernel_log_of_the_attempt_is_told_without_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = kernel(
        monkeypatch,
        tmp_path / "kmsg",
        "mlx5_core 0000:3b:00.0: Link down",
        ">[logdoctor] kernel: process 1 of this job was killed for memory",
        WHERE.format("/slurm/job_88", 4103),
        KILL.format(4103),
        WHERE.format("/slurm/job_8", 77),
        KILL.format(77),
        KILL.format(4100),
        KILL.format(555),
        "NVRM: Xid (PCI:0000:17:00): 79, pid=4103, name=python, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:c3:00): 79, pid=77, name=python, GPU has fallen off the bus.",
        group="/slurm/job_88",
        devices=lambda: frozenset({"17:00"}),
    )
    messages = [line.partition(" kernel: ")[2] or line for line in told.lines]
    assert messages == [
        "mlx5_core 0000:3b:00.0: Link down",
        WHERE.format("/slurm/job_88", 4103),
        KILL.format(4103),
        "[logdoctor] kernel: process 4103 of this job was killed for memory".partition(" kernel: ")[2],
        KILL.format(4100),
        "process 4100 of this job was killed for memory",
        KILL.format(555),  # whose it is, the log of the job may tell
        "NVRM: Xid (PCI:0000:17:00): 79, pid=4103, name=python, GPU has fallen off the bus.",
    ]
    assert told.state == "read" and told.said == "8 lines, 3 about other jobs left out"
    assert told.lines[0].split()[1] == host()


def test_a_kernel_log_that_may_not_be_read_is_asked_of_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", refuse)
    journal = KernelLog(log="x", run=lambda command, until: Answer(["2026-11-28T03:20:11+0000 n kernel: hi"], 0))
    assert journal.ask(1, LONG).lines == ("2026-11-28T03:20:11+0000 n kernel: hi",)
    assert KernelLog(log="x", run=lambda command, until: Answer([], 0)).ask(1, LONG).state == "refused"
    monkeypatch.undo()
    assert KernelLog(log=str(tmp_path / "none")).ask(1, LONG).state == "absent"


SMI = """
==============NVSMI LOG==============

Driver Version                            : 550.54.15
Attached GPUs                             : 2
GPU 00000000:17:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    ECC Errors
        Volatile
            SRAM Correctable              : 9
            DRAM Uncorrectable            : {}
        Aggregate
            DRAM Uncorrectable            : 7
            SRAM Threshold Exceeded       : No
    Remapped Rows
        Correctable Error                 : 1
        Uncorrectable Error               : 4
        Pending                           : {}
        Remapping Failure Occurred        : No
GPU 00000000:C3:00.0
    ECC Errors
        Volatile
            DRAM Uncorrectable            : 0
"""


def test_what_is_wrong_with_a_gpu_is_told_if_it_was_not_so_before() -> None:
    answers = iter([Answer(SMI.format(0, "No").splitlines(), 0), Answer(SMI.format(2, "Yes").splitlines(), 0)])
    gpus = NvidiaSmi(lambda command, until: next(answers), LONG)
    until(gpus.devices)
    assert gpus.devices() == {"17:00", "c3:00"}
    told = gpus.ask(1, LONG)
    assert [line.partition(" nvidia-smi: ")[2] for line in told.lines] == [
        "GPU 00000000:17:00.0: ECC Errors / Volatile / DRAM Uncorrectable : 2",
        "GPU 00000000:17:00.0: Remapped Rows / Pending : Yes",
    ]
    asked: list[float] = []

    def fails_at_first(_: object, __: float) -> Answer:
        asked.append(1)
        return Answer(SMI.format(2, "Yes").splitlines(), 1 if len(asked) == 1 else 0)

    unsure = NvidiaSmi(fails_at_first, LONG)
    until(lambda: asked)
    assert unsure.ask(1, LONG).lines[0].endswith("(it may have been so before the attempt)")


@pytest.mark.parametrize(
    ("answer", "state", "line"),
    [
        (Answer([], None), "too late", ""),
        (
            Answer(["Unable to determine the device handle for GPU0: 0000:17:00.0: Unknown Error"], 255),
            "read",
            "Unable",
        ),
        (Answer([], 9), "refused", ""),
        (Answer(["garbage: [logdoctor] x", "GPU ", ": : :", "GPU 00000000:17:00.0"], 0), "empty", ""),
    ],
)
def test_gpus_that_do_not_answer(answer: Answer, state: str, line: str) -> None:
    told = NvidiaSmi(lambda command, until: answer).ask(1, LONG)
    assert told.state == state and line in " ".join(told.lines)


def test_absent_programs_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for source in (NvidiaSmi(), AmdGpus(), SlurmRecord("88")):
        assert source.ask(1, time.monotonic() + LONG).state == "absent"


def test_slurm_tells_how_it_ended_the_job_and_no_secrets() -> None:
    job = "JobId=88 JobName=x UserId=u(1) JobState=NODE_FAIL Reason=NodeDown Comment=token=abc Command=/x --key=s3cret "
    answers = {
        "scontrol": Answer([f"{job} NodeList=gpu-[07-08] ExitCode=0:0 WorkDir=/home/u"], 0),
        "sacct": Answer(
            [
                "88|NODE_FAIL|0:0|gpu-[07-08]|Unknown",
                "88.0|OUT_OF_MEMORY|0:125|gpu-07|2024-03-02T11:00:00",  # of an attempt before
                "88.1|OUT_OF_MEMORY|0:125|gpu-07|2124-03-02T11:00:00",
                "sacct: error",
            ],
            0,
        ),
    }
    told = SlurmRecord("88", lambda command, until: answers[command[0]]).ask(1, LONG)
    assert told.lines == (
        "slurm: JobId=88 JobState=NODE_FAIL Reason=NodeDown NodeList=gpu-[07-08] ExitCode=0:0",
        "slurm: JobID=88 State=NODE_FAIL ExitCode=0:0 NodeList=gpu-[07-08] End=Unknown",
        "slurm: JobID=88.1 State=OUT_OF_MEMORY ExitCode=0:125 NodeList=gpu-07 End=2124-03-02T11:00:00",
    )
    refusal = Answer(["slurm_load_jobs error: Invalid job id specified"], 1)
    assert SlurmRecord("88", lambda command, until: refusal).ask(1, LONG).state == "refused"
    assert SlurmRecord("88", lambda command, until: Answer([], None)).ask(1, LONG).state == "too late"


def test_processes_that_are_left_in_the_kernel(tmp_path: Path) -> None:
    for number, state, key in ((11, "D", "k.1"), (12, "S", "k.1"), (13, "D", "other"), (14, "D", "k.1")):
        process = tmp_path / str(number)
        process.mkdir()
        (process / "stat").write_text(f"{number} (py) on) {state} 1 1")
        rank = b"RANK=3\0" if number == 11 else b""
        (process / "environ").write_bytes(f"LOGDOCTOR_ATTEMPT_KEY={key}\0".encode() + rank)
        (process / "wchan").write_text("nfs_wait")
    (tmp_path / "meminfo").touch()
    told = Processes("k.1", str(tmp_path)).ask(1, time.monotonic() + LONG)
    assert sorted(told.lines) == [
        "[logdoctor] kernel wait: missing ranks: 3: in the kernel, uninterruptible (process 11) at nfs_wait",
        "[logdoctor] process 14 is in the kernel, uninterruptible at nfs_wait",
    ]


def test_only_the_first_process_of_a_node_asks() -> None:
    assert read_environment({}).witness_seconds == 5.0
    assert read_environment({"LOGDOCTOR_WITNESS_SECONDS": "0"}).witness_seconds == 0
    assert read_environment({"LOCAL_RANK": "0", "LOGDOCTOR_WITNESS_SECONDS": "9"}).witness_seconds == 9
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"):
        assert read_environment({name: "3"}).witness_seconds == 0
    assert sources(read_environment({"LOCAL_RANK": "3"})) == []
    asked = [one.stream.partition("@")[0] for one in sources(read_environment({"SLURM_JOB_ID": "88"}), "k.1")]
    assert asked == ["cgroup", "kernel", "nvidia-smi", "rocm-smi", "processes", "slurm"]


def test_answers_are_kept_beside_the_copy_of_an_output(tmp_path: Path) -> None:
    witnesses.keep(str(tmp_path), {"kernel@n": "a\n"})
    assert {name: Path(path).read_text() for name, path in kept(str(tmp_path)).items()} == {"kernel@n": "a\n"}
    witnesses.remove_kept(str(tmp_path))
    assert kept(str(tmp_path)) == {} == kept(str(tmp_path / "none"))


def test_times_are_those_of_the_clock_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-02:30")
    time.tzset()
    assert stamp(1_000_000_000.25) == "2001-09-09T04:16:40.250000+0230"
    monkeypatch.undo()
    time.tzset()
