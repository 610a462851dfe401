"""What is kept while somebody above the rules is asked, so that a run that is resumed asks nobody again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from logdoctor.errors import StoreError
from logdoctor.pipeline.batch.rows import Row

Item = TypeVar("Item")


class Lines(Generic[Item]):
    """Items in a file, one on a line, as they came. What a process that died left half written is left out."""

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
        """Add an item, unless JSON cannot hold it; it is kept when this process dies, not when the machine does.
        `StoreError` when it cannot be written."""
        try:
            line = msgspec.json.encode(item)
        except UnicodeEncodeError:
            return
        try:
            with self._place.open("ab") as file:
                file.write(b"\n" + line + b"\n")  # what was left half written ends here
        except OSError as error:
            cause = f"cannot be written ({error.strerror or error})"
            raise StoreError(str(self._place), cause, "Make room, and give the same command again.") from error


class Answers:
    """The answers to rows of each part, in a folder. `asked` names all that they depend on beside the rows."""

    def __init__(self, folder: Path, asked: str) -> None:
        self._folder, self._asked = folder, asked

    def of(self, part: str) -> dict[int, Row]:
        """Return the answers to rows of a part, by their places in it."""
        return dict(self._lines(part))

    def keep(self, part: str, place: int, row: Row) -> None:
        """Keep an answer."""
        self._lines(part).append((place, row))

    def _lines(self, part: str) -> Lines[tuple[int, Row]]:
        return Lines(self._folder / f"answers-{self._asked}-{Path(part).stem}", tuple[int, Row])
