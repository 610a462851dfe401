"""The notifier: reports each incident once to its targets, and resumes after a crash where it stopped."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from logdoctor.errors import LogdoctorError, NoticeRefused
from logdoctor.learning.filters.kind import kind_of
from logdoctor.service.delivering import GIVE_UP, Delivery, NotifyTerms
from logdoctor.service.leading import alone
from logdoctor.service.notify import messages
from logdoctor.service.notify.routing import chosen
from logdoctor.service.notify.sending import Target, Way, shown
from logdoctor.service.turns import Turns
from logdoctor.store.incidents.notices import OPENED, Closed, Gone, NewNotice, Notice, Notices, UnsentIncident
from logdoctor.store.jobs.records import JobFacts

log = structlog.get_logger()

STALE = 86_400.0
"""Seconds after which an unreported incident is no longer news."""
TEST_SECONDS = 8.0
"""Seconds to wait for the result of a test, which then goes on in the background."""

_LOOK = 15.0  # seconds between checks for unreported incidents
_PULSE = 0.2  # least seconds between two checks


class TargetState(NamedTuple):
    """A target without its secrets: messages `waiting`, `held` and given up (`dead`), the last one tried, and since
    when and why it is closed, if it is."""

    name: str
    kind: str
    url: str
    waiting: int
    held: int
    dead: int
    last: Notice | None
    closed: Closed | None


class TargetFigures(NamedTuple):
    """Delivery counters of a target: tries by result since the start, current messages by state, and the seconds since
    the oldest waiting message was due."""

    tries: dict[str, int]
    messages: dict[str, int]
    lag: float


def routed_by(unsent: UnsentIncident) -> dict[str, str]:
    """Return the fields of an incident's newest attempt that routes match."""
    stored, verdict = unsent.verdict, unsent.verdict.verdict
    facts = unsent.facts or JobFacts()
    return {
        "job": stored.job,
        "user": stored.user or "",
        "team": facts.labels.get("team", ""),
        "kind": kind_of(stored.job, facts),
        "category": verdict.category,
        "reason": verdict.reason,
        "node": next((one.node for one in verdict.suspects if one.node), ""),
    }


