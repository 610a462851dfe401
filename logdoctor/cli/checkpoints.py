"""`logdoctor checkpoints`: list, choose, keep and prune checkpoints, and advise how often to save."""

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logdoctor.cli.exits import FAILED, NOTHING_FAILED, ExitCodeGroup
from logdoctor.cli.options import Place, by_option, login, place_options
from logdoctor.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logdoctor.job.recovery.catalogue import Checkpoint, Onset
    from logdoctor.job.recovery.catalogue.interval import Measured

_HOUR = 3600.0


def _time(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Parse a time into seconds since the epoch; ISO 8601 without a zone is UTC."""
    if value is None:
        return None
    from logdoctor.job.recovery.catalogue.times import seconds_of

    try:
        found = float(value)
    except ValueError:
        found = seconds_of(value) or math.nan
    if not math.isfinite(found):
        raise click.BadParameter(f"{value[:60]!r} is no time: write 2026-11-23T22:00:00Z, or seconds since the epoch.")
    return found


class _FolderOrURL(click.Path):
    """An existing folder, as a `Path`, or the URL of a mirror, as a `str`."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or the URL as it is."""
        return value if isinstance(value, str) and "://" in value else super().convert(value, param, ctx)


_folder = click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
_place = click.argument("place", type=_FolderOrURL(), metavar="FOLDER|URL")
_name = click.argument("name")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_lines = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per checkpoint and line.")
_before = click.option("--before", type=click.IntRange(0), metavar="STEP", help="Step at which the run went wrong.")
_onset = click.option("--onset", metavar="TIME", callback=_time, help="Time at which the run went wrong.")
_MOST = 1e9  # seconds, hours or days


def _finite(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Return a finite number: FloatRange lets NaN through."""
    if value is not None and not 0 <= value <= _MOST:
        raise click.BadParameter(f"{value} is not in the range up to {_MOST:g}.")
    return value


_seconds = click.FloatRange(min=0, min_open=True)


@click.group(cls=ExitCodeGroup)
def checkpoints() -> None:
    """List checkpoints, choose one, pin, prune.

    Reads those of torch (DCP), Megatron-LM, DeepSpeed, the Trainer of transformers, Lightning, NeMo and logdoctor.
    Nothing in a checkpoint is executed.
    """


@checkpoints.command("list")
@_place
@_before
@_onset
@click.option("--watch", is_flag=True, help="Go on, and print how far saves of our own checkpointer are, until Ctrl-C.")
@_lines
def checkpoints_list(place: Path | str, before: int | None, onset: float | None, watch: bool, as_json: bool) -> None:
    """List the checkpoints in FOLDER or the mirror at URL.

    With --before or --onset, those saved at or after that point are suspect. With --watch --json, one object follows
    for each change: stage, bytes saved and expected, bytes per second.
    """
    from logdoctor.cli import checkpoint_watch
    from logdoctor.words import checkpoint_tables

    if watch and not isinstance(place, Path):
        raise click.UsageError("--watch wants the FOLDER that is saved to; its mirror gets what is whole.")
    found = _every(place, _onset_of(before, onset))
    if not found and isinstance(place, Path) and (above := _as_checkpoint(place)):
        cause = "is itself a checkpoint, not a folder of checkpoints"
        raise CheckpointError(str(place), cause, f"List those beside it: logdoctor checkpoints list {above}")
    checkpoint_tables.checkpoints(found, as_json)
    if watch and isinstance(place, Path):
        sys.stdout.flush()
        checkpoint_watch.watch(place, as_json)


@checkpoints.command("verify")
@_place
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_lines
def checkpoints_verify(place: Path | str, names: tuple[str, ...], as_json: bool) -> None:
    """Read checkpoints whole and compare checksums.

    Reads all, or those with a NAME.

    Exit codes: 0 all are intact, 1 one is torn or has changed, 2 could not work.
    """
    from logdoctor.job.recovery import catalogue
    from logdoctor.job.recovery.catalogue import mirrored
    from logdoctor.words import checkpoint_tables

    every = _every(place)
    chosen = [_named(every, place, name) for name in names] if names else every
    verify = catalogue.verify if isinstance(place, Path) else mirrored.verify
    failed = False
    for one in chosen:
        verified = verify(one)
        checkpoint_tables.verified(one, verified, as_json)
        failed = failed or bool(verified.torn)
    sys.exit(FAILED if failed else NOTHING_FAILED)


@checkpoints.command("best")
@_place
@_before
@_onset
@_json
def checkpoints_best(place: Path | str, before: int | None, onset: float | None, as_json: bool) -> None:
    """Print the path or URL of the checkpoint to resume from.

    It is the newest that is complete and not suspect. With --before or --onset it is older than that point.

    Exit codes: 0 here it is, 1 there is none, 2 could not work.
    """
    from logdoctor.job.recovery import catalogue
    from logdoctor.words import checkpoint_tables

    every = _every(place)
    chosen = catalogue.best(every, before, onset)
    checkpoint_tables.chosen(every, chosen, catalogue.Onset(before, onset), as_json)
    sys.exit(FAILED if isinstance(chosen, catalogue.Refused) else NOTHING_FAILED)


@checkpoints.command("pin")
@_folder
@_name
@click.option("--why", default="", help="Reason, for whoever looks next.")
@click.option("--days", type=_seconds, callback=_finite, help="Days until the pin ends by itself; default: never.")
@by_option
@_json
def checkpoints_pin(folder: Path, name: str, why: str, days: float | None, by: str | None, as_json: bool) -> None:
    """Keep the checkpoint NAME from being removed."""
    from logdoctor.job.recovery import catalogue
    from logdoctor.words import checkpoint_tables

    one = _named(catalogue.read(folder), folder, name)
    until = time.time() + days * 24 * _HOUR if days else None
    checkpoint_tables.pinned(one.name, catalogue.pin(one, by or login(), why, until), as_json)


@checkpoints.command("unpin")
@_folder
@_name
@_json
def checkpoints_unpin(folder: Path, name: str, as_json: bool) -> None:
    """Remove the pin of the checkpoint NAME."""
    from logdoctor.job.recovery import catalogue
    from logdoctor.words import checkpoint_tables

    checkpoint_tables.unpinned(name, catalogue.unpin(folder, name), as_json)


@checkpoints.command("prune")
@_folder
@click.option("--keep", type=click.IntRange(1), default=3, show_default=True, help="How many healthy ones stay.")
@click.option("--yes", is_flag=True, help="Remove them. Without it, only print what would be removed.")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed; the default.")
@_lines
def checkpoints_prune(folder: Path, keep: int, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove old checkpoints.

    With --yes, those that stay are read whole first; a damaged one does not count, and is marked as suspect.

    Never removed are pinned ones, the newest complete one, the last healthy one, those that a marker of their framework
    names, and torn ones that may still be written. Stop the job first, or let it prune its own checkpoints: other
    programs do not know about pins.
    """
    from logdoctor.job.recovery import catalogue
    from logdoctor.words import checkpoint_tables

    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run cannot be combined.")
    found, now = catalogue.read(folder), time.time()
    if not yes:
        return checkpoint_tables.pruned(catalogue.removable(found, keep, now), yes, as_json)
    old, damaged = catalogue.removable_once_verified(found, keep, now, lambda one: catalogue.verify(one).torn)
    for one in damaged:
        catalogue.suspected(one, one.suspect)
        click.echo(f"{one.name} is damaged and does not count: {one.suspect}", err=True)
    checkpoint_tables.pruned(catalogue.remove(old), yes, as_json)


@checkpoints.command("advise")
@_folder
@click.option(
    "--save-seconds",
    type=_seconds,
    callback=_finite,
    help="What a save takes from training; default: from the manifests.",
)
@click.option(
    "--interval", type=_seconds, callback=_finite, help="Seconds between two saves today; default: as in FOLDER."
)
@click.option(
    "--restart-seconds",
    type=click.FloatRange(0),
    default=0.0,
    callback=_finite,
    help="From a failure to the first new step.",
)
@click.option("--mtbf", type=_seconds, callback=_finite, metavar="HOURS", help="Mean time between failures of the job.")
@click.option("--job", "jobs", multiple=True, help="Reckon it from the attempts of this job; repeatable.")
@_json
@place_options
def checkpoints_advise(
    folder: Path,
    save_seconds: float | None,
    interval: float | None,
    restart_seconds: float,
    mtbf: float | None,
    jobs: tuple[str, ...],
    as_json: bool,
    place: Place,
) -> None:
    """Advise how often to save (Young, Daly).

    The cost of a save is the median of the manifests in FOLDER, or --save-seconds. How often the job fails comes from
    --mtbf, or from the service for each --job.
    """
    from logdoctor.cli.checkpoint_failures import failures_of
    from logdoctor.job.recovery import catalogue
    from logdoctor.job.recovery.catalogue.interval import advise, measured
    from logdoctor.words import checkpoint_tables

    if (mtbf is None) == (not jobs):
        raise click.UsageError("Give either --mtbf HOURS or --job JOB.")
    found = measured(catalogue.read(folder))
    save = save_seconds or _measured_save(folder, found)
    failures = None if mtbf is not None else failures_of(jobs, place)
    seconds = mtbf * _HOUR if mtbf is not None else failures.mtbf if failures is not None else None
    if seconds is None:
        thing = f"the mean time between failures of {', '.join(jobs)}"[:300]
        raise CheckpointError(thing, "is not known: none of its attempts has failed", "Give it with --mtbf HOURS.")
    advice = advise(save, seconds, interval or found.interval, restart_seconds)
    checkpoint_tables.advice(advice, found, failures, save_seconds is not None, as_json)


def _measured_save(folder: Path, found: "Measured") -> float:
    """Return the median cost of a save by the manifests; `CheckpointError` when there are none."""
    if not found.save:
        cause = "holds no manifest that tells how long a save took"
        raise CheckpointError(str(folder), cause, "Give what a save takes from training with --save-seconds.")
    return found.save


def _every(place: Path | str, onset: "Onset | None" = None) -> "list[Checkpoint]":
    """Return the checkpoints in a folder, or in the mirror at a URL."""
    from logdoctor.job.recovery import catalogue
    from logdoctor.job.recovery.catalogue import mirrored

    return catalogue.read(place, onset=onset) if isinstance(place, Path) else mirrored.read(place, onset)


def _as_checkpoint(place: Path) -> Path | None:
    """Return the folder above one that is a checkpoint; None for any other."""
    place = place.absolute()
    return place.parent if any(Path(one.path) == place for one in _every(place.parent)) else None


def _named(every: "Sequence[Checkpoint]", folder: Path | str, name: str) -> "Checkpoint":
    """Return the checkpoint with this name or path."""
    for one in every:
        if name in (one.name, one.path):
            return one
    cause = f"holds no checkpoint {name[:200]!r}"
    raise CheckpointError(str(folder), cause, "Names: logdoctor checkpoints list FOLDER")


def _onset_of(before: int | None, onset: float | None) -> "Onset":
    from logdoctor.job.recovery.catalogue import Onset

    return Onset(before, onset)
