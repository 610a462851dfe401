"""What people see in a terminal."""

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from logdoctor import taxonomy
from logdoctor.rules.load import RuleBook
from logdoctor.rules.schema import FilterRule, Rule
from logdoctor.text import harmless
from logdoctor.types import Evidence, Verdict

if TYPE_CHECKING:
    from logdoctor.store.tokens import Token

_COLOURS = {
    "failed": "red",
    "cancelled": "yellow",
    "recovered": "yellow",
    "completed": "green",
    "running": "green",
}


def verdict(name: str, result: Verdict, explain: bool) -> None:
    """Print a verdict: the answer first, then the proof."""
    console = Console(highlight=False)
    colour = _COLOURS[result.outcome]
    title = Text(result.reason if result.reason != "None" else result.outcome.capitalize(), style=f"bold {colour}")
    if result.outcome == "recovered":
        title.append(" (recovered)")
    parts: list[Text | Table] = [_answer(result)]
    for evidence in result.evidence:
        parts += [Text(), _quotation(evidence, many=len({e.stream for e in result.evidence}) > 1)]
    if result.symptoms:
        parts += [Text(), _symptoms(result)]
    for problem in result.problems:
        parts += [Text(), Text(f"! {_clipped(problem)}", style="yellow")]
    console.print(
        Panel(
            Group(*parts),
            title=title,
            title_align="left",
            subtitle=Text(_clipped(name), style="dim"),
            subtitle_align="right",
            border_style=colour,
        )
    )
    if explain:
        _explain(console, result)


def _answer(result: Verdict) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    if result.outcome == "failed":
        table.add_row("advice", Text(taxonomy.ADVICE[result.recovery], style="bold"))
        table.add_row("next step", result.suggestion)
        table.add_row("fault", taxonomy.FAULT_WORDS[result.fault])
    if result.why:
        table.add_row("why", result.why)
    if suspects := [suspect for suspect in result.suspects if suspect.node or suspect.rank is not None]:
        table.add_row("suspect", Text("\n").join(Text(_suspect(s.node, s.rank, s.gpu, s.why)) for s in suspects[:6]))
    if result.first_rank is not None:
        table.add_row("first rank", str(result.first_rank))
    if result.progress.step is not None:
        of = f" of {result.progress.total}" if result.progress.total else ""
        loss = f", loss {result.progress.loss:.4g}" if result.progress.loss is not None else ""
        table.add_row("progress", f"step {result.progress.step}{of}{loss} (line {result.progress.line})")
    decided = " ".join(part for part in (result.decided_by.kind, result.decided_by.rule) if part)
    table.add_row("decided by", f"{decided}, confidence {result.confidence:.0%}")
    return table


def _suspect(node: str | None, rank: int | None, gpu: str | None, why: str) -> str:
    names = [
        f"node {node}" if node else "",
        f"rank {rank}" if rank is not None else "",
        f"GPU {gpu}" if gpu else "",
    ]
    return f"{', '.join(name for name in names if name)}: {why}"


def _quotation(evidence: Evidence, many: bool) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", no_wrap=True, min_width=7)
    table.add_column(overflow="fold")
    if many:
        table.add_row("", Text(evidence.stream, style="dim"))
    for back, text in enumerate(evidence.before):
        table.add_row(str(evidence.line - len(evidence.before) + back), Text(_clipped(text), style="dim"))
    table.add_row(Text(f"> {evidence.line}", style="bold"), Text(_clipped(evidence.quote), style="bold"))
    for ahead, text in enumerate(evidence.after, 1):
        table.add_row(str(evidence.line + ahead), Text(_clipped(text), style="dim"))
    return table


def _clipped(text: str) -> str:
    """A line no longer than a few rows."""
    return harmless(text, 400)


def _symptoms(result: Verdict) -> Text:
    """Other errors by reason: those that the cause accounts for, then those that nothing explains."""
    text = Text(style="dim")
    for label, explained in (("explained away: ", True), ("not explained: ", False)):
        some = [symptom for symptom in result.symptoms if bool(symptom.explained_by) == explained]
        if some:
            text.append("\n" if len(text) else "").append(label)
            text.append(", ".join(f"{one.reason} ({one.count}, from line {one.line})" for one in some[:6]))
    return text


def _explain(console: Console, result: Verdict) -> None:
    """What the filter rules took, and the fingerprint."""
    account = result.compression
    console.print(
        f"{account.lines_in:,} lines in, {account.lines_kept:,} kept; "
        f"{account.bytes_in:,} bytes in, {account.bytes_kept:,} kept; "
        f"{result.seconds:.2f} s; fingerprint {result.fingerprint}, rule book {result.decided_by.rulebook}"
    )
    table = Table("filter rule", "lines", "first", "last", box=None, header_style="dim")
    for rule_id, count in sorted(account.rules.items(), key=lambda item: -item[1].lines)[:20]:
        table.add_row(rule_id, f"{count.lines:,}", str(count.first), str(count.last))
    console.print(table)


def rules(book: RuleBook, as_json: bool) -> None:
    """Print one row, or one JSON object, for each rule."""
    console = Console(highlight=False)
    every: tuple[Rule, ...] = (*book.filters, *book.diagnoses)
    if as_json:
        for one in every:
            print(msgspec.json.encode(one).decode())
        return
    table = Table("rule", "status", "says", "title", box=None, header_style="dim")
    for one in every:
        says = ("harmless" if one.harmless else "filter") if isinstance(one, FilterRule) else _says(one)
        table.add_row(one.id, one.status, says, one.title)
    console.print(table)


def tokens(every: "Sequence[Token]", as_json: bool) -> None:
    """Print one row, or one JSON object, for each token."""
    if as_json:
        for one in every:
            print(msgspec.json.encode(one).decode())
        return
    table = Table("token", "scopes", "jobs", "created", "expires", "revoked", box=None, header_style="dim")
    for one in every:
        jobs = ", ".join(f"{prefix}*" for prefix in one.prefixes) or "all"
        times = [_day(time) for time in (one.created, one.expires, one.revoked)]
        table.add_row(one.name, " ".join(one.scopes), jobs, *times)
    Console(highlight=False).print(table)


def _day(time: float | None) -> str:
    return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%Y-%m-%d %H:%M") if time else ""


def _says(rule: Rule) -> str:
    assert not isinstance(rule, FilterRule)
    claim = rule.verdict
    return claim.outcome or f"{claim.role}: {claim.reason or f'by table {claim.lookup}'}"


def rule(one: Rule) -> None:
    """Print a rule as YAML."""
    import yaml

    print(yaml.safe_dump(msgspec.to_builtins(one), sort_keys=False, allow_unicode=True, width=1000), end="")
