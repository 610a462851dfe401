"""The results from a batch's table: summary, page, comparison, and entries in a service."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import click
import msgspec

from logdoctor.cli.options import Place, has_records, served_settings, settings_with

if TYPE_CHECKING:
    from logdoctor.pipeline.batch.archived import Archive
    from logdoctor.pipeline.batch.comparing import Comparison, Truths
    from logdoctor.pipeline.batch.posting import Entry, Posted
    from logdoctor.pipeline.batch.sources import Source
    from logdoctor.pipeline.batch.summary import Summary

CHANGED = 3
"""The exit code when a comparison found a change."""


class Wanted(NamedTuple):
    """The requested results beside the table: page, comparison, entries in a service, JSON."""

    page: Path | None = None
    old: Path | None = None
    post: bool = False
    as_json: bool = False


class Prepared(NamedTuple):
    """What is fetched before hours of work begin, so that errors show at once."""

    known: "Truths"
    entry: "Entry | None"


class Results(msgspec.Struct, frozen=True, omit_defaults=True):
    """All results, as JSON."""

    summary: "Summary"
    comparison: "Comparison | None" = None
    posted: "Posted | None" = None


def prepare(wanted: Wanted, place: Place) -> Prepared:
    """Fetch what the results need from elsewhere. `InputError` when the old table cannot be read, `StoreError` and
    `ServiceError` when a service cannot be asked."""
    if wanted.page is not None:
        from logdoctor.web import batch_page  # noqa: F401 -- fails now if its libraries are missing
    if wanted.old is not None:
        from logdoctor.pipeline.batch.rows import read_rows

        next(read_rows(wanted.old), None)
    return Prepared(known_truths(place) if wanted.old is not None else {}, _entry(place) if wanted.post else None)


def conclude(table: Path, out: Path, wanted: Wanted, prepared: Prepared) -> bool:
    """Write a Parquet `table` as `out` and print the requested results. Return whether something changed since the old
    table."""
    from logdoctor.pipeline.batch.files import moved
    from logdoctor.pipeline.batch.outputs import convert
    from logdoctor.pipeline.batch.rows import WITH_VERDICTS, read_rows
    from logdoctor.pipeline.batch.summary import summarise

    found = summarise(read_rows(table))
    if out != table:
        convert(table, made := table.with_name(f"made{out.suffix}"))
        moved(made, out)
    if wanted.page is not None:
        _write_page(wanted.page, found, out)
    changes = None
    if wanted.old is not None:
        changes = compared(wanted.old, str(wanted.old), table, str(out), prepared.known)
    posted = None
    if prepared.entry is not None:
        from logdoctor.pipeline.batch.posting import post

        posted = post(read_rows(table, WITH_VERDICTS), prepared.entry)
    _print(Results(found, changes, posted), wanted.as_json)
    return changes is not None and changes.changed > 0


def _print(found: Results, as_json: bool) -> None:
    from logdoctor.words.show import ascii_json

    if as_json:
        click.echo(ascii_json(found))
        return
    from logdoctor.words import batch_tables

    batch_tables.summary(found.summary)
    if found.comparison is not None:
        click.echo()
        batch_tables.comparison(found.comparison)
    if found.posted is not None:
        batch_tables.posted(found.posted)


def _write_page(place: Path, found: "Summary", out: Path) -> None:
    from logdoctor.pipeline.batch.files import new_file
    from logdoctor.web.batch_page import batch_page

    with new_file(place) as file:
        file.write(batch_page(found, out.stem, time.time()).encode("utf-8", "backslashreplace"))


def compare_tables(old: Path, new: Path, known: "Truths", as_json: bool) -> bool:
    """Print the changes from one table to another, and return whether there are any."""
    found = compared(old, str(old), new, str(new), known)
    show_comparison(found, as_json)
    return found.changed > 0


def compared(old: Path, old_name: str, new: Path, new_name: str, known: "Truths") -> "Comparison":
    """Return the changes from one table to another; the names are for display."""
    from logdoctor.pipeline.batch.comparing import COLUMNS, compare
    from logdoctor.pipeline.batch.rows import read_rows

    return compare(old_name, read_rows(old, COLUMNS), new_name, read_rows(new, COLUMNS), known)


def show_comparison(found: "Comparison", as_json: bool) -> None:
    """Print a comparison."""
    from logdoctor.words.show import ascii_json

    if as_json:
        click.echo(ascii_json(found))
        return
    from logdoctor.words import batch_tables

    batch_tables.comparison(found)


def known_truths(place: Place) -> "Truths":
    """Return confirmed causes from the service or the data folder; {} without either."""
    if place.service is None and place.data_dir is None and not has_records(settings_with(None)):
        return {}
    from logdoctor.cli.cases import confirmed_cases, every_case
    from logdoctor.pipeline.batch.comparing import truths

    return truths(every_case(confirmed_cases(place)))


def _entry(place: Place) -> "Entry":
    """Return the store of past attempts; `StoreError` when the data folder has no database."""
    if place.service is not None:
        from logdoctor.cli.client.past import ServedPast

        served = ServedPast(place.service)
        served.require_open()
        return served
    from logdoctor.store.jobs.past import PastRecords
    from logdoctor.wiring import stored

    return PastRecords(stored.records(served_settings(place.data_dir)).database)


Fetch = Callable[[str, IO[bytes]], None]


class ServiceSource:
    """The archive of a service as a source of logs; it connects on first use."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: Archive | None = None

    def archived(self, name: str) -> "Iterator[Source]":
        """Return the attempts that match a query."""
        from logdoctor.pipeline.batch.archived import archived_sources

        return archived_sources(self._archive(), name)

    def fetch(self, other: Fetch) -> Fetch:
        """Return a fetcher of logs of the service, which passes any `other` URL on."""
        from logdoctor.pipeline.batch.sources import SERVICE

        def fetched(url: str, file: IO[bytes]) -> None:
            if not url.startswith(SERVICE):
                other(url, file)
                return
            from logdoctor.pipeline.batch.archived import save

            save(self._archive(), url, file)
            file.flush()

        return fetched

    def _archive(self) -> "Archive":
        if self._known is None:
            self._known = self._opened()
        return self._known

    def _opened(self) -> "Archive":
        if self._place.service is not None:
            from logdoctor.cli.client.archived import ServedArchive

            return ServedArchive(self._place.service)
        from logdoctor.wiring.archived import StoredArchive

        return StoredArchive(served_settings(self._place.data_dir))


def leave(changed: bool) -> None:
    """Exit with `CHANGED` if something changed."""
    if changed:
        sys.exit(CHANGED)
