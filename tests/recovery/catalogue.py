"""The checkpoints of the trainer of tests: files named after their step; one that is not complete ends in `.part`."""

import sys
from collections.abc import Mapping
from pathlib import Path

from logdoctor.job.recovery.__main__ import main
from logdoctor.job.recovery.checkpoints import Aside, Chosen


class Folder:
    """A folder of checkpoints; what is told about them goes to a file."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def complete(self) -> Mapping[str, int]:
        found = {str(path): int(path.name) for path in self._folder.glob("*") if path.name.isdigit()}
        last = self._folder / "last"  # one that is written again and again holds its step
        return found | ({str(last): int(last.read_text())} if last.exists() else {})

    def best(self, before_step: int | None = None) -> Chosen | None:
        known = {step: path for path, step in self.complete().items() if before_step is None or step < before_step}
        return Chosen(known[max(known)], max(known)) if known else None

    def suspect(self, step: int) -> None:
        self._note(f"suspect {step}")

    def not_loaded(self, path: str) -> None:
        self._note(f"not loaded {Path(path).name}")

    def loaded(self, path: str) -> None:
        self._note(f"loaded {Path(path).name}")

    def unreadable(self, path: str, noted: bool, aside: Aside) -> str:
        return ""

    def _note(self, line: str) -> None:
        with (self._folder.parent / "noted").open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], find_checkpoints=Folder))
