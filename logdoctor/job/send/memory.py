"""Out-of-memory kills during a job: counted by the job's cgroup, or named in the kernel's log."""

import os
import re
import time
from contextlib import suppress
from pathlib import Path

_V1 = re.compile(r"^\d+:(?:[a-z_]+,)*memory(?:,[a-z_]+)*:(?P<path>/.*)$", re.M)
_V2 = re.compile(r"^0::(?P<path>/.*)$", re.M)
_COUNT = re.compile(r"^oom_kill (?P<count>\d{1,18})$", re.M)
_RECORD = re.compile(
    rb"^\d+,\d+,(?P<micros>\d+),.*?;.*?out of memory.{0,40}?: Kill(?:ed)? process (?P<pid>\d{1,10}) ", re.I
)
_RECORD_BYTES = 8192
_MOST_RECORDS = 100_000
_MOST_TOLD = 20


class MemoryKills:
    """Reports kills since it was made; none where the kernel gives no information.

    `memory.events` of cgroup v2 counts all cgroups below, `memory.oom_control` of v1 the cgroup itself. The kernel's
    log, where readable, names each process, which may be another job's.
    """

    def __init__(
        self, proc: str = "/proc/self/cgroup", mounted: str = "/sys/fs/cgroup", log: str = "/dev/kmsg"
    ) -> None:
        self._files, self._log = _files(Path(proc), Path(mounted)), log
        self._before, self._began = self._count(), time.monotonic()

    def lines(self) -> list[str]:
        """Return the lines to add to the output of a failed job."""
        killed = self._count() - self._before
        said = "a process" if killed == 1 else f"{killed} processes"
        own = [f"memory.events: the kernel killed {said} of this job for memory"] if killed > 0 else []
        return own or [f"kernel: process {pid} was killed for memory" for pid in self._named()[-_MOST_TOLD:]]

    def _count(self) -> int:
        for file in self._files:
            with suppress(OSError, ValueError):
                if found := _COUNT.search(file.read_text("ascii")):
                    return int(found["count"])
        return 0

    def _named(self) -> list[int]:
        """Return the processes named in the kernel's log, in order."""
        found: list[int] = []
        with suppress(OSError):
            reading = os.open(self._log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                for _ in range(_MOST_RECORDS):
                    record = _record(reading)
                    if record == b"":
                        break
                    if (kill := _RECORD.match(record)) and int(kill["micros"]) / 1e6 > self._began:
                        found.append(int(kill["pid"]))
            finally:
                os.close(reading)
        return found


def _record(reading: int) -> bytes:
    """Return the next record of the kernel's log; b"" at its end, b"-" for an overwritten one."""
    try:
        return os.read(reading, _RECORD_BYTES)
    except BlockingIOError:
        return b""
    except BrokenPipeError:
        return b"-"


def _files(proc: Path, mounted: Path) -> list[Path]:
    """Return files that may hold the count: of this process's cgroup, and at a container's cgroup mount."""
    said = ""
    with suppress(OSError, ValueError):
        said = proc.read_text()
    v1, v2 = _V1.search(said), _V2.search(said)
    own = [mounted / "memory" / v1["path"].lstrip("/") / "memory.oom_control"] if v1 else []
    own += [mounted / v2["path"].lstrip("/") / "memory.events"] if v2 else []
    return [*own, mounted / "memory.events", mounted / "memory" / "memory.oom_control"]
