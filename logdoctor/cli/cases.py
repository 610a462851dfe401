"""`logdoctor cases`: list past failures, and confirm or correct their causes."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from logdoctor.cli.options import (
    Place,
    beside_data,
    by_option,
    data_dir_option,
    place_options,
    served_settings,
    why_option,
)
from logdoctor.errors import ConfirmationRefused
from logdoctor.store.names import Key, checked, checked_attempt
from logdoctor.taxonomy import FAULTS, REASONS, RECOVERIES

if TYPE_CHECKING:
    from logdoctor.cli.client.cases import ServedCases
    from logdoctor.service.confirming import Ruling
    from logdoctor.service.reading import Logs
    from logdoctor.store.learning.confirmed import Confirmation, Confirmed

Found = TypeVar("Found")


@click.group()
def cases() -> None:
    """List past failures, and confirm or correct verdicts."""


class _Reason(click.Choice):  # type: ignore[type-arg] # it takes no parameter before click 8.2
    """A reason of the taxonomy in any case. Messages list the reasons as verdicts print them."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"Choose from: {', '.join(self.choices)}."

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        return f"{value!r} is not a reason. Choose from: {', '.join(self.choices)}."


_REASON = _Reason([name for name in REASONS if name != "Unknown"], case_sensitive=False)
_verdict = click.argument("verdict", metavar="VERDICT")
_fix = click.option("--fix", default="", help="What fixed it.")
_comment = click.option("--comment", default="", help="Anything else worth knowing.")
_suggestion = click.option("--suggestion", default="", help="What to do next time.")


def confirmed_cases(place: Place) -> "Confirmed | ServedCases":
    """Return the store of confirmations; `StoreError` when the data folder has no database."""
    if place.service is not None:
        from logdoctor.cli.client.cases import ServedCases

        return ServedCases(place.service)
    from logdoctor.store.learning.confirmed import Confirmed
    from logdoctor.wiring import stored

    return Confirmed(stored.records(served_settings(place.data_dir)).database)


def every_case(
    found: "Confirmed | ServedCases", reason: str | None = None, withdrawn: bool = False
) -> "Iterator[Confirmation]":
    """Yield the matching past cases, newest first."""
    cursor = None
    while True:
        page = found.page(cursor, 500, reason, withdrawn)
        yield from page.items
        if (cursor := page.next) is None:
            return


@cases.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per case and line.")
@click.option("--reason", help="Only cases with this reason.")
@click.option("--withdrawn", is_flag=True, help="Also list those that were withdrawn or replaced.")
@place_options
def cases_list(as_json: bool, reason: str | None, withdrawn: bool, place: Place) -> None:
    """List past cases, newest first."""
    from logdoctor.words import show

    show.cases(every_case(confirmed_cases(place), reason, withdrawn), as_json)


