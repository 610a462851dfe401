"""The probe by itself: that it always says one line, keeps its time, and leaves nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from logdoctor.nodes.launching import answered, source
from tests import waiting
from tests.nodes.faults import ended, running

Start = Callable[..., "subprocess.Popen[bytes]"]

HOURS = ("--seconds", "7200")  # of a probe that ends long before
WAITS = "import time; time.sleep(36000)"
IGNORES = "import signal\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n" + WAITS


@pytest.fixture
def test_name(request: pytest.FixtureRequest) -> str:
    """A name of a test that no other probe on this machine has."""
    return f"{request.node.name[:40]}-{uuid4()}"


@pytest.fixture
def start(tmp_path: Path, test_name: str) -> Iterator[Start]:
    """Starts a probe of node n1, under a torch that is the Python code given (default: one that cannot be found)."""
    started = []

    def run(*words: str, torch: str = "raise ModuleNotFoundError('none')", port: int = 0, **env: str) -> Any:
        (tmp_path / "torch").mkdir(exist_ok=True)
        (tmp_path / "torch" / "__init__.py").write_text(torch)
        named = ("--test", test_name, "--world", "1", "--node", "n1", "--nodes", "n1=127.0.0.1", "--port", str(port))
        process = subprocess.Popen(
            [sys.executable, "-c", source(), *named, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", **env},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def said(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """The one line that the probe wrote before it ended."""
    output, _ = process.communicate()
    assert process.returncode == 0
    assert output.startswith(b"\n") and output.count(b"\n") == 2 and output.endswith(b"\n")
    fields = json.loads(output)
    assert isinstance(fields, dict)
    return fields


def wait_for_rank(process: "subprocess.Popen[bytes]", test: str) -> int:
    """The process of the rank, once it has been started."""
    assert process.stderr is not None
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    assert process.stderr.readline() == b"logdoctor-probe started n1 " + boot + b"\n"

    def rank() -> int:
        return next((pid for pid in running(test) if pid != process.pid and os.getsid(pid) == pid), 0)

    return waiting.until(rank, "a rank is started")


def program(folder: Path, name: str, text: str) -> str:
    """A PATH on which a program of this name is the shell script given."""
    folder = folder / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--port", "x"), "argument --port: invalid int value: 'x'"),
        (("--colour", "red"), "unrecognized arguments: --colour red"),
        (("--sizes", "1,x"), "--sizes 1,x are not numbers"),
        (("--node", "n2"), "node 'n2' is not in this world: n1"),
        (("--node", "slurm"), "node '' is not in this world: n1"),
    ],
)
def test_bad_arguments_prove_nothing(start: Start, words: tuple[str, ...], why: str) -> None:
    line = said(start(*words))
    assert (line["ok"], line["unusable"]) == (False, why)


def test_slurm_tells_the_name_of_the_node(start: Start) -> None:
    assert said(start("--node", "slurm", SLURMD_NODENAME="n1"))["node"] == "n1"


def test_missing_torch_proves_nothing(start: Start) -> None:
    line = said(start())
    assert line["unusable"] == f"{sys.executable} has no torch: none"
    assert line["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_port_in_use_proves_nothing(start: Start) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        assert said(start(port=port))["unusable"] == f"port {port} cannot be opened: Address already in use"


def test_torch_that_cannot_be_imported_is_a_failure(start: Start) -> None:
    line = said(start(torch="raise OSError(5, 'Input/output error')"))
    assert (line["ok"], line["stage"]) == (False, "start") and "unusable" not in line
    assert line["why"] == "error: OSError: [Errno 5] Input/output error"


def test_current_folder_of_the_node_holds_no_modules(start: Start, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "here" / "torch").mkdir(parents=True)
    (tmp_path / "here" / "torch" / "__init__.py").write_text("raise OSError('a stranger')")
    monkeypatch.chdir(tmp_path / "here")
    assert "unusable" in said(start())


def test_modules_of_python_are_not_taken_from_the_current_folder(
    start: Start, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "here").mkdir()
    for name in ("inspect", "json", "re", "struct", "argparse", "selectors"):
        (tmp_path / "here" / f"{name}.py").write_text("raise OSError('a stranger')")
    monkeypatch.chdir(tmp_path / "here")
    assert "has no torch: none" in said(start())["unusable"]


def test_half_a_character_in_an_error_leaves_the_line_readable(start: Start) -> None:
    process = start(torch="raise OSError('caf\\udcc3')")
    output, _ = process.communicate()
    assert answered(output) and b"caf" in output


def test_nothing_that_a_rank_prints_reaches_the_output(start: Start) -> None:
    line = said(start(torch="print('{}')\nimport os\nos.write(1, b'{}')\nraise ModuleNotFoundError('none')"))
    assert "none" in line["unusable"]


def test_options_for_the_environment_reach_the_ranks(start: Start) -> None:
    line = said(start("--env", "SAY=a b=c", torch="import os\nraise OSError(os.environ['SAY'])"))
    assert line["why"] == "error: OSError: a b=c"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_the_probe_and_its_ranks(start: Start, test_name: str, number: signal.Signals) -> None:
    process = start(torch=IGNORES)
    wait_for_rank(process, test_name)
    process.send_signal(number)
    assert said(process)["why"] == f"killed: the probe was ended by {number.name}"
    assert ended(test_name)


def test_kill_of_the_supervisor_ends_its_ranks(start: Start, test_name: str) -> None:
    process = start(torch=IGNORES)
    wait_for_rank(process, test_name)
    process.kill()
    process.wait()
    assert ended(test_name)


def test_end_of_the_lifeline_ends_the_probe_and_its_ranks(start: Start, test_name: str) -> None:
    process = start("--lifeline", torch=IGNORES)
    wait_for_rank(process, test_name)
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    assert said(process)["why"] == "killed: the launcher went away"
    assert ended(test_name)


def test_standard_input_does_not_matter_without_lifeline(start: Start, test_name: str) -> None:
    process = start("--seconds", "1", torch=WAITS)
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    assert said(process)["unusable"] == "torch was not imported within 1 s"


def test_probe_keeps_its_time_when_ranks_ignore_signals(start: Start, test_name: str) -> None:
    line = said(start("--seconds", "1", torch=IGNORES))
    assert line["unusable"] == "torch was not imported within 1 s"  # which says nothing about the hardware
    assert line["seconds"] >= 1
    assert ended(test_name)


def test_stopped_rank_is_told_from_a_waiting_one(start: Start) -> None:
    process = start("--seconds", "2", torch="import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    assert said(process)["why"] == "hangs: rank 0 is stopped in stage start"
    assert ended(test_name)


def test_killed_rank_is_told_at_once(start: Start, test_name: str) -> None:
    process = start(*HOURS, torch=WAITS)
    os.kill(wait_for_rank(process, test_name), signal.SIGKILL)
    assert said(process)["why"] == "killed: rank 0 was killed by SIGKILL in stage start"


def test_rank_that_aborts_may_have_lost_the_others(start: Start) -> None:
    line = said(start(torch="import os; os.abort()"))  # as the watchdog of NCCL does
    assert line["why"] == "connection: rank 0 was killed by SIGABRT in stage start"


def test_rank_that_exits_without_a_word_is_killed(start: Start) -> None:
    assert said(start(torch="import os; os._exit(7)"))["why"] == "killed: rank 0 ended with status 7 in stage start"


def test_one_failed_rank_does_not_leave_the_others_waiting(start: Start, test_name: str, tmp_path: Path) -> None:
    once = (
        f"import os\ntry: os.mkdir({str(tmp_path / 'taken')!r})\nexcept OSError: pass\nelse: raise OSError('first')\n"
    )
    line = said(start(*HOURS, "--gpus", "2", torch=once + IGNORES, CUDA_VISIBLE_DEVICES="0,1"))
    assert line["why"] == "error: OSError: first"
    assert ended(test_name)


# ---- GPUs, by what their programs print ----

SMI = """
case "$*" in
*--query-gpu*) echo '0, 0, 41, Not Active, Not Active, Not Active, Not Active'
               echo '1, 3, 91, Active, Not Active, Not Active, Not Active'
               echo '2, [N/A], 40, [N/A], [N/A], [N/A], [N/A]' ;;
