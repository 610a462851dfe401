"""`logdoctor report`: what failures cost, by reason."""

from typing import TYPE_CHECKING

import click
import msgspec

from logdoctor.cli.options import Place, place_options, served_settings

if TYPE_CHECKING:
    from rich.table import Table

    from logdoctor.jobs.report import Costs, Report

_day = click.DateTime(["%Y-%m-%d"])
_DAY = 86_400
_WIDE = 130  # columns from which on means are shown beside medians


@click.command("report")
@click.option("--since", type=_day, metavar="DAY", help="First day of the report (YYYY-MM-DD, UTC).")
@click.option("--until", type=_day, metavar="DAY", help="Last day of the report (YYYY-MM-DD, UTC).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, one row per reason.")
@place_options
def report(since: object, until: object, as_json: bool, as_csv: bool, place: Place) -> None:
    """Report what failures cost, by reason.

    It has for each reason: how many, GPUs, time to failure and time to restart.
    """
    from logdoctor.jobs import report as reports

    if as_json and as_csv:
        raise click.UsageError("--json and --csv cannot be combined.")
    begin = reports.second(f"{since:%Y-%m-%d}") if since else None
    end = reports.second(f"{until:%Y-%m-%d}") + _DAY if until else None
    found = _reckoned(begin, end, place)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    elif as_csv:
        click.echo(reports.as_csv(found), nl=False)
    else:
        _show(found)


def _reckoned(begin: float | None, end: float | None, place: Place) -> "Report":
    """Return the report on a period."""
    if place.service is not None:
        from logdoctor.cli.client.report import served_report

        return served_report(place.service, begin, end)
    from logdoctor.jobs import report
    from logdoctor.store.jobs.report import Reports
    from logdoctor.wiring import stored

    records = stored.records(served_settings(place.data_dir))
    try:
        return report.reckon(Reports(records.database).failures(begin, end), begin, end)
    finally:
        records.close()


def _show(found: "Report") -> None:
    """Print the table with subtotals by category, and who decided."""
    from rich.console import Console

    console = Console(highlight=False)
    if not found.total.count:
        console.print("no failures")
        return
    wide = console.width >= _WIDE
    console.print(_table(found, wide))
    if not wide:
        console.print("GPUs and times are medians", style="dim")
    known = f"GPU count known for {found.total.gpus.known:,} of {found.total.count:,}"
    console.print(f"{known}; restarted: {found.total.to_restart.known:,} of {found.total.count:,}", style="dim")
    decided = ", ".join(f"{name} {number:,}" for name, number in found.decided.items() if number)
    console.print(f"decided by: {decided}", style="dim", markup=False)
    if found.cut:
        console.print(f"only the newest {found.total.count:,} failures are counted", style="yellow")


def _table(found: "Report", wide: bool) -> "Table":
    """Return the costs of each category and its reasons: medians, and means if `wide`."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2 if wide else 1, 0, 0))
    table.add_column("reason", no_wrap=True)
    names = ("GPUs", "to failure", "to restart")
    medians = [f"median {name}" if wide else name for name in names]
    for name in ("count", *medians, *([f"mean {name}" for name in names] if wide else ()), "GPU h", "share"):
        table.add_column(name, justify="right")
    for category in found.categories:
        table.add_row(Text(category.name), *_row(category, wide), style="bold")
        for row in found.reasons:
            if row.category == category.name:
                table.add_row(Text(f"  {row.name}"), *_row(row, wide))
    table.add_row("total", *_row(found.total, wide), style="bold")
    return table


def _row(of: "Costs", wide: bool) -> tuple[str, ...]:
    from logdoctor.jobs.report import length

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:,.0f}"

    def span(value: float | None) -> str:
        return "-" if value is None else length(value)

    medians = (number(of.gpus.median), span(of.to_failure.median), span(of.to_restart.median))
    means = (number(of.gpus.mean), span(of.to_failure.mean), span(of.to_restart.mean)) if wide else ()
    hours = (f"{of.gpu_hours:,.1f}" if of.gpu_hours < 100 else number(of.gpu_hours)) if of.gpus.known else "-"
    share = f"{of.share:.1%}" if of.share is not None and of.gpus.known else "-"
    return f"{of.count:,}", *medians, *means, hours, share
