"""The replay for people: a table, a page and a picture of the curve."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.corpus_score import write_report
from eval.replay.run import PART, Report, Sums

_AIMS = {"decided_without_model": 0.95, "handled": 0.90, "wrong_actions": 0.01}
"""What is wanted by the end: the least share, of wrong actions the most."""
_LESS_IS_BETTER = ("wrong_actions", "unknown")
_TITLES = {
    "decided_without_model": "without a model",
    "handled": "handled",
    "wrong_actions": "wrong actions",
    "unknown": "unknown",
}
_WIDE = (*_TITLES, "model_calls", "tokens")


def render(report: Report, console: Console) -> None:
    """Print the curve, what decided, and what was decided wrongly."""
    title = f"{report.setup.failures:,} failures of {report.kinds} kinds, {_model(report)} ({report.seconds:.0f} s), %"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("failures", no_wrap=True)
    for name in _WIDE:
        table.add_column(_TITLES.get(name, name.replace("_", " ")), justify="right")
    for name, row in _rows(report):
        table.add_row(name, *(_judged(row, field) for field in _TITLES), *_asked(row))
    console.print(table)
    for rung, part in report.by_rung.items():
        handled, wrong = _percent(part.handled), _percent(part.wrong_actions)
        console.print(f"{rung}: {part.failures:,} failures, handled {handled}, wrong {wrong}", highlight=False)
    console.print(_learned(report), highlight=False)
    for one in report.confusions[:20]:
        console.print(Text(f"  {one.count} x {one.kind}: {one.label}, said {one.said} by {one.rung}", "red"))


def _model(report: Report) -> str:
    return f"model {report.setup.model}" if report.setup.model else "no model"


def _rows(report: Report) -> Iterator[tuple[str, Sums]]:
    for number, part in enumerate(report.per_250):
        yield f"{number * PART + 1:,} to {min((number + 1) * PART, report.setup.failures):,}", part
    yield "all", report.overall
    yield "of a new kind", report.new
    yield "of a kind seen before", report.seen


def _judged(row: Sums, name: str) -> Text:
    share = getattr(row, name)
    aim = _AIMS.get(name)
    if aim is None:
        return Text(_percent(share))
    good = share <= aim if name in _LESS_IS_BETTER else share >= aim
    return Text(_percent(share), "green" if good else "red")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _asked(row: Sums) -> tuple[str, str]:
    return f"{row.model_calls:,}", f"{row.tokens:,}"


def _learned(report: Report) -> str:
    rules = ", ".join(f"{count} {status}" for status, count in sorted(report.rules.items()))
    refused = ", ".join(f"{guard} {count}" for guard, count in sorted(report.refused.items()))
    return (
        f"learned rules: {rules or 'none'}; {report.approvals} let by a person because they can take nodes out;"
        f" proposals refused by guard: {refused or 'none'};"
        f" per 100 failures {report.tokens_per_100:,.0f} tokens and {report.dollars_per_100:.2f} dollars"
    )


def markdown(report: Report) -> str:
    """The report as tables in Markdown."""
    head = ["failures", *(_TITLES.get(name, name.replace("_", " ")) for name in _WIDE)]
    rows = [head, ["---", *["--:"] * len(_WIDE)]]
    rows += [[name, *(_percent(getattr(row, field)) for field in _TITLES), *_asked(row)] for name, row in _rows(report)]
    rungs = [["decided by", "failures", "handled", "wrong actions"], ["---", "--:", "--:", "--:"]]
    rungs += [
        [rung, f"{part.failures:,}", _percent(part.handled), _percent(part.wrong_actions)]
        for rung, part in report.by_rung.items()
    ]
    reasons = [["reason", *_TITLES.values()], ["---", *["--:"] * len(_TITLES)]]
    reasons += [
        [reason, *(_percent(getattr(row, field)) for field in _TITLES)] for reason, row in report.by_reason.items()
    ]
    return f"{_table(rows)}\n\n{_table(rungs)}\n\n{_table(reasons)}\n\n{_learned(report)}.\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


_INTRODUCTION = """# Replay: failures one by one, with nothing known at the start

