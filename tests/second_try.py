"""Run tests or stories, once more what fails, and count what passes only then.

`python tests/second_try.py test|story [argument of pytest ...]` exits with 0 if each passed at the first or second try.
The second try is alone, without others beside it. What only it passes is counted in `tests/second-tries.txt`: a story
that gets there twice is a defect, to be mended in the change that brought it there; a test is one at once.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTED = ROOT / "tests/second-tries.txt"
FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"
LIMITS = {"test": 120, "story": 600}
"""Seconds that one may take, by the beginning of the names of its files."""
NOTHING_RAN = 5
"""What pytest exits with if it found no test."""


def counted(text: str) -> dict[str, int]:
    """Return how often each name passed on the second try, from lines `COUNT NAME`; raises ValueError for others."""
    return {name: int(count) for count, _, name in (line.partition(" ") for line in text.splitlines() if line.strip())}


def counted_up(counts: dict[str, int], names: set[str]) -> dict[str, int]:
    """Return the counts with one more for each of the names."""
    return counts | {name: counts.get(name, 0) + 1 for name in names}


def failed() -> set[str]:
    """Return the names of what failed in the last run of pytest."""
    return set(json.loads(FAILED.read_text(encoding="utf-8"))) if FAILED.exists() else set()


def pytest(kind: str) -> list[str]:
    """Return the command that runs all of a kind."""
    return [sys.executable, "-m", "pytest", "-o", f"python_files={kind}_*.py", "-o", f"timeout={LIMITS[kind]}"]


def main(kind: str, arguments: list[str]) -> int:
    """Run all of a kind; return what pytest exits with."""
    FAILED.unlink(missing_ok=True)
    code = subprocess.run([*pytest(kind), *arguments], cwd=ROOT).returncode
    first = failed()
    if not first:
        return code
    print(f"once more, alone: {len(first)} that failed", flush=True)
    code = subprocess.run([*pytest(kind), "-p", "no:xdist", "-rA", "--last-failed"], cwd=ROOT).returncode
    passed = first - failed() if code != NOTHING_RAN else set()
    counts = counted_up(counted(COUNTED.read_text(encoding="utf-8")) if COUNTED.exists() else {}, passed)
    for name in sorted(passed):
        print(f"passed on the second try: {name} ({counts[name]}. time)")
    COUNTED.write_text("".join(f"{count} {name}\n" for name, count in sorted(counts.items())), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
