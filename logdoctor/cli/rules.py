"""`logdoctor rules`: list and check rules, and decide about learned ones."""

import datetime
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from logdoctor.cli.exits import COULD_NOT_WORK, complain, interruptible
from logdoctor.cli.options import (
    Place,
    by_option,
    has_records,
    place_options,
    served_settings,
    settings_with,
    why_option,
)
from logdoctor.errors import RuleRefused
from logdoctor.extras import require
from logdoctor.settings import read_settings

if TYPE_CHECKING:
    from logdoctor.cli.client.rules import ServedOverrides, ServedRules
    from logdoctor.learning.files.imports import File, Imported
    from logdoctor.rules.load import RuleBook
    from logdoctor.settings import Settings
    from logdoctor.store.learning.learned import Learned, LearnedRules
    from logdoctor.wiring.overriding import OverridesHere


@click.group()
def rules() -> None:
    """List and check rules, and decide about learned ones."""


def _learned(place: Place) -> "LearnedRules | ServedRules":
    """Return the store of learned rules; `StoreError` when the data folder has no database."""
    if place.service is not None:
        from logdoctor.cli.client.rules import ServedRules

        return ServedRules(place.service)
    from logdoctor.wiring import stored

    return stored.learned_rules(served_settings(place.data_dir))


def _learned_if_any(place: Place) -> "LearnedRules | ServedRules | None":
    """Return the store of learned rules; None without a database, unless a folder was given."""
    return _learned(place) if place.service or place.data_dir or has_records(read_settings()) else None


def _book(place: Place) -> "RuleBook":
    """Return the shipped rules, those of the service where one is asked."""
    if place.service is not None:
        from logdoctor.cli.client.rules import ServedRules

        return ServedRules(place.service).book()
    from logdoctor import wiring

    return wiring.rule_book(read_settings())


_STATUSES = ("proposed", "shadow", "active", "retired")
_kind = click.option("--kind", help="Only rules learned from this kind of job.")


@rules.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per rule and line.")
@click.option("--learned/--shipped", default=None, help="Only learned rules, or only shipped ones.")
@click.option("--waiting", is_flag=True, help="Only learned rules that wait for approval.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only rules with this status.")
@_kind
@click.option("--agent", help="Only rules learned by this agent.")
@place_options
def rules_list(
    as_json: bool,
    learned: bool | None,
    waiting: bool,
    status: str | None,
    kind: str | None,
    agent: str | None,
    place: Place,
) -> None:
    """List the rules, shipped and learned."""
    from logdoctor.words import show

    if waiting and status not in (None, "proposed", "shadow"):
        raise click.UsageError("Rules that wait are `proposed` or in `shadow`: give --status one of these, or none.")
    narrow = waiting or kind is not None or agent is not None
    if narrow and learned is False:
        raise click.UsageError("--waiting, --kind and --agent are for learned rules.")
    alone = bool(learned or narrow)
    found = None if learned is False else _learned(place) if alone else _learned_if_any(place)
    if not alone:
        show.rules(_book(place), as_json, status)
    if found is not None:
        every = found.list(kind, status, agent)
        show.learned_rules([one for one in every if one.waits] if waiting else every, as_json, alone)


@rules.command("show")
@click.argument("rule_id")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; for a learned rule with its history.")
@place_options
def rules_show(rule_id: str, as_json: bool, place: Place) -> None:
    """Print one rule.

    A learned rule is printed with its origin, votes, hits and history.
    """
    from logdoctor.words import show

    if rule_id.startswith("override/") and rule_id.removeprefix("override/").isdecimal():
        show.override(_learned(place).overrides.one(int(rule_id.removeprefix("override/"))), as_json)
    elif rule_id.startswith("learned/"):
        found = _learned(place)
        show.learned_rule(found.one(rule_id), found.events(rule_id, limit=500), as_json)
    else:
        show.rule(_book(place).rule(rule_id), as_json)