`logdoctor eval replay`: failures arrive with the frequencies of Table 3 of *Characterization of Large Language Model
Development in the Datacenter* (NSDI '24). One in ten is of a kind not seen before, all others are variations of a kind
that came before: other hosts, ranks, times, numbers, paths, lengths, interleaving and echoes, never the same bytes.
There are no diagnosis rules, cases or learned rules when the first one comes, only filter rules and the structure of
reports.

- Each failure climbs the ladder: rules and structure, a past case, the model if there is one, else Unknown. Then a
  person who knows the label confirms the verdict or corrects it, with lines that prove it, and the teacher writes a
  rule.
- *Without a model*: decided, and not by a model. *Handled*: category, recovery and action were right and nobody was
  asked, of all failures. *Wrong actions*: a restart where none can help, or a fix first where a restart would do.
  *Unknown*: left to a person.
- Rules that can take nodes out wait for a person: the one who confirms lets them once they hit in as many attempts as
  other rules need; how many is told below.
- Kinds: the labelled logs of `corpus` and `validation`, and composed ones (`eval/replay/catalogue`) out of true
  formats behind healthy training of a framework.

![Shares of 250 failures each](replay.svg)

"""


def write(folder: Path, report: Report) -> None:
    """Write `replay.json`, `.svg` and `.md` to a folder; `InputError` when it cannot be written to."""
    contents = {
        "svg": svg(report),
        "md": f"{_INTRODUCTION}## {report.setup.failures:,} failures, {_model(report)}\n\n{markdown(report)}",
    }
    write_report(folder, "replay", report, contents)


# ---- drawing

_WIDTH, _HEIGHT = 880, 470
_TOP, _BOTTOM, _LEFT, _RIGHT = 84, 400, 66, 690
_COLOURS = {
    "decided_without_model": "#1f77b4",
    "handled": "#2a9d5c",
    "unknown": "#868e96",
    "wrong_actions": "#c2255c",
}
_NAMES_APART = 17.0  # pixels


def svg(report: Report) -> str:
    """The curves as a picture: the shares of each `PART` failures."""
    body = "\n".join([*_frame(report), *_curves(report)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
        f' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13" role="img"'
        f' aria-label="Shares of failures by the order of their arrival">\n{body}\n</svg>\n'
    )


def _x(number: int, parts: int) -> float:
    return _LEFT + 20 + number * (_RIGHT - _LEFT - 40) / max(parts - 1, 1)


def _y(share: float) -> float:
    return _BOTTOM - share * (_BOTTOM - _TOP)


def _text(x: float, y: float, text: str, **style: str) -> str:
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(text)}</text>'


def _frame(report: Report) -> Iterator[str]:
    """The ground, the axes, the aims and the titles."""
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        yield f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dee2e6"/>'
        yield _text(_LEFT - 8, y + 4.5, f"{10 * tenth} %", text_anchor="end", fill="#495057")
    for name, aim in _AIMS.items():
        y, colour = _y(aim), _COLOURS[name]
        yield f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-dasharray="6 4"/>'
    parts = len(report.per_250)
    for number in range(parts):
        x, last = _x(number, parts), min((number + 1) * PART, report.setup.failures)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_BOTTOM}" y2="{_BOTTOM + 5}" stroke="#868e96"/>'
        yield _text(x, _BOTTOM + 21, f"{last:,}", text_anchor="middle", fill="#495057")
    yield _text(_LEFT, 30, "Failures handled as they arrive", font_size="18", font_weight="600", fill="#212529")
    about = f"no diagnosis rule at the start, {_model(report)}, one in ten of a new kind; dashed: the aims"
    yield _text(_LEFT, 51, about, fill="#495057")
    told = f"shares of {PART} failures each, by the number of failures that came"
    yield _text(_LEFT, _BOTTOM + 46, told, fill="#212529")


def _curves(report: Report) -> Iterator[str]:
    parts = len(report.per_250)
    ends: list[tuple[float, str, str]] = []
    for name, colour in _COLOURS.items():
        shares = [getattr(part, name) for part in report.per_250]
        points = [(_x(number, parts), _y(share)) for number, share in enumerate(shares)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2" stroke-linejoin="round"/>'
        yield f'<g fill="{colour}">{dots}</g>'
        if shares:
            ends.append((points[-1][1], f"{_TITLES[name]} {_percent(shares[-1])} %", colour))
    at = 0.0
    for y, name, colour in sorted(ends):
        at = max(y, at + _NAMES_APART)
        yield _text(_RIGHT + 8, at + 4.5, name, fill=colour)
