"""Deliveries to one target: each has its own thread, so that a dead target holds up no other."""

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import NamedTuple

import structlog

from logdoctor import tracing
from logdoctor.service.leading import alone
from logdoctor.service.notify import messages
from logdoctor.service.notify.quiet import Quiet
from logdoctor.service.notify.routing import Route
from logdoctor.service.notify.sending import SendResult, Target, Way, send
from logdoctor.service.turns import Turns
from logdoctor.store.incidents.notices import SUMMARY, TRIAL, Closed, NewNotice, Notice, Notices

log = structlog.get_logger()

GIVE_UP = 86_400.0
"""Seconds for which a message is retried."""
FIRST_WAIT = 5.0
LONGEST_WAIT = 7200.0
LONGEST_PAUSE = 300.0
"""Longest pause after a failure, in seconds, unless the target asks for longer."""

_MINUTE = 60.0
_LOOK = 30.0  # seconds between checks for messages of other processes
_LEASE = 5.0  # seconds added to the send timeout: nobody else sends a claimed message meanwhile
_SET_BACK = 60.0  # a clock that jumps back this many seconds was set; less is ordinary drift


class NotifyTerms(NamedTuple):
    """Settings of notifications. A provisional verdict settles for `settle` seconds, a first message waits `gather`
    seconds for others; beyond `per_minute` messages are summed up. They are held during `quiet`, except recoveries
    of `quiet_except`; `resolved`: resolutions are sent, too. `public_url` is where people reach logdoctor; `routes`
    choose targets; `slack_secret` is that of Slack's app, "" where Slack has no buttons."""

    settle: float = 20.0
    per_minute: int = 5
    quiet: Quiet | None = None
    quiet_except: frozenset[str] = frozenset()
    resolved: bool = True
    gather: float = 2.0
    public_url: str = ""
    routes: tuple[Route, ...] = ()
    slack_secret: str = ""