@rules.command("check")
@click.option(
    "--rules",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder of rule files to check, laid over the rules in use.",
)
@click.option(
    "--against",
    multiple=True,
    metavar="ARCHIVE",
    help="Also show what they change: about logs (as SRC of `logdoctor batch`), or since a table of an older run.",
)
@click.option("--json", "as_json", is_flag=True, help="With --against: print one JSON object with all changes.")
@place_options
def rules_check(folder: Path | None, against: tuple[str, ...], as_json: bool, place: Place) -> None:
    """Check rules by their own examples, or by an archive.

    With --against, logs are diagnosed with the rules in use and with the new ones. Verdicts that people confirmed in
    the service or the data folder tell improvements from regressions.

    Exit codes: 0 no problems and nothing changes, 3 something changes, 2 a rule is wrong, or could not work, 130
    interrupted.
    """
    given = click.get_current_context().params
    if not against and (given["url"] or given["data_dir"]):
        cause = "it checks files of this machine; --url and --data-dir are for --against"
        raise click.UsageError(f"`logdoctor rules check` takes no --url: {cause}.")
    if against:
        _require_difference(folder, against)
    settings = served_settings(place.data_dir) if place.data_dir else settings_with(None)
    more = (*settings.more_rules, folder.absolute()) if folder else settings.more_rules
    new = msgspec.structs.replace(settings, more_rules=more)
    with interruptible("Nothing of it is kept."):
        if _problems(new, settings if folder or against else None, quiet=as_json):
            sys.exit(COULD_NOT_WORK)
        if not against:
            return
        _judge(against, settings, new, place, as_json)


def _require_difference(folder: Path | None, against: tuple[str, ...]) -> None:
    """Refuse to diagnose logs twice with the same rules."""
    require("pyarrow")
    from logdoctor.pipeline.batch.outputs import is_table

    if folder is None and not (len(against) == 1 and is_table(Path(against[0]))):
        raise click.UsageError("--against needs --rules, or the table of an older run: else nothing can differ.")


def _problems(settings: "Settings", before: "Settings | None", quiet: bool) -> int:
    """Print the problems of the rules and return how many there are. Rules in use `before` pass."""
    from logdoctor import wiring
    from logdoctor.rules.check import check, digests

    scanner = wiring.unchecked_scanner(settings)
    problems = check(scanner.book, scanner, digests(wiring.scanner(before).book) if before else frozenset())
    for problem in problems:
        click.echo(str(problem), err=quiet)
    book = scanner.book
    counts = f"{len(book.filters)} filter rules, {len(book.diagnoses)} diagnosis rules, {len(problems)} problems"
    click.echo(counts, err=quiet)
    return len(problems)


def _judge(against: tuple[str, ...], now: "Settings", new: "Settings", place: Place, as_json: bool) -> None:
    """Print what the new rules change, and exit with the code for it."""
    from logdoctor.cli.batch_results import known_truths, leave, show_comparison
    from logdoctor.cli.rule_judging import judged

    found = judged(against, now, new, place, known_truths(place))
    show_comparison(found, as_json)
    leave(found.changed > 0)


@rules.command("why")
@click.argument("line")
@_kind
@place_options
def rules_why(line: str, kind: str | None, place: Place) -> None:
    """Show what the rules do with LINE, and why.

    A filter rule removes lines that say nothing about a failure; a diagnosis rule names the cause of one ("evidence"),
    and its lines are never removed. Rules that match without effect are listed with the reason. For a line that no rule
    matches, the step that refused to learn one is shown.
    """
    from logdoctor import wiring
    from logdoctor.learning.files.why import why_learned
    from logdoctor.store.fit import MAX_PAGE
    from logdoctor.store.learning.learned import LearnedRules
    from logdoctor.words import show

    line = os.fsencode(line).decode("utf-8", "replace").removesuffix("\n")
    if "\n" in line:
        raise click.UsageError("LINE must be one line.")
    if place.service is not None:
        from logdoctor.cli.client.rules import ServedRules

        show.why(ServedRules(place.service).why(line, kind))
        return
    found = _learned(place) if kind is not None else _learned_if_any(place)
    refusals = found.refusals.list(kind, limit=MAX_PAGE) if isinstance(found, LearnedRules) else []
    rules = found.list(kind) if found else []
    show.why(why_learned(wiring.unchecked_scanner(read_settings()), rules, line, refusals))


_ids = click.argument("ids", nargs=-1, required=True, metavar="ID...")


