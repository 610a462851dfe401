"""Follow a node test in a terminal: print worlds, and cancel it on Ctrl-C or SIGTERM."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

import click

from logdoctor.errors import ActionRefused, ServiceAway

if TYPE_CHECKING:
    from logdoctor.cli.client.nodes import ServedActor, ServedNodeRecords
    from logdoctor.service.acting import Actor
    from logdoctor.store.nodes.records import NodeRecords
    from logdoctor.store.nodes.tests import StoredTest
    from logdoctor.types.nodes import Result

_LOOKED_EVERY = 0.5  # seconds
_PATIENCE = 60.0  # seconds that a service may be away while its test is followed


class Interruption:
    """Whether the user asked to stop; the second request raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.wanted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Catch Ctrl-C and SIGTERM within the block, to cancel a test that just began."""
    interruption = Interruption()
    before = {number: signal.signal(number, interruption) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def followed(actor: "Actor | ServedActor", test: int, by: str, interruption: Interruption) -> "StoredTest":
    """Follow a test and return it when it has ended. Print its start and each world on standard error."""
    from logdoctor.nodes.launching import GRACE
    from logdoctor.words.node_tables import begun_line, world_line

    stored, _ = standing(actor.records, test)
    click.echo(begun_line(stored, GRACE), err=True)
    news, printed, cancelled = threading.Event(), 0, False
    actor.listeners.append(lambda _: news.set())
    heard = time.monotonic()
    while True:
        if interruption.wanted and not cancelled:
            cancelled = True
            click.echo("stopping: ending the running worlds", err=True)
            with contextlib.suppress(ActionRefused):  # it has just ended
                actor.cancel(test, by)
        try:
            stored, worlds = standing(actor.records, test, printed)
            heard = time.monotonic()
        except ServiceAway as error:
            if time.monotonic() - heard > _PATIENCE:
                step = f"It goes on there. Look later: logdoctor nodes show-test {test}"
                raise ServiceAway(f"test {test}", f"is not followed any more ({error.cause})", step) from error
            worlds = []
        for world in worlds:
            click.echo(world_line(world), err=True)
        printed += len(worlds)
        if stored.state != "running":
            actor.wait(test)  # for what follows from it: actions of the policy
            return stored
        news.wait(_LOOKED_EVERY)
        news.clear()


def standing(
    records: "NodeRecords | ServedNodeRecords", test: int, after: int = 0
) -> "tuple[StoredTest, list[Result]]":
    """Return a test and the results of its ended worlds, without the first `after`. `ActionRefused` for an unknown
    test."""
    stored = records.test(test)  # before the worlds: when it has ended, all of them are there
    if stored is None:
        raise ActionRefused(f"test {test}", "does not exist", "List them: logdoctor nodes tests")
    return stored, records.results(test, after)
