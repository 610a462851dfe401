"""The report of a replay: its figures, page and curve."""

from collections.abc import Iterator

import msgspec
from rich.console import RenderableType
from rich.text import Text

from eval.chart import LINEAR, Chart
from eval.report import Cell, EvalReport, Grid, percent

PART = 250
"""Failures per part of the curve."""
_AIMS = {"decided_without_model": 0.95, "handled": 0.90, "wrong_actions": 0.01}
"""Aims at the end: the least share, of wrong actions the most."""
_TITLES = {
    "decided_without_model": "without a model",
    "handled": "handled",
    "wrong_actions": "wrong actions",
    "unknown": "unknown",
}


class ReplaySetup(msgspec.Struct, frozen=True):
    """What was replayed, and with which model ("" for none)."""

    failures: int = 2500
    seed: int = 1
    model: str = ""


class ReplayShares(msgspec.Struct, frozen=True):
    """Four shares of some failures, the calls of a model, and its tokens in both directions."""

    decided_without_model: float
    handled: float
    wrong_actions: float
    unknown: float
    model_calls: int
    tokens: int


class Rung(msgspec.Struct, frozen=True):
    """The decisions of one rung: how many failures, and the shares handled and with a wrong action."""

    failures: int
    handled: float
    wrong_actions: float


class Confusion(msgspec.Struct, frozen=True):
    """How often failures of one kind were decided wrongly in one way; `rung` decided."""

    kind: str
    label: str
    said: str
    rung: str
    count: int
    new: int


class ReplayReport(EvalReport, frozen=True):
    """The measures over all failures, over each `PART` of them, and separately for new kinds and others.

    A share is of all failures of its row. Handled: the category, the recovery and the action were right and nobody was
    asked. `by_rung` is by what decided: a learned rule, the structure of the report, a past case, the agent, nobody.
    `approvals` counts learned rules that waited for a person because they can cordon nodes, and were approved by
    whoever confirms. `dollars_per_100` is the model's price for a hundred failures.
    """

    overall: ReplayShares
    per_250: list[ReplayShares]
    new: ReplayShares
    seen: ReplayShares
    by_rung: dict[str, Rung]
    by_reason: dict[str, ReplayShares]
    approvals: int
    rules: dict[str, int]
    refused: dict[str, int]
    lessons: dict[str, int]
    confusions: list[Confusion]
    kinds: int
    tokens_per_100: float
    dollars_per_100: float
    setup: ReplaySetup
    seconds: float

    @property
    def name(self) -> str:
        return "replay"

    def parts(self, details: bool = False) -> Iterator[RenderableType]:
        """Yield the curve, what decided, and what was decided wrongly."""
        yield _curve_grid(self).printed()
        for rung, part in self.by_rung.items():
            handled, wrong = percent(part.handled), percent(part.wrong_actions)
            yield f"{rung}: {part.failures:,} failures, handled {handled}, wrong {wrong}"
        yield _learned(self)
        for one in self.confusions[:20]:
            yield Text(f"  {one.count} x {one.kind}: {one.label}, said {one.said} by {one.rung}", "red")

    def page(self) -> str:
        rungs = Grid(
            ["decided by", "failures", "handled", "wrong actions"],
            [
                [rung, f"{part.failures:,}", percent(part.handled), percent(part.wrong_actions)]
                for rung, part in self.by_rung.items()
            ],
        )
        reasons = Grid(
            ["reason", *_TITLES.values()], [[reason, *_cells(row)] for reason, row in self.by_reason.items()]
        )
        tables = "\n\n".join(grid.markdown() for grid in (_curve_grid(self), rungs, reasons))
        heading = f"## {self.setup.failures:,} failures, {_model(self)}"
        return f"{_INTRODUCTION}{heading}\n\n{tables}\n\n{_learned(self)}.\n"

    def chart(self) -> Chart:
        """Return the shares of each `PART` failures, in order of arrival."""
        ends = [min(first + PART, self.setup.failures) for first in range(0, len(self.per_250) * PART, PART)]
        return Chart(
            title="Failures handled as they arrive",
            subtitle=f"no diagnosis rule at the start, {_model(self)}, one in ten of a new kind; dashed: the aims",
            foot=f"shares of {PART} failures each, by the number of failures that came",
            steps=[f"{end:,}" for end in ends],
            curves={title: [getattr(part, field) for part in self.per_250] for field, title in _TITLES.items()},
            scale=LINEAR,
            goals={_TITLES[field]: aim for field, aim in _AIMS.items()},
        )