@rules.command("approve")
@_ids
@why_option
@by_option
@click.option(
    "--from",
    "seen_as",
    type=click.Choice(_STATUSES[:2]),
    help="Only if the rule has this status, so that two people do not take two steps.",
)
@place_options
def rules_approve(ids: tuple[str, ...], why: str, by: str | None, seen_as: str | None, place: Place) -> None:
    """Approve learned rules.

    Proposed and retired rules go to shadow, where they are counted but change nothing; rules in shadow become active. A
    rule whose lines look like errors waits until it is approved, and may then remove them.
    """
    who = place.who(by)
    _steps(ids, place, lambda found, rule_id: found.approve(rule_id, who, why, time.time(), seen_as))


@rules.command("retire")
@_ids
@why_option
@by_option
@place_options
def rules_retire(ids: tuple[str, ...], why: str, by: str | None, place: Place) -> None:
    """Retire learned rules; approve brings them back."""
    who = place.who(by)
    _steps(ids, place, lambda found, rule_id: found.retire(rule_id, who, why, time.time()))


@rules.command("undo")
@_ids
@why_option
@by_option
@place_options
def rules_undo(ids: tuple[str, ...], why: str, by: str | None, place: Place) -> None:
    """Undo the latest step of rules, whoever took it."""
    who = place.who(by)
    _steps(ids, place, lambda found, rule_id: found.undo(rule_id, who, why, time.time()))


def _steps(ids: tuple[str, ...], place: Place, step: "Callable[[LearnedRules | ServedRules, str], Learned]") -> None:
    """Apply a step to each rule; one that refuses it does not stop the others."""
    from logdoctor.words import show

    found = _learned(place)
    refused = False
    for rule_id in dict.fromkeys(ids):
        try:
            before = found.one(rule_id).status
            show.step(before, step(found, rule_id))
        except RuleRefused as error:
            complain(error)
            refused = True
    sys.exit(COULD_NOT_WORK if refused else 0)


_scope = (
    click.option("--job", help="Only for this job."),
    click.option("--kind", help="Only for jobs of this kind."),
    click.option("--days", type=click.IntRange(1, 3650), default=90, show_default=True, help="How long it holds."),
    click.option("--no-end", is_flag=True, help="It holds until `rules restore`."),
    click.option("--yes", is_flag=True, help="Enter it; without, only what it would have changed is shown."),
)


def _scoped(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_scope):
        command = option(command)
    return command


@rules.command("override")
@click.argument("rule_id")
@click.option("--reason", required=True, help="What its lines mean instead.")
@click.option("--recovery", default="", help="What to do; default: what is usual for the reason.")
@click.option("--fault", default="", help="Who is at fault; default: what is usual for the reason.")
@_scoped
@why_option
@by_option
@place_options
def rules_override(
    rule_id: str, reason: str, recovery: str, fault: str, why: str, by: str | None, place: Place, **scope: Any
) -> None:
    """Change the meaning of a shipped diagnosis rule.

    It applies to a job, a kind of jobs, or all. Without --yes nothing is entered: the changes that it would have made
    to stored attempts are shown.
    """
    _override(rule_id, {"reason": reason, "recovery": recovery, "fault": fault, "why": why}, scope, by, place)


@rules.command("mute")
@click.argument("rule_id")
@_scoped
@why_option
@by_option
@place_options
def rules_mute(rule_id: str, why: str, by: str | None, place: Place, **scope: Any) -> None:
    """Stop a shipped diagnosis rule from naming a cause.

    It applies to a job, a kind of jobs, or all. Its lines stay evidence, which no filter rule removes. Without --yes
    nothing is entered: the changes that it would have made to stored attempts are shown.
    """
    _override(rule_id, {"why": why}, scope, by, place)


def _override(rule: str, said: dict[str, str], given: dict[str, Any], by: str | None, place: Place) -> None:
    from logdoctor.rules.overrides import last_day_of
    from logdoctor.store.learning.overrides import NewOverride, Scope
    from logdoctor.words import show

    if given["job"] and given["kind"]:
        raise click.UsageError("--job and --kind cannot be combined.")
    scope: Scope = "job" if given["job"] else "kind" if given["kind"] else "fleet"
    days = None if given["no_end"] else given["days"]
    new = NewOverride(rule, scope, given["job"] or given["kind"] or "", expires=last_day_of(days))
    new = msgspec.structs.replace(new, **said)
    found, who = _overrides(place), place.who(by)
    if given["yes"]:
        show.override(found.add(new, who, time.time()))
    else:
        show.retried(found.tried(new))


