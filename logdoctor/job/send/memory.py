"""Out-of-memory kills during a job, counted by its cgroup."""

import re
from contextlib import suppress
from pathlib import Path

from logdoctor.job.send.notices import PREFIX
from logdoctor.job.send.witnesses import Told

_V1 = re.compile(r"^\d+:(?:[a-z_]+,)*memory(?:,[a-z_]+)*:(?P<path>/.*)$", re.M)
_V2 = re.compile(r"^0::(?P<path>/.*)$", re.M)
_COUNT = re.compile(r"^oom_kill (?P<count>\d{1,18})$", re.M)


class MemoryKills:
    """Reports kills since it was made; none where the kernel gives no information.

    `memory.events` of cgroup v2 counts all cgroups below, `memory.oom_control` of v1 the cgroup itself.
    """

    def __init__(self, stream: str, proc: str = "/proc/self/cgroup", mounted: str = "/sys/fs/cgroup") -> None:
        self.stream = stream
        self._files = _files(Path(proc), Path(mounted))
        self._before = self._count()

    def ask(self, pid: int, until: float) -> Told:
        """Return the kills as a line."""
        count = self._count()
        if count is None or self._before is None:
            return Told("absent")
        killed = count - self._before
        said = "a process" if killed == 1 else f"{killed} processes"
        line = f"{PREFIX}memory.events: the kernel killed {said} of this job for memory"
        return Told("read", (line,)) if killed > 0 else Told("empty")

    def _count(self) -> int | None:
        for file in self._files:
            with suppress(OSError, ValueError):
                if found := _COUNT.search(file.read_text("ascii")):
                    return int(found["count"])
        return None


def cgroup_of(proc: str = "/proc/self/cgroup") -> str:
    """Return the path of this process's memory cgroup; "" if unknown."""
    said = ""
    with suppress(OSError, ValueError):
        said = Path(proc).read_text()
    found = _V1.search(said) or _V2.search(said)
    return found["path"].rstrip("/") if found else ""


def _files(proc: Path, mounted: Path) -> list[Path]:
    """Return files that may hold the count: of this process's cgroup, and at a container's cgroup mount."""
    said = ""
    with suppress(OSError, ValueError):
        said = proc.read_text()
    v1, v2 = _V1.search(said), _V2.search(said)
    own = [mounted / "memory" / v1["path"].lstrip("/") / "memory.oom_control"] if v1 else []
    own += [mounted / v2["path"].lstrip("/") / "memory.events"] if v2 else []
    return [*own, mounted / "memory.events", mounted / "memory" / "memory.oom_control"]