*--query-remapped*) echo 'GPU-a, No, No'; echo 'GPU-b, Yes, Yes'; echo 'GPU-c, 0, 1' ;;
*--status*) printf 'GPU 0: H100 (UUID: GPU-a)\\n\\t Link 0: 26.562 GB/s\\nGPU 1: H100 (UUID: GPU-b)\\n'
            printf '\\t Link 0: <inactive>\\n' ;;
*--errorcounters*) printf 'GPU 1: H100 (UUID: GPU-b)\\n\\t Link 0: Replay Errors: 0\\n\\t Link 0: CRC Errors: 12\\n' ;;
esac
"""
DMESG = "echo '[  1.0] boring'; echo '[ 99.5] NVRM: Xid (PCI:0000:0b:00): 79, GPU has fallen off the bus.'"


def test_state_is_what_the_driver_warns_of(start: Start, tmp_path: Path) -> None:
    path = program(tmp_path, "nvidia-smi", SMI)
    program(tmp_path, "dmesg", DMESG)
    line = said(start("--env", f"PATH={path}", CUDA_VISIBLE_DEVICES="0,1,2"))
    assert line["gpus"] == 3
    assert line["state"] == [
        "GPU 1: 3 uncorrected ECC errors since the driver was loaded",
        "GPU 1: hw_slowdown, 91 C",
        "GPU-b: rows are waiting to be remapped",
        "GPU-b: a row could not be remapped",
        "GPU-c: a row could not be remapped",
        "GPU 1: NVLink Link 0: <inactive>",
        "GPU 1: NVLink Link 0: CRC Errors: 12",
        "NVRM: Xid (PCI:0000:0b:00): 79, GPU has fallen off the bus.",
    ]


@pytest.mark.parametrize("text", ["exec sleep infinity", "exit 9", "head -c 3000000 /dev/zero; echo ', , , , , , '"])
def test_driver_that_hangs_or_fails_does_not_fail_the_probe(start: Start, tmp_path: Path, text: str) -> None:
    path = program(tmp_path, "nvidia-smi", text)
    program(tmp_path, "dmesg", "exit 1")
    program(tmp_path, "journalctl", "exit 1")
    line = said(start(*HOURS, "--env", f"PATH={path}", CUDA_VISIBLE_DEVICES="0"))
    assert line["state"] == [] and "unusable" in line


CUDA = """
import sys, types
__version__ = "2.9"
distributed = types.ModuleType("torch.distributed")
sys.modules["torch.distributed"] = distributed
distributed.is_available = distributed.is_nccl_available = lambda: True
def set_num_threads(count): pass
class cuda:
    @staticmethod
    def is_available(): return False
    @staticmethod
    def init(): raise RuntimeError({why!r})