@cases.command("show")
@click.argument("case_id", type=click.IntRange(1), metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@place_options
def cases_show(case_id: int, as_json: bool, place: Place) -> None:
    """Print one past case.

    It has the reason, who entered it, what fixed it, and the lines that prove it.
    """
    from logdoctor.words import show

    show.case(confirmed_cases(place).one(case_id), as_json)


@cases.command("confirm")
@_verdict
@_fix
@_comment
@_suggestion
@by_option
@place_options
def cases_confirm(verdict: str, fix: str, comment: str, suggestion: str, by: str | None, place: Place) -> None:
    """Confirm that a verdict is right.

    VERDICT is its number, or JOB/ATTEMPT for the current one. The failure becomes a case, which decides similar
    failures.
    """
    from logdoctor.service.confirming import Ruling

    _store_ruling(verdict, by, place, Ruling(fix=fix, comment=comment, suggestion=suggestion))


@cases.command("correct")
@_verdict
@click.option(
    "--reason", required=True, type=_REASON, metavar="REASON", help="The correct reason, such as 'Key Error'."
)
@click.option(
    "--recovery", type=click.Choice(RECOVERIES[:-1]), help="What to do; default: the usual one for the reason."
)
@click.option("--fault", type=click.Choice(FAULTS), help="Who is at fault; default: the usual one for the reason.")
@click.option("--detail", default="", help="What exactly failed: a finer word than the reason.")
@click.option("--line", "lines", multiple=True, metavar="STREAM:NUMBER", help="A line that proves it; repeatable.")
@_fix
@_comment
@_suggestion
@by_option
@place_options
def cases_correct(
    verdict: str,
    reason: str,
    recovery: str | None,
    fault: str | None,
    detail: str,
    lines: tuple[str, ...],
    fix: str,
    comment: str,
    suggestion: str,
    by: str | None,
    place: Place,
) -> None:
    """Correct the verdict on a failure.

    VERDICT is its number, or JOB/ATTEMPT for the current one. Without --line, the lines that look most like errors
    identify the failure.
    """
    from logdoctor.service.confirming import Ruling

    evidence = tuple(_line(line) for line in lines)
    ruling = Ruling(reason, recovery or "", fault or "", fix, comment, suggestion, evidence, detail=detail)
    _store_ruling(verdict, by, place, ruling)


def _line(text: str) -> tuple[str, int]:
    stream, _, number = text.rpartition(":")
    if not stream or not number.isascii() or not number.isdecimal() or len(number) > 15:
        raise click.UsageError(f"--line {text!r} is not STREAM:NUMBER.")
    return stream, int(number)


def _store_ruling(verdict: str, by: str | None, place: Place, ruling: "Ruling") -> None:
    """Store a person's confirmation of a verdict; a running service learns from it."""
    from logdoctor.words import show

    who = place.who(by)
    number, job = _reference(verdict)
    if place.service is not None:
        from logdoctor.cli.client.cases import ServedCases

        served = ServedCases(place.service)
        id = served.current(job, number) if job else number
        show.entered(served.confirm(_existing(id, verdict), ruling))
    else:
        show.entered(_entered(verdict, number, job, who, place.data_dir, ruling))


def _entered(verdict: str, number: int, job: str, who: str, data_dir: Path | None, ruling: "Ruling") -> "Confirmation":
    """Store a confirmation in the data folder, and return it."""
    from logdoctor import wiring
    from logdoctor.compress.kept import cited, rebuilt
    from logdoctor.service.confirming import confirmation
    from logdoctor.store.learning.confirmed import Confirmed
    from logdoctor.wiring import stored

    settings = served_settings(data_dir)
    records = stored.records(settings)
    judged = _existing(records.current(job, number) if job else records.verdict(number), verdict)
    confirmed = Confirmed(records.database)
    scanner, past = wiring.scanner(settings), confirmed.kept(judged.job, judged.attempt)
    known = rebuilt(past.lines if past is not None else cited(judged.verdict), scanner)
    text_of = partial(_raw_line, stored.logs(settings, records.database), judged.job, judged.attempt)
    new = confirmation(judged, known, scanner.book, who, ruling, text_of)
    return confirmed.add(new, time.time())


def _reference(verdict: str) -> tuple[int, str]:
    """Return a verdict's number and "", or an attempt's number and its job."""
    job, _, number = verdict.rpartition("/")
    if not number.isascii() or not number.isdecimal() or len(number) > 18:
        raise click.UsageError(f"{verdict!r} is neither the number of a verdict nor JOB/ATTEMPT.")
    return (checked_attempt(int(number)), checked("job", job)) if job else (int(number), "")


def _existing(found: "Found | None", verdict: str) -> "Found":
    if found is None:
        raise ConfirmationRefused(f"verdict {verdict}", "does not exist", "Look for its number on the page of the job.")
    return found


def _raw_line(logs: "Logs", job: str, attempt: int, stream: str, number: int) -> str | None:
    """Return a raw line of an attempt; None when its log does not have it."""
    from logdoctor.text import decode

    if number < 1 or stream not in logs.streams(job, attempt):
        return None
    found = logs.lines(Key(job, attempt, stream), number, number, 1 << 20).lines
    return decode(found[0]) if found else None


@cases.command("withdraw")
@click.argument("case_id", type=click.IntRange(1), metavar="ID")
@why_option
@by_option
@place_options
def cases_withdraw(case_id: int, why: str, by: str | None, place: Place) -> None:
    """Withdraw a case.

    It stays on record but no longer decides anything.
    """
    withdrawn = confirmed_cases(place).withdraw(case_id, place.who(by), why, time.time())
    click.echo(f"case {withdrawn.id} no longer decides anything")


@cases.command("reindex")
@data_dir_option
@beside_data
def cases_reindex(data_dir: Path | None) -> None:
    """Rebuild the vector index of past cases.

    It is built from the cases in the database, so nothing is lost. Needed when the index is damaged; after a change of
    the embedding model it is rebuilt automatically.
    """
    from logdoctor.wiring import failures

    click.echo(f"{failures.past_cases(served_settings(data_dir)).reindex()} cases indexed")
