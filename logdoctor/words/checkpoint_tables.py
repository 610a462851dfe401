"""Print checkpoints in a terminal. Their names are untrusted, and are made harmless here."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from logdoctor.errors import CheckpointError
from logdoctor.job.recovery.catalogue import Checkpoint, Onset, Pin, Refused, Verified, skip_reason
from logdoctor.job.recovery.catalogue.interval import Advice, Failures, Loss, Measured
from logdoctor.jobs.report import length
from logdoctor.words.show import ascii_json, day, facts, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = 300  # characters of a name
_WORDS = 400  # characters of a reason
_COLOURS = {"torn": "red", "suspect": "yellow", "healthy": "green", "complete": ""}


def checkpoints(every: Sequence[Checkpoint], as_json: bool) -> None:
    """Print a row for each checkpoint with its problems below, or one JSON object."""
    if as_json:
        for one in every:
            print(ascii_json(_as_json(one)))
        return
    console = Console(highlight=False)
    if not every:
        console.print("no checkpoints")
        return
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("checkpoint", overflow="fold")
    table.add_column("step", justify="right")
    table.add_column("data", justify="right")
    table.add_column("saved (UTC)", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for one in every:
        state = _state(one)
        row = (_number(one.step), _number(one.data_position), day(one.saved_at), size_words(one.bytes))
        table.add_row(Text(safe(one.name, _NAME)), *row, Text(state, style=_COLOURS[state]))
    console.print(table)
    for one in every:
        _remarks(console, one)


def _remarks(console: Console, one: Checkpoint) -> None:
    """Print the remarks that a row has no room for."""
    said = [f"torn: {one.torn}"] if one.torn else []
    said += [f"suspect: {one.suspect}"] if one.suspect else []
    said += [f"{one.tries} loads of it failed"] if one.tries else []
    said += [f"pinned by {one.pinned.by}{f': {one.pinned.why}' if one.pinned.why else ''}"] if one.pinned else []
    for words in (*said, *one.notes):
        console.print(Text(f"{safe(one.name, _NAME)}: {safe(words, _WORDS)}", style="dim"), soft_wrap=True)


def verified(one: Checkpoint, found: Verified, as_json: bool) -> None:
    """Print the result of reading a checkpoint whole."""
    if as_json:
        print(ascii_json({"name": one.name, "path": one.path, "complete": not found.torn, **found._asdict()}))
        return
    if found.torn:
        words = f"torn: {found.torn}"
    elif found.compared == found.files:
        words = f"whole: the checksums of {_files(found.files)} agree"
    else:
        words = f"its files can be read; {found.compared:,} of {_files(found.files)} had a checksum to compare"
    suspect = [f"suspect: {one.suspect}"] if one.suspect else []
    for text in (*suspect, words, *found.notes):
        click.echo(f"{safe(one.name, _NAME)}: {safe(text, _WORDS)}")


def chosen(every: Sequence[Checkpoint], one: Checkpoint | Refused, onset: Onset, as_json: bool) -> None:
    """Print the path of a checkpoint, and on standard error why newer ones were skipped."""
    over = {other.name: why for other in reversed(every) if (why := skip_reason(other, onset))}
    if isinstance(one, Refused):
        if as_json:
            print(ascii_json({"refused": one.reason, "skip_reason": over}))
        else:
            click.echo(f"logdoctor: {safe(one.reason, 4 * _WORDS)}", err=True)
        return
    newer = {other.name for other in every if other.order >= one.order}
    over = {name: why for name, why in over.items() if name in newer}
    if as_json:
        print(ascii_json({**_as_json(one), "skip_reason": over}))
        return
    if not one.path.isprintable():
        raise CheckpointError(safe(one.path, _NAME), "has characters that cannot be printed", "Use --json.")
    for name, why in over.items():
        click.echo(f"passed over {safe(name, _NAME)}: {safe(why, _WORDS)}", err=True)
    click.echo(one.path)


def pinned(name: str, pin: Pin, as_json: bool) -> None:
    """Print a pin."""
    if as_json:
        print(ascii_json({"name": name, "pinned": pin}))
    else:
        click.echo(f"pinned {safe(name, _NAME)}{f' until {day(pin.until)} UTC' if pin.until else ''}")


def unpinned(name: str, was: bool, as_json: bool) -> None:
    """Print that a pin was removed."""
    if as_json:
        print(ascii_json({"name": name, "pinned": None, "was_pinned": was}))
    else:
        click.echo(f"unpinned {safe(name, _NAME)}" if was else f"{safe(name, _NAME)} was not pinned")


def pruned(gone: Sequence[Checkpoint], done: bool, as_json: bool) -> None:
    """Print which checkpoints were removed, or would be."""
    if as_json:
        for one in gone:
            print(ascii_json({**_as_json(one), "removed": done}))
        return
    word = "removed" if done else "would remove"
    for one in gone:
        click.echo(f"{word} {safe(one.name, _NAME)}  {size_words(one.bytes)}")
    total = size_words(sum(one.bytes for one in gone))
    click.echo(f"{word} {_checkpoints(len(gone))}, {total}{'' if done or not gone else '; do it with --yes'}")


def advice(found: Advice, measured: Measured, failures: Failures | None, given: bool, as_json: bool) -> None:
    """Print how often to save, and the inputs of the calculation."""
    if as_json:
        print(ascii_json({"advice": found, "measured": measured, "failures": failures}))
        return
    console = Console(highlight=False)
    console.print(Text(f"save every {length(found.daly)}{_in_steps(found, measured)}", style="bold"))
    rows = ((name, Text(words)) for name, words in _inputs(found, measured, failures, given))
    console.print(Padding(facts(rows), (0, 0, 1, 2)))
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 2))
    table.add_column("lost per day of running")
    for name in ("interval", "saving", "failures", "in all"):
        table.add_column(name, justify="right")
    for name, one in (("at the best interval", found.best), ("at the present one", found.present)):
        if one is not None:
            table.add_row(name, *_costs(one))
    console.print(table)


def _inputs(found: Advice, measured: Measured, failures: Failures | None, given: bool) -> "Iterator[tuple[str, str]]":
    """Yield the inputs of the calculation as (name, words)."""
    saves = "as given" if given else f"median of {measured.saves:,} manifests, from copy to disk: training waits less"
    yield "a save takes", f"{_span(found.save)} ({saves})"
    if failures is None:
        yield "between failures", f"{length(found.mtbf)} (as given)"
    else:
        of = f"{failures.failures:,} failures in {length(failures.ran)} of {failures.attempts:,} attempts"
        yield "between failures", f"{length(found.mtbf)} ({of})"
    yield "a restart takes", _span(found.restart)
    yield "Young", f"sqrt(2 x {found.save:.4g} s x {found.mtbf:.4g} s) = {found.young:,.0f} s"
    yield "Daly", f"{found.daly:,.0f} s"
    if found.present is not None:
        measures = found.present.interval == measured.interval
        of = f"median of {measured.intervals:,} intervals" if measures else "as given"
        yield "present", f"{length(found.present.interval)} ({of})"


def _in_steps(found: Advice, measured: Measured) -> str:
    """Return the interval in steps, if their duration is known."""
    if not measured.steps or not measured.interval:
        return ""
    return f", {max(1, round(found.daly / measured.interval * measured.steps)):,} steps"


def _costs(one: Loss) -> tuple[str, ...]:
    return length(one.interval), *(length(seconds) for seconds in (one.saving, one.failing, one.total))


def _span(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 60 else length(seconds)


def _state(one: Checkpoint) -> str:
    if one.torn:
        return "torn"
    return "complete" if one.health == "unknown" else one.health


def _as_json(one: Checkpoint) -> dict[str, object]:
    return {**msgspec.structs.asdict(one), "complete": one.complete}


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def size_words(count: int) -> str:
    """Format bytes in their largest unit."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def _checkpoints(count: int) -> str:
    return f"{count:,} checkpoint{'' if count == 1 else 's'}"