@rules.command("overrides")
@click.option("--all", "ended", is_flag=True, help="Also those that were withdrawn or replaced.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per override and line.")
@place_options
def rules_overrides(ended: bool, as_json: bool, place: Place) -> None:
    """List the overrides of shipped rules."""
    from logdoctor.words import show

    show.overrides(_learned(place).overrides.list(None, ended), as_json)


@rules.command("restore")
@click.argument("ids", nargs=-1, required=True, type=click.IntRange(1), metavar="NUMBER...")
@why_option
@by_option
@place_options
def rules_restore(ids: tuple[int, ...], why: str, by: str | None, place: Place) -> None:
    """Withdraw overrides: their rules apply again."""
    from logdoctor.words import show

    found, who, refused = _learned(place).overrides, place.who(by), False
    for one in dict.fromkeys(ids):
        try:
            show.override(found.withdraw(one, who, why, time.time()))
        except RuleRefused as error:
            complain(error)
            refused = True
    sys.exit(COULD_NOT_WORK if refused else 0)


def _overrides(place: Place) -> "OverridesHere | ServedOverrides":
    """Return the store of overrides, checked against the rules in use."""
    if place.service is not None:
        from logdoctor.cli.client.rules import ServedOverrides

        return ServedOverrides(place.service)
    from logdoctor.wiring import overriding

    return overriding.overrides(served_settings(place.data_dir))


@rules.command("export")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--status", type=click.Choice(_STATUSES), default="active", show_default=True, help="Rules to export.")
@_kind
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
@place_options
def rules_export(folder: Path, status: str, kind: str | None, force: bool, place: Place) -> None:
    """Write learned rules and overrides to files.

    Each rule goes to a YAML file below FOLDER/filter/learned, for review, for `rules import`, or to be copied below
    rules/. Overrides in force go below FOLDER/override, when active rules of all kinds are exported.
    """
    from logdoctor.learning.files.files import export, export_overrides

    found = _learned(place)
    exported = export(found.list(kind, status), found, folder, force)
    if kind is None and status == "active":
        today = datetime.datetime.now(datetime.UTC).date()
        more = export_overrides(found.overrides.list(), folder, today, force)
        exported = exported._replace(written=exported.written + more.written, same=exported.same + more.same)
    click.echo(f"{len(exported.written)} rules written, {len(exported.same)} unchanged")


@rules.command("import")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option("--kind", help="Kind of job for rules whose `scope` names none.")
@by_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per rule and line.")
@place_options
def rules_import(paths: tuple[Path, ...], kind: str | None, by: str | None, as_json: bool, place: Place) -> None:
    """Import rules from files, if they pass the guards.

    PATHs are YAML files or folders of them. The rules start in shadow, or wait for approval.
    If one rule of a file is refused, nothing from that file is imported.
    """

    from logdoctor.learning.files.files import content_of, files_below
    from logdoctor.learning.files.imports import File
    from logdoctor.words import show

    files = [File(str(path), partial(content_of, path)) for path in files_below(paths)]
    who = place.who(by)
    results = _import_served(files, kind, place) if place.service else _import_here(files, kind, who, place.data_dir)
    show.imported(results, as_json)
    sys.exit(COULD_NOT_WORK if any(one.outcome in ("refused", "held") for one in results) else 0)


def _import_here(files: "list[File]", kind: str | None, by: str, data_dir: Path | None) -> "list[Imported]":
    """Import rules into the data folder, and return one result for each."""
    from logdoctor import wiring
    from logdoctor.learning.files.files import MOST_RULES
    from logdoctor.learning.files.imports import import_files
    from logdoctor.wiring import failures, learning, stored

    found, settings = stored.learned_rules(served_settings(data_dir)), settings_with(data_dir)
    scanner, records = wiring.scanner(settings), stored.records(settings)
    guards = learning.guards(settings, scanner.book, records)
    others = failures.diagnosis_guards(scanner, records)
    return import_files(files, kind, guards, found, by, time.time(), MOST_RULES, others)


def _import_served(files: "list[File]", kind: str | None, place: Place) -> "list[Imported]":
    """Import rules through the service, file by file, and return one result for each."""
    from logdoctor.cli.client.rules import ServedRules

    assert place.service is not None
    served = ServedRules(place.service)
    return [one for file in files for one in served.enter(file, kind)]
