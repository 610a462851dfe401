"""`logdoctor rules check --against`: what a rule book would change about an archive of logs, before it goes live."""

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
    """Logs that are diagnosed twice: where they are, how folders are taken, what is told of them, and which of those
    that are found are meant; None for all."""

    places: list[str]
    mode: Mode
    told: dict[str, Told]
    known: Container[str] | None


def judged(against: tuple[str, ...], now: Settings, new: Settings, place: Place, known: Truths) -> Comparison:
    """Return what the `new` rules change: since a table of an older run whose logs are still there, or about an archive
    by the rules of `now`."""
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
    """Write the table of an archive."""
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
    """Return the logs of a table that are still there; a folder in it was one job."""
    places: dict[str, None] = {}
    told: dict[str, Told] = {}
    for row in rows:
        if (place := _place_of(row)) is not None:
            places[place] = None
            told[row.source] = _told(row)
    return Archive(_listed_once(places), "jobs", told, told.keys() | places.keys())


def _place_of(row: Row) -> str | None:
    """Return what is to be read for a row: its log, or the tar that has it; None when that is gone."""
    if row.source.startswith(SERVICE):
        job = row.source.removeprefix(SERVICE).rpartition("/")[0]
        return f"{SERVICE}?{urlencode({'job': job})}"
    pieces = row.source.split("/")
    in_tar = (end for end in range(1, len(pieces)) if TAR_NAME.search(pieces[end - 1]))
    tars = ("/".join(pieces[:end]) for end in in_tar)
    whole = next((tar for tar in tars if "://" in tar or os.path.isfile(tar)), row.source)
    return whole if "://" in whole or os.path.lexists(whole) else None


def _listed_once(places: Iterable[str]) -> list[str]:
    """Return the same places so that nothing is listed twice: of each bucket the prefix that all in it share, and of a
    tar in the folder of a job that folder, with which it is found."""
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
