"""What the kernel killed for memory is told from the counters of the job's cgroup."""

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
    return at, MemoryKills("cgroup@n", str(folder / "cgroup"), str(folder / "fs"))


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
    assert not kills.ask(1, 0.0).lines
    at.write_text(text.format(4))
    assert kills.ask(1, 0.0).lines == ("[logdoctor] memory.events: the kernel killed a process of this job for memory",)
    at.write_text(text.format(7))
    assert "4 processes" in kills.ask(1, 0.0).lines[0]


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill x\n", "\x00\xff", "oom 1\n"])
def test_a_kernel_that_does_not_tell_is_no_kill(tmp_path: Path, text: str) -> None:
    at, kills = counter(tmp_path, V2, "kubepods/pod-7/memory.events", text)
    assert not kills.ask(1, 0.0).lines
    at.unlink()
    assert not kills.ask(1, 0.0).lines
    assert MemoryKills("cgroup@n", *[str(tmp_path / "none")] * 2).ask(1, 0.0).state == "absent"
