"""`logdoctor rules check --against`: what a rule book would change in an archive of logs."""

import os
from collections import defaultdict
from collections.abc import Container, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

import click

from logdoctor import wiring
from logdoctor.cli.batch import diagnose_planned, plan
from logdoctor.cli.batch_results import ServiceSource, compared
from logdoctor.cli.options import Place
from logdoctor.pipeline.batch.comparing import Comparison, Truths
from logdoctor.pipeline.batch.outputs import is_table
from logdoctor.pipeline.batch.rows import Provenance, Row, read_rows
from logdoctor.pipeline.batch.run import Batch, parts_folder, unpacked
from logdoctor.pipeline.batch.scratch import scratch
from logdoctor.pipeline.batch.sources import SERVICE, TAR_NAME, Mode, Walk, bucket_and_key
from logdoctor.pipeline.batch.told import Told
from logdoctor.settings import Settings
from logdoctor.wiring import batch as parts

if TYPE_CHECKING:
    from logdoctor.pipeline.batch.judging import Learned


class Archive(NamedTuple):
    """Logs to diagnose twice. `told` has facts about them from elsewhere, and `known` the names to use among those
    found; None means all."""

    places: list[str]
    mode: Mode
    told: dict[str, Told]
    known: Container[str] | None


def judged(against: tuple[str, ...], now: Settings, new: Settings, place: Place, known: Truths) -> Comparison:
    """Return what the `new` rules change. The comparison is with an older table whose logs still exist, or with the
    rules of `now`."""
    learned = parts.learned(now) if place.data_dir else parts.NOTHING
    with scratch() as folder:
        fresh = folder / "new.parquet"
        if len(against) == 1 and is_table(table := Path(against[0])):
            old_name, older, archive = str(table), table, archive_of(read_rows(table))
        else:
            old_name, older = "the rules in use", folder / "old.parquet"
            archive = Archive([*against], "", {}, None)
            _diagnose(older, archive, now, learned, place)
        _diagnose(fresh, archive, new, learned, place)
        return compared(older, old_name, fresh, "the rules to be judged", known)


def _diagnose(table: Path, archive: Archive, settings: Settings, learned: "Learned", place: Place) -> None:
    """Diagnose an archive into a table."""
    service = ServiceSource(place)
    judge = parts.judge(settings, learned, service.fetch(parts.fetch))
    click.echo(f"With {judge.scanner('').book.digest}:", err=True)
    walk = Walk(archive.mode, parts.ListingApart, service.archived, archive.known)
    with parts_folder(table) as folder:
        run = Batch(folder, judge.digest, wiring.limits(settings), service.fetch(parts.fetch_apart), archive.told.get)
        total = plan(run, walk, iter(archive.places))
        diagnose_planned(run, parts.processes(judge.unpacking_in(unpacked(folder)), settings.workers), walk, total)
        run.finish(table, Provenance(rules=judge.scanner("").book.digest), lambda source, row: row)


def archive_of(rows: Iterable[Row]) -> Archive:
    """Return the logs of a table that still exist. A folder in it was one job."""
    places: dict[str, None] = {}
    told: dict[str, Told] = {}
    for row in rows:
        if (place := _place_of(row)) is not None:
            places[place] = None
            told[row.source] = _told(row)
    return Archive(_listed_once(places), "jobs", told, told.keys() | places.keys())


def _place_of(row: Row) -> str | None:
    """Return the path to read for a row: its log, its tar, or None."""
    if row.source.startswith(SERVICE):
        job = row.source.removeprefix(SERVICE).rpartition("/")[0]
        return f"{SERVICE}?{urlencode({'job': job})}"
    pieces = row.source.split("/")
    in_tar = (end for end in range(1, len(pieces)) if TAR_NAME.search(pieces[end - 1]))
    tars = ("/".join(pieces[:end]) for end in in_tar)
    whole = next((tar for tar in tars if "://" in tar or os.path.isfile(tar)), row.source)
    return whole if "://" in whole or os.path.lexists(whole) else None


def _listed_once(places: Iterable[str]) -> list[str]:
    """Return places that list nothing twice. A bucket becomes its common prefix, a tar in the folder of a job that
    folder."""
    keys: defaultdict[str, list[list[str]]] = defaultdict(list)
    folders = {place.rstrip("/") for place in places}
    others: list[str] = []
    for place in places:
        if "://" in place:
            bucket, key = bucket_and_key(place)
            keys[bucket].append(key.split("/"))
        elif not (TAR_NAME.search(place) and os.path.dirname(place) in folders):
            others.append(place)
    shared = ((bucket, os.path.commonprefix(some)) for bucket, some in keys.items())  # noqa: RUF071 -- of whole parts
    return others + [f"{bucket}/{'/'.join(prefix)}" for bucket, prefix in shared]


def _told(row: Row) -> Told:
    return Told(
        job=row.job,
        framework=row.framework,
        exit_code=row.exit_code,
        nodes=row.node_count,
        user=row.user,
        start=row.started,
        end=row.ended,
        gpus=row.gpus,
        kind=row.kind,
    )
