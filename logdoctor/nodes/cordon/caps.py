"""Caps on cordons: a share of the fleet, a number at once, a number per hour. Pure."""

import math
from fractions import Fraction
from typing import NamedTuple

from logdoctor.errors import CordonRefused


class Caps(NamedTuple):
    """`share` of the fleet that may be out at once, whoever cordoned it; `at_once` and `per_hour` limit our own
    cordons."""

    share: float = 0.05
    at_once: int = 4
    per_hour: int = 2

    def most_out(self, fleet: int) -> int:
        """Return how many nodes of a fleet may be out."""
        return _part(self.share, fleet)


def check(caps: Caps, fleet: int, cordoned_now: int, ours_now: int, ours_last_hour: int) -> None:
    """Raise `CordonRefused`, naming the cap, unless one more node may be cordoned.

    `fleet` counts all nodes, `cordoned_now` those that are out (ours and others'). A share is rounded down, but to no
    less than one of several nodes: of 19 nodes 5 % is 1.
    """
    ours = "cordoned by logdoctor"
    rules = (
        (_part(caps.share, fleet), cordoned_now, f"{caps.share:.4g} of {fleet} nodes", "cordoned now", "SHARE"),
        (caps.at_once, ours_now, f"{caps.at_once} at once", f"{ours} now", "AT_ONCE"),
        (caps.per_hour, ours_last_hour, f"{caps.per_hour} an hour", f"{ours} in the last hour", "PER_HOUR"),
    )
    for most, already, cap, what, setting in rules:
        if already + 1 > most:
            cause = f"would exceed the cap of {cap} (at most {max(most, 0)}): {already} {what}"
            raise CordonRefused("a cordon", cause, f"Uncordon a node, wait, or raise LOGDOCTOR_CORDON_{setting}.")


def _part(share: float, fleet: int) -> int:
    """Return the whole nodes in a share of the fleet, by its decimal digits: 0.29 of 100 is 29, 0.05 of 9 is 1."""
    if not 0 < share <= 1:
        return 0
    return max(math.floor(Fraction(str(share)) * fleet), int(fleet > 1))
