"""What the kernel killed for memory is told from the counters of the job's cgroup."""

import os
import time
from pathlib import Path

import pytest

from logdoctor.job.send.memory import MemoryKills

V1 = "5:devices:/\n4:memory:/slurm/job_88\n1:cpu,cpuacct:/\n0::/\n"
V2 = "0::/kubepods/pod-7\n"


def counter(folder: Path, groups: str, file: str, text: str) -> tuple[Path, MemoryKills]:
    """A counter of a cgroup with this text, and its file."""
    (folder / "cgroup").write_text(groups)
    at = folder / "fs" / file
    at.parent.mkdir(parents=True)
    at.write_text(text)
    return at, MemoryKills(str(folder / "cgroup"), str(folder / "fs"), str(folder / "none"))


@pytest.mark.parametrize(
    ("groups", "file", "text"),
    [
        (V1, "memory/slurm/job_88/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
        (V2, "kubepods/pod-7/memory.events", "low 0\nhigh 0\nmax 12\noom 1\noom_kill {}\noom_group_kill 0\n"),
        (V2, "memory.events", "oom 1\noom_kill {}\n"),
        ("0::/../../..\n", "memory.events", "oom_kill {}\n"),
    ],
)
def test_kills_since_the_beginning_are_counted(tmp_path: Path, groups: str, file: str, text: str) -> None:
    at, kills = counter(tmp_path, groups, file, text.format(3))
    assert kills.lines() == []
    at.write_text(text.format(4))
    assert kills.lines() == ["memory.events: the kernel killed a process of this job for memory"]
    at.write_text(text.format(7))
    assert "4 processes" in kills.lines()[0]


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill x\n", "\x00\xff", "oom 1\n"])
def test_a_kernel_that_does_not_tell_is_no_kill(tmp_path: Path, text: str) -> None:
    at, kills = counter(tmp_path, V2, "kubepods/pod-7/memory.events", text)
    assert kills.lines() == []
    at.unlink()
    assert kills.lines() == []
    assert MemoryKills(*[str(tmp_path / "none")] * 3).lines() == []


def test_the_log_of_the_kernel_names_what_it_killed_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Memory cgroup out of memory: Killed process {} (python3) total-vm:9kB, anon-rss:8kB, UID:0"
    now = int(time.monotonic() * 1e6)
    records = [
        f"6,1,{now - 5_000_000},-;{said.format(11)}",
        f"6,2,{now + 5_000_000},-;eth0: link up",
        "",
        f"3,3,{now + 5_000_000},-;{said.format(12)}",
        f"3,4,{now + 6_000_000},c;Out of memory: Killed process 13 (train) total-vm:9kB",
    ]
    reads = iter(records)

    def read(_: int, __: int) -> bytes:
        try:
            record = next(reads)
        except StopIteration:
            raise BlockingIOError from None
        if not record:
            raise BrokenPipeError
        return record.encode()

    log = tmp_path / "kmsg"
    log.touch()
    kills = MemoryKills(str(tmp_path / "none"), str(tmp_path / "none"), str(log))
    monkeypatch.setattr(os, "read", read)
    assert kills.lines() == [f"kernel: process {pid} was killed for memory" for pid in (12, 13)]