"""


def test_gpus_that_torch_cannot_use_are_a_fault_unless_torch_does_not_fit_the_driver(start: Start) -> None:
    broken = said(start(torch=CUDA.format(why="CUDA unknown error"), CUDA_VISIBLE_DEVICES="0"))
    assert broken["why"] == "error: torch cannot use CUDA, and there are GPUs: RuntimeError: CUDA unknown error"
    old = "The NVIDIA driver on your system is too old (found version 11040)."
    line = said(start(torch=CUDA.format(why=old), CUDA_VISIBLE_DEVICES="0"))
    assert line["unusable"] == f"torch 2.9 does not match the driver: RuntimeError: {old}"


def test_fewer_gpus_than_asked_for_are_a_failure(start: Start) -> None:
    line = said(start("--gpus", "8", CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6"))
    assert (line["ok"], line["why"]) == (False, "fewer GPUs: 7 here, 8 requested")


TABLE = """
cat <<END
# nThread 1 nGpus 2 minBytes 16777216 maxBytes 67108864 step: 4(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   6899 on n1 device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   6899 on n1 device  1 [0000:05:00] NVIDIA H100 80GB HBM3
{others}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    16777216       1048576     float    none      -1    170.4   98.46   73.84      0    168.9   99.33   74.50      0
    67108864     4194304   float  none  -1    401.2  167.27  125.45      0    399.8  167.86  125.89      {wrong}
