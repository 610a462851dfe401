"""A verdict for people, in a terminal, Python or a notebook: answer first, then proof."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from logdoctor import taxonomy
from logdoctor.text import harmless, origin, shown
from logdoctor.types import (
    Category,
    DecidedBy,
    EarlierRun,
    Evidence,
    Suspect,
    Symptom,
    Verdict,
    WriterCourse,
    names_node,
)
from logdoctor.words.show import safe
from logdoctor.words.sources import coverage

_WORDS = 2000  # characters of a text by a rule, a person or a model
_WHOLE = 400  # characters of a line where all of a quote is shown
_QUOTED = 210  # characters of the decisive line: three rows of a narrow terminal
_CITED = 130  # of another line
_AROUND = 60  # characters of a metric line
_BEFORE, _AFTER = 2, 1  # neighbours of the decisive line
_SUSPECTS = 2
_RUNS = 3  # earlier runs that are named
_ERRORS = 3
_CONSIDERED = 5
_PRINTED = 100  # most columns; in Python all of them, wherever that prints
_LEAST = 12  # columns of a quote on one line
_PRE = '<pre style="white-space: pre; line-height: normal; font-family: monospace">{code}</pre>'
_OPEN = ("reason", "category")  # fields that a verdict without a failure leaves open
_MAIN = "main"  # the stream of a log that is one file
_COLOURS = {
    "failed": "red",
    "cancelled": "yellow",
    "recovered": "yellow",
    "completed": "green",
    "running": "green",
    "unknown": "cyan",
}
_ROLES = {
    "cause": "names a cause, and no cause came before it",
    "proximate": "says what failed, and no line names a cause",
    "cascade": "usually follows from another failure, but no line says from which",
}
_NO_LOG = {"empty": "Empty log", "binary": "Binary file, no log"}
_STRUCTURE = {
    "loss": "the loss curve",
    "stall": "the training steps, which stop before the log does",
    **dict.fromkeys(taxonomy.OUTCOMES, "how the log ends"),
}


class ShownVerdict(Verdict, frozen=True):
    """A verdict in Python: `print` and a notebook show it as the command line does. A missing reason or category is
    None here, where JSON has the text "None"."""

    reason: str | None  # type: ignore[assignment]
    category: Category | None  # type: ignore[assignment]

    @classmethod
    def of(cls, verdict: Verdict) -> "ShownVerdict":
        """Convert a verdict."""
        fields: dict[str, Any] = msgspec.structs.asdict(verdict)
        fields.update({name: None for name in _OPEN if fields[name] == "None"})
        return cls(**fields)

    def _panel(self) -> Panel:
        fields: dict[str, Any] = msgspec.structs.asdict(self)
        fields.update({name: "None" for name in _OPEN if fields[name] is None})
        verdict = Verdict(**fields)
        return panel(verdict.file, verdict)

    def __str__(self) -> str:
        console = Console(highlight=False, file=io.StringIO(), width=_PRINTED, color_system=None)
        with console.capture() as captured:
            console.print(self._panel())
        return captured.get().rstrip("\n")

    def _repr_html_(self) -> str:
        console = Console(highlight=False, file=io.StringIO(), width=_PRINTED, record=True)
        console.print(self._panel())
        return console.export_html(inline_styles=True, code_format=_PRE)


def line(name: str, result: Verdict) -> str:
    """Return a verdict on one line: outcome, title, place of the decisive line, and of that what fits 100 columns."""
    title = _title(result, "").plain.partition(" ─ ")[0]
    first = result.evidence[0] if result.evidence else None
    said = f"{result.outcome:<10} {_clipped(title, 40):<24} {safe(name, _WHOLE)}{f':{first.line}' if first else ''}"
    room = _PRINTED - cell_len(said) - 2
    return f"{said}  {_shortened(origin(first.quote).message.strip(), room)}" if first and room > _LEAST else said


def show(name: str, result: Verdict, explain: bool, ranks: bool = False) -> None:
    """Print a verdict; `explain` adds whole quotes, and the arguments for it and against others, `ranks` the fate of
    every rank."""
    console = Console(highlight=False)
    console.width = min(console.width, _PRINTED)
    console.print(panel(name, result, explain))
    if ranks and result.fates:
        console.print(Padding(_fates(result), (0, 0, 1, 2)))
    if explain:
        _explain(console, result)


def panel(name: str, result: Verdict, whole: bool = False) -> Panel:
    """Return the panel of a verdict, in few rows unless `whole`."""
    colour = _COLOURS[result.outcome]
    parts: list[Text | Table] = [_answer(result, whole)]
    if result.evidence:
        parts += [Text(), _proof(result, whole)]
    parts += [Text(f"! {_clipped(problem, _WHOLE)}", style="yellow") for problem in result.problems]
    return Panel(
        Group(*parts),
        title=_title(result, colour),
        title_align="left",
        subtitle=Text(_clipped(name, _WHOLE), style="dim"),
        subtitle_align="right",
        border_style=colour,
    )


def _title(result: Verdict, colour: str) -> Text:
    words = safe(taxonomy.title(result.reason, result.outcome, result.detail), _WORDS)
    if result.decided_by.kind == "nobody" and result.decided_by.rule in _NO_LOG:
        words = _NO_LOG[result.decided_by.rule]
    title = Text(words, style=f"bold {colour}")
    if result.outcome == "recovered":
        title.append(" (recovered)")
    said = [f"fault: {taxonomy.FAULT_WORDS[result.fault]}"] if result.outcome == "failed" else []
    said += [f"{result.confidence:.0%} sure"] if result.confidence else []
    return title.append(f" ─ {', '.join(said)}", style=f"not bold {colour}") if said else title


def _earlier(runs: Sequence[EarlierRun]) -> str:
    """Return the fates of the runs before the last one in a file, latest first."""
    told = [
        f"{taxonomy.title(run.reason, run.outcome, run.detail)} (line {run.decided_at or run.line})"
        for run in reversed(runs[-_RUNS:])
    ]
    more = [f"and {len(runs) - _RUNS} more"] if len(runs) > _RUNS else []
    return "; ".join((*told, *more))


def _answer(result: Verdict, whole: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    if result.detail and result.reason != "Unknown":
        table.add_row("what", Text(safe(result.detail, _WORDS)))
    if result.outcome == "failed":
        table.add_row("advice", Text(taxonomy.advice(result.recovery, names_node(result)), style="bold"))
    if result.outcome in ("failed", "unknown"):
        table.add_row("next step", Text(safe(result.suggestion, _WORDS)))
    if result.why:
        table.add_row("why", Text(safe(result.why, _WORDS)))
    suspects = [suspect for suspect in result.suspects if suspect.node or suspect.rank is not None]
    for number, suspect in enumerate(suspects if whole else suspects[:_SUSPECTS]):
        table.add_row("" if number else "suspect", Text(_suspect(suspect)))
    if not whole and len(suspects) > _SUSPECTS:
        table.add_row("", f"and {len(suspects) - _SUSPECTS} more")
    for row in _course(result):
        table.add_row(*row)
    if result.runs:
        table.add_row("earlier runs", Text(safe(_earlier(result.runs), _WORDS)))
    if result.coverage:
        table.add_row("sources", Text(safe(coverage(result.coverage), _WORDS), style="dim"))
    if result.decided_by.kind in ("case", "agent"):
        table.add_row("decided by", Text(_decided(result.decided_by)))
    if not whole:
        for label, explained in (("follow-on", True), ("other", False)):
            some = [symptom for symptom in result.symptoms if bool(symptom.explained_by) == explained]
            if some:
                table.add_row(label, Text(_errors(some), style="dim"))
    return table


def _course(result: Verdict) -> Iterator[tuple[str, str]]:
    """Yield the progress of the job, and the rank that failed first."""
    first = "" if result.first_rank is None else f"rank {result.first_rank}"
    progress = result.progress
    if progress.step is None:
        if first:
            yield "first rank", str(result.first_rank)
        return
    of = f" of {progress.total}" if progress.total else ""
    loss = f", loss {progress.loss:.4g}" if progress.loss is not None else ""
    exact = f", accuracy {progress.accuracy:.4g}" if progress.accuracy is not None else ""
    place = _place(progress.stream, progress.line or 0)
    yield "progress", f"step {progress.step}{of}{loss}{exact} ({place}){f'; {first} failed first' if first else ''}"


def _place(stream: str, line: int) -> str:
    return f"line {line}" if stream in (_MAIN, "") else f"{safe(stream, 200)}, line {line}"


def _decided(by: DecidedBy) -> str:
    """Return what decided: the rule, the past case, the model."""
    if by.kind == "case":
        return by.rule.replace("/", " ")
    if by.kind == "nobody":
        return "no rule or case"
    if by.kind == "structure":
        return _STRUCTURE.get(by.rule) or (f"the traceback ({safe(by.rule, 200)})" if by.rule else "how the log ends")
    named = by.model if by.kind == "agent" else by.rule
    return safe(f"{by.kind} {named}".strip(), 400)


def _suspect(suspect: Suspect) -> str:
    names = [
        f"node {suspect.node}" if suspect.node else "",
        f"rank {suspect.rank}" if suspect.rank is not None else "",
        f"GPU {suspect.gpu}" if suspect.gpu else "",
    ]
    return safe(f"{', '.join(name for name in names if name)}: {suspect.why}", _WORDS)


def _errors(some: list[Symptom]) -> str:
    """Return the most frequent errors by reason, the first with its place."""
    first, *others = some
    said = [f"{first.reason} ({first.count}, from {_place(first.stream, first.line)})"]
    said += [f"{one.reason} ({one.count})" for one in others[: _ERRORS - 1]]
    more = len(some) - len(said)
    return ", ".join(said) + (f" and {more} more" if more else "")


def _proof(result: Verdict, whole: bool) -> Table:
    """Return the quotes, the decisive one first with its neighbours; no line is shown twice."""
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", no_wrap=True, min_width=7)
    table.add_column(overflow="fold")
    quoted = {(one.stream, one.line): one for one in result.evidence}
    there: set[tuple[str, int]] = set()
    stream = _MAIN
    for number, one in enumerate(result.evidence):
        if (one.stream, one.line) in there:
            continue
        if one.stream != stream:
            stream = one.stream
            table.add_row("", Text(_clipped(one.file or stream, _WHOLE), style="dim", overflow="fold"))
        for line, text in _lines(one, whole, not number):
            if (stream, line) in there:
                continue
            there.add((stream, line))
            if (stream, line) in quoted:
                cited = quoted[stream, line]
                mark = Text(f"{_mark(cited, result.evidence[0])}> {line}", style="bold")
                table.add_row(mark, Text(_quote(cited, not number, whole), style="bold"))
            else:
                table.add_row(str(line), _OneRow(_clipped(text, _WHOLE)))
    return table


def _lines(one: Evidence, whole: bool, is_first: bool) -> Iterator[tuple[int, str]]:
    """Yield a quoted line, with its informative neighbours if there is room."""
    before, after = (one.before, one.after) if whole else (one.before[-_BEFORE:], one.after[:_AFTER])
    if whole or is_first:
        yield from ((one.line - len(before) + back, text) for back, text in enumerate(before) if _says(text))
    yield one.line, one.quote
    if whole or is_first:
        yield from ((one.line + ahead, text) for ahead, text in enumerate(after, 1) if _says(text))


def _says(text: str) -> bool:
    """Return whether a line has more than the marks below source code."""
    return bool(origin(shown(text)).message.strip(" ~^"))


def _mark(one: Evidence, first: Evidence) -> str:
    """Return an exception's relation to the decisive one of its chain, or ""."""
    return "" if one.rule != "structure/chain" else "root " if one.line < first.line else "last "


