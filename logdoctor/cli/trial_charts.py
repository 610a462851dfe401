"""Show plans of trials: as bars in a terminal, as SVG, as JSON; and how policies compare."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from xml.sax.saxutils import escape

from rich.console import Console
from rich.table import Table
from rich.text import Text

from logdoctor.report import length
from logdoctor.show import ascii_json, safe
from logdoctor.trials.comparing import CLAIMED, SIGMA, TOLERANCE, Compared, Planned
from logdoctor.trials.outlook import Outlook
from logdoctor.trials.planning import Placed

_COLOURS = ("blue", "green", "magenta", "cyan", "yellow", "red")
_FILLS = ("#4269d0", "#3ca951", "#a463f2", "#6cc5b0", "#efb118", "#ff725c")
_WIDTH, _ROW, _LABEL = 1200, 22, 90  # of a picture, in pixels
_NAME = 100  # characters


def show(planned: Outlook, as_json: bool) -> None:
    """Print a plan: a bar for each worker, a row for each set, and the bound."""
    if as_json:
        print(ascii_json(_as_json(planned)))
        return
    console = Console(highlight=False)
    for worker in range(planned.workers):
        console.print(_bar(planned, worker, max(20, console.width - 5)), no_wrap=True)
    console.print(_sets(planned))
    console.print(f"all scored after {length(planned.makespan)}, with {planned.workers} workers")
    console.print(
        f"no plan is done before {length(planned.bound)} (proven{'' if planned.closed else ' so far'}); "
        f"this one takes {planned.ratio:.3f} times that"
    )
    if any(not one.runs for one in planned.times.values()):
        console.print("~ a guess from samples and tokens: the set has not run yet", style="dim")


def svg(planned: Outlook) -> str:
    """Return a plan as a picture: a row for each worker, and below one for each set that is scored for long."""
    end = planned.makespan or 1.0
    colour = _colouring(planned, _FILLS)
    whole = max((one.end for one in planned.placed), default=0.0)
    late = [name for name, at in _scored_at(planned).items() if at > whole]
    rows = planned.workers + len(late)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LABEL + _WIDTH} {(rows + 2) * _ROW}" '
        'font-family="sans-serif" font-size="11">'
    ]

    def bar(row: int, start: float, stop: float, fill: str, name: str, said: str) -> None:
        x, width = _LABEL + start / end * _WIDTH, max(1.0, (stop - start) / end * _WIDTH - 1)
        parts.append(
            f'<g><title>{escape(said)}</title><rect x="{x:.1f}" y="{row * _ROW + 2}" width="{width:.1f}" '
            f'height="{_ROW - 4}" fill="{fill}"/>'
        )
        shown = name[: int(width / 7)]
        parts.append(f'<text x="{x + 3:.1f}" y="{row * _ROW + 15}" fill="white">{escape(shown)}</text></g>')

    def label(row: int, text: str) -> None:
        parts.append(f'<text x="0" y="{row * _ROW + 15}">{escape(text)}</text>')

    for worker in range(planned.workers):
        label(worker, f"worker {worker}")
    for one in planned.placed:
        said = f"{safe(one.shard.set, _NAME)} {one.shard.start}-{one.shard.end}: {one.start:.0f} s to {one.end:.0f} s"
        bar(one.worker, one.start, one.end, colour(one.shard.set), safe(one.shard.set, _NAME), said)
    for row, name in enumerate(late, planned.workers):
        label(row, "scoring")
        at = _scored_at(planned)[name]
        said = f"scoring of {safe(name, _NAME)}: until {at:.0f} s"
        bar(row, at - planned.times[name].score, at, colour(name), safe(name, _NAME), said)
    label(rows, f"all scored after {length(planned.makespan)}; no plan before {length(planned.bound)}")
    return "\n".join([*parts, "</svg>\n"])


def show_compared(found: Sequence[Compared], drawn: int, as_json: bool) -> None:
    """Print how many times shorter than a trial for each set the policies are, and how near plans are to the bound."""
    nodes = sorted({one.nodes for one in found})
    rows = {name: [_spread([of(one) for one in found if one.nodes == count]) for count in nodes] for name, of in _ROWS}
    if as_json:
        each = ("median", "least", "most")
        told = {
            name: {
                str(count): dict(zip(each, spread, strict=True)) for count, spread in zip(nodes, spreads, strict=True)
            }
            for name, spreads in rows.items()
        }
        print(ascii_json({"workloads": len(found) // len(nodes), "drawn": drawn, "wrong_sigma": SIGMA, "rows": told}))
        return
    console = Console(highlight=False)
    claimed = ", ".join(f"{ratio} on {count}" for count, ratio in CLAIMED.items())
    console.print(
        f"{len(found) // len(nodes)} workloads of 63 sets, of {drawn} that were drawn: on these the paper's policy is "
        f"within {TOLERANCE} of what the paper says (nodes: {claimed})"
    )
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("times shorter than a trial for each set: median (least to most)")
    for count in nodes:
        table.add_column(f"{count} node{'s' if count > 1 else ''} of 8", justify="right", no_wrap=True)
    for name, spreads in rows.items():
        table.add_row(name, *(f"{middle:.3f} ({least:.3f} to {most:.3f})" for middle, least, most in spreads))
    console.print(table)


def _faster(of: Callable[[Compared], float]) -> Callable[[Compared], float]:
    return lambda one: one.trial_per_set / of(one)


def _plan_rows(name: str, of: Callable[[Compared], Planned]) -> Iterable[tuple[str, Callable[[Compared], float]]]:
    yield name, _faster(lambda one: of(one).right)
    yield f"{name}, times guessed wrong", _faster(lambda one: of(one).wrong)
    yield f"{name}, bound", _faster(lambda one: of(one).bound)
    yield f"{name}, in times the bound", lambda one: of(one).right / of(one).bound
    yield f"{name}, half off in times right", lambda one: of(one).half_off / of(one).right
    yield f"{name}, wrong in times right", lambda one: of(one).wrong / of(one).right


_ROWS: tuple[tuple[str, Callable[[Compared], float]], ...] = (
    ("OpenCompass NaivePartitioner", _faster(lambda one: one.stages)),
    ("OpenCompass SizePartitioner", _faster(lambda one: one.sizes)),
    ("OpenCompass NumWorkerPartitioner", _faster(lambda one: one.workers)),
    ("paper", _faster(lambda one: one.paper)),
    *_plan_rows("plan, a command for each shard", lambda one: one.commands),
    *_plan_rows("plan, serve", lambda one: one.served),
)


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), min(values), max(values)


def _colouring(planned: Outlook, colours: Sequence[str]) -> Callable[[str], str]:
    numbers = {one.name: number for number, one in enumerate(planned.sets)}
    return lambda name: colours[numbers[name] % len(colours)]


def _bar(planned: Outlook, worker: int, width: int) -> Text:
    """Return the bar of a worker: each shard begins with a mark and the name of its set."""
    colour = _colouring(planned, _COLOURS)
    text = Text(f"{worker:>3} ", style="dim")
    at = 0
    for one in planned.placed:
        if one.worker == worker:
            start, end = (round(when / (planned.makespan or 1.0) * width) for when in (one.start, one.end))
            text.append(" " * (start - at))
            name = f"▏{safe(one.shard.set, _NAME)}"[: end - start]
            text.append(name.ljust(end - start, "─"), style=colour(one.shard.set))
            at = end
    return text


def _sets(planned: Outlook) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("set", overflow="fold")
    for name in ("samples", "shards", "inference", "scoring", "scored at", "earlier runs"):
        table.add_column(name, justify="right", no_wrap=True)
    shards = Counter(one.shard.set for one in planned.placed)
    scored = _scored_at(planned)
    seconds = _seconds(planned.placed)
    samples = {one.name: one.samples for one in planned.sets}
    for name in sorted(samples, key=lambda name: -scored[name]):
        times = planned.times[name]
        row = (str(shards[name]), length(seconds[name]), length(times.score), length(scored[name]))
        table.add_row(Text(safe(name, _NAME)), str(samples[name]), *row, str(times.runs) if times.runs else "~")
    return table


def _seconds(placed: Iterable[Placed]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in placed:
        found[one.shard.set] += one.end - one.start  # type: ignore[assignment]
    return found


def _scored_at(planned: Outlook) -> dict[str, float]:
    made = {one.name: 0.0 for one in planned.sets}
    for one in planned.placed:
        made[one.shard.set] = max(made[one.shard.set], one.end)
    return {name: at + planned.times[name].score for name, at in made.items()}


def _as_json(planned: Outlook) -> dict[str, object]:
    return {
        "workers": planned.workers,
        "load": planned.load,
        "makespan": planned.makespan,
        "bound": planned.bound,
        "bound_closed": planned.closed,
        "ratio": planned.ratio,
        "sets": [
            {"set": one.name, "samples": one.samples, **planned.times[one.name]._asdict()} for one in planned.sets
        ],
        "shards": [
            {"set": one.shard.set, "from": one.shard.start, "to": one.shard.end, "worker": one.worker}
            | {"begins": one.start, "ends": one.end}
            for one in planned.placed
        ],
    }
