"""`logdoctor notify`: test notification targets, list messages and their delivery, resend them."""

import sys
from typing import TYPE_CHECKING

import click

from logdoctor.cli.options import Place, by_option, log_to_stderr, place_options, served_settings, settings_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logdoctor.cli.client.notifications import ServedNotices
    from logdoctor.store.incidents.notices import Notice

NOT_DELIVERED = 1
_SECONDS = 90.0  # for one try to send a message
_STATES = ("waiting", "held", "delivered", "dead", "withdrawn", "summed")


@click.group()
def notify() -> None:
    """Test notification targets, list messages, send them again."""


@notify.command("secret")
def notify_secret() -> None:
    """Print a new secret for signing webhooks.

    It goes into LOGDOCTOR_NOTIFY_WEBHOOK_SECRETS and into the settings of the receiver.
    """
    from logdoctor.service.notify.signing import new_secret

    click.echo(new_secret())


@notify.command("test")
@click.argument("target", required=False)
@by_option
@place_options
def notify_test(target: str | None, by: str | None, place: Place) -> None:
    """Send a test message to TARGET, or to all targets.

    The service may be running at the same time.
    Exit codes: 0 all delivered, 1 one was not, 2 could not work.
    """
    from logdoctor.wiring import notices

    who = place.who(by)
    log_to_stderr()
    notifier = _served(place) or notices.notifier(settings_with(place.data_dir))
    names = [target] if target else [one.name for one in notifier.targets()]
    if not names:
        raise click.UsageError("No target is set. See docs/notifications.md.")
    found = [notifier.test(name, who, _SECONDS) for name in names]
    _print(found)
    sys.exit(0 if all(one.state == "delivered" for one in found) else NOT_DELIVERED)


@notify.command("list")
@click.option("--state", type=click.Choice(_STATES), help="Only those in this state.")
@click.option("--target", help="Only those to this target.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@place_options
def notify_list(state: str | None, target: str | None, limit: int, as_json: bool, place: Place) -> None:
    """List messages and their state, newest first."""
    from logdoctor.wiring import stored
    from logdoctor.words import show

    notices = _served(place) or stored.outbox(served_settings(place.data_dir))
    found = notices.notices(None, limit, state, target).items
    if not as_json:
        _print(found)
        return
    for one in found:
        click.echo(show.ascii_json(one))


@notify.command("retry")
@click.argument("id", type=click.IntRange(1, (1 << 63) - 1), metavar="ID")
@by_option
@place_options
def notify_retry(id: int, by: str | None, place: Place) -> None:
    """Send a message now.

    Only a message that is waiting or was given up can be sent again.

    Exit codes: 0 delivered, 1 not delivered, 2 could not work.
    """
    from logdoctor.wiring import notices

    who = place.who(by)
    log_to_stderr()
    served = _served(place)
    if served is not None:
        found = served.retry(id, who, _SECONDS)
    else:
        found = notices.notifier(served_settings(place.data_dir)).retry(id, who)
    _print([found])
    sys.exit(0 if found.state == "delivered" else NOT_DELIVERED)


def _served(place: Place) -> "ServedNotices | None":
    """Return the notifications of the service; None without one."""
    if place.service is None:
        return None
    from logdoctor.cli.client.notifications import ServedNotices

    return ServedNotices(place.service)


def _print(found: "Sequence[Notice]") -> None:
    """Print a line for each message."""
    from logdoctor.service.notify.messages import describe, read
    from logdoctor.words.show import day, each, safe

    for one in each(found, "no messages"):
        words = (str(one.id), day(one.at), one.state, one.target, describe(read(one.body)), one.why)
        click.echo("  ".join(safe(word, 300) for word in words if word))
