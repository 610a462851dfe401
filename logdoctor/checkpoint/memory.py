"""How much host memory this process can still allocate."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_UNLIMITED = 1 << 60


def available(root: Path = Path("/")) -> int:
    """Return the bytes that can be allocated before the kernel kills a process: the minimum over the machine and its
    control groups. Unlimited when the system does not say."""
    found = [_UNLIMITED]
    with suppress(OSError, ValueError, IndexError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds:
                found += _left(root / "sys/fs/cgroup", path, "max", "current", "inactive_file")
            elif "memory" in kinds.split(","):
                mount = root / "sys/fs/cgroup/memory"
                found += _left(mount, path, "limit_in_bytes", "usage_in_bytes", "total_inactive_file")
    return max(min(found), 0)


def _left(mount: Path, path: str, limit: str, used: str, cache: str) -> Iterator[int]:
    """Yield what is left below the limits of a control group and its parents; file pages count as free."""
    here = mount / path.strip("/")
    for place in (here, *here.parents):
        if place.is_relative_to(mount):
            with suppress(OSError, ValueError):
                kept = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
                taken = int((place / f"memory.{used}").read_text()) - int(kept.get(cache, 0))
                yield int((place / f"memory.{limit}").read_text()) - taken
