"""How many of the messages that programs can print the rules decide."""

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import RenderableType

from eval import harvest
from eval.harvest.messages import Coverage, Reader
from eval.report import EvalReport, Grid


class SourceCoverage(msgspec.Struct, frozen=True):
    """How many messages of a source the rules decide, and how many each rule does."""

    source: str
    messages: int
    decided: int
    share: float
    rules: dict[str, int]


class CoverageReport(EvalReport, frozen=True):
    """The coverage of each source."""

    sources: list[SourceCoverage]

    @property
    def name(self) -> str:
        return "knowledge"

    def parts(self, details: bool = False) -> Iterator[RenderableType]:
        yield self._grid().printed()

    def page(self) -> str:
        head = "# Messages that programs can print, and how many of them the rules decide on purpose"
        return f"{head}\n\n{self._grid().markdown()}\n"

    def _grid(self) -> Grid:
        rows = [
            [one.source, f"{one.messages:,}", f"{one.decided:,}", f"{one.decided / max(one.messages, 1):.1%}"]
            for one in self.sources
        ]
        return Grid(["source", "messages", "decided", "share"], rows)


def summarise(found: Sequence[Coverage]) -> CoverageReport:
    """Return the report of the coverage of sources."""
    return CoverageReport(
        [
            SourceCoverage(
                one.source,
                one.messages,
                one.decided,
                round(one.decided / max(one.messages, 1), 4),
                dict(one.rules.most_common()),
            )
            for one in found
        ]
    )


def readers() -> dict[str, Reader]:
    """Return the readers of all sources that modules of `eval.harvest` know, by name."""
    folder = Path(harvest.__file__).parent
    modules = [importlib.import_module(f"eval.harvest.{one.name}") for one in pkgutil.iter_modules([str(folder)])]
    return {name: read for module in modules for name, read in getattr(module, "SOURCES", {}).items()}