class Notifier:
    """Reports incidents to targets while this process `leads`. Thread-safe; `clock` gives seconds since the epoch."""

    def __init__(
        self,
        targets: Sequence[Target],
        notices: Notices,
        terms: NotifyTerms,
        way: Way,
        clock: Callable[[], float] = time.time,
        leads: Callable[[], bool] = alone,
    ) -> None:
        self.notices, self.terms = notices, terms
        self._clock = clock
        self._deliveries = {one.name: Delivery(one, notices, terms, way, clock, leads) for one in targets}
        self._trying = {one.name: threading.Lock() for one in targets}
        self._turns = Turns("notices", self.collect, _PULSE, leads)

    def start(self) -> None:
        """Start; what the last process left is sent in the background."""
        now = self._clock()
        self.notices.keep_only(list(self._deliveries), now)
        for name, closed in self.notices.closed_targets().items():
            if name in self._deliveries and self._deliveries[name].digest != closed.digest:
                self.notices.open_target(name)  # its URL has changed since
        self._turns.start()
        for delivery in self._deliveries.values():
            delivery.start()

    def stop(self) -> None:
        """Stop; the next process sends what was not sent."""
        workers: list[Turns | Delivery] = [self._turns, *self._deliveries.values()]
        for one in workers:
            one.stop()
        for one in workers:
            one.join()

    def wake(self) -> None:
        """Check incidents in the background, because one changed."""
        self._turns.wake()

    def targets(self) -> list[TargetState]:
        """Return the state of each target, in the order of the settings."""
        counts, closed = self.notices.open_counts(), self.notices.closed_targets()
        found = []
        for name, delivery in self._deliveries.items():
            target, of = delivery.target, counts.get(name, {})
            numbers = (of.get("waiting", 0), of.get("held", 0), of.get("dead", 0))
            last = self.notices.last_tried(name)
            found.append(TargetState(name, target.kind, shown(target.url), *numbers, last, closed.get(name)))
        return found

    def figures(self) -> dict[str, TargetFigures]:
        """Return the delivery counters of each target."""
        counts, ends, now = self.notices.open_counts(), self.notices.first_ends(), self._clock()
        return {
            name: TargetFigures(
                delivery.tries,
                {state: counts.get(name, {}).get(state, 0) for state in ("waiting", "held", "dead")},
                max(now - (ends[name] - GIVE_UP), 0.0) if name in ends else 0.0,
            )
            for name, delivery in self._deliveries.items()
        }

    def test(self, target: str, by: str, seconds: float = TEST_SECONDS) -> Notice:
        """Send a test message to a target once, and return it; still waiting after `seconds`.

        `NoticeRefused` when there is no such target, or a test of it is in progress. A test that arrives reopens a
        closed target.
        """
        delivery = self._delivery(target)
        if not self._trying[target].acquire(blocking=False):
            cause = "a test of it is in progress"
            raise NoticeRefused(f"target {target}", cause, "Wait for its result.")
        try:
            now = self._clock()
            body = messages.encode(messages.trial(by, self.terms.public_url, now)).decode()
            notice = self.notices.enter_trial(NewNotice(target, body, now + delivery.lease, now + GIVE_UP), by, now)
            thread = threading.Thread(target=self._try, args=(delivery, notice), name=f"test of {target}", daemon=True)
            thread.start()
        except BaseException:
            self._trying[target].release()
            raise
        thread.join(seconds)
        return self.notices.notice(notice.id) or notice

    def retry(self, id: int, by: str) -> Notice:
        """Send a waiting or given-up message again, and return it; in the background if this process delivers, else
        before returning. `NoticeRefused` for other messages and for targets no longer set."""
        found = self.notices.notice(id)
        if found is None:
            raise NoticeRefused(f"notification {id}", "does not exist", "List the notifications.")
        delivery = self._delivery(found.target)
        now = self._clock()
        found = self.notices.send_again(id, by, now, now + GIVE_UP)
        if delivery.runs:
            delivery.wake(at_once=True)
            return found
        return delivery.deliver(found) or self.notices.notice(id) or found

    def collect(self) -> float:
        """Queue messages for incidents to report; return the seconds until there may be more."""
        now = self._clock()
        news = self.notices.bring_forward(now, now + GIVE_UP) > 0
        for unsent in self.notices.unsent(now - STALE, now - self.terms.settle, now=now):
            if not self._turns.stopping.is_set():
                news |= self.notices.enqueue(unsent, self._entries(self._opened(unsent, now), now, unsent), now)
        while not self._turns.stopping.is_set():
            gone, event = self.notices.resolutions()
            for one in gone:
                news |= self._enqueue_resolved(one, now)
            if event is None:
                break
            self.notices.saw(event)
        for delivery in self._deliveries.values() if news else ():
            delivery.wake()
        oldest = self.notices.oldest_unsent(now)
        return _LOOK if oldest is None else min(max(oldest + self.terms.settle - now, 0.0), _LOOK)

    def _opened(self, unsent: UnsentIncident, now: float) -> str:
        return messages.encode(messages.opened(unsent, self.terms.public_url, now)).decode()

    def _enqueue_resolved(self, gone: Gone, now: float) -> bool:
        """Queue the message that an incident is resolved; return whether any target gets it."""
        told = next((one for one in self.notices.of(gone.id) if one.event == OPENED), None)
        if told is None:
            return False
        before = messages.read(told.body) if self.terms.resolved else None
        message = before and messages.resolved(before, gone.by, gone.note, now, self.notices.as_it_stands(gone.id))
        entries = [] if message is None else self._entries(messages.encode(message).decode(), now)
        return self.notices.enqueue_resolved(gone.id, {one.target: one for one in entries}, now) > 0

    def _entries(self, body: str, now: float, unsent: UnsentIncident | None = None) -> list[NewNotice]:
        """Return the message for each target, or for the routed targets of an incident; given up at once for closed
        targets."""
        names = list(self._deliveries)
        if unsent is not None and self.terms.routes:
            names = chosen(self.terms.routes, names, routed_by(unsent))
        closed = self.notices.closed_targets()
        due = now + self.terms.gather
        return [
            NewNotice(
                name, body, due, due + GIVE_UP, f"the target is gone ({closed[name].why})" if name in closed else ""
            )
            for name in names
        ]

    def _try(self, delivery: Delivery, notice: Notice) -> None:
        try:
            delivery.post(notice)
        except LogdoctorError as error:  # the result cannot be stored: it stays waiting, and is sent again
            log.error("test not settled", target=delivery.target.name, cause=str(error))
        finally:
            self._trying[delivery.target.name].release()

    def _delivery(self, target: str) -> Delivery:
        if target not in self._deliveries:
            known = ", ".join(self._deliveries) or "none is set"
            raise NoticeRefused(f"target {target[:80]!a}", "is not set", f"Known are: {known}.")
        return self._deliveries[target]
