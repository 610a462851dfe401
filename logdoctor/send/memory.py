"""How many processes of this job the kernel killed for memory, as its cgroup counts them."""

import re
from contextlib import suppress
from pathlib import Path

_V1 = re.compile(r"^\d+:(?:[a-z_]+,)*memory(?:,[a-z_]+)*:(?P<path>/.*)$", re.M)
_V2 = re.compile(r"^0::(?P<path>/.*)$", re.M)
_COUNT = re.compile(r"^oom_kill (?P<count>\d{1,18})$", re.M)


class MemoryKills:
    """Counts the kills since it was made; none where the kernel does not tell.

    `memory.events` of cgroup v2 counts those of all cgroups below, `memory.oom_control` of v1 those of the cgroup
    itself; both count the kills of the whole node's OOM killer, too.
    """

    def __init__(self, proc: str = "/proc/self/cgroup", mounted: str = "/sys/fs/cgroup") -> None:
        self._files = _files(Path(proc), Path(mounted))
        self._before = self._count()

    def line(self) -> str:
        """Return what to add to the output of a job that failed; "" when nothing was killed."""
        killed = self._count() - self._before
        said = "a process" if killed == 1 else f"{killed} processes"
        return f"memory.events: the kernel killed {said} of this job for memory" if killed > 0 else ""

    def _count(self) -> int:
        for file in self._files:
            with suppress(OSError, ValueError):
                if found := _COUNT.search(file.read_text("ascii")):
                    return int(found["count"])
        return 0


def _files(proc: Path, mounted: Path) -> list[Path]:
    """Return where the count may be: of this process's own cgroup, and where a container has its cgroup mounted."""
    said = ""
    with suppress(OSError, ValueError):
        said = proc.read_text()
    v1, v2 = _V1.search(said), _V2.search(said)
    own = [mounted / "memory" / v1["path"].lstrip("/") / "memory.oom_control"] if v1 else []
    own += [mounted / v2["path"].lstrip("/") / "memory.events"] if v2 else []
    return [*own, mounted / "memory.events", mounted / "memory" / "memory.oom_control"]
