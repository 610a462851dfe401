"""Reports of all measurements: figures printed as tables, and written as JSON, a page and a picture."""

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from eval.chart import Chart, draw
from logdoctor.errors import InputError

Cell = str | Text


class Grid(NamedTuple):
    """A table that can be printed and written as Markdown. `left` are the indexes of columns of words, aligned left;
    all others are aligned right."""

    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    title: Cell = ""
    left: Sequence[int] = (0,)

    def printed(self) -> Table:
        """Return the table for a terminal."""
        table = Table(title=_text(self.title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for place, name in enumerate(self.head):
            words = place in self.left
            table.add_column(_text(name), justify="left" if words else "right", no_wrap=words, overflow="ellipsis")
        for row in self.rows:
            table.add_row(*map(_text, row))
        return table

    def markdown(self) -> str:
        """Return the table as Markdown, without its title."""
        rule = ["---" if place in self.left else "--:" for place in range(len(self.head))]
        return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (self.head, rule, *self.rows))


def _text(cell: Cell) -> Text:
    """Return the cell as plain text: its brackets are not markup."""
    return cell if isinstance(cell, Text) else Text(cell)


class EvalReport(msgspec.Struct, frozen=True):
    """The figures of one measurement, as fields and JSON, and how they are shown."""

    @property
    def name(self) -> str:
        """The name of its files."""
        raise NotImplementedError

    def parts(self, details: bool = False) -> Iterable[RenderableType]:
        """Return the tables and lines to print; with `details` also every miss."""
        raise NotImplementedError

    def page(self) -> str:
        """Return the report as Markdown: what is printed, unless a measurement has its own page."""
        return f"# {self.name}\n\n```\n{self.printed()}```\n"

    def chart(self) -> Chart | None:
        """Return the curves beside the page, if any."""
        return None

    def json(self) -> str:
        """Return the figures as one JSON object."""
        return msgspec.json.encode(self).decode()

    def show(self, console: Console, details: bool = False) -> None:
        """Print the report."""
        for part in self.parts(details):
            console.print(part, highlight=False, markup=False)

    def printed(self, width: int = 110) -> str:
        """Return what is printed, without colours."""
        console = Console(width=width, file=StringIO(), record=True)
        self.show(console)
        return console.export_text()

    def write(self, folder: Path, annex: str = "") -> None:
        """Write `NAME.json`, `.md` and, with a chart, `.svg`; `annex` is added to the page. Raises `InputError` when
        the folder cannot be written to."""
        for suffix, content in self._files(annex):
            try:
                (folder / f"{self.name}.{suffix}").write_text(content, encoding="utf-8")
            except OSError as error:
                raise InputError(
                    str(folder), f"cannot be written ({error.strerror})", "Name another folder."
                ) from error

    def _files(self, annex: str) -> Iterator[tuple[str, str]]:
        yield "json", msgspec.json.format(self.json()) + "\n"
        yield "md", self.page() + annex
        if (chart := self.chart()) is not None:
            yield "svg", draw(chart)


def percent(share: float) -> str:
    """Return a share in percent with one decimal, without the sign."""
    return f"{100 * share:.1f}"


def bullets(lines: Iterable[str]) -> str:
    """Return sentences as a list in Markdown."""
    return "\n".join(f"- {line[0].upper()}{line[1:]}." for line in lines)
