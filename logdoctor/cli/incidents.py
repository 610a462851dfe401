"""`logdoctor incidents`: look at failures grouped by cause, and assign them."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from logdoctor.cli.options import Place, by_option, place_options, served_settings
from logdoctor.errors import IncidentRefused

if TYPE_CHECKING:
    from logdoctor.client.incidents import ServedIncidents
    from logdoctor.store.incidents import Incident, Incidents, Step


@click.group()
def incidents() -> None:
    """List failures by cause; acknowledge and resolve them."""


_id = click.argument("id", type=click.IntRange(1, (1 << 63) - 1), metavar="ID")
_note = click.option("--note", default="", help="Note for whoever looks next.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per incident and line.")


def _incidents(place: Place) -> "Incidents | ServedIncidents":
    """Return the incidents, older failures included; `StoreError` when the data folder has no database."""
    if place.service is not None:
        from logdoctor.client.incidents import ServedIncidents

        return ServedIncidents(place.service)
    from logdoctor import build
    from logdoctor.store.incidents import Incidents

    found = Incidents(build.records(served_settings(place.data_dir)).database)
    found.catch_up(time.time())
    return found


@incidents.command("list")
@_json
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
@place_options
def incidents_list(
    as_json: bool,
    state: str | None,
    reason: str | None,
    node: str | None,
    user: str | None,
    job: str | None,
    text: str | None,
    place: Place,
) -> None:
    """List incidents, newest attempt first."""

    from logdoctor.cli import incident_tables
    from logdoctor.store.incidents import WantedIncidents

    wanted = WantedIncidents(reason=reason, node=node, user=user, job=job, text=text)
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

    With its cause, advice, newest attempts and history.
    """
    from logdoctor.cli import incident_tables
    from logdoctor.show import ascii_json

    found = _incidents(place)
    one = found.one(id)
    if one is None:
        raise IncidentRefused(f"incident {id}", "does not exist", "List them: logdoctor incidents list")
    if as_json:
        click.echo(ascii_json(one))
    else:
        incident_tables.incident(one, found.members(id, limit=10).items, found.events(id, limit=20))


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
    from logdoctor.cli import incident_tables

    found = _incidents(place)
    incident_tables.step(found.step(id, step, place.who(by), note, time.time(), None))
