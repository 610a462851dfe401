"""`logdoctor nodes`: test nodes, look at their history, cordon and uncordon them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

import click

from logdoctor.cli.checkout import CheckoutCommand
from logdoctor.cli.exits import COULD_NOT_WORK, ExitCodeGroup, complain
from logdoctor.cli.following import followed, interruptible, standing
from logdoctor.cli.options import by_option, data_dir_option, login, served_settings, settings_with, why_option
from logdoctor.errors import ActionRefused
from logdoctor.launchers import LauncherName

if TYPE_CHECKING:
    from logdoctor.node_types import Conclusion
    from logdoctor.service.acting import Actor
    from logdoctor.store.node_records import NodeRecords
    from logdoctor.store.node_tests import StoredTest

Listed = TypeVar("Listed")

HEALTHY, FOUND, UNDECIDED = 0, 1, 3
_STATES = ("waiting", "approved", "refused", "done", "failed", "superseded")
_id = click.argument("id", type=click.IntRange(1, (1 << 63) - 1), metavar="ID")
_node = click.argument("node", metavar="NODE")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
_verdict = click.option(
    "--verdict", type=click.IntRange(1), metavar="ID", help="The verdict that is the reason for it."
)
_limit = click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)


@click.group(cls=ExitCodeGroup)
def nodes() -> None:
    """Test, inspect, cordon and uncordon nodes."""


@nodes.command("test")
@click.option("--launcher", type=click.Choice(get_args(LauncherName)), help="Default: LOGDOCTOR_LAUNCHER.")
@click.option(
    "--nodes",
    "sets",
    multiple=True,
    metavar="NODESET",
    help="gpu-[01-08]; repeatable; default: those of the verdict's job, or else all that the launcher knows.",
)
@_verdict
@click.option("--repeats", type=click.IntRange(1, 1000), help="How often each world repeats its all-gather.")
@click.option("--seconds", type=click.FloatRange(1, 3600), help="Seconds after which a world is killed.")
@click.option("--topology", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A topology.conf.")
@click.option(
    "--regroup", type=click.IntRange(0, 100), help="How often all nodes are paired again while nothing passes."
)
@_as_json
@by_option
@data_dir_option
def nodes_test(
    launcher: str | None,
    sets: tuple[str, ...],
    verdict: int | None,
    repeats: int | None,
    seconds: float | None,
    topology: Path | None,
    regroup: int | None,
    as_json: bool,
    by: str | None,
    data_dir: Path | None,
) -> None:
    """Find the faulty nodes: pairs run an all-gather, and those that fail are tried again with nodes that work.

    Worlds are reported on standard error as they end.
    Exit codes: 0 all healthy, 1 a faulty or slow node or link was found, 3 something is undecided, 2 could not work:
    nothing was launched, or it was stopped.
    """
    from logdoctor.cli.nodesets import expanded

    names, who = expanded(sets), by or login()
    if sets and not names:
        raise click.UsageError("--nodes names no node.")
    with interruptible() as interruption, _acting(data_dir) as actor:
        number = actor.test(
            names,
            who,
            launcher=launcher,
            verdict=verdict,
            repeats=repeats,
            seconds=seconds,
            regroups=regroup,
            topology=topology.resolve() if topology else None,
        )
        stored = followed(actor, number, who, interruption)
    _finish(actor.records, stored, as_json)


def _finish(records: "NodeRecords", stored: "StoredTest", as_json: bool) -> None:
    """Print what a test found, and exit with the matching code."""
    from logdoctor import show
    from logdoctor.cli import node_tables

    if as_json:
        click.echo(show.ascii_json({"test": stored, "worlds": records.results(stored.id)}))
    elif stored.conclusion is not None:
        node_tables.conclusion(stored.id, stored.conclusion)
    if stored.conclusion is None:
        complain(ActionRefused(f"test {stored.id}", f"it was stopped ({stored.why})", "Start another one."))
        sys.exit(COULD_NOT_WORK)
    launched = any(world.ended != "void" for world in records.results(stored.id))
    sys.exit(_code(stored.conclusion) if launched else COULD_NOT_WORK)


def _code(found: "Conclusion") -> int:
    """Return the exit code for what a test found."""
    if found.named("faulty") or found.named("slow") or found.links:
        return FOUND
    return UNDECIDED if found.open or found.named("indeterminate") else HEALTHY


@nodes.command("tests")
@click.option("--node", help="Only tests that include this node.")
@_limit
@_as_json
@data_dir_option
def nodes_tests(node: str | None, limit: int, as_json: bool, data_dir: Path | None) -> None:
    """List tests, newest first."""
    from logdoctor.cli import node_tables

    found = _records(data_dir).tests(None, limit, node).items
    _print_all(found, as_json, node_tables.tests)


@nodes.command("show-test")
@_id
@_as_json
@data_dir_option
def nodes_show_test(id: int, as_json: bool, data_dir: Path | None) -> None:
    """Print a test: its worlds and what they prove."""
    from logdoctor import show
    from logdoctor.cli import node_tables

    stored, worlds = standing(_records(data_dir), id)
    if as_json:
        click.echo(show.ascii_json({"test": stored, "worlds": worlds}))
    else:
        node_tables.test(stored, worlds)


@nodes.command("cancel")
@_id
@by_option
@data_dir_option
def nodes_cancel(id: int, by: str | None, data_dir: Path | None) -> None:
    """Stop test ID, whoever runs it: its worlds are stopped within seconds, and it reaches no conclusion.

    Also closes the record of a test whose process is gone.
    """
    with _acting(data_dir) as actor:
        actor.cancel(id, by or login())
    click.echo(f"test {id}: cancelled")


@nodes.command("list")
@click.option("--cluster", "with_cluster", is_flag=True, help="Also show the state of the nodes in the cluster.")
@_as_json
@data_dir_option
def nodes_list(with_cluster: bool, as_json: bool, data_dir: Path | None) -> None:
    """List all recorded nodes, repeat offenders first: failures that suspect them, tests, cordons."""
    from logdoctor import build, show
    from logdoctor.cli import node_tables

    settings = served_settings(data_dir)
    records = build.node_records(settings)
    every = records.nodes()
    cluster = build.cordoner(settings, records).nodes() if with_cluster else []
    if as_json:
        click.echo(show.ascii_json({"items": every, "cluster": cluster}))
    else:
        node_tables.nodes(every, cluster)


@nodes.command("history")
@_node
@_limit
@_as_json
@data_dir_option
def nodes_history(node: str, limit: int, as_json: bool, data_dir: Path | None) -> None:
    """Print the history of NODE: failures that suspect it, test results, cordons."""
    from logdoctor import show
    from logdoctor.cli import node_tables
    from logdoctor.node_types import checked_name

    found = _records(data_dir).history(checked_name(node), limit)
    if as_json:
        click.echo(show.ascii_json(found))
    else:
        node_tables.history(found)


@nodes.command("cordon")
@_node
@click.option("--reason", default="", help="Reason, recorded on the node. Default: what --test found.")
@_verdict
@click.option("--test", type=click.IntRange(1), metavar="ID", help="The test that proves the fault.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@by_option
@data_dir_option
def nodes_cordon(
    node: str, reason: str, verdict: int | None, test: int | None, yes: bool, by: str | None, data_dir: Path | None
) -> None:
    """Cordon NODE, so that no new job starts on it.

    Refused when a cap is reached, and for a node that others have cordoned.
    """
    from logdoctor.cli import node_tables
    from logdoctor.node_types import checked_name

    name = checked_name(node)
    with _acting(data_dir) as actor:
        if not reason and test is not None:
            reason = _found_of(actor.records, test, name)
        if not reason.strip():
            raise click.UsageError("--reason is needed, or --test.")
        if not yes:
            click.confirm(f"Take {name} out ({reason[:200]})?", abort=True, err=True)
        node_tables.cordoned(actor.cordon(name, by or login(), reason, verdict, test))


def _found_of(records: "NodeRecords", test: int, node: str) -> str:
    """Return what a test found about a node; "" when it is nothing bad."""
    stored, _ = standing(records, test)
    findings = stored.conclusion.findings if stored.conclusion else ()
    return next((one.why for one in findings if one.node == node and one.standing in ("faulty", "slow")), "")


@nodes.command("uncordon")
@_node
@why_option
@by_option
@data_dir_option
def nodes_uncordon(node: str, why: str, by: str | None, data_dir: Path | None) -> None:
    """Uncordon NODE, if logdoctor cordoned it."""
    from logdoctor.cli import node_tables
    from logdoctor.node_types import checked_name

    with _acting(data_dir) as actor:
        node_tables.cordoned(actor.uncordon(checked_name(node), by or login(), why))


@nodes.command("actions")
@click.option("--state", type=click.Choice(_STATES), help="Only those in this state.")
@_limit
@_as_json
@data_dir_option
def nodes_actions(state: str | None, limit: int, as_json: bool, data_dir: Path | None) -> None:
    """List actions on nodes, newest first."""
    from logdoctor.cli import node_tables

    _print_all(_records(data_dir).actions(state, None, limit).items, as_json, node_tables.actions)


@nodes.command("approve")
@_id
@why_option
@by_option
@data_dir_option
def nodes_approve(id: int, why: str, by: str | None, data_dir: Path | None) -> None:
    """Approve action ID. A cordon or a test is carried out at once, and a test is followed here.

    If it cannot be carried out now, it goes back to waiting with the reason, and the exit code is 2.
    """
    from logdoctor.cli import node_tables

    who = by or login()
    with interruptible() as interruption, _acting(data_dir) as actor:
        approved = actor.approve(id, who, why)
        node_tables.actions([approved])
        if (number := actor.begun.get(id)) is None:
            sys.exit(0 if approved.state == "done" else COULD_NOT_WORK)
        stored = followed(actor, number, who, interruption)
    _finish(actor.records, stored, False)


@nodes.command("refuse")
@_id
@why_option
@by_option
@data_dir_option
def nodes_refuse(id: int, why: str, by: str | None, data_dir: Path | None) -> None:
    """Refuse action ID."""
    from logdoctor.cli import node_tables

    with _acting(data_dir) as actor:
        node_tables.actions([actor.refuse(id, by or login(), why)])


@nodes.command("audit")
@click.option("--node", help="Only steps that concern this node.")
@click.option("--test", type=click.IntRange(1), metavar="ID", help="Only steps that concern this test.")
@_limit
@_as_json
@data_dir_option
def nodes_audit(node: str | None, test: int | None, limit: int, as_json: bool, data_dir: Path | None) -> None:
    """Print the audit log, newest first: who did what, when and why."""
    from logdoctor.cli import node_tables

    _print_all(_records(data_dir).audit(None, limit, node, test).items, as_json, node_tables.audit)


nodes.add_command(
    CheckoutCommand(
        "simulate",
        "simulate_nodes",
        "Show how exact tests are, ours and DLRover's: simulated clusters with faulty nodes.",
    )
)


def _records(data_dir: Path | None) -> "NodeRecords":
    """Return the records of nodes; `StoreError` when there is no database: none is created for a look."""
    from logdoctor import build

    return build.node_records(served_settings(data_dir))


@contextmanager
def _acting(data_dir: Path | None) -> "Iterator[Actor]":
    """Yield what acts on nodes, until the block ends."""
    import logging

    import structlog

    from logdoctor import build

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # standard output is for answers
    )
    actor = build.actor(settings_with(data_dir))
    actor.start()
    try:
        yield actor
    finally:
        actor.stop()


def _print_all(found: "Sequence[Listed]", as_json: bool, render: "Callable[[Sequence[Listed]], None]") -> None:
    from logdoctor import show

    if not as_json:
        render(found)
        return
    for one in found:
        click.echo(show.ascii_json(one))
