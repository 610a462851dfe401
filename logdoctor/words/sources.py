"""What was read besides the log, in one line."""

from collections import Counter
from collections.abc import Sequence

from logdoctor.types import Coverage

_NAMED = 3  # silent streams that are named


def coverage(some: Sequence[Coverage]) -> str:
    """Return which sources were read on how many nodes, and which streams are empty: `kernel: 126 read, 2 refused`."""
    kinds: dict[str, Counter[str]] = {}
    silent = [one.source for one in some if "@" not in one.source]
    for one in some:
        kind, at, _ = one.source.partition("@")
        if at:
            kinds.setdefault(kind, Counter())[one.state] += 1
    absent = [kind for kind, states in kinds.items() if set(states) == {"absent"}]
    said = [f"{kind}: {_states(states)}" for kind, states in kinds.items() if kind not in absent]
    said += [f"not there: {', '.join(absent)}"] if absent else []
    if silent:
        more = f" and {len(silent) - _NAMED:,} more" if len(silent) > _NAMED else ""
        said.append(f"{', '.join(silent[:_NAMED])}{more} wrote nothing")
    return "; ".join(said)


def _states(states: Counter[str]) -> str:
    """Return how often each state occurs; of a single node only the state."""
    if states.total() == 1:
        return next(iter(states))
    return ", ".join(f"{count:,} {state}" for state, count in states.most_common())
