"""`logdoctor incidents`: list failures grouped by cause, and work on them."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from logdoctor.cli.options import Place, Span, by_option, place_options, served_settings, why_option
from logdoctor.errors import IncidentRefused

if TYPE_CHECKING:
    from logdoctor.cli.client.incidents import ServedIncidents, ServedMutes
    from logdoctor.store.incidents.mutes import Muted, Mutes
    from logdoctor.store.incidents.severity import Order
    from logdoctor.store.incidents.table import Incident, Incidents, Step


@click.group()
def incidents() -> None:
    """List failures by cause, and work on them."""


_id = click.argument("id", type=click.IntRange(1, (1 << 63) - 1), metavar="ID")
_note = click.option("--note", default="", help="Note for whoever looks next.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per incident and line.")


def _incidents(place: Place) -> "Incidents | ServedIncidents":
    """Return the store of incidents, with older failures caught up. `StoreError` when the data folder has no
    database."""
    if place.service is not None:
        from logdoctor.cli.client.incidents import ServedIncidents

        return ServedIncidents(place.service)
    from logdoctor.store.incidents.table import Incidents
    from logdoctor.wiring import stored

    found = Incidents(stored.records(served_settings(place.data_dir)).database)
    found.catch_up(time.time())
    return found


def _mutes(place: Place) -> "Mutes | ServedMutes":
    """Return the store of mutes; `StoreError` when the data folder has no database."""
    if place.service is not None:
        from logdoctor.cli.client.incidents import ServedMutes

        return ServedMutes(place.service)
    from logdoctor.store.incidents.mutes import Mutes
    from logdoctor.wiring import stored

    return Mutes(stored.records(served_settings(place.data_dir)).database)


@incidents.command("list")
@_json
@click.option(
    "-q", "--query", "q", default="", metavar="QUERY", help="Such as: 'is:new node:os-* gpus:>256 age:<2h -user:ann'."
)
@click.option(
    "--state",
    type=click.Choice(["new", "acknowledged", "resolved", "all"]),
    help="Only those in this state; default: new and acknowledged.",
)
@click.option("--reason", help="Only those with this reason.")
@click.option("--node", help="Only those with an attempt that suspects this node.")
@click.option("--user", help="Only those with an attempt of this user.")
@click.option("--job", help="Only those with an attempt of this job.")
@click.option("--text", help="Search the reason, suspected nodes, job, user and first quoted line.")
@click.option("--assignee", help="Only those of this person.")
@click.option(
    "--quiet",
    type=click.Choice(["hide", "only"]),
    help="Snoozed and muted ones: leave them out, or list nothing else; default: with the others.",
)
@click.option(
    "--order",
    type=click.Choice(["last", "severity", "gpu_hours", "gpus"]),
    default="last",
    help="The largest first; default: the newest failure first.",
)
@place_options
def incidents_list(
    as_json: bool,
    q: str,
    state: str | None,
    reason: str | None,
    node: str | None,
    user: str | None,
    job: str | None,
    text: str | None,
    assignee: str | None,
    quiet: Literal["hide", "only"] | None,
    order: "Order",
    place: Place,
) -> None:
    """List incidents, newest attempt first."""

    from logdoctor.store.incidents.table import WantedIncidents
    from logdoctor.words import incident_tables

    wanted = WantedIncidents(
        reason=reason, node=node, user=user, job=job, text=text, assignee=assignee, quiet=quiet, order=order, q=q
    )
    if state is not None:
        wanted = msgspec.structs.replace(wanted, states=() if state == "all" else (state,))
    found = _incidents(place)

    def every() -> "Iterator[Incident]":
        cursor = None
        while True:
            page = found.search(wanted, cursor, 500)
            yield from page.items
            if (cursor := page.next) is None:
                return

    incident_tables.incidents(every(), as_json)


@incidents.command("show")
@_id
@_json
@place_options
def incidents_show(id: int, as_json: bool, place: Place) -> None:
    """Print one incident.

    It has the cause, advice, the newest attempts and the history.
    """
    from logdoctor.words import incident_tables
    from logdoctor.words.show import ascii_json

    found = _incidents(place)
    one = found.one(id)
    if one is None:
        raise IncidentRefused(f"incident {id}", "does not exist", "List them: logdoctor incidents list")
    if as_json:
        click.echo(ascii_json(one))
    else:
        incident_tables.incident(one, found.members(id, limit=10).items, found.events(id, limit=20))


@incidents.command("handover")
@_id
@place_options
def incidents_handover(id: int, place: Place) -> None:
    """Print an incident for whoever takes it over.

    It is one paragraph with the proof and the nodes to leave out, for Slurm and Kubernetes.
    """
    from logdoctor.words.handover import handover

    found = _incidents(place)
    one = found.one(id)
    if one is None:
        raise IncidentRefused(f"incident {id}", "does not exist", "List them: logdoctor incidents list")
    click.echo(handover(one, found.members(id, limit=50).items, found.events(id, limit=20)))


@incidents.command("acknowledge")
@_id
@_note
@by_option
@place_options
def incidents_acknowledge(id: int, note: str, by: str | None, place: Place) -> None:
    """Acknowledge an incident: somebody is working on it."""
    _step(id, "acknowledge", note, by, place)


@incidents.command("resolve")
@_id
@_note
@by_option
@place_options
def incidents_resolve(id: int, note: str, by: str | None, place: Place) -> None:
    """Resolve an incident.

    The next attempt that fails in the same way opens a new one.
    """
    _step(id, "resolve", note, by, place)


@incidents.command("reopen")
@_id
@_note
@by_option
@place_options
def incidents_reopen(id: int, note: str, by: str | None, place: Place) -> None:
    """Reopen a resolved incident."""
    _step(id, "reopen", note, by, place)


def _step(id: int, step: "Step", note: str, by: str | None, place: Place) -> None:
    from logdoctor.words import incident_tables

    found = _incidents(place)
    incident_tables.step(found.step(id, step, place.who(by), note, time.time(), None))


@incidents.command("assign")
@_id
@click.argument("who", required=False)
@click.option("--nobody", is_flag=True, help="Give it back.")
@_note
@by_option
@place_options
def incidents_assign(id: int, who: str | None, nobody: bool, note: str, by: str | None, place: Place) -> None:
    """Assign an incident to yourself, or to WHO."""
    if nobody and who is not None:
        raise click.UsageError("Name somebody, or use --nobody.")
    actor = place.who(by)
    assignee = "" if nobody else who if who is not None else actor or None
    _work(place, lambda found, at: found.assign(id, assignee, actor, note, at))  # type: ignore[arg-type] # a service knows


@incidents.command("snooze")
@_id
@click.option("--for", "span", type=Span(), help="How long, such as 30m, 8h or 3d.")
@click.option("--more", type=click.IntRange(1, 1_000_000), help="Until so many more attempts failed.")
@_note
@by_option
@place_options
def incidents_snooze(id: int, span: float | None, more: int | None, note: str, by: str | None, place: Place) -> None:
    """Snooze an incident until a time or more failures.

    It ends at whichever comes first; the incident is then listed and announced again.
    """
    if span is None and more is None:
        raise click.UsageError("Say until when: --for 8h, --more 5, or both.")
    actor = place.who(by)
    _work(place, lambda found, at: found.snooze(id, None if span is None else at + span, more, actor, note, at))


@incidents.command("wake")
@_id
@_note
@by_option
@place_options
def incidents_wake(id: int, note: str, by: str | None, place: Place) -> None:
    """End the snooze of an incident."""
    actor = place.who(by)
    _work(place, lambda found, at: found.unsnooze(id, actor, note, at))


@incidents.command("comment")
@_id
@click.argument("words")
@by_option
@place_options
def incidents_comment(id: int, words: str, by: str | None, place: Place) -> None:
    """Add a comment to the history of an incident."""
    actor = place.who(by)
    _work(place, lambda found, at: found.comment(id, actor, words, at))


@incidents.command("mute")
@click.argument("kind", type=click.Choice(["fingerprint", "node"]))
@click.argument("value")
@click.option("--for", "span", type=Span(), default=7 * 86_400.0, help="How long, such as 8h or 3d; default: 7d.")
@why_option
@by_option
@place_options
def incidents_mute(kind: "Muted", value: str, span: float, why: str, by: str | None, place: Place) -> None:
    """Mute a fingerprint or a node.

    Its incidents are listed apart, and nobody is notified about them.
    """
    from logdoctor.words import incident_tables

    now = time.time()
    actor = place.who(by)
    incident_tables.mutes([_mutes(place).mute(kind, value, actor, why, now + span, now)], now)


@incidents.command("mutes")
@click.option("--all", "past", is_flag=True, help="With those that are over.")
@place_options
def incidents_mutes(past: bool, place: Place) -> None:
    """List what is muted."""
    from logdoctor.words import incident_tables

    now = time.time()
    incident_tables.mutes(_mutes(place).all(None if past else now), now)


@incidents.command("unmute")
@click.argument("id", type=click.IntRange(1, (1 << 63) - 1), metavar="MUTE")
@by_option
@place_options
def incidents_unmute(id: int, by: str | None, place: Place) -> None:
    """End a mute."""
    from logdoctor.words import incident_tables

    now = time.time()
    incident_tables.mutes([_mutes(place).lift(id, place.who(by), now)], now)


def _work(place: Place, deed: "Callable[[Incidents | ServedIncidents, float], Incident]") -> None:
    from logdoctor.words import incident_tables

    incident_tables.step(deed(_incidents(place), time.time()))
