"""Which parts of the service a process runs."""

from typing import NamedTuple


class Parts(NamedTuple):
    """Whether a process `serves` (takes bytes, answers requests, may lead) and `scans` (owns shards of the log,
    compresses, judges). Without workers one process does both."""

    serves: bool = True
    scans: bool = True