def _quote(one: Evidence, is_first: bool, whole: bool) -> str:
    """Return the quoted line cut to some rows, a metric line to its loss."""
    text = _clipped(one.quote, _WORDS)
    if whole:
        return _shortened(text, _WHOLE)
    if one.rule == "progress/loss" and (place := text.lower().find("loss")) > _AROUND:
        end = place + _AROUND
        return f"…{text[place - _AROUND : end]}{'…' if end < len(text) else ''}"
    return _shortened(text, _QUOTED if is_first and not one.rule.startswith("progress/") else _CITED)


def _shortened(text: str, words: int) -> str:
    """Cut a text in its middle: an error's name and meaning are at its ends."""
    if len(text) <= words:
        return text
    tail = words * 2 // 5
    return f"{text[: words - tail - 1]}…{text[-tail:]}"


class _OneRow:
    """A line on one row, however wide."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        words = options.max_width
        while words > 1 and cell_len(text := _shortened(self._text, words)) > options.max_width:
            words -= 1
        yield Text(text, style="dim", no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, min(cell_len(self._text), options.max_width)))


def _clipped(text: str, words: int) -> str:
    return harmless(text, words)


def _because(result: Verdict) -> str:
    """Return why the decisive line is the cause, by its role, or ""."""
    first = next(iter(result.evidence), None)
    roles = [one.role for one in result.ranks if first and (one.stream, one.line) == (first.stream, first.line)]
    return f"line {first.line} {_ROLES[roles[0]]}" if first and roles and roles[0] in _ROLES else ""


def _after(course: WriterCourse) -> str:
    """Return what a writer did after an error, and the conclusion from it."""
    writer = f" of {course.writer}" if course.writer else ""
    lines = f"{course.lines} more line{'' if course.lines == 1 else 's'}" if course.lines else "no more line"
    work = ", ".join(f'"{kind} ..."' for kind in course.work)
    of_work = f", {course.work_lines or 'none'} of its work ({work})" if work and course.lines else ""
    fate = f"survived: {course.survived}" if course.survived else "may have ended it"
    place = _place(course.stream, course.line)
    return f"{course.reason}{writer} ({place}): {lines} of its writer kept{of_work}; {fate}"


def _fates(result: Verdict) -> Table:
    table = Table("ranks", "", "fate", "", "from", box=None, header_style="dim")
    for one in result.fates:
        place = _place(one.stream, one.line) if one.line else ""
        table.add_row(one.ranks, f"{one.count:,}", one.fate, safe(one.what, _WORDS), place)
    return table


def _explain(console: Console, result: Verdict) -> None:
    """Print what decided, why it beat the other errors, and what the filter rules removed."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("decided by", Text(_decided(result.decided_by)))
    if because := _because(result):
        table.add_row("because", because)
    for number, one in enumerate(result.symptoms):
        place = _place(one.stream, one.line)
        against = one.why or ("it follows from the cause" if one.explained_by else "nothing explains it")
        text = Text(f"{one.reason} ({one.count}, from {place}): {against}")
        table.add_row("" if number else "and not", text)
    said = {one.reason for one in result.symptoms}
    for number, other in enumerate([one for one in result.alternatives if one.reason not in said][:_CONSIDERED]):
        table.add_row("" if number else "considered", Text(safe(f"{other.reason}: {other.why}", 400)))
    for number, course in enumerate(result.courses):
        table.add_row("" if number else "after it", Text(safe(_after(course), _WORDS)))
    account = result.compression
    table.add_row(
        "log",
        f"{account.lines_in:,} lines, {account.lines_kept:,} kept; {account.bytes_in:,} bytes, "
        f"{account.bytes_kept:,} kept; {result.seconds:.2f} s",
    )
    table.add_row("fingerprint", f"{result.fingerprint}, rule book {result.decided_by.rulebook}")
    console.print(Padding(table, (0, 0, 1, 2)))
    taken = Table("filter rule", "lines", "first", "last", box=None, header_style="dim")
    for rule_id, count in sorted(account.rules.items(), key=lambda item: -item[1].lines)[:20]:
        taken.add_row(rule_id, f"{count.lines:,}", str(count.first), str(count.last))
    console.print(taken)