# Out of bounds values : {wrong} OK
# Avg bus bandwidth    : 99.92
END
exit {status}
"""
OTHERS = """#  Rank  2 Group  0 Pid   6733 on n2 device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   6733 on n2 device  1 [0000:05:00] NVIDIA H100 80GB HBM3"""
MPI = {"CUDA_VISIBLE_DEVICES": "0,1", "OMPI_COMM_WORLD_SIZE": "2"}
PAIR = ("--nodes", "n1=127.0.0.1,n2=127.0.0.1", "--sizes", "16777216,67108864", *HOURS)


def test_nccl_tests_are_used_when_they_are_there(start: Start, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    path = program(tmp_path, "all_gather_perf", f"echo $* > {asked}\n" + TABLE.format(others=OTHERS, wrong=0, status=0))
    line = said(start(*PAIR, "--repeats", "3", PATH=path, **MPI))
    assert (line["ok"], line["stage"], line["tool"], line["gpus"]) == (True, "done", "nccl-tests", 2)
    assert line["bandwidth"] == {"16777216": 73.84, "67108864": 125.45}
    assert asked.read_text() == "-b 16777216 -e 67108864 -f 4 -g 2 -c 3\n"


def test_process_of_nccl_tests_that_prints_no_table_is_judged_by_its_end(start: Start, tmp_path: Path) -> None:
    second = (*PAIR, "--node", "n2")
    assert said(start(*second, PATH=program(tmp_path, "all_gather_perf", "exit 0"), **MPI))["ok"] is True
    line = said(start(*second, PATH=program(tmp_path, "all_gather_perf", "exit 3"), **MPI))
    assert (line["ok"], line["why"]) == (False, "connection: all_gather_perf ended with status 3")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            TABLE.format(others=OTHERS, wrong=5, status=1),
            "wrong data: all_gather_perf found wrong values with 67108864 bytes",
        ),
        (TABLE.format(others=OTHERS, wrong=0, status=1), "connection: all_gather_perf ended with status 1"),
        ("exec sleep infinity", "no answer: all_gather_perf did not end"),
        ("kill -SEGV $$", "connection: all_gather_perf was killed by SIGSEGV"),
    ],
)
def test_nccl_tests_that_fail_fail_the_node(start: Start, tmp_path: Path, text: str, why: str) -> None:
    seconds = ("--seconds", "4") if "infinity" in text else HOURS
    line = said(start(*PAIR, *seconds, PATH=program(tmp_path, "all_gather_perf", text), **MPI))
    assert (line["ok"], line["why"]) == (False, why)


@pytest.mark.parametrize("env", [MPI, {"CUDA_VISIBLE_DEVICES": "0,1"}, {**MPI, "OMPI_COMM_WORLD_SIZE": "1"}])
def test_nccl_tests_that_do_not_span_the_nodes_are_not_used(start: Start, tmp_path: Path, env: dict[str, str]) -> None:
    path = program(tmp_path, "all_gather_perf", TABLE.format(others="", wrong=0, status=0))
    line = said(start(*PAIR, PATH=path, **env))
    assert line["tool"] == "torch/nccl" and "unusable" in line


def test_nccl_tests_on_other_gpus_than_were_meant_prove_nothing(start: Start, tmp_path: Path) -> None:
    """The processes of the other nodes print nothing: they cannot know, and would wait for nobody in torch."""
    others = OTHERS.splitlines()[0]
    path = program(tmp_path, "all_gather_perf", TABLE.format(others=others, wrong=0, status=0))
    line = said(start(*PAIR, PATH=path, **MPI))
    assert line["unusable"] == "all_gather_perf ran on 3 GPUs, and 2 of each node were to take part"
