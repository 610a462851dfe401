"""Print the summary of a batch, and the comparison of two.

Names and lines come from untrusted logs and tables: all of them are made harmless here.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from logdoctor.jobs.report import Costs, length
from logdoctor.pipeline.batch.comparing import Change, Comparison, Group, Said
from logdoctor.pipeline.batch.comparing import Table as Compared
from logdoctor.pipeline.batch.posting import Posted
from logdoctor.pipeline.batch.summary import Summary
from logdoctor.words.show import safe

_NAME = 200  # characters of a source or a rule
_QUOTE = 160  # characters of a line of a log
_SHOWN = 5  # unreadable files that are named
_CHANGES = 5  # of each group


class _Column(NamedTuple):
    """A column of the table by reason: its name, and its cell for a row."""

    name: str
    cell: Callable[[Costs], str]


def summary(found: Summary) -> None:
    """Print the failures by reason, and some lines on the rest."""
    console = Console(highlight=False)
    if found.report.total.count:
        console.print(_by_reason(found))
    outcomes = ", ".join(f"{number:,} {name}" for name, number in found.outcomes.items())
    runs = f" and {_many(found.earlier_runs, 'earlier run')} in them" if found.earlier_runs else ""
    console.print(Text(f"{_many(found.rows, 'log')}{runs}: {outcomes or 'none read'}", style="dim"))
    if found.report.total.count:
        decided = ", ".join(f"{name} {number:,}" for name, number in found.report.decided.items() if number)
        console.print(Text(f"decided by: {decided}", style="dim"))
    if found.errors:
        console.print(Text(f"{found.errors:,} could not be read:", style="yellow"))
        for one in found.unread[:_SHOWN]:
            console.print(Padding(Text(safe(one.error or one.source, _NAME)), (0, 0, 0, 2)))
        if found.errors > _SHOWN:
            console.print(Text(f"  and {found.errors - _SHOWN:,} more: the column `error` says why", style="dim"))


def _by_reason(found: Summary) -> Table:
    """Return the table: each category with its reasons, and only columns with known values."""
    report = found.report
    total = report.total.count
    columns = [
        _Column("\ncount", lambda row: f"{row.count:,}"),
        _Column("\nshare", lambda row: _share(row.count / total)),
        _Column("GPUs\nmedian", lambda row: _number(row.gpus.median)),
        _Column("GPUs\nmean", lambda row: _number(row.gpus.mean)),
        _Column("time\nmedian", lambda row: _span(row.to_failure.median)),
        _Column("time\nmean", lambda row: _span(row.to_failure.mean)),
        _Column("GPU\nhours", lambda row: _hours(row)),
        _Column("GPU h\nshare", lambda row: _share(row.share) if row.share is not None and row.gpus.known else ""),
    ]
    columns = [column for column in columns if column.cell(report.total)]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
    names = ["\nreason", *(column.name for column in columns)]
    if all(name.startswith("\n") for name in names):
        names = [name.strip() for name in names]
    table.add_column(names[0], no_wrap=True)
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for category in report.categories:
        table.add_row(Text(_called(category.name)), *_cells(columns, category), style="bold")
        for row in report.reasons:
            if row.category == category.name:
                table.add_row(Text(f"  {safe(row.name, _NAME)}"), *_cells(columns, row))
    table.add_row("total", *_cells(columns, report.total), style="bold")
    return table


def _cells(columns: Iterable[_Column], row: Costs) -> list[str]:
    return [column.cell(row) or "-" for column in columns]


def _called(category: str) -> str:
    return "Unknown" if category == "None" else category


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _share(part: float) -> str:
    return "100%" if part == 1 else f"{part:.1%}"


def _span(value: float | None) -> str:
    """Format a time span with two digits or more: `9.2 h`, `14 h`."""
    if value is None:
        return ""
    figure, _, unit = length(value).partition(" ")
    return f"{float(figure):.0f} {unit}" if "." in figure and len(figure) > 3 else f"{figure} {unit}"


def _hours(row: Costs) -> str:
    if not row.gpus.known or not row.to_failure.known:
        return ""
    return f"{row.gpu_hours:,.1f}" if row.gpu_hours < 100 else f"{row.gpu_hours:,.0f}"


def comparison(found: Comparison) -> None:
    """Print the changes, by the rules responsible, with both quotes."""
    console = Console(highlight=False)
    for name, table in (("old", found.old), ("new", found.new)):
        console.print(Text(f"{name}: {_made(table)}", style="dim"), soft_wrap=True)
    counts = f"{found.changed:,} changed, {found.same:,} the same"
    more = (f", {number:,} {name}" for name, number in (("added", found.added), ("vanished", found.vanished)) if number)
    console.print(Text("".join(chain([counts], more)), style="bold"))
    if found.added and found.vanished and not found.same + found.changed:
        console.print(Text("No log is in both: give the same paths as before.", style="yellow"))
    if found.confirmed:
        right = f"{found.right_before:,} right before, {found.right_now:,} now"
        console.print(Text(f"of {found.confirmed:,} that a person confirmed: {right}"))
    for group in found.groups:
        _print_group(console, group)


def _print_group(console: Console, group: Group) -> None:
    console.print()
    old, new = safe(group.old_rule, _NAME), safe(group.new_rule, _NAME)
    title = Text(f"{old} -> {new}" if old != new else f"{old} in both", style="bold")
    title.append(f"  {len(group.changes):,}", style="dim")
    for number, word, style in ((group.right, "went right", "green"), (group.wrong, "went wrong", "red")):
        if number:
            title.append(f"  {number:,} {word}", style=style)
    console.print(title, soft_wrap=True)
    for change in sorted(group.changes, key=lambda one: one.went != "wrong")[:_CHANGES]:
        _print_change(console, change)
    if len(group.changes) > _CHANGES:
        console.print(Text(f"  and {len(group.changes) - _CHANGES:,} more: --json has all", style="dim"))


def _print_change(console: Console, change: Change) -> None:
    of = [change.attempt, "" if change.run is None else f"the run from line {change.run} on"]
    name = f"{change.source} ({', '.join(filter(None, of))})" if any(of) else change.source
    console.print(Text(f"  {safe(name, _NAME)}"), soft_wrap=True)
    if change.truth is not None:
        truth = f"{change.truth.by} said {change.truth.reason} (case {change.truth.case}): {change.went}"
        style = {"right": "green", "wrong": "red"}.get(change.went, "")
        console.print(Padding(Text(safe(truth, _NAME), style=style), (0, 0, 0, 4)))
    before = ""
    for word, said in (("-", change.old), ("+", change.new)):
        console.print(Padding(Text(f"{word} {_answer(said, change.fields)}"), (0, 0, 0, 4)))
        if (proof := _proof(said)) != before:
            console.print(Padding(Text(safe(proof, _QUOTE), style="dim"), (0, 0, 0, 6)))
        before = proof


def _proof(said: Said) -> str:
    """Return the line that proves it with its place, or the error of the log."""
    if said.error is not None or said.quote is None:
        return said.error or "no line proves it"
    return f"{said.quote_stream}:{said.quote_line}: {said.quote}"


def _answer(said: Said, fields: tuple[str, ...]) -> str:
    """Return the answer, with the fields that differ."""
    if said.error is not None:
        return "could not be read"
    words = [said.reason if said.reason not in (None, "None") else said.outcome or "", said.recovery or ""]
    if "outcome" in fields and said.outcome not in words:
        words.insert(0, said.outcome or "")
    if "suspects" in fields:
        words.append(f"suspects {', '.join(said.suspects[:_SHOWN]) or 'none'}")
    return safe(", ".join(word for word in words if word), _NAME)


def _made(table: Compared) -> str:
    made = list(table.made_with)
    rules = "; ".join(f"logdoctor {one}" for one in made[:_SHOWN]) or "nothing"
    more = f" and {len(made) - _SHOWN:,} more" if len(made) > _SHOWN else ""
    beyond = "".join(f"; {number:,} decided by {what}" for what, number in table.beyond_rules.items())
    return f"{safe(table.name, _NAME)}, {_many(table.rows, 'log')}, by {safe(rules, _NAME)}{more}{beyond}"


def posted(what: Posted) -> None:
    """Print the results of entering rows into a service."""
    words = {
        "entered": what.entered,
        "with a new verdict": what.replaced,
        "unchanged": what.unchanged,
        "left as a person confirmed them": what.confirmed,
        "left as the service knows them": what.known,
    }
    print(
        "service: " + (", ".join(f"{number:,} {name}" for name, number in words.items() if number) or "nothing entered")
    )
    if what.running:
        print(f"{what.running:,} still ran when their logs were written, and were not entered")
    if what.repeated:
        print(f"{what.repeated:,} have the source and attempt of an earlier row, and were not entered")
    if what.unfit:
        print(f"{what.unfit:,} have what no job can have, such as an exit code of 2^40, and were not entered")
    if what.undated:
        print(f"{what.undated:,} have no date, and were not entered: give the column `end` in a table of the jobs")


def _many(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
