"""`logdoctor batch`: diagnose an archive of logs into one table."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from logdoctor.cli.batch_results import ServiceSource, Wanted, conclude, leave, prepare
from logdoctor.cli.exits import interruptible, plain
from logdoctor.cli.options import Place, place_options, served_settings, settings_with
from logdoctor.extras import require

if TYPE_CHECKING:
    from logdoctor.pipeline.batch.rows import Row
    from logdoctor.pipeline.batch.run import Answer, Batch, Engine
    from logdoctor.pipeline.batch.sources import Mode, Source, Walk

_SERVICE = "service:"
_file = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("sources", nargs=-1, metavar="SRC...")
@click.option("--out", required=True, type=_file, help="The table to make.")
@click.option("--each", "mode", flag_value="each", help="Every log is a job of its own.")
@click.option("--jobs", "mode", flag_value="jobs", help="Every folder with logs is one job.")
@click.option("--files-from", type=click.File("rb"), help="A file with more SRC, one on a line; - for standard input.")
@click.option(
    "--metadata",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What is known of the jobs, CSV or Parquet: path, job, framework, exit_code, nodes, user, start, end, gpus.",
)
@click.option("--ask", is_flag=True, help="If no rule knows a cause, search past cases, then ask the model.")
@click.option("--ray", metavar="ADDRESS", help="Work on the Ray cluster there; `auto`: on the one of this machine.")
@click.option("--html", "page", type=_file, help="Also make a page with charts, in one file.")
@click.option(
    "--compare", "old", type=click.Path(exists=True, path_type=Path), help="Show what changed since this table."
)
@click.option("--post", is_flag=True, help="Enter what is found into the service or data folder, with its own dates.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@place_options
def batch(
    sources: tuple[str, ...],
    out: Path,
    mode: "Mode | None",
    files_from: IO[bytes] | None,
    metadata: Path | None,
    ask: bool,
    ray: str | None,
    page: Path | None,
    old: Path | None,
    post: bool,
    as_json: bool,
    place: Place,
) -> None:
    """Diagnose an archive of logs into one table.

    The table has a row for each attempt. A file that cannot be read gets a row, too, and does not end the run.

    A SRC is a log (plain, gzip or Zstandard), a folder, a pattern, a tar (compressed or not), a URL such as
    s3://BUCKET/PREFIX, or a query of a service's archive: service:?job=NAME&since=2026-03-01. In folders and tars,
    files named like logs are read: *.log, *.txt, *.out, *.err, rank0, ... Logs of a folder whose names differ only in
    the number of a rank or node are one job; every other log is a job of its own.

    To resume an interrupted run, give the same command again.

    The table is Parquet, CSV (*.csv) or JSON lines (*.jsonl). With --data-dir, the rules learned there are used, too.

    Exit codes: 0 the table is made, 3 it is made and --compare found changes, 2 could not work, 130 interrupted.
    """
    if not sources and files_from is None:
        raise click.UsageError("Name what is to be diagnosed, or use --files-from.")
    require("pyarrow")
    listed = Path(files_from.name) if files_from is not None else None
    read = {"--compare": old, "--metadata": metadata, "--files-from": listed}
    _require_apart(out, page, read, sources)
    with interruptible("Give the same command again to go on."):
        wanted = Wanted(page, old, post, as_json)
        names = _named(sources, files_from, [path for path in (out, page) if path], out)
        names = names if ray is None else _readable_on_ray(names)
        leave(_make(names, out, mode or "", metadata, place, ask, ray, wanted))


def _named(sources: tuple[str, ...], files_from: IO[bytes] | None, written: list[Path], out: Path) -> Iterator[str]:
    from logdoctor.pipeline.batch.run import parts_of

    yield from sources
    taken, parts = {os.path.realpath(path) for path in written}, os.path.realpath(parts_of(out))
    for line in files_from or ():
        if line.strip():
            name = os.fsdecode(line.rstrip(b"\r\n"))
            if "\0" not in name and os.path.realpath(name) in taken:
                raise click.UsageError(f"{plain(name)}, named by --files-from, would be written over.")
            if "\0" not in name and f"{os.path.realpath(name)}/".startswith(f"{parts}/"):
                raise click.UsageError(f"{plain(name)}, named by --files-from, is removed when --out is made.")
            yield name


def _require_apart(out: Path, page: Path | None, read: dict[str, Path | None], sources: Iterable[str]) -> None:
    """Refuse to overwrite inputs, to write one place twice, or to use a temporary folder."""
    from logdoctor.pipeline.batch.run import parts_of

    written = {"--out": out, "--html": page}
    given = [(what, os.fspath(path)) for what, path in (written | read).items() if path is not None]
    parts = os.path.realpath(parts_of(out))
    seen: dict[str, str] = {}
    for what, path in (*given, *(("a SRC", name) for name in sources)):
        real = os.path.realpath(path)
        if f"{real}/".startswith(f"{parts}/"):
            raise click.UsageError(f"{what} lies in {plain(parts)}, which is removed when --out is made.")
        first = seen.setdefault(real, what)
        if first != what and first in written:
            raise click.UsageError(f"{first} and {what} are the same file, {plain(path)}; it would be written over.")


def _readable_on_ray(names: Iterable[str]) -> Iterator[str]:
    """Return the names once all are checked, before a cluster is reached; `UsageError` for `service:`."""
    every = list(names)
    if any(name.startswith(_SERVICE) for name in every):
        raise click.UsageError("service: cannot be combined with --ray: its logs are read from this machine.")
    return iter(every)


def _make(
    names: Iterator[str],
    out: Path,
    mode: "Mode",
    metadata: Path | None,
    place: Place,
    ask: bool,
    ray: str | None,
    wanted: Wanted,
) -> bool:
    from logdoctor import wiring
    from logdoctor.pipeline.batch.outputs import is_parquet
    from logdoctor.pipeline.batch.rows import Provenance
    from logdoctor.pipeline.batch.run import Batch, parts_folder, parts_of, unpacked
    from logdoctor.pipeline.batch.sources import Walk
    from logdoctor.pipeline.batch.told import Table
    from logdoctor.wiring import batch as parts

    data_dir = place.data_dir
    settings = served_settings(data_dir) if data_dir and not ask else settings_with(data_dir)
    prepared = prepare(wanted, place)
    taught = settings if data_dir or ask else None
    service = ServiceSource(place)
    judge = parts.judge(settings, parts.learned(taught) if taught else parts.NOTHING, service.fetch(parts.fetch))
    judge = judge.unpacking_in(unpacked(parts_of(out)))
    told = parts.told(Table(metadata) if metadata else None, taught)
    is_open, asked = None, ""
    answer: Answer = _unasked
    if ask:
        from logdoctor.cli.batch_asking import RowAsking

        asking = RowAsking(settings, judge, service.fetch(parts.fetch_apart), parts_of(out))
        is_open, answer, asked = asking.is_open, asking.answer, asking.digest
    with ExitStack() as stack:
        engine = parts.processes(judge, settings.workers)
        if ray is not None:
            from logdoctor.wiring.ray_batch import cluster

            engine = stack.enter_context(cluster(settings, judge, ray, _say))
        folder = stack.enter_context(parts_folder(out))
        fetch = service.fetch(parts.fetch_apart)
        run = Batch(folder, judge.digest, wiring.limits(settings), fetch, told, is_open, asked)
        walk = Walk(mode, parts.ListingApart, service.archived)
        diagnose_planned(run, engine, walk, plan(run, walk, names))
        table = out if is_parquet(out) else folder / "table.parquet"
        line = _Line()
        if run.open:
            click.echo(f"Asking about {run.open:,} of them ...", err=True)
            answer = counted(answer, run.open, line)
        run.finish(table, Provenance(rules=judge.scanner("").book.digest), answer)
        line.end()
        changed = conclude(table, out, wanted, prepared)
        run.clear()
    return changed


def _unasked(source: "Source", row: "Row") -> "Row | None":
    return None


def _say(text: str) -> None:
    click.echo(text, err=True)


def counted(answer: "Answer", total: int, line: "_Line") -> "Answer":
    """Wrap an answer so that it reports how many of the total are answered."""
    number = count()

    def answered(source: "Source", row: "Row") -> "Row | None":
        line.say(f"Asked about {next(number):,} of {total:,}")
        return answer(source, row)

    return answered


def plan(run: "Batch", walk: "Walk", names: Iterator[str]) -> int:
    """Plan a run and print how its sources were grouped. Return the bytes of the archive."""
    line = _Line()
    number = size = 0
    for number, size in run.plan(walk.sources(names)):
        line.say(f"Found {number:,} logs, {_mb(size)}")
    line.end()
    first = f"(the first is {plain(walk.first_job)})"
    jobs = f", {_count(walk.jobs, 'folder')} for one job each {first}" if walk.jobs else ""
    archived = f", {_count(walk.archived, 'attempt')} of the service" if walk.archived else ""
    taken = f"Took {_count(walk.logs, 'log')} for a job each{jobs}{archived}; --each and --jobs say otherwise."
    click.echo(taken, err=True)
    return size


def diagnose_planned(run: "Batch", engine: "Engine", walk: "Walk", total: int) -> None:
    """Diagnose the planned logs; print progress, the time left, and a summary."""
    line = _Line()
    begin = time.monotonic()
    for _ in run.diagnose(engine, walk.takes):
        seconds = time.monotonic() - begin
        rate = (run.bytes - run.resumed_bytes) / seconds
        left = (total - run.bytes) / rate if rate else 0.0
        share = run.bytes / total if total else 1.0
        line.say(f"{share:4.0%} of {_mb(total)}, {run.attempts:,} logs, {rate / 1e6:.0f} MB/s, {_time(left)} left")
    line.end()
    click.echo(f"Diagnosed {_count(run.attempts, 'attempt')} in {_time(time.monotonic() - begin)}.", err=True)
    for number, what in (
        (run.resumed, f"{run.resumed:,} of them by an earlier run that was broken off"),
        (run.unread, f"{run.unread:,} of them could not be read: the column `error` says why"),
        (walk.skipped, f"Left out {_count(walk.skipped, 'file')} not named like a log"),
    ):
        if number:
            click.echo(f"{what}.", err=True)


class _Line:
    """A progress line on standard error: overwritten on a terminal, else printed every ten seconds."""

    def __init__(self, every: float | None = None) -> None:
        self._every = every if every is not None else 0.2 if sys.stderr.isatty() else 10.0
        self._said = time.monotonic()
        self._is_open = False

    def say(self, text: str) -> None:
        """Print it, unless something was printed just now."""
        if time.monotonic() - self._said < self._every:
            return
        self._said = time.monotonic()
        self._is_open = sys.stderr.isatty()
        click.echo(f"\r{text}\x1b[K" if self._is_open else text, err=True, nl=not self._is_open)

    def end(self) -> None:
        """End the line."""
        if self._is_open:
            click.echo("\r\x1b[K", err=True, nl=False)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _mb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
