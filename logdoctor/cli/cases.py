"""`logdoctor cases`: look at past failures, and confirm or correct what they were."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from logdoctor.cli.options import by_option, data_dir_option, login, served_settings, why_option
from logdoctor.errors import ConfirmationRefused
from logdoctor.settings import data_folder
from logdoctor.taxonomy import FAULTS, REASONS, RECOVERIES

if TYPE_CHECKING:
    from logdoctor.service.confirming import Ruling
    from logdoctor.store.archive import Archive
    from logdoctor.store.confirmed import Confirmation, Confirmed
    from logdoctor.store.records import Records, StoredVerdict


@click.group()
def cases() -> None:
    """Look at past failures, and confirm or correct verdicts."""


_REASON = click.Choice([name for name in REASONS if name != "Unknown"], case_sensitive=False)
_verdict = click.argument("verdict", metavar="VERDICT")
_fix = click.option("--fix", default="", help="What fixed it.")
_comment = click.option("--comment", default="", help="Anything else.")
_suggestion = click.option("--suggestion", default="", help="What to do next time.")


def _confirmed(data_dir: Path | None) -> "Confirmed":
    """Return the confirmations of the data folder; `StoreError` when there is no database."""
    from logdoctor import build
    from logdoctor.store.confirmed import Confirmed

    return Confirmed(build.records(served_settings(data_dir)).database)


@cases.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per case and line.")
@click.option("--reason", help="Only cases with this reason.")
@click.option("--withdrawn", is_flag=True, help="Also those that were withdrawn or replaced.")
@data_dir_option
def cases_list(as_json: bool, reason: str | None, withdrawn: bool, data_dir: Path | None) -> None:
    """List past cases, newest first."""
    from logdoctor import show

    found = _confirmed(data_dir)

    def every() -> "Iterator[Confirmation]":
        cursor = None
        while True:
            page = found.page(cursor, 500, reason, withdrawn)
            yield from page.items
            if (cursor := page.next) is None:
                return

    show.cases(every(), as_json)


@cases.command("show")
@click.argument("case_id", type=click.IntRange(1), metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@data_dir_option
def cases_show(case_id: int, as_json: bool, data_dir: Path | None) -> None:
    """Print one past case: its reason, who entered it, what fixed it, and the lines that prove it."""
    from logdoctor import show

    show.case(_confirmed(data_dir).one(case_id), as_json)


@cases.command("confirm")
@_verdict
@_fix
@_comment
@_suggestion
@by_option
@data_dir_option
def cases_confirm(verdict: str, fix: str, comment: str, suggestion: str, by: str | None, data_dir: Path | None) -> None:
    """Confirm that a verdict is right.

    VERDICT is its number, or JOB/ATTEMPT for the current one.
    It becomes a case, which decides similar failures.
    """
    from logdoctor.service.confirming import Ruling

    _store_ruling(verdict, by, data_dir, Ruling(fix=fix, comment=comment, suggestion=suggestion))


@cases.command("correct")
@_verdict
@click.option(
    "--reason", required=True, type=_REASON, metavar="REASON", help="The correct reason, such as 'Key Error'."
)
@click.option(
    "--recovery", type=click.Choice(RECOVERIES[:-1]), help="What to do; default: the usual one for the reason."
)
@click.option("--fault", type=click.Choice(FAULTS), help="Who is at fault; default: the usual one for the reason.")
@click.option("--line", "lines", multiple=True, metavar="STREAM:NUMBER", help="A line that proves it; repeatable.")
@_fix
@_comment
@_suggestion
@by_option
@data_dir_option
def cases_correct(
    verdict: str,
    reason: str,
    recovery: str | None,
    fault: str | None,
    lines: tuple[str, ...],
    fix: str,
    comment: str,
    suggestion: str,
    by: str | None,
    data_dir: Path | None,
) -> None:
    """Correct the verdict on a failure.

    VERDICT is its number, or JOB/ATTEMPT for the current one.
    Without --line the most error-like lines identify the failure.
    """
    from logdoctor.service.confirming import Ruling

    evidence = tuple(_line(line) for line in lines)
    _store_ruling(
        verdict, by, data_dir, Ruling(reason, recovery or "", fault or "", fix, comment, suggestion, evidence)
    )


def _line(text: str) -> tuple[str, int]:
    stream, _, number = text.rpartition(":")
    if not stream or not number.isascii() or not number.isdecimal() or len(number) > 15:
        raise click.UsageError(f"--line {text!r} is not STREAM:NUMBER.")
    return stream, int(number)


def _store_ruling(verdict: str, by: str | None, data_dir: Path | None, ruling: "Ruling") -> None:
    """Store a person's confirmation of a verdict; a running service learns from it."""
    from functools import partial

    from logdoctor import build, show
    from logdoctor.compress.kept import revived
    from logdoctor.service.confirming import confirmation
    from logdoctor.store.archive import Archive
    from logdoctor.store.confirmed import Confirmed

    settings = served_settings(data_dir)
    records = build.records(settings)
    stored = _stored(records, verdict)
    confirmed = Confirmed(records.database)
    scanner, past = build.scanner(settings), confirmed.kept(stored.job, stored.attempt)
    known = revived(past.lines, scanner) if past is not None else []
    text_of = partial(_archived_line, Archive(data_folder(settings) / "archive"), stored.job, stored.attempt)
    new = confirmation(stored, known, scanner.book, by or login(), ruling, text_of)
    show.entered(confirmed.add(new, time.time()))


def _stored(records: "Records", verdict: str) -> "StoredVerdict":
    """Return the verdict with a number, or the current one of JOB/ATTEMPT."""
    from logdoctor.store.names import checked, checked_attempt

    job, _, number = verdict.rpartition("/")
    if not number.isascii() or not number.isdecimal() or len(number) > 18:
        raise click.UsageError(f"{verdict!r} is neither the number of a verdict nor JOB/ATTEMPT.")
    if job:
        found = records.current(checked("job", job), checked_attempt(int(number)))
    else:
        found = records.verdict(int(number))
    if found is None:
        raise ConfirmationRefused(f"verdict {verdict}", "does not exist", "Check the page of the job.")
    return found


def _archived_line(archive: "Archive", job: str, attempt: int, stream: str, number: int) -> str | None:
    """Return a raw line of an attempt; None when its archive does not have it."""
    from logdoctor.store.archive import lines_of
    from logdoctor.store.names import Key
    from logdoctor.text import decode

    if number < 1 or stream not in archive.streams(job, attempt):
        return None
    file = archive.open(Key(job, attempt, stream))
    begin, chunks = file.from_line(number, file.offset)
    found = lines_of(chunks, begin, number, number, 1 << 20).lines
    return decode(found[0]) if found else None


@cases.command("withdraw")
@click.argument("case_id", type=click.IntRange(1), metavar="ID")
@why_option
@by_option
@data_dir_option
def cases_withdraw(case_id: int, why: str, by: str | None, data_dir: Path | None) -> None:
    """Withdraw a case: it stays on record but no longer decides anything."""
    withdrawn = _confirmed(data_dir).withdraw(case_id, by or login(), why, time.time())
    click.echo(f"case {withdrawn.id} no longer decides anything")


@cases.command("reindex")
@data_dir_option
def cases_reindex(data_dir: Path | None) -> None:
    """Rebuild the vector index of past cases.

    It is built from the cases in the database, so nothing is lost. Needed when the index is damaged; it is rebuilt
    automatically when the embedding model changes.
    """
    from logdoctor import build

    click.echo(f"{build.past_cases(served_settings(data_dir)).reindex()} cases indexed")
