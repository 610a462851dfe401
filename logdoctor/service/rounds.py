"""The order in which attempts take turns: a team with thousands waiting does not hold up the others.

A team is the prefix of jobs that a token is for; all jobs without such a token are one team.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import count

from logdoctor.service.streams import LiveAttempt


class Rounds:
    """One attempt of each team in turn, the team whose last turn is longest ago first. For the watch only."""

    def __init__(self) -> None:
        self._prefixes: tuple[str, ...] = ()
        self._teams: dict[str, str] = {}
        self._turns, self._last = count(1), dict[str, int]()

    def know(self, prefixes: tuple[str, ...]) -> None:
        """Use these token prefixes from now on."""
        self._prefixes, self._teams = prefixes, {}

    def of(self, waiting: Iterable[LiveAttempt]) -> Iterator[LiveAttempt]:
        """Yield attempts, one team after another; those of a team in their order."""
        queues: dict[str, deque[LiveAttempt]] = defaultdict(deque)
        for attempt in waiting:
            queues[self._team(attempt.job)].append(attempt)
        teams = deque(sorted(queues, key=lambda team: self._last.get(team, 0)))
        while teams:
            team = teams.popleft()
            yield queues[team].popleft()
            self._last[team] = next(self._turns)  # a team left out when time is up has not had its turn
            if queues[team]:
                teams.append(team)

    def _team(self, job: str) -> str:
        """Return the longest token prefix of a job; "" if there is none."""
        if job not in self._teams:
            self._teams[job] = max(filter(job.startswith, self._prefixes), key=len, default="")
        return self._teams[job]
