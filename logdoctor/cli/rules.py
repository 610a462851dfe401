"""`logdoctor rules`: look at rules, check them, and decide about learned ones."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from logdoctor.cli.exits import COULD_NOT_WORK, complain
from logdoctor.cli.options import (
    by_option,
    data_dir_option,
    has_records,
    login,
    served_settings,
    settings_with,
    why_option,
)
from logdoctor.errors import RuleRefused
from logdoctor.settings import read_settings

if TYPE_CHECKING:
    from logdoctor.store.learned import Learned, LearnedRules


@click.group()
def rules() -> None:
    """List and check rules, and decide about learned ones."""


def _learned(data_dir: Path | None) -> "LearnedRules":
    """Return the learned rules of the data folder; `StoreError` when there is no database."""
    from logdoctor import build

    return build.learned_rules(served_settings(data_dir))


def _learned_if_any(data_dir: Path | None) -> "LearnedRules | None":
    """Return the learned rules; None when there is no database, unless a folder was given."""
    return _learned(data_dir) if data_dir or has_records(read_settings()) else None


_STATUSES = ("proposed", "shadow", "active", "retired")
_kind = click.option("--kind", help="Only rules learned from this kind of job.")


@rules.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per rule and line.")
@click.option("--learned/--shipped", default=None, help="Only learned rules, or only shipped ones.")
@click.option("--waiting", is_flag=True, help="Only learned rules that wait for approval.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only rules with this status.")
@_kind
@click.option("--agent", help="Only rules learned by this agent.")
@data_dir_option
def rules_list(
    as_json: bool,
    learned: bool | None,
    waiting: bool,
    status: str | None,
    kind: str | None,
    agent: str | None,
    data_dir: Path | None,
) -> None:
    """List the rules, shipped and learned."""
    from logdoctor import build, show

    if waiting and status not in (None, "proposed", "shadow"):
        raise click.UsageError("waiting rules are `proposed` or in `shadow`.")
    narrow = waiting or kind is not None or agent is not None
    if narrow and learned is False:
        raise click.UsageError("--waiting, --kind and --agent are for learned rules.")
    alone = bool(learned or narrow)
    found = None if learned is False else _learned(data_dir) if alone else _learned_if_any(data_dir)
    if not alone:
        show.rules(build.rule_book(read_settings()), as_json, status)
    if found is not None:
        every = found.list(kind, status, agent)
        show.learned_rules([one for one in every if show.waits(one)] if waiting else every, as_json, alone)


@rules.command("show")
@click.argument("rule_id")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; for a learned rule with its history.")
@data_dir_option
def rules_show(rule_id: str, as_json: bool, data_dir: Path | None) -> None:
    """Print one rule.

    For a learned rule, also its origin, votes, hits and history.
    """
    from logdoctor import build, show

    if rule_id.startswith("learned/"):
        found = _learned(data_dir)
        show.learned_rule(found.one(rule_id), found.events(rule_id, limit=500), as_json)
    else:
        show.rule(build.rule_book(read_settings()).rule(rule_id), as_json)


@rules.command("check")
def rules_check() -> None:
    """Check every rule against its own examples."""
    from logdoctor import build
    from logdoctor.rules.check import check

    scanner = build.unchecked_scanner(read_settings())
    problems = check(scanner.book, scanner)
    for problem in problems:
        click.echo(str(problem))
    book = scanner.book
    click.echo(f"{len(book.filters)} filter rules, {len(book.diagnoses)} diagnosis rules, {len(problems)} problems")
    sys.exit(COULD_NOT_WORK if problems else 0)


@rules.command("why")
@click.argument("line")
@_kind
@data_dir_option
def rules_why(line: str, kind: str | None, data_dir: Path | None) -> None:
    """Show what the rules do with LINE, and why.

    Shows which rules match it, why other matching rules do not apply, and why it is kept if no rule removes it.
    """
    from logdoctor import build, show
    from logdoctor.rule_files.why import why_learned

    line = os.fsencode(line).decode("utf-8", "replace").removesuffix("\n")
    if "\n" in line:
        raise click.UsageError("LINE must be one line.")
    found = _learned(data_dir) if kind is not None else _learned_if_any(data_dir)
    show.why(why_learned(build.unchecked_scanner(read_settings()), found.list(kind) if found else [], line))


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
@data_dir_option
def rules_approve(ids: tuple[str, ...], why: str, by: str | None, seen_as: str | None, data_dir: Path | None) -> None:
    """Approve learned rules.

    Proposed and retired rules go to shadow, where they are watched; rules in shadow become active.

    A rule that waits because its lines look like trouble may take such lines from then on.
    """
    _steps(ids, data_dir, lambda found, rule_id: found.approve(rule_id, by or login(), why, time.time(), seen_as))


@rules.command("retire")
@_ids
@why_option
@by_option
@data_dir_option
def rules_retire(ids: tuple[str, ...], why: str, by: str | None, data_dir: Path | None) -> None:
    """Retire learned rules; approve brings them back."""
    _steps(ids, data_dir, lambda found, rule_id: found.retire(rule_id, by or login(), why, time.time()))


@rules.command("undo")
@_ids
@why_option
@by_option
@data_dir_option
def rules_undo(ids: tuple[str, ...], why: str, by: str | None, data_dir: Path | None) -> None:
    """Undo the latest step of rules, whoever took it."""
    _steps(ids, data_dir, lambda found, rule_id: found.undo(rule_id, by or login(), why, time.time()))


def _steps(ids: tuple[str, ...], data_dir: Path | None, step: "Callable[[LearnedRules, str], Learned]") -> None:
    """Apply a step to each rule; one that refuses it does not stop the others."""
    from logdoctor import show

    found = _learned(data_dir)
    refused = False
    for rule_id in dict.fromkeys(ids):
        try:
            before = found.one(rule_id).status
            show.step(before, step(found, rule_id))
        except RuleRefused as error:
            complain(error)
            refused = True
    sys.exit(COULD_NOT_WORK if refused else 0)


@rules.command("export")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--status", type=click.Choice(_STATUSES), default="active", show_default=True, help="Rules to export.")
@_kind
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
@data_dir_option
def rules_export(folder: Path, status: str, kind: str | None, force: bool, data_dir: Path | None) -> None:
    """Write learned rules to files.

    Each goes to a YAML file below FOLDER/filter/learned: for review, for `rules import`, or to be copied below rules/.
    """
    from logdoctor.rule_files.files import export

    found = _learned(data_dir)
    exported = export(found.list(kind, status), found, folder, force)
    click.echo(f"{len(exported.written)} rules written, {len(exported.same)} unchanged")


@rules.command("import")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option("--kind", help="Kind of job for rules whose `scope` names none.")
@by_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per rule and line.")
@data_dir_option
def rules_import(
    paths: tuple[Path, ...], kind: str | None, by: str | None, as_json: bool, data_dir: Path | None
) -> None:
    """Import rules from files, if they pass the guards.

    PATHs are YAML files or folders of them. The rules start in shadow, or wait for approval.
    If one rule of a file is refused, nothing from that file is imported.
    """
    from functools import partial

    from logdoctor import build, show
    from logdoctor.rule_files.files import MOST_RULES, content_of, files_below
    from logdoctor.rule_files.imports import File, import_files

    found, settings = _learned(data_dir), settings_with(data_dir)
    files = [File(str(path), partial(content_of, path)) for path in files_below(paths)]
    scanner, records = build.scanner(settings), build.records(settings)
    guards = build.guards(settings, scanner.book, records)
    others = build.diagnosis_guards(scanner, records)
    results = import_files(files, kind, guards, found, by or login(), time.time(), MOST_RULES, others)
    show.imported(results, as_json)
    sys.exit(COULD_NOT_WORK if any(one.outcome in ("refused", "held") for one in results) else 0)
