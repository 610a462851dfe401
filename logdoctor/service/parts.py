"""What a process does of the work of a service."""

from typing import NamedTuple


class Parts(NamedTuple):
    """Whether a process `serves`: takes bytes, answers requests, and does what is to be done in one place; and whether
    it `scans`: owns shards of the log, compresses and judges. One process does both where there are no workers."""

    serves: bool = True
    scans: bool = True