class Delivery:
    """Sends due messages to one target while this process `leads`. Thread-safe; `clock` gives seconds since the
    epoch."""

    def __init__(
        self,
        target: Target,
        notices: Notices,
        terms: NotifyTerms,
        way: Way,
        clock: Callable[[], float] = time.time,
        leads: Callable[[], bool] = alone,
    ) -> None:
        self.target = target
        self._notices, self._terms, self._way, self._clock = notices, terms, way, clock
        self._recent: deque[float] = deque()  # times of first tries, in the last minute
        self._summed = 0.0
        self._failures, self._paused = 0, 0.0
        self._looked = 0.0
        self._tries: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._turns = Turns(f"notices to {target.name}", self.turn, may=leads)
        self._leads = leads

    @property
    def digest(self) -> str:
        """The digest of the target's URL, which distinguishes targets of the same name."""
        return sha256(self.target.url.encode()).hexdigest()

    @property
    def runs(self) -> bool:
        """Whether the thread runs and sends due messages by itself."""
        return self._turns.runs and self._leads()

    @property
    def tries(self) -> dict[str, int]:
        """Numbers of `delivered` and `failed` tries of this process."""
        with self._counting:
            return {"delivered": self._tries["delivered"], "failed": self._tries["failed"]}

    def start(self) -> None:
        """Start."""
        self._turns.start()

    def stop(self) -> None:
        """Begin to stop; a message being sent is cut off, and the next process sends it again."""
        self._turns.stop()

    def join(self) -> None:
        """Wait until it has stopped."""
        self._turns.join()

    def wake(self, at_once: bool = False) -> None:
        """Check for due messages; `at_once` also ends the pause after a failure."""
        if at_once:
            self._paused = 0.0
        self._turns.wake()

    def deliver(self, notice: Notice) -> Notice | None:
        """Claim a message, try to send it once, and return it; None if somebody else holds it."""
        claimed = self._notices.claim(notice.id, self._clock(), self.lease)
        return None if claimed is None else self.post(claimed)

    @property
    def lease(self) -> float:
        """Seconds for which a claimed message belongs to its claimer."""
        return self._way.seconds + _LEASE

    def post(self, claimed: Notice) -> Notice:
        """Try once to send a message that the caller has claimed, and return it."""
        answer, now = self._answer(claimed), self._clock()
        with self._counting:
            self._tries["delivered" if answer.outcome == "taken" else "failed"] += 1
        if answer.outcome == "taken":
            self._failures, self._paused = 0, 0.0
            if self.target.name in self._notices.closed_targets():
                self._notices.open_target(self.target.name)
            return self._notices.settle_notice(claimed.id, "delivered", answer.why, now)
        log.warning("notification not sent", target=self.target.name, notice=claimed.id, cause=answer.why)
        if answer.outcome == "gone":
            self._notices.close_target(self.target.name, Closed(self.digest, now, answer.why))
        if answer.outcome != "later" or claimed.event == TRIAL:
            return self._notices.settle_notice(claimed.id, "dead", answer.why, now)
        self._failures += 1
        self._paused = now + max(min(_wait(self._failures), LONGEST_PAUSE), answer.retry_after or 0.0)
        due = now + max(_wait(claimed.tries), answer.retry_after or 0.0)
        if due > claimed.until:
            return self._notices.settle_notice(claimed.id, "dead", f"given up: {answer.why}", now)
        return self._notices.put_off(claimed, due, answer.why, now)

    def _answer(self, claimed: Notice) -> SendResult:
        """Return the result of one try. Our own faults count as temporary (most likely too many open files): they hold
        up no other message, and this one is neither lost nor retried for ever."""
        try:
            with _span(claimed) as notifying:
                result = send(self.target, claimed.key, claimed.body, self._way, self._turns.stopping)
                notifying.add(outcome=result.outcome)
                return result
        except Exception as error:
            log.exception("notification could not be sent", target=self.target.name, notice=claimed.id)
            return SendResult("later", f"logdoctor could not send it ({type(error).__name__})")

    def turn(self) -> float:
        """Send what is due; return the seconds until there may be more."""
        now = self._clock()
        if now < self._looked - _SET_BACK:  # pauses computed by a clock that was ahead would last too long
            self._paused = self._summed = 0.0
            self._recent.clear()
        self._looked = now
        if now >= self._paused:
            for notice in self._chosen(self._notices.due(self.target.name, now), now):
                if self._turns.stopping.is_set() or self._clock() < self._paused:
                    break
                if notice.tries == 0:
                    self._recent.append(self._clock())
                self.deliver(notice)
        now = self._clock()
        following = self._notices.next_due(self.target.name)
        waits = [self._paused - now] if now < self._paused else []
        if following is not None and not waits:
            waits.append(max(following, self._summed + _MINUTE if following <= now else 0.0) - now)
        return min([_LOOK, *(max(wait, 0.05) for wait in waits)])

    def _chosen(self, due: Sequence[Notice], now: float) -> list[Notice]:
        """Choose what to send now: outside quiet hours, within the limit per minute; the rest is summed up once a
        minute."""
        due = self._without_held(due, now)
        fresh = [one for one in due if _is_fresh(one)]
        others = [one for one in due if not _is_fresh(one)]
        while self._recent and self._recent[0] <= now - _MINUTE:
            self._recent.popleft()
        after_quiet = len(fresh) > 1 and any(one.state == "held" for one in fresh)
        if not after_quiet and len(fresh) <= max(self._terms.per_minute - len(self._recent), 0):
            return due
        if not after_quiet and now < self._summed + _MINUTE:
            return others
        return [*others, *self._summary(fresh, now)]

    def _summary(self, fresh: Sequence[Notice], now: float) -> list[Notice]:
        """Merge many messages into one; a single one stays as it is."""
        if len(fresh) == 1:
            self._summed = now
            return list(fresh)
        told = [message for one in fresh if (message := messages.read(one.body))]
        message = messages.summary(told, self._terms.public_url, now)
        entry = NewNotice(self.target.name, messages.encode(message).decode(), now, now + GIVE_UP)
        if (summed := self._notices.sum_up([one.id for one in fresh], entry, now)) is None:
            return []  # one of them is being sent right now: next time
        self._summed = now
        return [summed]

    def _without_held(self, due: Sequence[Notice], now: float) -> list[Notice]:
        """Return what is due, except what quiet hours hold back. What a person sends is never held."""
        end = self._terms.quiet.until(now) if self._terms.quiet else None
        if end is None:
            return list(due)
        now_due = [one for one in due if one.by or self._is_urgent(one)]
        if len(now_due) < len(due):
            sent = {one.id for one in now_due}
            self._notices.hold([one.id for one in due if one.id not in sent], end, end + GIVE_UP, now)
        return now_due

    def _is_urgent(self, notice: Notice) -> bool:
        message = messages.read(notice.body)
        return message is not None and not self._terms.quiet_except.isdisjoint(messages.recoveries(message))


def _span(notice: Notice) -> AbstractContextManager[tracing.Span]:
    """Return the span of one try to send, in the trace of its attempt."""
    told = messages.read(notice.body) if tracing.is_on() else None
    if not isinstance(told, messages.Opened | messages.Resolved):
        return tracing.NOTHING
    about, tries = told.data, notice.tries
    return tracing.span("notify", about.job, about.attempt, target=notice.target, event=notice.event, tries=tries)


def _is_fresh(notice: Notice) -> bool:
    """Return whether a message may go into a summary: never tried, and no person sent it."""
    is_plain = notice.tries == 0 and not notice.by and notice.event not in (SUMMARY, TRIAL)
    return is_plain and messages.read(notice.body) is not None


def _wait(tries: int) -> float:
    """Return the seconds until the next try, with jitter so that retries spread out."""
    return min(FIRST_WAIT * 2.0 ** min(max(tries - 1, 0), 30), LONGEST_WAIT) * random.uniform(0.75, 1.25)
