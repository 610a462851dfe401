"""The notifier: tells of incidents, once, whoever wants to be told, and goes on after a crash where it stopped."""

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
"""Seconds after which an incident that was never told is not news any more."""
TEST_SECONDS = 8.0
"""Seconds for which one waits for what comes of a test; it goes on in the background."""

_LOOK = 15.0  # seconds between two looks at incidents that nobody told of
_PULSE = 0.2  # seconds between two looks at least


class TargetState(NamedTuple):
    """A target without its secrets, how many messages wait for it, are held back and were given up, the last one that
    was tried, and since when and why it is sent nothing, if so."""

    name: str
    kind: str
    url: str
    waiting: int
    held: int
    dead: int
    last: Notice | None
    closed: Closed | None


class TargetFigures(NamedTuple):
    """How it goes with a target: tries by what came of them, since the start; messages by state, as they stand; and the
    seconds since the first of those that wait was due."""

    tries: dict[str, int]
    messages: dict[str, int]
    lag: float


def routed_by(unsent: UnsentIncident) -> dict[str, str]:
    """What the newest attempt of an incident says of where its messages go."""
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
    """Tells targets of incidents, while this process `leads`. All methods are for any thread; `clock` gives seconds
    since the epoch."""

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
        """Begin; what the last process left is sent in the background."""
        now = self._clock()
        self.notices.keep_only(list(self._deliveries), now)
        for name, closed in self.notices.closed_targets().items():
            if name in self._deliveries and self._deliveries[name].digest != closed.digest:
                self.notices.open_target(name)  # it has another URL since
        self._turns.start()
        for delivery in self._deliveries.values():
            delivery.start()

    def stop(self) -> None:
        """Come to an end; what was not sent is sent by the next process."""
        workers: list[Turns | Delivery] = [self._turns, *self._deliveries.values()]
        for one in workers:
            one.stop()
        for one in workers:
            one.join()

    def wake(self) -> None:
        """Look at incidents, in the background, because one changed."""
        self._turns.wake()

    def targets(self) -> list[TargetState]:
        """Who is told, in the order of the settings."""
        counts, closed = self.notices.open_counts(), self.notices.closed_targets()
        found = []
        for name, delivery in self._deliveries.items():
            target, of = delivery.target, counts.get(name, {})
            numbers = (of.get("waiting", 0), of.get("held", 0), of.get("dead", 0))
            last = self.notices.last_tried(name)
            found.append(TargetState(name, target.kind, shown(target.url), *numbers, last, closed.get(name)))
        return found

    def figures(self) -> dict[str, TargetFigures]:
        """How it goes with each target."""
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
        """A test message to a target, after one try to send it; still waiting when that takes longer than `seconds`.

        `NoticeRefused` when there is no such target, or when it is being tested. One that arrives opens a target
        that was gone.
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
        """A message that waits or was given up, which is sent again now; by the service when it runs in this process,
        else before this returns. `NoticeRefused` for any other, and when its target is not set any more."""
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
        """Enter messages for incidents that are to be told; the seconds until there may be more."""
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
        """Whether anybody is to be told that an incident is resolved."""
        told = next((one for one in self.notices.of(gone.id) if one.event == OPENED), None)
        if told is None:
            return False
        before = messages.read(told.body) if self.terms.resolved else None
        message = before and messages.resolved(before, gone.by, gone.note, now, self.notices.as_it_stands(gone.id))
        entries = [] if message is None else self._entries(messages.encode(message).decode(), now)
        return self.notices.enqueue_resolved(gone.id, {one.target: one for one in entries}, now) > 0

    def _entries(self, body: str, now: float, unsent: UnsentIncident | None = None) -> list[NewNotice]:
        """The message for each target, or for those that are told of an incident; given up at once where a target is
        gone."""
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
        except LogdoctorError as error:  # what came of it cannot be stored: it waits, and is sent again
            log.error("test not settled", target=delivery.target.name, cause=str(error))
        finally:
            self._trying[delivery.target.name].release()

    def _delivery(self, target: str) -> Delivery:
        if target not in self._deliveries:
            known = ", ".join(self._deliveries) or "none is set"
            raise NoticeRefused(f"target {target[:80]!a}", "is not set", f"Known are: {known}.")
        return self._deliveries[target]