def _model(report: ReplayReport) -> str:
    return f"model {report.setup.model}" if report.setup.model else "no model"


def _curve_grid(report: ReplayReport) -> Grid:
    rows: list[list[Cell]] = []
    for name, row in _rows(report):
        judged = [_judged(cell, field, getattr(row, field)) for cell, field in zip(_cells(row), _TITLES, strict=True)]
        rows.append([name, *judged, f"{row.model_calls:,}", f"{row.tokens:,}"])
    title = f"{report.setup.failures:,} failures of {report.kinds} kinds, {_model(report)} ({report.seconds:.0f} s), %"
    return Grid(["failures", *_TITLES.values(), "model calls", "tokens"], rows, title)


def _rows(report: ReplayReport) -> Iterator[tuple[str, ReplayShares]]:
    for number, part in enumerate(report.per_250):
        yield f"{number * PART + 1:,} to {min((number + 1) * PART, report.setup.failures):,}", part
    yield "all", report.overall
    yield "of a new kind", report.new
    yield "of a kind seen before", report.seen


def _cells(row: ReplayShares) -> list[str]:
    return [percent(getattr(row, field)) for field in _TITLES]


def _judged(cell: str, field: str, share: float) -> Text:
    """Return the cell, green if its aim is reached and red if not."""
    if field not in _AIMS:
        return Text(cell)
    good = share <= _AIMS[field] if field == "wrong_actions" else share >= _AIMS[field]
    return Text(cell, "green" if good else "red")


def _learned(report: ReplayReport) -> str:
    rules = ", ".join(f"{count} {status}" for status, count in sorted(report.rules.items()))
    refused = ", ".join(f"{guard} {count}" for guard, count in sorted(report.refused.items()))
    return (
        f"learned rules: {rules or 'none'}; {report.approvals} approved by a person because they can cordon nodes;"
        f" proposals refused by guard: {refused or 'none'};"
        f" per 100 failures {report.tokens_per_100:,.0f} tokens and {report.dollars_per_100:.2f} dollars"
    )


_INTRODUCTION = """# Replay: failures one by one, with nothing known at the start

`logdoctor eval replay`: failures arrive with the frequencies of Table 3 of *Characterization of Large Language Model
Development in the Datacenter* (NSDI '24). One in ten is of a kind not seen before, all others are variations of a kind
that came before: other hosts, ranks, times, numbers, paths, lengths, interleaving and echoes, never the same bytes.
There are no diagnosis rules, cases or learned rules when the first one comes, only filter rules and the structure of
reports.

- Each failure climbs the ladder: rules and structure, a past case, the model if there is one, else Unknown. Then a
  person who knows the label confirms the verdict or corrects it, with lines that prove it, and a rule is written from
  that.
- *Without a model*: decided, and not by a model. *Handled*: category, recovery and action were right and nobody was
  asked, of all failures. *Wrong actions*: a restart where none can help, or a fix first where a restart would do.
  *Unknown*: left to a person.
- Rules that can cordon nodes wait for a person: the one who confirms approves them once they hit in as many attempts
  as other rules need; how many is shown below.
- Kinds: the labelled logs of `corpus` and `validation`, and composed ones (`eval/replay/catalogue`) in real
  formats after healthy training of a framework.

![Shares of 250 failures each](replay.svg)

"""
