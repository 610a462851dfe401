"""Do the tests notice faults? Each fault of a table is put into a copy of the working tree and tested.

    python -m eval.seeded_faults [--only NAME ...] [--near] [--stories]

First the tests of the same package run, then, if these pass, all that `make test` runs; `--near` leaves that out,
`--stories` adds the stories of the package. A fault is caught when a test fails that passes without it. A file that
cannot be collected counts as trouble, not as a catch.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")
_MISSED = 4  # most faults of the whole table that may be missed
_FAILED = re.compile(r"^(?:FAILED|ERROR) (?P<test>\S+\.py::.*?)(?: - (?P<how>.*))?$", re.MULTILINE)
_BROKEN = re.compile(r"^ERROR (?P<file>(?!\S+::)\S+)", re.MULTILINE)
"""pytest's report of a test that failed, itself or in its set-up; and of a file that it cannot collect."""


class Fault(NamedTuple):
    """A change of one line, and its harm to an operator."""

    name: str
    path: str
    old: str
    new: str
    harm: str

    @property
    def near(self) -> list[str]:
        """The tests of its module, if any, and those of its package."""
        _, *folders, module = self.path.split("/")
        package = next(name for name in folders if (ROOT / "tests" / name).is_dir())
        own = f"tests/{package}/test_{module}"
        return [*([own] if (ROOT / own).exists() else []), f"tests/{package}"]

    def applied(self, text: str) -> str:
        """Return the file's text with the fault; `ValueError` unless its line occurs exactly once."""
        lines = text.splitlines(keepends=True)
        places = [place for place, line in enumerate(lines) if line.strip() == self.old]
        if len(places) != 1:
            raise ValueError(f"fault {self.name}: its line stands {len(places)} times in {self.path}, not once")
        lines[places[0]] = lines[places[0]].replace(self.old, self.new)
        return "".join(lines)


def faults() -> list[Fault]:
    """Return the faults of the table."""
    return [Fault(**given) for given in tomllib.loads(TABLE.read_text(encoding="utf-8"))["fault"]]


class Run(NamedTuple):
    """pytest's result: the first failed test, how it failed ("" for none), and trouble that is no test's failure."""

    test: str
    how: str
    trouble: str


class Copy:
    """A copy of the working tree in which tests run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._broken: list[str] = []
        listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, capture_output=True, check=True).stdout.decode().split("\0"):
            if name and os.path.lexists(ROOT / name):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name, follow_symlinks=False)
        for name in (".venv", "build"):  # `make` builds what tests use of these
            if (ROOT / name).exists():
                (root / name).symlink_to(ROOT / name)
        self._environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        self._environment["PYTHONPATH"] = str(root)
        found = self._python("-c", "import logdoctor; print(logdoctor.__file__)")
        if Path(found.stdout.strip()) != root / "logdoctor" / "__init__.py":
            raise SystemExit(f"not the copy is imported, but {found.stdout}{found.stderr}")

    def caught(self, fault: Fault, way: Sequence[str]) -> Run:
        """Run tests with the fault until one fails that passes without it."""
        path = self.root / fault.path
        sound = path.read_text(encoding="utf-8")
        while True:
            path.write_text(fault.applied(sound), encoding="utf-8")
            try:
                run = self._run(*way, "-x", *(f"--deselect={test}" for test in self._broken))
            finally:
                path.write_text(sound, encoding="utf-8")
            if not run.test or not self._run(run.test, *way[way.index("-n") :]).test:
                return run
            print(f"fails without a fault, too, and is left out: {run.test} {run.how}", flush=True)
            self._broken.append(run.test)

    def _run(self, *arguments: str) -> Run:
        ended = self._python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=60", "-rfE", *arguments)
        broken = [found["file"] for found in _BROKEN.finditer(ended.stdout)]
        if ended.returncode not in (0, 1) and not broken:
            broken = [f"pytest ended with {ended.returncode}: {(ended.stdout + ended.stderr)[-300:].strip()}"]
        found = _FAILED.search(ended.stdout)
        return Run(found["test"] if found else "", (found and found["how"]) or "", ", ".join(broken))

    def _python(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.root, env=self._environment, capture_output=True, text=True)


def look(copy: Copy, fault: Fault, ways: Sequence[Sequence[str]]) -> bool:
    """Run tests in each way until one catches the fault; print and return whether one did."""
    begun, said = time.monotonic(), ""
    run = Run("", "", "")
    for way in ways:
        run = copy.caught(fault, way)
        said += f"TROUBLE: {run.trouble} " if run.trouble else ""
        if run.test:
            said = f"by {run.test} {'(it hangs) ' if 'Timeout' in run.how else ''}"
            break
    result = "caught" if run.test else "MISSED"
    print(f"{result}  {fault.name}  {fault.path}  {said}({time.monotonic() - begun:.0f} s)", flush=True)
    return bool(run.test)


def main() -> int:
    """Run the chosen faults; return 0 when at most four were missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these faults")
    parser.add_argument("--near", action="store_true", help="run only the tests of the same package")
    parser.add_argument("--stories", action="store_true", help="also run the stories of the package")
    given = parser.parse_args()
    chosen = [fault for fault in faults() if not given.only or fault.name in given.only]
    with tempfile.TemporaryDirectory(prefix="seeded-faults-") as folder:
        copy = Copy(Path(folder).resolve())
        caught = 0
        for fault in chosen:
            ways = [[where, "-n", "0"] for where in fault.near]
            ways += [] if given.near else [["tests", "-n", str(os.cpu_count() or 1)]]
            stories = [fault.near[-1], "-n", "0", "-o", "python_files=story_*.py", "-o", "timeout=600"]
            caught += look(copy, fault, [*ways, stories] if given.stories else ways)
    by = f"{'the tests of the package' if given.near else 'make test'}{' and stories' if given.stories else ''}"
    print(f"{caught} of {len(chosen)} caught by {by}")
    return int(len(chosen) - caught > _MISSED)


if __name__ == "__main__":
    sys.exit(main())
