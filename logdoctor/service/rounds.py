"""In which order attempts have their turns: a team that has thousands waiting keeps no other waiting behind them.

A team is who has a token for jobs of one prefix; what no such token is for is of one team.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import count

from logdoctor.service.streams import LiveAttempt


class Rounds:
    """One attempt of each team after the other; that team first which had its last turn longest ago. Only the watch
    uses it."""

    def __init__(self) -> None:
        self._prefixes: tuple[str, ...] = ()
        self._teams: dict[str, str] = {}
        self._turns, self._last = count(1), dict[str, int]()

    def know(self, prefixes: tuple[str, ...]) -> None:
        """Go by these prefixes of tokens from now on."""
        self._prefixes, self._teams = prefixes, {}

    def of(self, waiting: Iterable[LiveAttempt]) -> Iterator[LiveAttempt]:
        """Yield attempts; those of a team as they wait."""
        queues: dict[str, deque[LiveAttempt]] = defaultdict(deque)
        for attempt in waiting:
            queues[self._team(attempt.job)].append(attempt)
        teams = deque(sorted(queues, key=lambda team: self._last.get(team, 0)))
        while teams:
            team = teams.popleft()
            yield queues[team].popleft()
            self._last[team] = next(self._turns)  # who is left out when time is up has not had its turn
            if queues[team]:
                teams.append(team)

    def _team(self, job: str) -> str:
        """Return the longest prefix of a job, "" where it has none."""
        if job not in self._teams:
            self._teams[job] = max(filter(job.startswith, self._prefixes), key=len, default="")
        return self._teams[job]
