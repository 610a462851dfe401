"""Stores the answers from above the rules, so that a resumed run does not ask again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from logdoctor.errors import StoreError
from logdoctor.pipeline.batch.rows import Row

Item = TypeVar("Item")


class Lines(Generic[Item]):
    """Items in a file, one per line, in order. Lines that a killed process left torn are skipped."""

    def __init__(self, place: Path, kind: type[Item]) -> None:
        self._place, self._decode = place, msgspec.json.Decoder(kind).decode

    def __iter__(self) -> Iterator[Item]:
        if not self._place.exists():
            return
        with self._place.open("rb") as file:
            for line in file:
                try:
                    yield self._decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    continue

    def append(self, item: Item) -> None:
        """Append an item, unless JSON cannot represent it; it survives this process, but not a crash of the machine.
        `StoreError` when it cannot be written."""
        try:
            line = msgspec.json.encode(item)
        except UnicodeEncodeError:
            return
        try:
            with self._place.open("ab") as file:
                file.write(b"\n" + line + b"\n")  # the leading newline ends a torn line
        except OSError as error:
            cause = f"cannot be written ({error.strerror or error})"
            raise StoreError(str(self._place), cause, "Make room, and give the same command again.") from error


class Answers:
    """The answers to rows of each part, in a folder. `asked` identifies everything they depend on besides the rows."""

    def __init__(self, folder: Path, asked: str) -> None:
        self._folder, self._asked = folder, asked

    def of(self, part: str) -> dict[int, Row]:
        """Return the answers for a part, by row index."""
        return dict(self._lines(part))

    def keep(self, part: str, place: int, row: Row) -> None:
        """Store an answer."""
        self._lines(part).append((place, row))

    def _lines(self, part: str) -> Lines[tuple[int, Row]]:
        return Lines(self._folder / f"answers-{self._asked}-{Path(part).stem}", tuple[int, Row])
