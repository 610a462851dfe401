"""`logdoctor nodes`: test nodes, show their history, cordon and uncordon them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

import click

from logdoctor.cli.checkout import CheckoutCommand
from logdoctor.cli.exits import COULD_NOT_WORK, complain
from logdoctor.cli.following import followed, interruptible, standing
from logdoctor.cli.options import (
    Place,
    by_option,
    log_to_stderr,
    place_options,
    served_settings,
    settings_with,
    why_option,
)
from logdoctor.errors import ActionRefused
from logdoctor.types.launchers import LauncherName

if TYPE_CHECKING:
    from logdoctor.cli.client.nodes import ServedActor, ServedNodeRecords
    from logdoctor.service.acting import Actor
    from logdoctor.store.nodes.records import NodeRecords
    from logdoctor.store.nodes.tests import StoredTest
    from logdoctor.types.nodes import Conclusion, NodeState

Listed = TypeVar("Listed")

HEALTHY, FOUND, UNDECIDED = 0, 1, 3
_STATES = ("waiting", "approved", "refused", "done", "failed", "superseded")
_id = click.argument("id", type=click.IntRange(1, (1 << 63) - 1), metavar="ID")
_node = click.argument("node", metavar="NODE")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
_verdict = click.option("--verdict", type=click.IntRange(1), metavar="ID", help="The verdict that is the reason.")
_limit = click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)


@click.group()
def nodes() -> None:
    """Test, inspect, cordon and uncordon nodes."""


@nodes.command("test")
@click.option(
    "--launcher",
    type=click.Choice(get_args(LauncherName)),
    help="How probes reach the nodes; default: LOGDOCTOR_LAUNCHER.",
)
@click.option(
    "--nodes",
    "sets",
    multiple=True,
    metavar="NODESET",
    help="Nodes to test, such as gpu-[01-08]; repeatable; default: those of the verdict's job, else all.",
)
@_verdict
@click.option("--repeats", type=click.IntRange(1, 1000), help="How often each world repeats its all-gather.")
@click.option("--seconds", type=click.FloatRange(1, 3600), help="Seconds after which a world is killed.")
@click.option(
    "--topology",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Topology file of Slurm (topology.conf).",
)
@click.option(
    "--regroup", type=click.IntRange(0, 100), help="How often all nodes are paired again while nothing passes."
)
@_as_json
@by_option
@place_options
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
    place: Place,
) -> None:
    """Find the faulty nodes.

    Pairs of nodes ("worlds") run an all-gather. The nodes of a failed pair are tried again with nodes that work. Each
    world is reported on standard error when it ends.

    Exit codes: 0 all healthy, 1 a faulty or slow node or link was found, 3 something is undecided, 2 could not work:
    nothing was launched, or it was stopped.
    """
    from logdoctor.words.nodesets import expanded

    names, who = expanded(sets), place.who(by)
    if sets and not names:
        raise click.UsageError("--nodes names no node.")
    with interruptible() as interruption, _acting(place) as actor:
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


def _finish(records: "NodeRecords | ServedNodeRecords", stored: "StoredTest", as_json: bool) -> None:
    """Print the conclusion of a test, and exit with its code."""
    from logdoctor.words import node_tables, show

    if as_json:
        click.echo(show.ascii_json({"test": stored, "worlds": records.results(stored.id)}))
    elif stored.conclusion is not None:
        node_tables.conclusion(stored.id, stored.conclusion)
    if stored.conclusion is None:
        complain(ActionRefused(f"test {stored.id}", f"was stopped ({stored.why})", "Start another one."))
        sys.exit(COULD_NOT_WORK)
    launched = any(world.ended != "void" for world in records.results(stored.id))
    sys.exit(_code(stored.conclusion) if launched else COULD_NOT_WORK)


def _code(found: "Conclusion") -> int:
    """Return the exit code for a conclusion."""
    if found.named("faulty") or found.named("slow") or found.links:
        return FOUND
    return UNDECIDED if found.open or found.named("indeterminate") else HEALTHY


@nodes.command("tests")
@click.option("--node", help="Only tests that include this node.")
@_limit
@_as_json
@place_options
def nodes_tests(node: str | None, limit: int, as_json: bool, place: Place) -> None:
    """List tests, newest first."""
    from logdoctor.words import node_tables

    found = _records(place).tests(None, limit, node).items
    _print_all(found, as_json, node_tables.tests)


@nodes.command("show-test")
@_id
@_as_json
@place_options
def nodes_show_test(id: int, as_json: bool, place: Place) -> None:
    """Print a test: its worlds and what they prove."""
    from logdoctor.words import node_tables, show

    stored, worlds = standing(_records(place), id)
    if as_json:
        click.echo(show.ascii_json({"test": stored, "worlds": worlds}))
    else:
        node_tables.test(stored, worlds)


@nodes.command("cancel")
@_id
@by_option
@place_options
def nodes_cancel(id: int, by: str | None, place: Place) -> None:
    """Stop a test, whoever runs it.

    Its worlds stop within seconds, and it reaches no conclusion. Also closes the record of a test whose process is
    gone.
    """
    with _acting(place) as actor:
        actor.cancel(id, place.who(by))
    click.echo(f"test {id}: cancelled")


@nodes.command("list")
@click.option("--cluster", "with_cluster", is_flag=True, help="Also show the state of the nodes in the cluster.")
@_as_json
@place_options
def nodes_list(with_cluster: bool, as_json: bool, place: Place) -> None:
    """List all recorded nodes, repeat offenders first.

    For each node: the failures that suspect it, its last test and its cordon.
    """
    from logdoctor.words import node_tables, show

    every = _records(place).nodes()
    cluster = _fleet(place) if with_cluster else []
    if as_json:
        click.echo(show.ascii_json({"items": every, "cluster": cluster}))
    else:
        node_tables.nodes(every, cluster)


@nodes.command("history")
@_node
@_limit
@_as_json
@place_options
def nodes_history(node: str, limit: int, as_json: bool, place: Place) -> None:
    """Print the history of NODE.

    It has the failures that suspect it, test results and cordons.
    """
    from logdoctor.types.nodes import checked_name
    from logdoctor.words import node_tables, show

    found = _records(place).history(checked_name(node), limit)
    if as_json:
        click.echo(show.ascii_json(found))
    else:
        node_tables.history(found)


@nodes.command("cordon")
@_node
@click.option("--reason", default="", help="Reason, recorded on the node; default: what --test found.")
@_verdict
@click.option("--test", type=click.IntRange(1), metavar="ID", help="The test that proves the fault.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@by_option
@place_options
def nodes_cordon(
    node: str, reason: str, verdict: int | None, test: int | None, yes: bool, by: str | None, place: Place
) -> None:
    """Cordon NODE, so that no new job starts on it.

    Refused when a cap is reached, and for a node that somebody else has cordoned.
    """
    from logdoctor.types.nodes import checked_name
    from logdoctor.words import node_tables

    name = checked_name(node)
    with _acting(place) as actor:
        if not reason and test is not None:
            reason = _found_of(actor.records, test, name)
        if not reason.strip():
            raise click.UsageError("Give --reason, or a --test that found the node faulty or slow.")
        if not yes:
            click.confirm(f"Cordon {name} ({reason[:200]})? (--yes does not ask)", abort=True, err=True)
        node_tables.cordoned(actor.cordon(name, place.who(by), reason, verdict, test))


def _found_of(records: "NodeRecords | ServedNodeRecords", test: int, node: str) -> str:
    """Return why a test found a node faulty or slow; "" otherwise."""
    stored, _ = standing(records, test)
    findings = stored.conclusion.findings if stored.conclusion else ()
    return next((one.why for one in findings if one.node == node and one.standing in ("faulty", "slow")), "")


@nodes.command("uncordon")
@_node
@why_option
@by_option
@place_options
def nodes_uncordon(node: str, why: str, by: str | None, place: Place) -> None:
    """Uncordon NODE, if logdoctor cordoned it."""
    from logdoctor.types.nodes import checked_name
    from logdoctor.words import node_tables

    with _acting(place) as actor:
        node_tables.cordoned(actor.uncordon(checked_name(node), place.who(by), why))


@nodes.command("actions")
@click.option("--state", type=click.Choice(_STATES), help="Only those in this state.")
@_limit
@_as_json
@place_options
def nodes_actions(state: str | None, limit: int, as_json: bool, place: Place) -> None:
    """List actions on nodes, newest first."""
    from logdoctor.words import node_tables

    _print_all(_records(place).actions(state, None, limit).items, as_json, node_tables.actions)


@nodes.command("approve")
@_id
@why_option
@by_option
@place_options
def nodes_approve(id: int, why: str, by: str | None, place: Place) -> None:
    """Approve an action.

    A cordon or a test is carried out at once, and a test is followed here. If it cannot be carried out now, it goes
    back to waiting with the reason, and the exit code is 2.
    """
    from logdoctor.words import node_tables

    who = place.who(by)
    with interruptible() as interruption, _acting(place) as actor:
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
@place_options
def nodes_refuse(id: int, why: str, by: str | None, place: Place) -> None:
    """Refuse an action."""
    from logdoctor.words import node_tables

    with _acting(place) as actor:
        node_tables.actions([actor.refuse(id, place.who(by), why)])


@nodes.command("audit")
@click.option("--node", help="Only steps that concern this node.")
@click.option("--test", type=click.IntRange(1), metavar="ID", help="Only steps that concern this test.")
@_limit
@_as_json
@place_options
def nodes_audit(node: str | None, test: int | None, limit: int, as_json: bool, place: Place) -> None:
    """Print the audit log, newest first.

    It shows who did what, when and why.
    """
    from logdoctor.words import node_tables

    _print_all(_records(place).audit(None, limit, node, test).items, as_json, node_tables.audit)


nodes.add_command(
    CheckoutCommand(
        "simulate",
        "simulate_nodes",
        "Measure how exact tests of nodes are, in simulation.",
    )
)


def _records(place: Place) -> "NodeRecords | ServedNodeRecords":
    """Return the records of nodes; `StoreError` without a database: reading creates none."""
    if place.service is not None:
        from logdoctor.cli.client.nodes import ServedNodeRecords

        return ServedNodeRecords(place.service)
    from logdoctor.wiring import stored

    return stored.node_records(served_settings(place.data_dir))


def _fleet(place: Place) -> "list[NodeState]":
    """Return the nodes as the cluster knows them."""
    if place.service is not None:
        from logdoctor.cli.client.nodes import ServedNodeRecords

        return ServedNodeRecords(place.service).fleet()
    from logdoctor.wiring import nodes, stored

    settings = served_settings(place.data_dir)
    return nodes.cordoner(settings, stored.node_records(settings)).nodes()


@contextmanager
def _acting(place: Place) -> "Iterator[Actor | ServedActor]":
    """Yield the actor for the block: in this process, or the service."""
    if place.service is not None:
        from logdoctor.cli.client.nodes import ServedActor

        yield ServedActor(place.service)
        return
    from logdoctor.wiring import nodes

    log_to_stderr()
    actor = nodes.actor(settings_with(place.data_dir))
    actor.start()
    try:
        yield actor
    finally:
        actor.stop()


def _print_all(found: "Sequence[Listed]", as_json: bool, render: "Callable[[Sequence[Listed]], None]") -> None:
    from logdoctor.words import show

    if not as_json:
        render(found)
        return
    for one in found:
        click.echo(show.ascii_json(one))
