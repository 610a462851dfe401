"""Limits on new attempts: per push, and per minute for each token.

Each needs a verdict of its own, so a body with thousands of names would delay the verdicts of others.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from starlette.concurrency import run_in_threadpool

from logdoctor.errors import RequestRefused
from logdoctor.store.names import Key
from logdoctor.web.dependencies import AppState
from logdoctor.web.gate import Caller
from logdoctor.web.rates import Rates

_REMEMBERED = 10_000
FACTS_CHANGED = ""
"""Replaces the attempt where a job is only described."""

Name = tuple[str, int | str]
"""A job, and the number of its attempt, or the key by which it gets one."""


class AttemptLimits:
    """Counts new attempts for each caller. Only for the event loop."""

    def __init__(self, state: AppState) -> None:
        self._service, self._limits = state.service, state.options.births
        self._rates = Rates(state.service.redis, state.options.clock)
        self._begun: OrderedDict[Name, None] = OrderedDict()

    async def require(self, caller: Caller, name: Name, is_known: Callable[[], bool]) -> None:
        """Count a new job or attempt, unless it is known; `RequestRefused` (429) above the limit."""
        if not any(self._limits) or name in self._begun or await run_in_threadpool(is_known):
            return
        for refusal in (await self._counted(caller, [name])).values():
            raise refusal

    async def require_attempt(self, caller: Caller, key: Key) -> None:
        """Count an attempt, unless it has begun; `RequestRefused` (429) above the limit."""
        for refusal in (await self.refused(caller, [key])).values():
            raise refusal

    async def refused(self, caller: Caller, keys: Iterable[Key]) -> dict[Name, RequestRefused]:
        """Return the attempts, as (job, number), that a push must not begin now, and why."""
        new = {(key.job, key.attempt): None for key in keys if not self._service.intake.is_open(key)}
        if not any(self._limits) or not new:
            return {}
        there = await run_in_threadpool(self._service.records.begun, new)
        return await self._counted(caller, [name for name in new if name not in there])

    async def _counted(self, caller: Caller, new: Sequence[Name]) -> dict[Name, RequestRefused]:
        most = self._limits.push or len(new)
        refused = dict.fromkeys(new[most:], self._too_many_at_once(new[most])) if new[most:] else {}
        for name in new[:most]:
            if not await self._begins(caller, name):
                refused[name] = self._too_many(caller, name)
        return refused

    async def _begins(self, caller: Caller, name: Name) -> bool:
        """Return whether something may begin. All nodes of a job report it at once, and it counts once; so does a job
        that was described before."""
        described = name[0], FACTS_CHANGED
        is_counted = name in self._begun or described in self._begun
        self._begun.pop(described, None)
        self._begun[name] = None
        while len(self._begun) > _REMEMBERED:
            self._begun.popitem(last=False)
        rate = self._limits.minute
        if is_counted or not rate or await self._rates.take(f"births {caller.name}", rate / 60, rate):
            return True
        self._begun.pop(name, None)
        return False

    def _too_many(self, caller: Caller, name: Name) -> RequestRefused:
        cause = f"{caller.name!r} began more than {self._limits.minute} within a minute"
        next_step = "Send it again later, or raise LOGDOCTOR_NEW_JOBS_PER_MINUTE."
        return RequestRefused(429, "too_many_jobs", f"a new attempt of job {name[0]!r}", cause, next_step)

    def _too_many_at_once(self, name: Name) -> RequestRefused:
        cause = f"the push begins more than {self._limits.push}"
        next_step = "Send it again: more are taken each time. Or raise LOGDOCTOR_NEW_JOBS_PER_PUSH."
        return RequestRefused(429, "too_many_jobs", f"a new attempt of job {name[0]!r}", cause, next_step)
